"""Broadcast over several hosts for wires without tags: along a chain of them, or a tree.

In every round of a chain a host receives a part of the chunk and passes on the one that it received
in the round before, as one group: so both directions of its NICs are busy. Parts are what the ranks
of one host own; with H hosts a chunk takes H + 1 rounds, and H of them move a part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.algorithms.chain import chain_links
from cocoll.algorithms.costing import MESSAGE_NANOSECONDS, PipelineCost
from cocoll.algorithms.exchange import check_root
from cocoll.algorithms.host_staging import HostStaging
from cocoll.algorithms.ordered_lanes import SLOTS, OrderedLanes
from cocoll.algorithms.tree import binomial_links
from cocoll.plan.builder import Builder
from cocoll.plan.ir import Flag, Span, View

if TYPE_CHECKING:
    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.plan.ir import Plan
    from cocoll.topology.graph import Topology

__all__ = ["broadcast_staging", "plan_broadcast_ordered", "prefers_tree"]


def broadcast_staging(
    hierarchy: Hierarchy, itemsize_bytes: int, chunk_elements: int
) -> HostStaging:
    """Give the scratch of a broadcast.

    Parameters
    ----------
    hierarchy : Hierarchy
        The ranks.
    itemsize_bytes : int
        Bytes of one element.
    chunk_elements : int
        Elements of one message.

    Returns
    -------
    HostStaging
        ``fitting_chunk`` says how long chunks may be.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``.
    """
    itemsizes = (itemsize_bytes, itemsize_bytes)
    return HostStaging(hierarchy, itemsizes, chunk_elements, SLOTS, shares=True, answers=True)


def prefers_tree(
    topology: Topology,
    hierarchy: Hierarchy,
    root: int,
    *,
    block_bytes: int,
    chunk_bytes: int,
) -> bool:
    """Say whether a tree is estimated to be faster than a chain.

    Parameters
    ----------
    topology : Topology
        The ports.
    hierarchy : Hierarchy
        The ranks.
    root : int
        Whose data.
    block_bytes, chunk_bytes : int
        Of what a rank owns, and of one message.

    Returns
    -------
    bool
        The same on all ranks. Always true of two hosts.
    """
    hosts = hierarchy.host_count
    way = (hierarchy.hosts[root], *hierarchy.hosts_after(hierarchy.hosts[root]))
    costs = PipelineCost(topology, hierarchy, block_bytes, 1)
    chunks = max(1, -(-block_bytes // max(1, chunk_bytes)))

    def nanoseconds(parents: Iterable[int], parts: int, rounds: int) -> int:
        """Estimate so many rounds, each of which moves one of a chunk's parts."""
        flows = (
            (hierarchy.delegate(way[parent], block), hierarchy.delegate(host, block), block_bytes)
            for host, parent in zip(way[1:], parents, strict=True)
            for block in range(hierarchy.world_size)
        )
        busiest = costs.busiest_nanoseconds(flows)
        each = costs.latency_nanoseconds + MESSAGE_NANOSECONDS
        return busiest * rounds // (chunks * parts) + rounds * each

    depth = (hosts - 1).bit_length()
    tree = nanoseconds(
        (place - (place & -place) for place in range(1, hosts)), depth, chunks * depth
    )
    rounds = chunks * (hosts + (hosts > 2)) + hosts - 2
    chain = nanoseconds(range(hosts - 1), hosts, rounds)
    return tree <= chain


@dataclass(frozen=True, order=True)
class _Message:
    """A part that this rank sends or receives; sorted as all ranks do it."""

    round: int
    block: int
    sends: bool
    peer: int


