"""The symmetric heap: the same offsets on every rank, given out by the same rules.

An allocation is collective, a release is not: a rank that drops an array only marks its block. At
the next allocation the ranks tell each other their marks, and blocks that all of them have marked
return to the free list. So no destructor ever waits, and garbage collection may run in any order.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

__all__ = ["Allocation", "SymmetricHeap"]

_CACHE_LINE_BYTES = 64
_HUGE_PAGE_BYTES = 2 << 20
# Large blocks start on a huge page plus a stagger, so that equal places of several arrays (gradient,
# parameters, moments) do not fall on the same sets of the L1 cache. 37 lines is odd, so that
# successive blocks visit all 64 sets of a 32 KiB 8-way cache.
_STAGGER_BYTES = 37 * _CACHE_LINE_BYTES
_STAGGER_STEPS = 64


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
    """

    def __init__(self, start_bytes: int) -> None:
        self._top_bytes = start_bytes
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
        """Give a block of at least `size_bytes`; the caller makes the memory usable."""
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
        aligned = -(-self._top_bytes // unit_bytes) * unit_bytes
        self._give(self._top_bytes, aligned)
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
