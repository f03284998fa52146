"""Which algorithm serves a collective over several hosts, by what it costs on their topology.

A candidate's cost is that of its busiest port, of the chunks that fill its pipeline, and of its
messages, in whole nanoseconds. It ranks candidates and sets their chunks; what a plan takes is for
the simulator to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypedDict

from cocoll.algorithms import (
    hierarchical,
    hierarchical_broadcast,
    recursive_doubling,
    wire_two_shot,
)
from cocoll.algorithms.costing import MESSAGE_NANOSECONDS, Flow, PipelineCost
from cocoll.algorithms.demand import Candidate, Demand
from cocoll.algorithms.hierarchy import Hierarchy, make_hierarchy
from cocoll.algorithms.host_staging import HostStaging
from cocoll.errors import UsageError
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS, Plan
from cocoll.plan.ranges import block_elements

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology

__all__ = ["Candidate", "Demand", "candidates", "make_hierarchy"]

# Tags tell the blocks of a ring apart, two for each block that a rank passes on.
_LONGEST_RING = 500
# Slots of each kind: at least what lets both ends of a step work at once.
_FEWEST_SLOTS = 4
# What buffers are rounded up to.
_LINE_BYTES = 128


def candidates(topology: Topology, demand: Demand) -> list[Candidate]:
    """Give the ways to do a collective over several hosts, the cheapest first. Pure.

    Parameters
    ----------
    topology : Topology
        Of two hosts or more.
    demand : Demand
        What is wanted.

    Returns
    -------
    list of Candidate
        Ties in a fixed order, so that all ranks choose alike.

    Raises
    ------
    UsageError
        There is one host only.
    """
    hierarchy = make_hierarchy(topology)
    if hierarchy.host_count < 2:
        raise UsageError("these ways are for several hosts; got a topology of one")
    chooser = _Chooser(topology, hierarchy, demand)
    return sorted(chooser.ways(), key=lambda candidate: candidate.cost_nanoseconds)


_RING = "blocks pass all hosts in turn, each link once"


class _Chunking(TypedDict):
    """What the plans of a pipeline are made with."""

    chunk_elements: int
    slots: int
    in_flight: int


class _Chooser:
    def __init__(self, topology: Topology, hierarchy: Hierarchy, demand: Demand) -> None:
        self._hierarchy = hierarchy
        self._demand = demand
        self._itemsize = demand.spec.source_itemsize_bytes
        count = demand.nbytes // self._itemsize
        self._block = block_elements(count, hierarchy.world_size, demand.alignment_elements)
        self._costs = PipelineCost(topology, hierarchy, self._block, self._itemsize)

    def ways(self) -> Iterator[Candidate]:
        demand, hosts = self._demand, self._hierarchy.host_count
        ring = 2 < hosts <= _LONGEST_RING
        if demand.kind == "broadcast":
            yield self._broadcast(tree=False)
            if hosts > 2:
                yield self._broadcast(tree=True)
            return
        if demand.kind == "allgather":
            yield self._allgather(ring=False)
            if ring:
                yield self._allgather(ring=True)
            return
        if demand.rank_order:
            yield self._two_shot()
            return
        everywhere = not (demand.spec.is_sharded or demand.spec.zero_source or demand.replicated)
        if demand.kind == "allreduce" and everywhere and demand.nbytes <= self._longest_bytes():
            yield self._doubling()
        yield self._reducing(ring=False)
        if ring:
            yield self._reducing(ring=True)

    def _pipeline(
        self, flows: Iterator[Flow], depth: int, messages: int, blocks: int, staging: HostStaging
    ) -> tuple[_Chunking, int]:
        """Give how a pipeline is cut, and what it costs.

        `depth` chunks fill it; for each chunk a rank has `messages`, of `blocks` in a lane.
        """
        costs, room = self._costs, self._room(staging)
        busiest = costs.busiest_nanoseconds(flows)
        chunk = costs.chunk_elements(busiest, depth, messages, room)
        in_flight = costs.chunks_under_way(chunk, blocks)
        slots = max(_FEWEST_SLOTS, min(in_flight, room * _FEWEST_SLOTS // chunk))
        chunking = _Chunking(chunk_elements=chunk, slots=slots, in_flight=in_flight)
        return chunking, costs.total_nanoseconds(busiest, depth, messages, chunk)

    def _round_trip(self, rank: int, parts: int, results: int) -> Iterator[Flow]:
        """Give what a rank of a ring sends: parts on to owners, results on from them."""
        for owner in (rank, *self._hierarchy.delegated(rank)):
            way = (owner, *self._hierarchy.delegates(owner))
            place = way.index(rank)
            if parts and place > 0:
                yield (rank, (*way, owner)[place + 1], parts)
            if results and place + 1 < len(way):
                yield (rank, way[place + 1], results)

    def _room(self, staging: HostStaging) -> int:
        room = staging.fitting_chunk(self._demand.staging_bytes)
        if room < 1:
            raise UsageError(
                f"Tuning.staging_bytes of {self._demand.staging_bytes} holds no chunk of each of "
                f"{self._hierarchy.world_size} ranks; give more"
            )
        return room

    def _staging(self, *, results: int, parts: str) -> HostStaging:
        spec = self._demand.spec
        itemsizes = (spec.source_itemsize_bytes, *spec.result_itemsizes_bytes[:results])
        return HostStaging(
            self._hierarchy,
            itemsizes,
            1,
            _FEWEST_SLOTS,
            shares=parts != "none" or self._demand.kind == "broadcast",
            answers=bool(results),
            parts=parts,
        )

    def _reducing(self, *, ring: bool) -> Candidate:
        demand, hierarchy = self._demand, self._hierarchy
        spec, hosts = demand.spec, hierarchy.host_count
        gathers = demand.kind == "allreduce"
        result_bytes = sum(spec.result_itemsizes_bytes) if gathers else 0
        own = self._block * self._itemsize
        back = self._block * result_bytes

        def flows() -> Iterator[Flow]:
            for rank in self._costs.senders():
                if ring:
                    yield from self._round_trip(rank, own, back)
                    continue
                yield from ((rank, owner, own) for owner in hierarchy.delegated(rank))
                yield from ((rank, peer, back) for peer in hierarchy.delegates(rank))

        depth = (hosts - 1) * (1 + gathers) if ring else 1
        staging = self._staging(
            results=len(spec.result_itemsizes_bytes) if gathers else 0,
            parts="ring" if ring else "straight",
        )
        chunking, cost = self._pipeline(
            flows(), depth, 2 * hosts, 1 if ring else hosts - 1, staging
        )

        def make(rank: int, staged: bool) -> Plan:
            if demand.kind == "reduce_scatter":
                return hierarchical.plan_reduce_scatter(
                    rank,
                    hierarchy,
                    spec,
                    **chunking,
                    ring=ring,
                    staged=staged,
                    alignment_elements=demand.alignment_elements,
                )
            return hierarchical.plan_allreduce(
                rank,
                hierarchy,
                spec,
                **chunking,
                ring=ring,
                staged=staged,
                replicated_result=demand.replicated,
            )

        return Candidate(
            "hierarchical_ring" if ring else "hierarchical",
            _RING if ring else "blocks go straight to their owners and back, in the fewest steps",
            cost,
            chunking["chunk_elements"],
            make,
        )

    def _allgather(self, *, ring: bool) -> Candidate:
        demand, hierarchy = self._demand, self._hierarchy
        own = self._block * self._itemsize

        def flows() -> Iterator[Flow]:
            for rank in self._costs.senders():
                if ring:
                    yield from self._round_trip(rank, 0, own)
                    continue
                yield from ((rank, peer, own) for peer in hierarchy.delegates(rank))

        hosts = hierarchy.host_count
        depth = hosts - 1 if ring else 1
        staging = self._staging(results=1, parts="none")
        chunking, cost = self._pipeline(flows(), depth, hosts, 1 if ring else hosts - 1, staging)

        def make(rank: int, staged: bool) -> Plan:
            return hierarchical.plan_allgather(
                rank,
                hierarchy,
                self._itemsize,
                **chunking,
                ring=ring,
                staged=staged,
                alignment_elements=demand.alignment_elements,
                replicated_result=demand.replicated,
            )

        return Candidate(
            "hierarchical_ring" if ring else "hierarchical",
            _RING if ring else "owners send their blocks to all hosts",
            cost,
            chunking["chunk_elements"],
            make,
        )

    def _broadcast(self, *, tree: bool) -> Candidate:
        demand, hierarchy = self._demand, self._hierarchy
        home = hierarchy.hosts[demand.root]
        way = (home, *hierarchy.hosts_after(home))
        own = self._block * self._itemsize

        def flows() -> Iterator[Flow]:
            for place, host in enumerate(way[1:], start=1):
                parent = way[place - (place & -place)] if tree else way[place - 1]
                for block in range(hierarchy.world_size):
                    yield (
                        hierarchy.delegate(parent, block),
                        hierarchy.delegate(host, block),
                        own,
                    )

        hosts = hierarchy.host_count
        depth = max(1, (hosts - 1).bit_length() if tree else hosts - 2)
        staging = self._staging(results=1, parts="none")
        # A rank passes on a block of every host.
        chunking, cost = self._pipeline(flows(), depth, hosts, hosts, staging)

        def make(rank: int, staged: bool) -> Plan:
            return hierarchical_broadcast.plan_broadcast(
                rank,
                hierarchy,
                demand.root,
                self._itemsize,
                **chunking,
                tree=tree,
                staged=staged,
                replicated_result=demand.replicated,
            )

        return Candidate(
            "hierarchical_tree" if tree else "hierarchical_chain",
            "few steps for small data" if tree else "every host sends and receives the data once",
            cost,
            chunking["chunk_elements"],
            make,
        )

    def _longest_bytes(self) -> int:
        """Give what is small enough to be kept in as many buffers as a doubling needs."""
        room_bytes = self._demand.staging_bytes // recursive_doubling.buffers_needed(
            self._hierarchy
        )
        return min(self._demand.small_bytes, room_bytes // _LINE_BYTES * _LINE_BYTES)

    def _doubling(self) -> Candidate:
        demand, hierarchy = self._demand, self._hierarchy
        longest = self._longest_bytes() // self._itemsize
        steps = (hierarchy.host_count - 1).bit_length()
        leaders = hierarchy.members(0)[0], hierarchy.members(1)[0]
        one = self._costs.busiest_nanoseconds(iter([(*leaders, demand.nbytes)]))

        def make(rank: int, staged: bool) -> Plan:
            del staged
            return recursive_doubling.plan_allreduce(
                rank, hierarchy, demand.spec, longest_elements=longest
            )

        return Candidate(
            "recursive_doubling",
            f"{steps} messages one after the other, of all the data",
            steps * (self._costs.latency_nanoseconds + one + 2 * MESSAGE_NANOSECONDS),
            0,
            make,
        )

    def _two_shot(self) -> Candidate:
        """Sum in rank order: every rank sends every owner its part."""
        demand, hierarchy = self._demand, self._hierarchy
        world_size = hierarchy.world_size
        peers = world_size - 1
        room = demand.staging_bytes // (peers * _FEWEST_SLOTS * self._itemsize) - 32
        unit = SHARD_ALIGNMENT_ELEMENTS
        chunk = max(unit, min(self._block, room, self._costs.most_message_bytes // self._itemsize))
        chunk = chunk // unit * unit
        scattered = demand.kind == "reduce_scatter"
        own = self._block * self._itemsize

        def flows() -> Iterator[Flow]:
            for rank in self._costs.senders():
                for peer in range(world_size):
                    if hierarchy.hosts[peer] != hierarchy.hosts[rank]:
                        yield (rank, peer, own * (1 if scattered else 2))

        def make(rank: int, staged: bool) -> Plan:
            del staged
            if scattered:
                return wire_two_shot.plan_reduce_scatter_wire(
                    rank,
                    world_size,
                    demand.spec,
                    chunk_elements=chunk,
                    slots=_FEWEST_SLOTS,
                    alignment_elements=demand.alignment_elements,
                )
            return wire_two_shot.plan_allreduce_wire(
                rank, world_size, demand.spec, chunk_elements=chunk, slots=_FEWEST_SLOTS
            )

        busiest = self._costs.busiest_nanoseconds(flows())
        return Candidate(
            "wire_two_shot",
            "every owner adds all ranks' values in rank order",
            self._costs.total_nanoseconds(busiest, 1, 2 * peers, chunk),
            chunk,
            make,
        )
