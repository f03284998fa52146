"""Collectives over several hosts for wires without tags: every byte crosses a host's NICs once.

The stages are those of :mod:`cocoll.algorithms.hierarchical`: in a host's memory the delegate of a
block adds up what its ranks have, that goes to the block's owner, who adds what has come, runs the
epilogue and sends the results back, and delegates hand them to their neighbours. Here all messages
of a rank have one order, and those of a stage move as a group (docs/plans.md, rule 5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.algorithms.host_staging import HostStaging
from cocoll.algorithms.ordered_lanes import SLOTS, OrderedLanes
from cocoll.plan.builder import Builder
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS, Flag, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.algorithms.operands import ReduceSpec
    from cocoll.plan.ir import Plan

__all__ = [
    "plan_allgather_ordered",
    "plan_allreduce_ordered",
    "plan_reduce_scatter_ordered",
    "reduction_staging",
]

_SCATTER_GROUP, _GATHER_GROUP = 1, 2


def reduction_staging(
    hierarchy: Hierarchy, spec: ReduceSpec, chunk_elements: int, *, staged: bool, gathers: bool
) -> HostStaging:
    """Give the scratch of a reduction, of which the plans here use no more.

    Parameters
    ----------
    hierarchy : Hierarchy
        The ranks.
    spec : ReduceSpec
        What is reduced.
    chunk_elements : int
        Elements of one message.
    staged : bool
        Whether neighbours see each other's arrays through staging only.
    gathers : bool
        Whether the results go to all ranks.

    Returns
    -------
    HostStaging
        ``fitting_chunk`` says how long chunks may be.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``.
    """
    results = spec.result_itemsizes_bytes if gathers else ()
    return HostStaging(
        hierarchy,
        (spec.source_itemsize_bytes, *results),
        chunk_elements,
        SLOTS,
        shares=staged,
        answers=staged and gathers,
        parts="straight",
    )


def plan_allreduce_ordered(
    rank: int, hierarchy: Hierarchy, spec: ReduceSpec, *, chunk_elements: int, staged: bool = True
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
    staged : bool, default True
        Whether neighbours see each other's arrays through staging only; else they are symmetric.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or identical to it.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``.

    Notes
    -----
    With n bytes a rank and H hosts, a host sends and receives ``2 * n * (H - 1) / H``, which is the
    least; two groups a chunk. A sum is that of the owner's host's ranks, in rank order, and of the
    other hosts' sums, in the order of hosts.
    """
    staging = reduction_staging(hierarchy, spec, chunk_elements, staged=staged, gathers=True)
    itemsizes = spec.result_itemsizes_bytes
    builder = Builder(
        rank,
        hierarchy.world_size,
        name="hierarchical",
        mapped_sources=not staged,
        mapped_results=not staged,
        hosts=hierarchy.hosts,
    )
    shared = staged and bool(hierarchy.neighbours(rank))
    wires = ["scatter", "gather"] if itemsizes else ["scatter"]
    lanes = OrderedLanes(builder, hierarchy, staging, ["meet", *wires, "show"] if shared else wires)
    reduction = _Reduction(builder, hierarchy, spec, staging, lanes, shared=shared)
    holders = (rank,) if staged else (rank, *lanes.neighbours)
    own = [spec.result_view(rank, index) for index in range(len(itemsizes))]
    reduction.add(
        [[spec.result_view(holder, index) for holder in holders] for index in range(len(itemsizes))]
    )
    if itemsizes:
        _add_gather(builder, hierarchy, lanes, own, own, {"final": 0})
    if shared and itemsizes:
        lanes.add_distribute(own, {"final": 0, "gather": 0})
        lanes.add_meeting(
            "show", Flag.ANSWER, {**reduction.reading(), "distribute": 0, "pull": SLOTS - 1}
        )
        lanes.add_pull(own)
        lanes.add_done(["pull"])
    elif shared:
        lanes.add_meeting("show", Flag.ANSWER, reduction.reading())
    else:
        stores = lanes.add_stores(hierarchy.delegated(rank), own, {"gather": 0})
        lanes.add_done([*reduction.reading(), *stores])
    return builder.build()


