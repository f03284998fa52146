"""Lanes whose waiting steps have one order on every rank: what wires without tags go by.

NCCL matches messages by their order alone, and kernels that wait for a neighbour keep others from
running. So whatever waits for another rank, messages and signals alike, stands in lanes that take
turns: at turn t the first of them is at chunk t, the second at chunk t - 1, and so on. Copies and
reductions stand in lanes of their own and work beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.algorithms.exchange import lane_over_chunks
from cocoll.plan.ir import Flag, View

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.algorithms.host_staging import HostStaging
    from cocoll.plan.builder import Builder

__all__ = ["SLOTS", "OrderedLanes"]

#: Chunks of each kind that a rank has room for: a slot is used again when the last of four lanes
#: that take turns is past the chunk that it held.
SLOTS = 4


class OrderedLanes:
    """Adds lanes to the plan of one rank.

    Parameters
    ----------
    builder : Builder
        Of the plan.
    hierarchy : Hierarchy
        The ranks.
    staging : HostStaging
        Where chunks are kept: `SLOTS` of each kind.
    turns : sequence of str
        The lanes that take turns, the one that is ahead first; at most `SLOTS` of them.
    """

    def __init__(
        self,
        builder: Builder,
        hierarchy: Hierarchy,
        staging: HostStaging,
        turns: Sequence[str],
    ) -> None:
        assert staging.slots == SLOTS >= len(turns)
        self._builder = builder
        self._hierarchy = hierarchy
        self._staging = staging
        self._turns = tuple(turns)
        self.neighbours = hierarchy.neighbours(builder.rank)

    def lane(self, name: str) -> AbstractContextManager[None]:
        """Write a lane over the chunks of blocks."""
        return lane_over_chunks(self._builder, name, self._staging.chunk_elements)

    def after(self, name: str) -> dict[str, int | None]:
        """Give what the first step of a lane that takes turns waits for in the others."""
        own = self._turns.index(name)
        # Those ahead have had this turn, the others the last one.
        return {
            other: place - own if place < own else place - own + 1
            for place, other in enumerate(self._turns)
            if place != own
        }

    def add_share(self, source: View, neighbours: Sequence[int]) -> None:
        """Stage, in lane "share", what neighbours handle; free again behind "show"."""
        builder, staging = self._builder, self._staging
        after: dict[str, int | None] | None = {"show": SLOTS}
        with self.lane("share"):
            for neighbour in neighbours:
                for owner in staging.handled(neighbour):
                    share = staging.own_share(builder.rank, owner)
                    builder.copy(block=owner, source=source, destination=share, after=after)
                    after = None

    def add_meeting(self, name: str, flag: Flag, after: dict[str, int | None]) -> None:
        """Tell all neighbours, chunk by chunk, that some lanes have come so far, and hear it."""
        with self.lane(name):
            self._meet(flag, {**self.after(name), **after})

    def add_done(self, lanes: Sequence[str]) -> None:
        """Let the ranks of a host end together."""
        if not self.neighbours:
            return
        with self._builder.lane("done"):
            self._meet(Flag.DONE, dict.fromkeys((*self._turns, *lanes), None))

    def _meet(self, flag: Flag, after: dict[str, int | None]) -> None:
        for neighbour in self.neighbours:
            first = neighbour == self.neighbours[0]
            self._builder.signal(peer=neighbour, flag=flag, after=after if first else None)
        for neighbour in self.neighbours:
            self._builder.wait(peer=neighbour, flag=flag)

    def add_stores(
        self, blocks: Sequence[int], sources: Sequence[View], after: dict[str, int | None]
    ) -> list[str]:
        """Store blocks into the neighbours' results, in lane "distribute"; gives the lane."""
        if not (blocks and sources and self.neighbours):
            return []
        waits: dict[str, int | None] | None = after
        with self.lane("distribute"):
            for owner in blocks:
                for index, source in enumerate(sources):
                    for neighbour in self.neighbours:
                        self._builder.copy(
                            block=owner,
                            source=source,
                            destination=self._builder.result(
                                itemsize_bytes=source.itemsize_bytes, rank=neighbour, index=index
                            ),
                            after=waits,
                        )
                        waits = None
        return ["distribute"]

    def add_distribute(self, sources: Sequence[View], after: dict[str, int | None]) -> None:
        """Stage, in lane "distribute", the handled blocks for the neighbours."""
        builder, staging = self._builder, self._staging
        # Who has shown chunk i - 1 has pulled chunk i - SLOTS.
        waits: dict[str, int | None] | None = {**after, "show": 1}
        with self.lane("distribute"):
            for owner in staging.handled(builder.rank):
                for index, source in enumerate(sources):
                    builder.copy(
                        block=owner,
                        source=source,
                        destination=staging.answer(builder.rank, owner, index),
                        after=waits,
                    )
                    waits = None

    def add_pull(self, results: Sequence[View]) -> None:
        """Copy, in lane "pull", what the neighbours have staged, once they have shown it."""
        waits: dict[str, int | None] | None = {"show": 0}
        with self.lane("pull"):
            for neighbour in self.neighbours:
                for owner in self._staging.handled(neighbour):
                    for index, result in enumerate(results):
                        self._builder.copy(
                            block=owner,
                            source=self._staging.answer(neighbour, owner, index),
                            destination=result,
                            after=waits,
                        )
                        waits = None
