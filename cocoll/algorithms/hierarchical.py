"""Collectives over several hosts, in which every byte crosses a host's NICs once.

What the ranks of a host have is put together in shared memory; between hosts blocks go to their
owners and back, straight or in a ring; in between, chunk by chunk, all stages work side by side.

References
----------
Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005
(the lower bounds); Jangda et al., "Breaking the Computation and Communication Abstraction Barrier
in Distributed Machine Learning Workloads", ASPLOS 2022, section 5.1 (fused collectives).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.algorithms.exchange import lane_over_chunks
from cocoll.algorithms.hierarchical_reduce import HostReduction
from cocoll.algorithms.hierarchical_spread import HostSpread, add_done
from cocoll.algorithms.host_staging import HostStaging
from cocoll.plan.builder import Builder
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS

if TYPE_CHECKING:
    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.algorithms.operands import ReduceSpec
    from cocoll.plan.ir import Plan

__all__ = [
    "plan_allgather",
    "plan_allreduce",
    "plan_reduce_scatter",
]


def plan_allreduce(
    rank: int,
    hierarchy: Hierarchy,
    spec: ReduceSpec,
    *,
    chunk_elements: int,
    slots: int = 2,
    in_flight: int = 2,
    ring: bool = False,
    staged: bool = True,
    replicated_result: bool = False,
) -> Plan:
    """Plan an all-reduce over several hosts, with an epilogue on the owner of each block.

    Parameters
    ----------
    rank : int
        Whose plan.
    hierarchy : Hierarchy
        Which rank is on which host.
    spec : ReduceSpec
        What is reduced; operands may be sharded.
    chunk_elements : int
        Elements of one message.
    slots : int, default 2
        Chunks of each kind that a rank has room for.
    in_flight : int, default 2
        Chunks of messages that may be under way, each way.
    ring : bool, default False
        Whether blocks pass all hosts one after the other; else they go straight to their owners and
        back.
    staged : bool, default True
        Whether neighbours see each other's arrays through staging only; else they are symmetric.
    replicated_result : bool, default False
        Every host has one copy of each result.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or identical to it.

    Raises
    ------
    UsageError
        A number is below 1.

    Notes
    -----
    With n bytes a rank and H hosts, a host sends and receives ``2 * n * (H - 1) / H``, which is the
    least. A sum is that of the owner's host's ranks, in rank order, and of the other hosts' sums,
    in the order of hosts (along a ring: of the ring).
    """
    results = spec.result_itemsizes_bytes
    staging = HostStaging(
        hierarchy,
        (spec.source_itemsize_bytes, *results),
        chunk_elements,
        slots,
        shares=staged,
        answers=staged and not replicated_result,
        parts="ring" if ring else "straight",
    )
    stores_to_peers = not staged and not replicated_result
    builder = Builder(
        rank,
        hierarchy.world_size,
        name="hierarchical_ring" if ring else "hierarchical",
        mapped_sources=not staged,
        mapped_results=stores_to_peers,
        hosts=hierarchy.hosts,
    )
    reduction = HostReduction(
        builder, hierarchy, spec, staging, staged=staged, ring=ring, in_flight=in_flight
    )
    neighbours = hierarchy.neighbours(rank)
    holders = (rank, *neighbours) if stores_to_peers else (rank,)
    reduction.add(
        [[spec.result_view(holder, index) for holder in holders] for index in range(len(results))]
    )
    own = [spec.result_view(rank, index) for index in range(len(results))]
    spread = HostSpread(builder, hierarchy, staging, results, in_flight)
    arrived: list[str] = []
    if ring:
        arrived = spread.add_chains(own, {"final": 0}, reduction.free_lanes)
    elif results:
        delegated = hierarchy.delegated(rank)
        free = reduction.free_lanes(delegated[0]) if delegated else None
        arrived = spread.add_straight(own, {"final": 0}, free)
    if replicated_result:
        add_done(builder, neighbours, [*arrived, "final", *reduction.reading_lanes()])
    elif staged:
        if results:
            spread.add_answers(own, [*arrived, "final"], neighbours, neighbours)
    else:
        lanes = spread.add_stores(hierarchy.delegated(rank), own, neighbours, arrived)
        add_done(builder, neighbours, [*lanes, "final", *reduction.reading_lanes()])
    return builder.build()


def plan_reduce_scatter(
    rank: int,
    hierarchy: Hierarchy,
    spec: ReduceSpec,
    *,
    chunk_elements: int,
    slots: int = 2,
    in_flight: int = 2,
    ring: bool = False,
    staged: bool = True,
    alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS,
) -> Plan:
    """Plan a reduce-scatter over several hosts.

    Parameters
    ----------
    rank, hierarchy, spec, chunk_elements, slots, in_flight, ring, staged
        As of `plan_allreduce`; each result is this rank's block.
    alignment_elements : int, default SHARD_ALIGNMENT_ELEMENTS
        1 for the equal blocks of a plain reduce-scatter.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or this rank's block of it.

    Raises
    ------
    UsageError
        A number is below 1.

    Notes
    -----
    With n bytes a rank and H hosts, a host sends and receives ``n * (H - 1) / H``.
    """
    staging = HostStaging(
        hierarchy,
        (spec.source_itemsize_bytes,),
        chunk_elements,
        slots,
        shares=staged,
        parts="ring" if ring else "straight",
    )
    builder = Builder(
        rank,
        hierarchy.world_size,
        name="hierarchical_ring" if ring else "hierarchical",
        alignment_elements=alignment_elements,
        mapped_sources=not staged,
        hosts=hierarchy.hosts,
    )
    reduction = HostReduction(
        builder, hierarchy, spec, staging, staged=staged, ring=ring, in_flight=in_flight
    )
    reduction.add(
        [[spec.result_view(rank, index, rank)] for index in range(len(spec.result_itemsizes_bytes))]
    )
    if not staged:
        add_done(builder, hierarchy.neighbours(rank), ["final", *reduction.reading_lanes()])
    return builder.build()


def plan_allgather(
    rank: int,
    hierarchy: Hierarchy,
    itemsize_bytes: int,
    *,
    chunk_elements: int,
    slots: int = 2,
    in_flight: int = 2,
    ring: bool = False,
    staged: bool = True,
    alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS,
    replicated_result: bool = False,
) -> Plan:
    """Plan an all-gather over several hosts.

    Parameters
    ----------
    rank, hierarchy, chunk_elements, slots, in_flight, ring, staged, replicated_result
        As of `plan_allreduce`.
    itemsize_bytes : int
        Bytes of one element.
    alignment_elements : int, default SHARD_ALIGNMENT_ELEMENTS
        1 for equal blocks.

    Returns
    -------
    Plan
        Legal for a source that is disjoint from the result or this rank's block of it.

    Raises
    ------
    UsageError
        A number is below 1.

    Notes
    -----
    With n bytes of result and H hosts, a host receives ``n * (H - 1) / H``, and sends as much in a
    ring or where hosts have equal blocks.
    """
    staging = HostStaging(
        hierarchy,
        (itemsize_bytes, itemsize_bytes),
        chunk_elements,
        slots,
        answers=staged and not replicated_result,
    )
    stores_to_peers = not staged and not replicated_result
    builder = Builder(
        rank,
        hierarchy.world_size,
        name="hierarchical_ring" if ring else "hierarchical",
        alignment_elements=alignment_elements,
        mapped_results=stores_to_peers,
        hosts=hierarchy.hosts,
    )
    neighbours = hierarchy.neighbours(rank)
    source = builder.source(itemsize_bytes=itemsize_bytes, origin=rank)
    result = builder.result(itemsize_bytes=itemsize_bytes)
    holders = (rank, *neighbours) if stores_to_peers else (rank,)
    with lane_over_chunks(builder, "own", chunk_elements):
        for holder in holders:
            builder.copy(
                block=rank,
                source=source,
                destination=builder.result(itemsize_bytes=itemsize_bytes, rank=holder),
            )
    spread = HostSpread(builder, hierarchy, staging, (itemsize_bytes,), in_flight)
    if ring:
        arrived = spread.add_chains([source], None, lambda _owner: None)
    else:
        arrived = spread.add_straight([source], None, None)
    if replicated_result:
        add_done(builder, neighbours, [*arrived, "own"])
    elif staged:
        spread.add_answers([result], [*arrived, "own"], neighbours, neighbours)
    else:
        lanes = spread.add_stores(hierarchy.delegated(rank), [result], neighbours, arrived)
        add_done(builder, neighbours, [*lanes, "own"])
    return builder.build()
