"""Which bytes a view means, so that two views can be compared wherever their arrays lie."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cocoll.errors import UsageError
from cocoll.plan.ir import Buffer, Plan, View
from cocoll.plan.ranges import block_elements, block_range, origin_element

__all__ = ["LINE_BYTES", "Aliasing", "Extent", "MemoryMap", "Relation", "Space"]

#: The payload of an arrival line.
LINE_BYTES = 64

# The owner of memory of which host h has one physical copy for all its ranks: -1 - h.
_FIRST_HOST = -1


class Relation(enum.Enum):
    """How a result's array lies to the source's array of the same rank (docs/plans.md, rule 6)."""

    DISJOINT = "disjoint"
    IDENTICAL = "identical"
    RESULT_IS_SHARD = "the result is this rank's block of the source"
    SOURCE_IS_SHARD = "the source is this rank's block of the result"


@dataclass(frozen=True, slots=True)
class Aliasing:
    """Which of the caller's arrays share memory.

    Parameters
    ----------
    relation : Relation, default Relation.DISJOINT
        How result `result` lies to the source, on every rank.
    result : int, default 0
        The result that `relation` speaks of; the others are disjoint from the source.
    replicated_results : bool, default False
        All results are one physical copy on every host, mapped by all its ranks.
    updated_operands : sequence of (int, int), default ()
        Pairs of operand and result: the operand is that result's array (a replicated operand that
        the epilogue updates).

    Raises
    ------
    UsageError
        A replicated result cannot also be a rank's own source.
    """

    relation: Relation = Relation.DISJOINT
    result: int = 0
    replicated_results: bool = False
    updated_operands: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse a result that would be private and shared at once."""
        if self.replicated_results and self.relation is not Relation.DISJOINT:
            raise UsageError(
                "a replicated result is one copy for all ranks and a source is each rank's own: "
                f"wanted disjoint arrays, got {self.relation.value}"
            )


class Space(NamedTuple):
    """One contiguous piece of memory, apart from all others."""

    buffer: Buffer
    rank: int
    which: int
    copy: int

    @property
    def is_shared(self) -> bool:
        """Whether it is one copy for all ranks of a host, which the callers only read."""
        return self.rank <= _FIRST_HOST

    @property
    def host(self) -> int:
        """Whose copy it is, where it is shared."""
        return _FIRST_HOST - self.rank

    def __str__(self) -> str:
        """Name the memory for an error message."""
        owner = f"rank {self.rank}"
        if self.is_shared:
            owner = "all ranks" + (f" of host {self.host}" if self.host else "")
        which = f" {self.which}" if not self.buffer.is_scratch else ""
        copy = f" (copy {self.copy})" if self.buffer.copies > 1 else ""
        return f"{Buffer(self.buffer).name}{which}{copy} of {owner}"


class Extent(NamedTuple):
    """Bytes ``[start, stop)`` of a space, as elements of one size."""

    space: Space
    start: int
    stop: int
    itemsize_bytes: int

    def overlaps(self, other: Extent) -> bool:
        """Whether both contain a byte."""
        return self.space == other.space and self.start < other.stop and other.start < self.stop

    def __str__(self) -> str:
        """Name the bytes for an error message."""
        return f"bytes [{self.start}, {self.stop}) of {self.space}"


class MemoryMap:
    """Resolves views for one operation: a count, an aliasing and a sequence number.

    Parameters
    ----------
    plans : sequence of Plan
        Of all ranks.
    aliasing : Aliasing
        Which of the caller's arrays share memory.
    count : int
        Elements of the vector.
    sequence_number : int
        Position in the communicator's sequence; selects the copy of double-buffered scratch.
    """

    def __init__(
        self, plans: Sequence[Plan], aliasing: Aliasing, count: int, sequence_number: int
    ) -> None:
        self._count = count
        self._block_elements = block_elements(count, len(plans), plans[0].alignment_elements)
        self._aliasing = aliasing
        self._sequence_number = sequence_number
        self._hosts = plans[0].hosts
        self._updated = dict(aliasing.updated_operands)
        self._places: dict[tuple[Buffer, int, int], tuple[Space, int]] = {}

    def locate(self, view: View, iteration: int, first: int, stop: int) -> Extent | str:
        """Give the bytes of elements ``[first, stop)``, or say why the view cannot hold them."""
        itemsize = view.itemsize_bytes
        length_bytes = (stop - first) * itemsize
        space, base = self._place(view)
        if view.slots:
            if length_bytes > view.slot_bytes:
                return f"a chunk of {length_bytes} bytes overruns its slot of {view.slot_bytes}"
            start = base + view.offset_bytes + iteration % view.slots * view.slot_bytes
        else:
            origin = origin_element(view.origin, self._count, self._block_elements)
            if first < origin:
                return f"element {first} lies before the array's first element, {origin}"
            start = base + view.offset_bytes + (first - origin) * itemsize
        if space.buffer is Buffer.LINE and start + length_bytes > LINE_BYTES:
            return f"byte {start + length_bytes} lies past the arrival line's {LINE_BYTES}"
        return Extent(space, start, start + length_bytes, itemsize)

    def _place(self, view: View) -> tuple[Space, int]:
        key = (view.buffer, view.rank, view.index)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._resolve(view)
        return place

    def _resolve(self, view: View) -> tuple[Space, int]:
        """Give the space of a view's buffer and the byte in it where the buffer begins."""
        buffer, index = view.buffer, view.index
        if buffer.is_scratch:
            copy = self._sequence_number % buffer.copies
            return Space(buffer, view.rank, index, copy), 0
        aliasing = self._aliasing
        if buffer is Buffer.OPERAND and index in self._updated:
            buffer, index = Buffer.RESULT, self._updated[index]
        if buffer is Buffer.RESULT:
            if aliasing.replicated_results:
                host = 0 if self._hosts is None else self._hosts[view.rank]
                return Space(buffer, _FIRST_HOST - host, index, 0), 0
            if index == aliasing.result and aliasing.relation is not Relation.DISJOINT:
                shard = block_range(view.rank, self._count, self._block_elements)[0]
                sign = {
                    Relation.IDENTICAL: 0,
                    Relation.RESULT_IS_SHARD: 1,
                    Relation.SOURCE_IS_SHARD: -1,
                }[aliasing.relation]
                base = sign * shard * view.itemsize_bytes
                return Space(Buffer.SOURCE, view.rank, 0, 0), base
        return Space(buffer, view.rank, index, 0), 0
