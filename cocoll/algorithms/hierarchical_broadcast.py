"""Broadcast over several hosts: along a chain of them, or for small data a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.algorithms.chain import Links, Relay, chain_links
from cocoll.algorithms.exchange import check_root, lane_over_chunks
from cocoll.algorithms.hierarchical_spread import HostSpread, add_done
from cocoll.algorithms.host_staging import HostStaging, add_share_lanes
from cocoll.algorithms.tree import binomial_links
from cocoll.plan.builder import Builder
from cocoll.plan.ir import Flag, Span

if TYPE_CHECKING:
    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.plan.ir import Plan, View

__all__ = ["plan_broadcast"]

_MOST_LANES = 4
# Among more ranks tags would not suffice.
_APART_RANKS = 512


def plan_broadcast(
    rank: int,
    hierarchy: Hierarchy,
    root: int,
    itemsize_bytes: int,
    *,
    chunk_elements: int,
    slots: int = 2,
    in_flight: int = 2,
    tree: bool = False,
    staged: bool = True,
    replicated_result: bool = False,
) -> Plan:
    """Plan a broadcast over several hosts.

    Parameters
    ----------
    rank, hierarchy, chunk_elements, slots, in_flight, staged, replicated_result
        As of `plan_allreduce`.
    root : int
        Whose source all ranks get.
    itemsize_bytes : int
        Bytes of one element.
    tree : bool, default False
        Whether hosts form a binomial tree, for small data; else a chain.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or identical to it.

    Raises
    ------
    RankError
        `root` lies outside the world.
    UsageError
        A number is below 1.

    Notes
    -----
    Along a chain a host sends and receives n bytes, shared by its ranks' NICs.
    """
    check_root(root, hierarchy.world_size)
    # Where a host has one copy of the result the root fills it, and its neighbours send from it.
    staged = staged or replicated_result
    staging = HostStaging(
        hierarchy,
        (itemsize_bytes, itemsize_bytes),
        chunk_elements,
        slots,
        shares=staged and not replicated_result,
        answers=staged and not replicated_result,
    )
    builder = Builder(
        rank,
        hierarchy.world_size,
        name="hierarchical_tree" if tree else "hierarchical_chain",
        mapped_sources=not staged,
        mapped_results=not staged,
        hosts=hierarchy.hosts,
    )
    home = _Broadcast(builder, hierarchy, staging, root, itemsize_bytes)
    neighbours = hierarchy.neighbours(rank)
    source = home.source if rank == root else home.result
    there: list[str] = []
    if hierarchy.hosts[rank] == hierarchy.hosts[root]:
        there = home.add_root_host(staged=staged, replicated_result=replicated_result)
    spread = HostSpread(builder, hierarchy, staging, (itemsize_bytes,), in_flight)
    ready: dict[str, int | None] = dict.fromkeys(there, 0)
    # A block that has come goes on at once, and not when all of a round have: the shorter the
    # pipeline's way, the sooner it is full. Beyond a few lanes they only cost.
    blocks = sorted(staging.handled(rank))
    apart = hierarchy.world_size <= _APART_RANKS
    bundles = [blocks[first::_MOST_LANES] for first in range(_MOST_LANES)] if apart else [blocks]
    for number, bundle in enumerate(filter(None, bundles)):
        relays = [home.relay(block, source, tree=tree, tagged=apart) for block in bundle]
        lane = spread.add_relays(relays, f"gather{number}", ready, None)
        if lane is not None:
            there.append(lane)
    # The root has everything.
    readers = tuple(one for one in neighbours if one != root)
    if replicated_result:
        add_done(builder, neighbours, home.lanes(there))
    elif staged:
        spread.add_answers([source], there, readers, () if rank == root else neighbours)
    else:
        stores = spread.add_stores(staging.handled(rank), [source], readers, there)
        add_done(builder, neighbours, home.lanes([*there, *stores]))
    return builder.build()


class _Broadcast:
    """What the ranks of the root's host do before their blocks leave it."""

    def __init__(
        self,
        builder: Builder,
        hierarchy: Hierarchy,
        staging: HostStaging,
        root: int,
        itemsize_bytes: int,
    ) -> None:
        self._builder = builder
        self._hierarchy = hierarchy
        self._staging = staging
        self._root = root
        self._rank = builder.rank
        self._neighbours = hierarchy.neighbours(builder.rank)
        self._copies = False
        self.source = builder.source(itemsize_bytes=itemsize_bytes, rank=None)
        self.result = builder.result(itemsize_bytes=itemsize_bytes)
        self._itemsize_bytes = itemsize_bytes

    def links(self, block: int, *, tree: bool) -> Links:
        """Give the ranks from and to which this one's block travels."""
        hosts = self._hierarchy.hosts
        way = (hosts[self._root], *self._hierarchy.hosts_after(hosts[self._root]))
        links = (binomial_links if tree else chain_links)(way, hosts[self._rank])
        delegate = self._hierarchy.delegate
        parent = None if links.parent is None else delegate(links.parent, block)
        return Links(parent, tuple(delegate(host, block) for host in links.children))

    def relay(self, block: int, source: View, *, tree: bool, tagged: bool) -> Relay:
        """Give how this rank passes on a block; `tagged` tells it from other blocks."""
        links = self.links(block, tree=tree)
        if not tagged:
            return Relay(block, links, source, self.result)
        tag = self._staging.tag
        onward = tuple(tag(child, block, spreads=True) for child in links.children)
        own = tag(self._rank, block, spreads=True)
        return Relay(block, links, source, self.result, own, onward)

    def lanes(self, others: list[str]) -> list[str]:
        """Give all lanes that touch the caller's arrays."""
        return [*others, *(["copy"] if self._copies else [])]

    def add_root_host(self, *, staged: bool, replicated_result: bool) -> list[str]:
        """Add what brings the handled blocks here; gives the lanes after which they are there."""
        builder, chunk_elements = self._builder, self._staging.chunk_elements
        handled = self._staging.handled(self._rank)
        if replicated_result:
            return self._add_shared_copy(chunk_elements)
        if self._rank == self._root:
            self._copies = True
            with (
                builder.lane("copy"),
                builder.loop(span=Span.WHOLE, chunk_elements=chunk_elements),
            ):
                builder.copy(source=self.source, destination=self.result)
            if staged and self._neighbours:
                add_share_lanes(builder, self._staging, self.source, self._neighbours, takes=False)
            return []
        with lane_over_chunks(builder, "own", chunk_elements):
            if staged:
                builder.wait(peer=self._root, flag=Flag.REQUEST)
            for block in handled:
                root_source = builder.source(itemsize_bytes=self._itemsize_bytes, rank=self._root)
                builder.copy(
                    block=block,
                    source=self._staging.own_share(self._root, block) if staged else root_source,
                    destination=self.result,
                )
            if staged:
                builder.signal(peer=self._root, flag=Flag.ANSWER)
        return ["own"]

    def _add_shared_copy(self, chunk_elements: int) -> list[str]:
        builder = self._builder
        with lane_over_chunks(builder, "own", chunk_elements):
            if self._rank != self._root:
                builder.wait(peer=self._root, flag=Flag.REQUEST)
                return ["own"]
            for block in range(self._hierarchy.world_size):
                builder.copy(block=block, source=self.source, destination=self.result)
            for neighbour in self._neighbours:
                builder.signal(peer=neighbour, flag=Flag.REQUEST)
        return ["own"]