def plan_reduce_scatter_ordered(
    rank: int,
    hierarchy: Hierarchy,
    spec: ReduceSpec,
    *,
    chunk_elements: int,
    staged: bool = True,
    alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS,
) -> Plan:
    """Plan a reduce-scatter over several hosts.

    Parameters
    ----------
    rank, hierarchy, spec, chunk_elements, staged
        As of `plan_allreduce_ordered`; each result is this rank's block.
    alignment_elements : int, default SHARD_ALIGNMENT_ELEMENTS
        1 for the equal blocks of a plain reduce-scatter.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or this rank's block of it.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``.

    Notes
    -----
    With n bytes a rank and H hosts, a host sends and receives ``n * (H - 1) / H``.
    """
    staging = reduction_staging(hierarchy, spec, chunk_elements, staged=staged, gathers=False)
    builder = Builder(
        rank,
        hierarchy.world_size,
        name="hierarchical",
        alignment_elements=alignment_elements,
        mapped_sources=not staged,
        hosts=hierarchy.hosts,
    )
    shared = staged and bool(hierarchy.neighbours(rank))
    turns = ["meet", "scatter", "show"] if shared else ["scatter"]
    lanes = OrderedLanes(builder, hierarchy, staging, turns)
    reduction = _Reduction(builder, hierarchy, spec, staging, lanes, shared=shared)
    reduction.add(
        [[spec.result_view(rank, index, rank)] for index in range(len(spec.result_itemsizes_bytes))]
    )
    if shared:
        lanes.add_meeting("show", Flag.ANSWER, reduction.reading())
    else:
        lanes.add_done([*reduction.reading()])
    return builder.build()


def plan_allgather_ordered(
    rank: int,
    hierarchy: Hierarchy,
    itemsize_bytes: int,
    *,
    chunk_elements: int,
    staged: bool = True,
    alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS,
) -> Plan:
    """Plan an all-gather over several hosts.

    Parameters
    ----------
    rank, hierarchy, chunk_elements
        As of `plan_allreduce_ordered`.
    itemsize_bytes : int
        Bytes of one element.
    staged : bool, default True
        Whether neighbours see each other's results through staging only; else results are
        symmetric.
    alignment_elements : int, default SHARD_ALIGNMENT_ELEMENTS
        1 for equal blocks.

    Returns
    -------
    Plan
        Legal for a source that is disjoint from the result or this rank's block of it.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``.

    Notes
    -----
    With n bytes of result and H hosts, a host receives ``n * (H - 1) / H``, and sends as much where
    hosts have equal blocks; one group a chunk.
    """
    staging = HostStaging(
        hierarchy, (itemsize_bytes, itemsize_bytes), chunk_elements, SLOTS, answers=staged
    )
    builder = Builder(
        rank,
        hierarchy.world_size,
        name="hierarchical",
        alignment_elements=alignment_elements,
        mapped_results=not staged,
        hosts=hierarchy.hosts,
    )
    shared = staged and bool(hierarchy.neighbours(rank))
    turns = ["gather", "show"] if shared else ["gather"]
    lanes = OrderedLanes(builder, hierarchy, staging, turns)
    source = builder.source(itemsize_bytes=itemsize_bytes, origin=rank)
    result = builder.result(itemsize_bytes=itemsize_bytes)
    with lanes.lane("own"):
        for holder in (rank,) if staged else (rank, *lanes.neighbours):
            builder.copy(
                block=rank,
                source=source,
                destination=builder.result(itemsize_bytes=itemsize_bytes, rank=holder),
            )
    _add_gather(builder, hierarchy, lanes, [source], [result], {})
    if shared:
        lanes.add_distribute([result], {"own": 0, "gather": 0})
        lanes.add_meeting("show", Flag.ANSWER, {"distribute": 0, "pull": SLOTS - 1})
        lanes.add_pull([result])
        lanes.add_done(["pull"])
    else:
        stores = lanes.add_stores(hierarchy.delegated(rank), [result], {"gather": 0})
        lanes.add_done(["own", *stores])
    return builder.build()


