"""Reshardings on a cluster, as each of its ranks runs and times them."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import cocoll
from benchmarks.common.reshard_cases import Entry, ReshardCase, plan_entries
from cocoll.resharding.solvers import SOLVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from benchmarks.hosts.dtensor import DTensorPeer
    from cocoll.resharding import Layout

__all__ = ["PEER", "measure_case", "measure_slowness"]

#: What a peer's records are called.
PEER = "dtensor"

# What the samples of one case may take; each entry gets its share of it, and one sample at least.
_CASE_SECONDS = 4.0
_LEAST_SAMPLES_OF_AUTO = 3
# Of what takes so long the first sample is the only one: what it is slower by does not count.
_SLOW_SECONDS = 1.0
# The same where there is a peer: a ratio wants more samples of both.
_PEER_CASE_SECONDS = 16.0
_LEAST_SAMPLES_BESIDE_PEER = 5
# So long that what every call costs does not count.
_PORT_BYTES = 64 << 20


class _Run(Protocol):
    def __call__(self, *, check: bool) -> tuple[float, bool] | None:
        """Give the slowest rank's seconds, and whether all was right, if checked; None: failed."""


def measure_case(
    comm: cocoll.Communicator, case: ReshardCase, rounds: int, peer: DTensorPeer | None = None
) -> list[Entry]:
    """Check and time every schedule of a case in turn. Collective.

    Parameters
    ----------
    comm : cocoll.Communicator
        All ranks of the cluster.
    case : ReshardCase
        For which there are hosts enough.
    rounds : int
        How many samples of each there are at most.
    peer : DTensorPeer, optional
        What to compare with; then `auto` alone is measured beside it.

    Returns
    -------
    list of Entry
        With samples; on all ranks the same.
    """
    src, dst = case.meshes(comm.topology)
    move = cocoll.TensorMove(case.shape, (src, case.src_spec), (dst, case.dst_spec), case.dtype)
    source, target = move.layouts()
    x = _indices(source, comm.rank, case.dtype)
    out = None if comm.rank not in dst else np.empty(target.shape_of(comm.rank), case.dtype)
    wanted = _indices(target, comm.rank, "int32")
    entries = plan_entries(
        lambda solver: cocoll.plan_reshard(move, solver=solver, comm=comm).planned,
        SOLVERS if peer is None else ("auto",),
    )
    runs: list[_Run] = []
    for entry in entries:
        bound = cocoll.plan_reshard(move, solver=entry.names[0], comm=comm).bind(x, out=out)
        runs.append(_runs_of(comm, bound, wanted, out))
    if peer is None:
        _take_turns(entries, runs, rounds, _CASE_SECONDS, _LEAST_SAMPLES_OF_AUTO)
        return entries
    peer.prepare(source, target)
    entries.append(Entry([PEER], None, None, [], version=peer.version))
    runs.append(peer.run)
    _take_turns(entries, runs, rounds, _PEER_CASE_SECONDS, _LEAST_SAMPLES_BESIDE_PEER)
    peer.release()
    return entries


def measure_slowness(comm: cocoll.Communicator) -> float:
    """Give how long a port takes for a byte, in units of what its topology says. Collective."""
    hosts = comm.topology.hosts_by_rank
    first, other = hosts.index(0), hosts.index(1)
    sides = (cocoll.Mesh([first]), "R"), (cocoll.Mesh([other]), "R")
    move = cocoll.TensorMove((_PORT_BYTES,), *sides, "uint8")
    planned = cocoll.plan_reshard(move, solver="send_recv", comm=comm)
    bound = planned.bind(np.zeros(_PORT_BYTES, np.uint8) if comm.rank == first else None)
    seconds = statistics.median(_time(comm, bound) for _ in range(3))
    return seconds / planned.bound_seconds


def _take_turns(
    entries: Sequence[Entry],
    runs: Sequence[_Run],
    rounds: int,
    case_seconds: float,
    least_samples: int,
) -> None:
    budget_seconds = case_seconds / len(entries)
    for turn in range(rounds + 1):
        for entry, run in zip(entries, runs, strict=True):
            is_compared = "auto" in entry.names or PEER in entry.names
            enough = turn > (least_samples if is_compared else 0)
            if turn == 1 and not is_compared and max(entry.samples, default=0.0) > _SLOW_SECONDS:
                continue
            if enough and sum(entry.samples) + entry.samples[-1] > budget_seconds:
                continue
            # What comes first also finds out whether it is right, and is slower.
            found = run(check=turn == 0) if entry.is_right else None
            if found is None:
                entry.is_right, entry.samples = False, []
                continue
            seconds, is_right = found
            if turn == 0:
                entry.is_right, entry.samples = is_right, [seconds]
                continue
            if turn == 1:
                entry.samples.clear()
            entry.samples.append(seconds)


def _runs_of(
    comm: cocoll.Communicator,
    call: Callable[[], object],
    wanted: NDArray[Any] | None,
    out: NDArray[Any] | None,
) -> _Run:
    def run(*, check: bool) -> tuple[float, bool]:
        if check and out is not None:
            out.view(np.int32).fill(-1)
        seconds = _time(comm, call)
        if not check:
            return seconds, True
        is_right = wanted is None or out is None or np.array_equal(wanted, out.view(np.int32))
        least = np.array([int(is_right)], np.int32)
        cocoll.allreduce(least, "min", comm=comm)
        return seconds, bool(least[0])

    return run


def _time(comm: cocoll.Communicator, call: Callable[[], object]) -> float:
    """Give the slowest rank's seconds."""
    cocoll.barrier(comm=comm)
    begin = time.perf_counter()
    call()
    seconds = np.array([time.perf_counter() - begin])
    cocoll.allreduce(seconds, "max", comm=comm)
    return float(seconds[0])


def _indices(layout: Layout, rank: int, dtype: str) -> NDArray[Any] | None:
    """Give a shard whose elements are, as bits, their own places in the whole tensor."""
    if rank not in layout.mesh:
        return None
    total: NDArray[Any] = np.zeros((), np.int32)
    for length, (start, stop) in zip(layout.shape, layout.box_of(rank), strict=True):
        total = total[..., None] * np.int32(length) + np.arange(start, stop, dtype=np.int32)
    return np.ascontiguousarray(total).view(dtype)