def plan_broadcast_ordered(
    rank: int,
    hierarchy: Hierarchy,
    root: int,
    itemsize_bytes: int,
    *,
    chunk_elements: int,
    tree: bool = False,
) -> Plan:
    """Plan a broadcast over several hosts from an array that peers cannot map.

    Parameters
    ----------
    rank : int
        Whose plan.
    hierarchy : Hierarchy
        Which rank is on which host.
    root : int
        Whose source all ranks get.
    itemsize_bytes : int
        Bytes of one element.
    chunk_elements : int
        Elements of one message.
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
        ``chunk_elements < 1``.

    Notes
    -----
    Along a chain a host sends and receives n bytes, shared by its ranks' NICs.
    """
    check_root(root, hierarchy.world_size)
    staging = broadcast_staging(hierarchy, itemsize_bytes, chunk_elements)
    builder = Builder(
        rank,
        hierarchy.world_size,
        name="hierarchical_tree" if tree else "hierarchical_chain",
        hosts=hierarchy.hosts,
    )
    source = builder.source(itemsize_bytes=itemsize_bytes)
    result = builder.result(itemsize_bytes=itemsize_bytes)
    neighbours = hierarchy.neighbours(rank)
    is_home = hierarchy.hosts[rank] == hierarchy.hosts[root]
    turns = ["relay", "show"] if neighbours else ["relay"]
    if is_home and neighbours:
        turns.insert(0, "meet")
    lanes = OrderedLanes(builder, hierarchy, staging, turns)
    has_own = is_home and rank != root
    if rank == root:
        with (
            builder.lane("copy"),
            builder.loop(span=Span.WHOLE, chunk_elements=chunk_elements),
        ):
            builder.copy(source=source, destination=result)
    if is_home and neighbours:
        if rank == root:
            lanes.add_share(source, neighbours)
        lanes.add_meeting("meet", Flag.REQUEST, {"share": 0} if rank == root else {})
    if has_own:
        with lanes.lane("own"):
            for owner in staging.handled(rank):
                builder.copy(
                    block=owner,
                    source=staging.own_share(root, owner),
                    destination=result,
                    after={"meet": 0} if owner == rank else None,
                )
    there = source if rank == root else result
    before: dict[str, int | None] = {"own": 0} if has_own else {}
    _add_relay(builder, lanes, _messages(rank, hierarchy, root, staging, tree=tree), there, before)
    if not neighbours:
        return builder.build()
    shown = dict(before)
    # The root has everything.
    if any(neighbour != root for neighbour in neighbours):
        arrived: dict[str, int | None] = before if is_home else {"relay": 0}
        lanes.add_distribute([there], arrived)
        shown["distribute"] = 0
    if rank != root:
        shown["pull"] = SLOTS - 1
    lanes.add_meeting("show", Flag.ANSWER, shown)
    if rank != root:
        lanes.add_pull([result])
    lanes.add_done([*before, *(["pull"] if rank != root else [])])
    return builder.build()


def _add_relay(
    builder: Builder,
    lanes: OrderedLanes,
    messages: list[_Message],
    view: View,
    before: dict[str, int | None],
) -> None:
    """Add the messages of a rank, those of a round as one group."""
    after: dict[str, int | None] | None = {**lanes.after("relay"), **before}
    with lanes.lane("relay"):
        for message in messages:
            block, peer, group = message.block, message.peer, message.round + 1
            if message.sends:
                builder.send(peer=peer, source=view, block=block, group=group, after=after)
            else:
                builder.recv(peer=peer, destination=view, block=block, group=group, after=after)
            after = None


def _messages(
    rank: int, hierarchy: Hierarchy, root: int, staging: HostStaging, *, tree: bool
) -> list[_Message]:
    """List what a rank sends and receives of one chunk of all blocks that it handles.

    A message's round depends on its block's owner and on where it is sent from alone, so that all
    ranks have their messages in one order of rounds, and none waits in a circle.
    """
    hosts = hierarchy.hosts
    way = (hosts[root], *hierarchy.hosts_after(hosts[root]))
    links = (binomial_links if tree else chain_links)(way, hosts[rank])
    deepest = (len(way) - 1).bit_length()

    def round_of(block: int, host: int) -> int:
        """Give the round in which a host receives a block."""
        place = way.index(host)
        if tree:
            # Those that are furthest from their parents come first.
            return deepest - (place & -place).bit_length()
        return way.index(hosts[block]) + place - 1

    found = []
    for block in staging.handled(rank):
        if links.parent is not None:
            peer = hierarchy.delegate(links.parent, block)
            found.append(_Message(round_of(block, hosts[rank]), block, sends=False, peer=peer))
        for host in links.children:
            peer = hierarchy.delegate(host, block)
            found.append(_Message(round_of(block, host), block, sends=True, peer=peer))
    return sorted(found)
