"""The symmetric heap: the same offsets on every rank, given out by the same rules.

An allocation is collective, a release is not: a rank that drops an array only marks its block. At
the next allocation the ranks tell each other their marks, and blocks that all of them have marked
return to the free list. So no destructor ever waits, and garbage collection may run in any order.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import math
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cocoll import _core
from cocoll.array import numpy_dtype
from cocoll.errors import CollectiveMismatchError
from cocoll.failure import Purpose

if TYPE_CHECKING:
    import numpy as np

    from cocoll.dtypes import DType

__all__ = ["Allocation", "SymmetricHeap", "SymmetricMemory"]

_CACHE_LINE_BYTES = 64
_HUGE_PAGE_BYTES = 2 << 20
# Large blocks start on a huge page plus a stagger, so that equal places of several arrays
# (gradient, parameters, moments) do not fall on the same sets of the L1 cache. 37 lines is odd, so
# that successive blocks visit all 64 sets of a 32 KiB 8-way cache.
_STAGGER_BYTES = 37 * _CACHE_LINE_BYTES
_STAGGER_STEPS = 64
# What a size may be in native code; more is refused there as more than there is.
_LARGEST_BYTES = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Allocation:
    """A block of the heap.

    Attributes
    ----------
    key : int
        Its number, equal on all ranks.
    offset_bytes : int
        Where the array starts.
    span_start_bytes, span_stop_bytes : int
        The whole range that the block keeps from others.
    """

    key: int
    offset_bytes: int
    span_start_bytes: int
    span_stop_bytes: int


class SymmetricHeap:
    """First fit over a range of offsets; deterministic, so that ranks need not compare notes.

    Parameters
    ----------
    start_bytes : int
        The first offset that may be given out.
    stop_bytes : int, optional
        One past the last. Default: it has no end.
    """

    def __init__(self, start_bytes: int, stop_bytes: int | None = None) -> None:
        self._top_bytes = start_bytes
        self._stop_bytes = stop_bytes
        self._free: list[tuple[int, int]] = []
        self._live: dict[int, Allocation] = {}
        self._marks: set[int] = set()
        self._next_key = 0

    @property
    def top_bytes(self) -> int:
        """One past the highest offset that was ever given out."""
        return self._top_bytes

    @property
    def live_bytes(self) -> int:
        """What live blocks keep, their padding included."""
        return sum(a.span_stop_bytes - a.span_start_bytes for a in self._live.values())

    def allocate(self, size_bytes: int) -> Allocation:
        """Give a block of at least `size_bytes`; the caller makes the memory usable.

        Raises
        ------
        MemoryError
            There is no room below `stop_bytes`.
        """
        large = size_bytes >= _HUGE_PAGE_BYTES // 2
        unit = _HUGE_PAGE_BYTES if large else 4096
        stagger = self._next_key % _STAGGER_STEPS * _STAGGER_BYTES if large else 0
        needed = -(-max(size_bytes + stagger, 1) // unit) * unit
        start = self._take(needed, unit)
        allocation = Allocation(self._next_key, start + stagger, start, start + needed)
        self._live[allocation.key] = allocation
        self._next_key += 1
        return allocation

    def _take(self, needed_bytes: int, unit_bytes: int) -> int:
        for index, (start, stop) in enumerate(self._free):
            aligned = -(-start // unit_bytes) * unit_bytes
            if aligned + needed_bytes <= stop:
                del self._free[index]
                self._give(start, aligned)
                self._give(aligned + needed_bytes, stop)
                return aligned
        # A free range that ends at the top grows upwards; beside it would be a hole for ever.
        start = self._top_bytes
        grows = bool(self._free) and self._free[-1][1] == start
        if grows:
            start = self._free[-1][0]
        aligned = -(-start // unit_bytes) * unit_bytes
        if self._stop_bytes is not None and aligned + needed_bytes > self._stop_bytes:
            raise MemoryError(f"no {needed_bytes} bytes are left")
        if grows:
            self._free.pop()
        self._give(start, aligned)
        self._top_bytes = aligned + needed_bytes
        return aligned

    def _give(self, start: int, stop: int) -> None:
        # Insert a free range and join it with its neighbours.
        if start >= stop:
            return
        index = bisect.bisect(self._free, (start, stop))
        if index > 0 and self._free[index - 1][1] == start:
            index -= 1
            start = self._free.pop(index)[0]
        if index < len(self._free) and self._free[index][0] == stop:
            stop = self._free.pop(index)[1]
        self._free.insert(index, (start, stop))

    def mark(self, key: int) -> None:
        """Note that this rank has dropped a block."""
        if key in self._live:
            self._marks.add(key)

    @property
    def marks(self) -> list[int]:
        """What this rank has dropped and not all ranks have."""
        return sorted(self._marks)

    def reclaim(self, marks_of_all_ranks: list[list[int]]) -> None:
        """Free what every rank has dropped; every rank gives the same lists."""
        common = set.intersection(*(set(marks) for marks in marks_of_all_ranks))
        for key in sorted(common):
            allocation = self._live.pop(key)
            self._marks.discard(key)
            self._give(allocation.span_start_bytes, allocation.span_stop_bytes)


class _ShardMemory(mmap.mmap):
    """Private memory of one shard; its end takes the shard off the communicator's list."""

    _listed: tuple[dict[int, int], int] | None = None

    def list_in(self, shards: dict[int, int], address: int, count: int) -> None:
        """Enter the shard into the list; it leaves the list before its memory goes."""
        shards[address] = count
        self._listed = (shards, address)

    def __del__(self) -> None:
        # Not a weak reference: an mmap calls those once it is unmapped, when another thread may
        # have been given the same address.
        if self._listed is not None:
            shards, address = self._listed
            shards.pop(address, None)


