"""Ranks as processes of this host, without a launcher: for tests of memory and of deaths."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cocoll import _core
from cocoll.bootstrap import SocketBootstrap
from cocoll.communicator import Communicator

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["Outcome", "run_processes"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a rank.

    Attributes
    ----------
    value : object
        What the function returned.
    error : BaseException or None
        What it raised.
    exit_code : int
        Of the process; negative where a signal ended it.
    seconds : float
        From the start of all ranks to the report of this one, in seconds.
    """

    value: Any
    error: BaseException | None
    exit_code: int | None
    seconds: float


def run_processes(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    limit_seconds: float = 60.0,
    **settings: Any,
) -> list[Outcome]:
    """Call a function once per rank, each in a process with a communicator of its own.

    Parameters
    ----------
    world_size : int
        How many ranks.
    function : callable
        At module level; receives the communicator and `args`.
    *args : object
        Passed on; must pickle.
    limit_seconds : float, default 60
        Processes that live longer are killed.
    **settings : object
        Fields of `cocoll.config.Settings`.

    Returns
    -------
    list of Outcome
        In rank order; nothing is raised.
    """
    context = multiprocessing.get_context("spawn")
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="cocoll-") as folder:
        path = Path(folder) / "ranks"
        started = time.monotonic()
        ranks = []
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(str(path), rank, world_size, function, args, settings, sender)
            )
            process.start()
            sender.close()
            ranks.append((process, receiver))
        reports = _collect([receiver for _, receiver in ranks], started, limit_seconds)
        for (process, _), (value, error, seconds) in zip(ranks, reports, strict=True):
            process.join(max(0.0, started + limit_seconds - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            outcomes.append(Outcome(value, error, process.exitcode, seconds))
    return outcomes


def _collect(
    receivers: list[Connection], started: float, limit_seconds: float
) -> list[tuple[Any, BaseException | None, float]]:
    reports: dict[int, tuple[Any, BaseException | None, float]] = {}
    open_ends = {id(receiver): rank for rank, receiver in enumerate(receivers)}
    while len(reports) < len(receivers):
        left = started + limit_seconds - time.monotonic()
        waiting = [end for rank, end in enumerate(receivers) if rank not in reports]
        ready = multiprocessing.connection.wait(waiting, max(0.0, left))
        if not ready:
            break
        for end in ready:
            rank = open_ends[id(end)]
            seconds = time.monotonic() - started
            try:
                value, error = receivers[rank].recv()
            except EOFError:
                value, error = None, None
            reports[rank] = (value, error, seconds)
    return [reports.get(rank, (None, None, limit_seconds)) for rank in range(len(receivers))]


def _rank(
    path: str,
    rank: int,
    world_size: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    settings: dict[str, Any],
    sender: Connection,
) -> None:
    value, error = None, None
    try:
        bootstrap = SocketBootstrap(path, rank, world_size, timeout_seconds=60.0)
        with Communicator(bootstrap, **settings) as comm:
            bootstrap.close()
            _core.default_communicator.set(comm)
            value = function(comm, *args)
    except BaseException as failure:
        error = failure
    sender.send((value, error))
    sender.close()
