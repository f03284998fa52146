"""Reducing over several hosts: each adds up what its ranks have, owners what the hosts have.

Three stages work side by side, chunk by chunk. In shared memory the delegate of a block adds up its
host's values; over the wire that sum goes to the block's owner, straight or along a chain on which
every host adds its own; the owner adds what has come and runs the epilogue, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.algorithms.exchange import lane_over_chunks
from cocoll.algorithms.host_staging import add_share_lanes
from cocoll.plan.ir import Flag, View

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.algorithms.host_staging import HostStaging
    from cocoll.algorithms.operands import ReduceSpec
    from cocoll.plan.builder import Builder
    from cocoll.plan.vocabulary import AfterLanes

__all__ = ["HostReduction"]

_TAG = 1


class HostReduction:
    """Adds the lanes of a reduction to the plan of one rank.

    Parameters
    ----------
    builder : Builder
        Of the rank's plan.
    hierarchy : Hierarchy
        The ranks.
    spec : ReduceSpec
        What is reduced.
    staging : HostStaging
        Where chunks are kept.
    staged : bool
        Whether neighbours see each other's sources through staging only.
    ring : bool
        Whether parts go along chains of all hosts; else straight to their owners.
    in_flight : int
        Chunks of messages that may be under way in a lane.
    """

    def __init__(
        self,
        builder: Builder,
        hierarchy: Hierarchy,
        spec: ReduceSpec,
        staging: HostStaging,
        *,
        staged: bool,
        ring: bool,
        in_flight: int,
    ) -> None:
        self._builder = builder
        self._hierarchy = hierarchy
        self._spec = spec
        self._staging = staging
        self._staged = staged
        self._ring = ring
        self._in_flight = in_flight
        self._rank = builder.rank
        self._host = hierarchy.hosts[builder.rank]
        self._members = hierarchy.members(self._host)
        self._neighbours = hierarchy.neighbours(builder.rank)
        self._delegated = hierarchy.delegated(builder.rank)
        # Alone on its host a rank sends what the caller has; unless that must be zeroed by its
        # reader, which a message is not.
        self._direct = len(self._members) == 1 and (staged or not spec.zero_source)

    def free_lanes(self, owner: int) -> AfterLanes:
        """Give after which lanes a chunk of a delegated block's source is not read any more."""
        if self._ring:
            first = self._previous(owner) is None
            return {f"scatter{owner}" if self._direct and first else f"partial{owner}": 0}
        return {"scatter" if self._direct else "partial": 0}

    def reading_lanes(self) -> list[str]:
        """Give the lanes, but for "final", that read what neighbours have."""
        if self._ring:
            return [
                f"partial{owner}"
                for owner in self._delegated
                if not self._direct or self._previous(owner) is not None
            ]
        return ["partial"] if self._delegated and not self._direct else []

    def add(self, stores: Sequence[Sequence[View]]) -> None:
        """Add all lanes, up to "final", which stores each result of the own block to `stores`."""
        if self._staged and self._neighbours:
            add_share_lanes(
                self._builder,
                self._staging,
                self._spec.source_view(self._rank),
                self._neighbours,
                takes=True,
            )
        if self._ring:
            for owner in self._delegated:
                self._add_passing(owner)
        elif self._delegated:
            if not self._direct:
                self._add_partials()
            self._add_scatter()
        self._add_collect()
        self._add_final(stores)
        if self._staged and self._neighbours:
            self._add_answers()

    # --- Neighbours. ---

    def _shares(self, owner: int) -> list[View]:
        """Give what the ranks of this host have of a block that this rank handles."""
        return [
            self._spec.source_view(member)
            if member == self._rank or not self._staged
            else self._staging.own_share(member, owner)
            for member in self._members
        ]

    def _after_shares(self) -> dict[str, int | None]:
        return {"shared": 0} if self._staged and self._neighbours else {}

    def _add_answers(self) -> None:
        """Tell neighbours that what they staged has been reduced."""
        lanes = ["final", *self.reading_lanes()]
        with self._lane("answer"):
            for neighbour in self._neighbours:
                after = dict.fromkeys(lanes, 0) if neighbour == self._neighbours[0] else None
                self._builder.signal(peer=neighbour, flag=Flag.ANSWER, after=after)

    # --- Straight to the owners. ---

    def _add_partials(self) -> None:
        after = {"scatter": self._staging.slots, **self._after_shares()}
        with self._lane("partial"):
            for owner in self._delegated:
                self._builder.reduce(
                    block=owner,
                    sources=self._shares(owner),
                    destinations=[[self._staging.partial(self._rank, owner)]],
                    partial=True,
                    after=after if owner == self._delegated[0] else None,
                )

    def _add_scatter(self) -> None:
        with self._lane("scatter", len(self._delegated)):
            for owner in self._delegated:
                first = owner == self._delegated[0]
                self._builder.send(
                    peer=owner,
                    source=self._spec.source_view(self._rank)
                    if self._direct
                    else self._staging.partial(self._rank, owner),
                    block=owner,
                    tag=_TAG,
                    after={"partial": 0} if first and not self._direct else None,
                )

    # --- Along chains. ---

    def _previous(self, owner: int) -> int | None:
        delegates = self._hierarchy.delegates(owner)
        place = delegates.index(self._rank)
        return None if place == 0 else delegates[place - 1]

    def _next(self, owner: int) -> int:
        way = (*self._hierarchy.delegates(owner), owner)
        return way[way.index(self._rank) + 1]

    def _add_passing(self, owner: int) -> None:
        """Receive what the hosts before have of a block, add this host's part, send it on."""
        builder, staging = self._builder, self._staging
        previous = self._previous(owner)
        direct = self._direct and previous is None
        if previous is not None:
            with self._lane(f"collect{owner}", 1):
                builder.recv(
                    peer=previous,
                    destination=staging.arrived(self._rank, owner, previous),
                    block=owner,
                    tag=staging.tag(self._rank, owner, spreads=False),
                    after={f"partial{owner}": staging.slots},
                )
        if not direct:
            sources = self._shares(owner)
            after = {f"scatter{owner}": staging.slots, **self._after_shares()}
            if previous is not None:
                sources.insert(0, staging.arrived(self._rank, owner, previous))
                after[f"collect{owner}"] = 0
            with self._lane(f"partial{owner}"):
                builder.reduce(
                    block=owner,
                    sources=sources,
                    destinations=[[staging.partial(self._rank, owner)]],
                    partial=True,
                    after=after,
                )
        with self._lane(f"scatter{owner}", 1):
            builder.send(
                peer=self._next(owner),
                source=self._spec.source_view(self._rank)
                if direct
                else staging.partial(self._rank, owner),
                block=owner,
                tag=staging.tag(self._next(owner), owner, spreads=False),
                after=None if direct else {f"partial{owner}": 0},
            )

    # --- At the owner. ---

    def _arriving(self) -> tuple[int, ...]:
        delegates = self._hierarchy.delegates(self._rank)
        return delegates[-1:] if self._ring else delegates

    def _add_collect(self) -> None:
        peers = self._arriving()
        tag = self._staging.tag(self._rank, self._rank, spreads=False) if self._ring else _TAG
        with self._lane("collect", len(peers)):
            for peer in peers:
                self._builder.recv(
                    peer=peer,
                    destination=self._staging.arrived(self._rank, self._rank, peer),
                    block=self._rank,
                    tag=tag,
                    after={"final": self._staging.slots} if peer == peers[0] else None,
                )

    def _add_final(self, stores: Sequence[Sequence[View]]) -> None:
        hosts = self._hierarchy.hosts
        arrived = {
            hosts[peer]: [self._staging.arrived(self._rank, self._rank, peer)]
            for peer in self._arriving()
        }
        arrived[self._host] = self._shares(self._rank)
        with self._lane("final"):
            self._builder.reduce(
                block=self._rank,
                sources=[view for host in sorted(arrived) for view in arrived[host]],
                destinations=stores,
                operands=self._spec.operand_views(self._rank),
                updated=self._spec.updated,
                after={"collect": 0, **self._after_shares()},
            )

    def _lane(self, name: str, messages: int = 0) -> AbstractContextManager[None]:
        in_flight = max(1, messages * self._in_flight)
        return lane_over_chunks(self._builder, name, self._staging.chunk_elements, in_flight)