class SymmetricMemory:
    """The arrays of one communicator: symmetric, replicated, and this rank's shards.

    The communicator owns this object and hands itself in: a reference back would be a cycle.

    Parameters
    ----------
    start_bytes : int
        The first byte of a rank's segment that arrays may use.
    """

    def __init__(self, start_bytes: int) -> None:
        self._heaps = {False: SymmetricHeap(start_bytes), True: SymmetricHeap(0)}

    def empty(
        self,
        comm: _core.CommunicatorBase,
        shape: tuple[int, ...],
        dtype: DType,
        replicated: bool,
    ) -> np.ndarray[Any, Any]:
        """Make an array in memory that all ranks map; see `Communicator.empty`."""
        import numpy as np

        count = math.prod(shape)
        request = [list(shape), dtype.label, replicated]
        block = self._allocate(comm, count * dtype.itemsize_bytes, request, replicated)
        array: np.ndarray[Any, Any] = np.frombuffer(
            memoryview(block), numpy_dtype(dtype), count=count
        ).reshape(shape)
        if replicated:
            array.flags.writeable = False
        return array

    def _allocate(
        self,
        comm: _core.CommunicatorBase,
        size_bytes: int,
        request: list[Any],
        replicated: bool,
    ) -> _core.Block:
        heap = self._heaps[replicated]
        for was_replicated, key in comm._take_freed():
            self._heaps[was_replicated].mark(key)
        marks = [self._heaps[kind].marks for kind in (False, True)]
        message = json.dumps([request, marks]).encode()
        everyone = [json.loads(data) for data in _core.exchange(comm, Purpose.EMPTY, message)]
        _check_requests([theirs for theirs, _ in everyone])
        for kind in (False, True):
            self._heaps[kind].reclaim([theirs[kind] for _, theirs in everyone])
        allocation = heap.allocate(size_bytes)
        # Replicated memory belongs to the first rank of a host; the others only map it.
        error = 0
        if not replicated or comm._is_leader():
            # Not as far as the top: a block above may be one that could not be made.
            error = comm._grow(replicated, min(allocation.span_stop_bytes, _LARGEST_BYTES))
        errors = _core.exchange(comm, Purpose.EMPTY, str(error).encode())
        for rank, code in enumerate(map(int, errors)):
            if code:
                heap.mark(allocation.key)
                raise OSError(
                    code,
                    f"{os.strerror(code)}: rank {rank} has no {size_bytes} bytes of shared memory "
                    f"left for comm.empty",
                )
        return comm._block(
            replicated, allocation.offset_bytes, size_bytes, (replicated, allocation.key)
        )

    def shard_zeros(
        self, comm: _core.CommunicatorBase, count: int, length: int, dtype: DType
    ) -> np.ndarray[Any, Any]:
        """Make a zeroed private array for this rank's shard; see `Communicator.shard_zeros`."""
        import numpy as np

        # An empty shard has an address too: by that calls know that shards are meant.
        size_bytes = length * dtype.itemsize_bytes
        shards = comm.shard_counts
        span_bytes, stagger_bytes = max(size_bytes, 1), 0
        if size_bytes >= _HUGE_PAGE_BYTES // 2:
            stagger_bytes = (len(shards) + 1) % _STAGGER_STEPS * _STAGGER_BYTES
            span_bytes = -(-(size_bytes + stagger_bytes) // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
        memory = _ShardMemory(-1, span_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Where the kernel has no huge pages the small ones serve.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        array = np.frombuffer(memory, numpy_dtype(dtype), count=length, offset=stagger_bytes)
        memory.list_in(shards, array.__array_interface__["data"][0], count)
        return array


def _check_requests(requests: list[list[Any]]) -> None:
    if all(request == requests[0] for request in requests):
        return
    listing = {
        rank: f"empty({tuple(shape)}, {label!r}, replicated={replicated})"
        for rank, (shape, label, replicated) in enumerate(requests)
    }
    raise CollectiveMismatchError(
        "the ranks asked for different arrays; none was made: "
        + "; ".join(f"rank {rank}: {text}" for rank, text in listing.items()),
        requests=listing,
    )
