"""What a call costs: 8 bytes, back to back, plain and bound, against C and against mpi4py."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from benchmarks.common.cases import Group, View
from benchmarks.common.suite import External, Suite
from benchmarks.peers.launch import MPI_PEERS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CALLS", "SUITE", "c_loop_command"]

#: Calls in one sample.
CALLS = 100_000

_PAYLOAD_BYTES = 8


def c_loop_command(ranks: int, payload_bytes: int, calls: int) -> tuple[str, ...] | None:
    """Build the program that makes the same call from C, and give the command that runs it.

    Parameters
    ----------
    ranks, calls : int
        Processes, which the program starts itself, and timed calls.
    payload_bytes : int
        The program knows 8 bytes alone: for others there is none.

    Returns
    -------
    tuple of str or None
        A command that prints one JSON object as :class:`~benchmarks.common.suite.External` says.

    Raises
    ------
    RuntimeError
        It cannot be built; the message is the compiler's.
    """
    if payload_bytes != _PAYLOAD_BYTES:
        return None
    # It is a program of the native tests, which need a checkout and a compiler; nothing else of
    # the benchmarks does.
    call_loop = importlib.import_module("tests.native.call_loop")
    return tuple(call_loop.build_command(ranks, calls))


def _groups(
    ranks: int, sizes_bytes: Sequence[int] | None, dtypes: Sequence[str] | None
) -> list[Group]:
    if dtypes and list(dtypes) != ["float32"]:
        raise ValueError(f"the suite call_overhead knows float32 alone; got {', '.join(dtypes)}")
    return [
        Group(
            suite="call_overhead",
            operation="allreduce",
            dtype="float32",
            ranks=ranks,
            elements=max(1, size_bytes // 4),
            calls_per_sample=CALLS,
        )
        for size_bytes in sizes_bytes or (_PAYLOAD_BYTES,)
    ]


def _views(group: Group) -> list[View]:
    return [
        View("bound", "symmetric", "bound", None, MPI_PEERS, ("c_loop",)),
        View("call", "symmetric", "call", None, MPI_PEERS, ("c_loop",)),
        View("call_ordinary", "ordinary", "call_ordinary", None, MPI_PEERS, ("c_loop",)),
    ]


def _externals(group: Group) -> list[External]:
    command = c_loop_command(group.ranks, group.input_bytes, group.calls_per_sample)
    return [External("c_loop", "yardstick", command)] if command else []


SUITE = Suite(
    name="call_overhead",
    peers=MPI_PEERS,
    default_ranks=(1, 2),
    groups=_groups,
    limits=lambda group: [],
    views=_views,
    externals=_externals,
)
