"""What a call costs: 8 bytes, back to back, plain and bound, against C and against mpi4py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.common.cases import Group, View
from benchmarks.common.suite import External, Suite
from benchmarks.peers.launch import MPI_PEERS, ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CALLS", "SUITE", "c_loop_command"]

#: Calls in one sample.
CALLS = 100_000

_PAYLOAD_BYTES = 8


def c_loop_command(ranks: int, payload_bytes: int, calls: int) -> tuple[str, ...] | None:
    """Give the program that makes the same call from C, or None if it has not been built.

    The program runs an all-reduce (float32 sum, in place, symmetric) of `payload_bytes` over
    `ranks` ranks of its own, `calls` times back to back, pinned as the other jobs are, and prints
    one JSON object: ``seconds_per_call`` (the slowest rank's) and, if it has measured it,
    ``one_way_nanoseconds`` (a ping-pong of about 40 us between its ranks just before).
    """
    program = ROOT / "tests" / "native" / "build" / "call_overhead"
    if not program.exists():
        return None
    return (str(program), str(ranks), str(payload_bytes), str(calls))


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
