"""Where a rank of several hosts keeps chunks that are on their way."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from cocoll.algorithms.exchange import check_chunk, check_slots, lane_over_chunks
from cocoll.plan.ir import Buffer, Flag, Span, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.plan.builder import Builder

__all__ = ["HostStaging", "add_share_lanes"]

# What an area is for, whose block it has a chunk of, and whom that comes from or which result
# it is.
_Purpose: TypeAlias = tuple[str, int, int]

# Below it: what goes straight.
_FIRST_TAG = 3

# Where a chunk may begin: what the widest loads of a kernel want.
_LINE_BYTES = 128


class HostStaging:
    """The areas of every rank's staging, each of `slots` chunks.

    Parameters
    ----------
    hierarchy : Hierarchy
        The ranks.
    itemsizes_bytes : tuple of int
        Bytes of one element: of a source first, then of each result.
    chunk_elements, slots : int
        What an area holds.
    shares : bool, default False
        Whether ranks stage what they have for the neighbours who handle it.
    answers : bool, default False
        Whether ranks show their neighbours results.
    parts : {"none", "straight", "ring"}, default "none"
        Whether parts of blocks come from other hosts: each straight to the owner, or along a chain
        of all hosts.

    Raises
    ------
    UsageError
        ``chunk_elements < 1`` or ``slots < 1``.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        itemsizes_bytes: tuple[int, ...],
        chunk_elements: int,
        slots: int,
        *,
        shares: bool = False,
        answers: bool = False,
        parts: str = "none",
    ) -> None:
        check_chunk(chunk_elements)
        check_slots(slots)
        self._hierarchy = hierarchy
        self._itemsizes_bytes = itemsizes_bytes
        self._shares = shares
        self._answers = answers
        self._parts = parts
        self.chunk_elements = chunk_elements
        self.slots = slots
        self._areas: dict[int, dict[_Purpose, tuple[int, int]]] = {}

    @cached_property
    def _slot_bytes(self) -> tuple[int, ...]:
        return tuple(
            -(-self.chunk_elements * itemsize // _LINE_BYTES) * _LINE_BYTES
            for itemsize in self._itemsizes_bytes
        )

    def handled(self, rank: int) -> tuple[int, ...]:
        """Give the owners whose blocks a rank handles, itself first."""
        return (rank, *self._hierarchy.delegated(rank))

    def tag(self, receiver: int, owner: int, *, spreads: bool) -> int:
        """Give the tag of messages with parts (or results) of a block to who passes them on.

        Two blocks may take one way in lanes of their own, so their messages must differ.
        """
        return _FIRST_TAG + 2 * self.handled(receiver).index(owner) + spreads

    def own_share(self, rank: int, owner: int) -> View:
        """Give where a rank stages what it has of a block for the neighbour who handles that."""
        return self._view(rank, ("share", owner, 0))

    def partial(self, rank: int, owner: int) -> View:
        """Give where a rank has its host's part of a block."""
        return self._view(rank, ("partial", owner, 0))

    def arrived(self, rank: int, owner: int, peer: int) -> View:
        """Give where a rank has the part of a block that came from a rank of another host."""
        return self._view(rank, ("arrived", owner, 0 if self._parts == "ring" else peer))

    def answer(self, rank: int, owner: int, result: int) -> View:
        """Give where a rank shows its neighbours one result of a block."""
        return self._view(rank, ("answer", owner, result + 1))

    def size_bytes(self, rank: int) -> int:
        """Give what a rank needs."""
        ends = [
            offset_bytes + self._slot_bytes[which] * self.slots
            for offset_bytes, which in self._areas_of(rank).values()
        ]
        return max(ends, default=0)

    def _view(self, rank: int, purpose: _Purpose) -> View:
        offset_bytes, which = self._areas_of(rank)[purpose]
        return View(
            Buffer.STAGING,
            rank,
            self._itemsizes_bytes[which],
            offset_bytes=offset_bytes,
            slots=self.slots,
            slot_bytes=self._slot_bytes[which],
        )

    def _areas_of(self, rank: int) -> dict[_Purpose, tuple[int, int]]:
        areas = self._areas.get(rank)
        if areas is None:
            areas = self._areas[rank] = {}
            offset_bytes = 0
            for purpose in self._purposes(rank):
                which = purpose[2] if purpose[0] == "answer" else 0
                areas[purpose] = (offset_bytes, which)
                offset_bytes += self._slot_bytes[which] * self.slots
        return areas

    def _purposes(self, rank: int) -> list[_Purpose]:
        """List what a rank keeps."""
        hierarchy = self._hierarchy
        listed: list[_Purpose] = []
        if self._parts != "none":
            listed += [("partial", owner, 0) for owner in hierarchy.delegated(rank)]
        if self._parts == "straight":
            listed += [("arrived", rank, peer) for peer in hierarchy.delegates(rank)]
        elif self._parts == "ring":
            listed += [("arrived", owner, 0) for owner in self.handled(rank)]
        if self._shares:
            for neighbour in hierarchy.neighbours(rank):
                listed += [("share", owner, 0) for owner in self.handled(neighbour)]
        if self._answers:
            for which in range(1, len(self._itemsizes_bytes)):
                listed += [("answer", owner, which) for owner in self.handled(rank)]
        return listed

    def fitting_chunk(self, room_bytes: int) -> int:
        """Give the most elements of a chunk with which all areas of every rank fit their room."""
        fewest = room_bytes
        for rank in self._hierarchy.samples():
            areas = self._areas_of(rank).values()
            padding = len(areas) * self.slots * _LINE_BYTES
            element = self.slots * sum(self._itemsizes_bytes[which] for _, which in areas)
            if element:
                fewest = min(fewest, (room_bytes - padding) // element)
        return fewest


def add_share_lanes(
    builder: Builder,
    staging: HostStaging,
    source: View,
    neighbours: Sequence[int],
    *,
    takes: bool,
) -> None:
    """Let a rank stage, chunk by chunk, for every neighbour the blocks that it handles.

    Parameters
    ----------
    builder : Builder
        Of the rank's plan; the opening and the lanes "share" and "taken" are added, and "shared" if
        it takes.
    staging : HostStaging
        Where.
    source : View
        What is staged.
    neighbours : sequence of int
        For whom.
    takes : bool
        Whether the neighbours stage for this rank too: "shared" is the lane after whose iteration a
        chunk of all of them is there.
    """
    rank, chunk_elements = builder.rank, staging.chunk_elements

    def stage(neighbour: int, after: dict[str, int | None] | None) -> None:
        for owner in staging.handled(neighbour):
            share = staging.own_share(rank, owner)
            builder.copy(block=owner, source=source, destination=share, after=after)

    with builder.opening(), builder.loop(span=Span.BLOCK, chunk_elements=chunk_elements, end=1):
        for neighbour in neighbours:
            stage(neighbour, None)
    with builder.lane("share"):
        with builder.loop(span=Span.BLOCK, chunk_elements=chunk_elements, end=1):
            for neighbour in neighbours:
                builder.signal(peer=neighbour, flag=Flag.REQUEST)
        with builder.loop(span=Span.BLOCK, chunk_elements=chunk_elements, begin=1):
            for neighbour in neighbours:
                stage(neighbour, {"taken": staging.slots})
                builder.signal(peer=neighbour, flag=Flag.REQUEST)
    if takes:
        with lane_over_chunks(builder, "shared", chunk_elements):
            for neighbour in neighbours:
                builder.wait(peer=neighbour, flag=Flag.REQUEST)
    with lane_over_chunks(builder, "taken", chunk_elements):
        for neighbour in neighbours:
            builder.wait(peer=neighbour, flag=Flag.ANSWER)