def _add_gather(
    builder: Builder,
    hierarchy: Hierarchy,
    lanes: OrderedLanes,
    sources: Sequence[View],
    results: Sequence[View],
    after: dict[str, int | None],
) -> None:
    """Let owners send their blocks to all delegates."""
    rank = builder.rank
    waits: dict[str, int | None] | None = {**lanes.after("gather"), **after}
    with lanes.lane("gather"):
        for source in sources:
            for peer in hierarchy.delegates(rank):
                builder.send(peer=peer, source=source, block=rank, group=_GATHER_GROUP, after=waits)
                waits = None
        for owner in hierarchy.delegated(rank):
            for result in results:
                builder.recv(peer=owner, destination=result, block=owner, group=_GATHER_GROUP)


class _Reduction:
    """Adds the lanes that reduce: "share", "meet", "partial", "scatter" and "final"."""

    def __init__(
        self,
        builder: Builder,
        hierarchy: Hierarchy,
        spec: ReduceSpec,
        staging: HostStaging,
        lanes: OrderedLanes,
        *,
        shared: bool,
    ) -> None:
        self._builder = builder
        self._hierarchy = hierarchy
        self._spec = spec
        self._staging = staging
        self._lanes = lanes
        self._shared = shared
        self._rank = builder.rank
        self._host = hierarchy.hosts[builder.rank]
        self._members = hierarchy.members(self._host)
        self._delegated = hierarchy.delegated(builder.rank)
        # Alone on its host a rank sends what the caller has.
        self._adds = bool(self._delegated) and len(self._members) > 1

    def reading(self) -> dict[str, int | None]:
        """Give the lanes that read what neighbours have."""
        return {"final": 0, "partial": 0} if self._adds else {"final": 0}

    def add(self, stores: Sequence[Sequence[View]]) -> None:
        """Add all lanes, up to "final", which stores each result of the own block to `stores`."""
        if self._shared:
            self._lanes.add_share(self._spec.source_view(self._rank), self._lanes.neighbours)
            self._lanes.add_meeting("meet", Flag.REQUEST, {"share": 0})
        if self._adds:
            self._add_partials()
        self._add_scatter()
        self._add_final(stores)

    def _shares(self, owner: int) -> list[View]:
        """Give what the ranks of this host have of a block that this rank handles."""
        return [
            self._staging.own_share(member, owner)
            if self._shared and member != self._rank
            else self._spec.source_view(member)
            for member in self._members
        ]

    def _add_partials(self) -> None:
        after: dict[str, int | None] | None = {"scatter": SLOTS}
        if self._shared:
            after = {"scatter": SLOTS, "meet": 0}
        with self._lanes.lane("partial"):
            for owner in self._delegated:
                self._builder.reduce(
                    block=owner,
                    sources=self._shares(owner),
                    destinations=[[self._staging.partial(self._rank, owner)]],
                    partial=True,
                    after=after,
                )
                after = None

    def _add_scatter(self) -> None:
        builder, staging, rank = self._builder, self._staging, self._rank
        waits = {**self._lanes.after("scatter"), "final": SLOTS}
        if self._adds:
            waits["partial"] = 0
        after: dict[str, int | None] | None = waits
        with self._lanes.lane("scatter"):
            for owner in self._delegated:
                part = staging.partial(rank, owner) if self._adds else self._spec.source_view(rank)
                builder.send(
                    peer=owner, source=part, block=owner, group=_SCATTER_GROUP, after=after
                )
                after = None
            for peer in self._hierarchy.delegates(rank):
                arrived = staging.arrived(rank, rank, peer)
                builder.recv(
                    peer=peer, destination=arrived, block=rank, group=_SCATTER_GROUP, after=after
                )
                after = None

    def _add_final(self, stores: Sequence[Sequence[View]]) -> None:
        hosts, rank = self._hierarchy.hosts, self._rank
        arrived = {
            hosts[peer]: [self._staging.arrived(rank, rank, peer)]
            for peer in self._hierarchy.delegates(rank)
        }
        arrived[self._host] = self._shares(rank)
        with self._lanes.lane("final"):
            self._builder.reduce(
                block=rank,
                sources=[view for host in sorted(arrived) for view in arrived[host]],
                destinations=stores,
                operands=self._spec.operand_views(rank),
                updated=self._spec.updated,
                after={"scatter": 0},
            )
