"""Ranks as threads of one process: every collective without a launcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cocoll import _core
from cocoll.bootstrap import ThreadBootstrap
from cocoll.communicator import Communicator
from cocoll.errors import AbortedError, PeerLostError

if TYPE_CHECKING:
    from cocoll.tuning import Tuning

__all__ = ["run_ranks"]

T = TypeVar("T")


def run_ranks(
    world_size: int,
    function: Callable[[Communicator], T],
    *,
    tuning: Tuning | None = None,
    timeout_seconds: float = 60.0,
    hosts: Sequence[int] | None = None,
    seed: int = 0,
    **settings: Any,
) -> list[T]:
    """Call a function once per rank, each in a thread with a communicator of its own.

    Parameters
    ----------
    world_size : int
        How many ranks.
    function : callable
        Receives the rank's communicator, which is also the default one of its thread.
    tuning : Tuning, optional
        Algorithm limits.
    timeout_seconds : float, default 60
        How long a rank waits for the others.
    hosts : sequence of int, optional
        Lets the ranks behave as if they were on these hosts: see `ThreadBootstrap.create`. Default:
        one host.
    seed : int, default 0
        Of the times that messages between hosts take.
    **settings : object
        Further fields of `cocoll.config.Settings`.

    Returns
    -------
    list
        What the calls returned, in rank order.

    Raises
    ------
    BaseException
        What a rank raised: the cause before its consequences, the lowest rank first. The other
        ranks are released at once.
    """
    results: list[Any] = [None] * world_size
    errors: dict[int, BaseException] = {}

    def body(bootstrap: ThreadBootstrap) -> None:
        try:
            comm = Communicator(
                bootstrap, tuning=tuning, timeout_seconds=timeout_seconds, **settings
            )
        except BaseException as error:
            errors[bootstrap.rank] = error
            bootstrap.give_up()
            return
        token = _core.default_communicator.set(comm)
        try:
            with comm:
                results[bootstrap.rank] = function(comm)
        except BaseException as error:
            errors[bootstrap.rank] = error
        finally:
            _core.default_communicator.reset(token)

    threads = [
        threading.Thread(target=body, args=(bootstrap,), name=f"rank {bootstrap.rank}")
        for bootstrap in ThreadBootstrap.create(world_size, timeout_seconds, hosts=hosts, seed=seed)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        consequences = AbortedError | PeerLostError
        first = min(errors, key=lambda rank: (isinstance(errors[rank], consequences), rank))
        raise errors[first]
    return results
