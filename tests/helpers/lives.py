"""What a process uses, and functions that process ranks run for tests of it."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import numpy as np

import cocoll
from cocoll import epilogues

__all__ = [
    "available_bytes",
    "call_with_many_lengths",
    "drop_works",
    "keep_arrays_until_exit",
    "make_and_close_communicators",
    "resources",
    "sum_markers",
]

#: Arrays that live until the interpreter ends.
KEPT: list[Any] = []


def available_bytes() -> int:
    """Give the memory that this machine can still hand out."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo does not say what memory is available")


def resources() -> dict[str, int]:
    """Give this process's resident bytes, open files, mappings and threads."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "resident_bytes": int(status["VmRSS"].split()[0]) * 1024,
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "threads": int(status["Threads"]),
    }


def call_with_many_lengths(comm: cocoll.Communicator, calls: int, first: int) -> Any:
    """Call with another length each time; give the use after `first` and at the end."""
    random_counts = random.Random(16)
    scale = epilogues.scale(0.5)
    seen = []
    for turn in range(1, calls + 1):
        x = np.ones(30_000 - turn, np.float32)
        cocoll.allreduce(x, comm=comm)
        assert x[0] == x[-1] == comm.world_size
        y = np.ones(random_counts.randrange(1, 20_000), np.float32)
        cocoll.allreduce_fused(y, scale, comm=comm)
        assert y[0] == comm.world_size / 2
        # Made anew each time, as a careless caller does: programs are kept, but not without end.
        z = np.ones(100, np.float32)
        cocoll.allreduce_fused(z, epilogues.scale(2.0), comm=comm)
        if turn in (first, calls):
            seen.append({**resources(), "programs": comm.cached_programs})
    return seen


def make_and_close_communicators(comm: cocoll.Communicator, times: int, first: int) -> Any:
    """Duplicate and close; give the use after `first` and at the end."""
    seen = []
    for turn in range(1, times + 1):
        with comm.duplicate() as child:
            x = child.empty(1_000)
            x[...] = 1
            cocoll.allreduce(x, comm=child)
            assert x[0] == comm.world_size
            del x
        if turn in (first, times):
            seen.append(resources())
    return seen


def drop_works(comm: cocoll.Communicator, works: int, first: int) -> Any:
    """Issue on a stream and drop what is returned; give the use after `first`, at the end."""
    x = np.ones(64, np.float32)
    seen = []
    with cocoll.Stream() as stream:
        for turn in range(1, works + 1):
            cocoll.allreduce(x, "max", comm=comm, stream=stream)
            if turn % 250 == 0:
                # What waits in the queue is memory in use, however long a busy machine lets it get.
                stream.synchronize()
            if turn in (first, works):
                seen.append(resources())
    assert (x == 1).all()
    return seen


def keep_arrays_until_exit(comm: cocoll.Communicator) -> Any:
    """Leave arrays and the communicator itself in globals when the interpreter ends."""
    arrays = [comm.empty(1 << 18), comm.empty(1_000, replicated=True), comm.shard_zeros(1 << 20)]
    arrays[0][...] = comm.rank
    cocoll.allreduce(arrays[0], comm=comm)
    KEPT.extend([*arrays, comm, comm.bind(cocoll.allreduce, arrays[0]), cocoll.Stream()])
    cycle: list[Any] = [comm.empty(5)]
    cycle.append(cycle)
    return float(arrays[0][-1])


def sum_markers(comm: cocoll.Communicator) -> Any:
    """Move vectors of more than 2^31 bytes, with markers where 32-bit offsets would turn."""
    size, rank = comm.world_size, comm.rank
    count = 2**31 + 7
    places = (0, 2**31 - 1, 2**31, 2**31 + 6)

    def check(array: np.ndarray[Any, Any], base: int = 0) -> None:
        for number, spot in enumerate(places):
            if base <= spot < base + array.size:
                assert array[spot - base] == 10 * (number + 1) + size - 1, spot
        # A handful of markers, and zeros: the sum sees anything that is out of place.
        inside = [n for n, spot in enumerate(places) if base <= spot < base + array.size]
        wanted = sum(10 * (number + 1) + size - 1 for number in inside)
        assert int(array.sum(dtype=np.uint64)) == wanted

    def fill(array: np.ndarray[Any, Any]) -> None:
        array[...] = 0
        for number, spot in enumerate(places):
            array[spot] = 10 * (number + 1) + rank

    x = np.zeros(count, np.uint8)
    fill(x)
    cocoll.allreduce(x, "max", comm=comm)
    check(x)
    fill(x)
    start, stop = comm.shard_range(count)
    shard = np.zeros(stop - start, np.uint8)
    cocoll.reduce_scatter(x, "max", out=shard, layout="shard", comm=comm)
    check(shard, start)
    x[...] = 0
    cocoll.allgather(shard, out=x, layout="shard", comm=comm)
    check(x)
    fill(x)
    cocoll.broadcast(x, size - 1, comm=comm)
    check(x)
    del x, shard
    y = comm.empty(2**29 + 3)
    y[...] = 0
    for spot in (0, 2**29 - 1, 2**29, 2**29 + 2):
        y[spot] = spot % 1000 + rank
    cocoll.allreduce(y, comm=comm)
    for spot in (0, 2**29 - 1, 2**29, 2**29 + 2):
        assert y[spot] == size * (spot % 1000) + sum(range(size)), spot
    assert np.count_nonzero(y) == 4
    return True
