"""Which algorithm serves a call, and its plans for symmetric and for ordinary arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.algorithms import ReduceSpec, flat, inline, movement, one_shot, two_shot
from cocoll.algorithms.choosing import Demand, candidates, make_hierarchy
from cocoll.errors import UnsupportedError
from cocoll.failure import Kind, Option
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS, Plan

if TYPE_CHECKING:
    from cocoll.topology.cost import CollectiveKind
    from cocoll.topology.graph import Topology
    from cocoll.tuning import Tuning

__all__ = [
    "ALGORITHMS",
    "INLINE",
    "MAPPED_CHUNK_ELEMENTS",
    "ONE_SHOT",
    "Choice",
    "Variants",
    "choose_for_hosts",
    "choose_variants",
    "chunk_of_rank",
    "collective_of",
    "demand_of",
]

#: The algorithms, by their number in flight records.
ALGORITHMS = (
    "inline",
    "one_shot",
    "two_shot",
    "flat",
    "barrier",
    "hierarchical",
    "hierarchical_ring",
    "hierarchical_chain",
    "hierarchical_tree",
    "recursive_doubling",
    "wire_two_shot",
    "flat_update",
    "local_update",
    "direct",
)
_MOVEMENT = (Kind.REDUCE, Kind.GATHER, Kind.SCATTER, Kind.ALLTOALL)

#: Size classes: the data fits the arrival line; the one-shot staging; neither.
INLINE, ONE_SHOT = 0, 1

#: What a rank reduces in one step where nothing is staged: long enough to cost nothing, short
#: enough that a lost peer and Ctrl-C are noticed inside a huge vector.
MAPPED_CHUNK_ELEMENTS = 1 << 20
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Variants:
    """The plans of one rank for one kind of call.

    Attributes
    ----------
    algorithm : str
        One of `ALGORITHMS`.
    mapped : Plan or None
        For symmetric arrays, where that makes a difference.
    staged : Plan
        For any arrays.
    """

    algorithm: str
    mapped: Plan | None
    staged: Plan

    def plan(self, mapped: bool) -> Plan:
        """Give the one for symmetric arrays or the other."""
        return self.mapped if mapped and self.mapped is not None else self.staged


def choose_variants(
    rank: int,
    world_size: int,
    tuning: Tuning,
    kind: Kind,
    spec: ReduceSpec,
    size_class: int,
    root: int,
    options: Option,
) -> Variants:
    """Choose the algorithm of a call from its agreed facts, and plan it.

    Parameters
    ----------
    rank, world_size : int
        Whose plans.
    tuning : Tuning
        The communicator's.
    kind : Kind
        The operation.
    spec : ReduceSpec
        Its arrays; of a plain copy the source and one result.
    size_class : int
        `INLINE`, `ONE_SHOT` or more.
    root : int
        Of a broadcast.
    options : Option
        Shards or blocks, replicated results, zero_grad.

    Returns
    -------
    Variants
        The same choice on every rank.
    """
    replicated = Option.REPLICATED in options
    itemsize = spec.source_itemsize_bytes
    match kind:
        case Kind.BARRIER:
            return Variants("barrier", None, flat.plan_barrier(rank, world_size))
        case Kind.ALLREDUCE | Kind.ALLREDUCE_FUSED:
            return _allreduce(rank, world_size, tuning, spec, size_class, replicated)
        case Kind.REDUCE_SCATTER | Kind.REDUCE_SCATTER_FUSED:
            sharded = kind is Kind.REDUCE_SCATTER_FUSED or Option.SHARD in options
            alignment = SHARD_ALIGNMENT_ELEMENTS if sharded else 1
            return Variants(
                "flat",
                flat.plan_reduce_scatter(
                    rank,
                    world_size,
                    spec,
                    chunk_elements=MAPPED_CHUNK_ELEMENTS,
                    alignment_elements=alignment,
                ),
                flat.plan_reduce_scatter_staged(
                    rank,
                    world_size,
                    spec,
                    chunk_elements=_chunk_of_owner(world_size, tuning, spec),
                    slots=tuning.slots,
                    alignment_elements=alignment,
                ),
            )
        case Kind.ALLGATHER:
            alignment = SHARD_ALIGNMENT_ELEMENTS if Option.SHARD in options else 1
            return Variants(
                "flat",
                flat.plan_allgather(
                    rank,
                    world_size,
                    itemsize,
                    chunk_elements=MAPPED_CHUNK_ELEMENTS,
                    alignment_elements=alignment,
                    replicated_result=replicated,
                ),
                flat.plan_allgather_staged(
                    rank,
                    world_size,
                    itemsize,
                    chunk_elements=chunk_of_rank(tuning, itemsize),
                    slots=tuning.slots,
                    alignment_elements=alignment,
                    replicated_result=replicated,
                ),
            )
        case Kind.REDUCE | Kind.GATHER | Kind.SCATTER | Kind.ALLTOALL:
            return Variants(
                *movement.plan_both(kind.name.lower(), rank, world_size, spec, root, tuning)
            )
        case _:
            return Variants(
                "flat",
                flat.plan_broadcast(
                    rank,
                    world_size,
                    root,
                    itemsize,
                    chunk_elements=MAPPED_CHUNK_ELEMENTS,
                    replicated_result=replicated,
                ),
                flat.plan_broadcast_staged(
                    rank,
                    world_size,
                    root,
                    itemsize,
                    chunk_elements=chunk_of_rank(tuning, itemsize),
                    slots=tuning.slots,
                    replicated_result=replicated,
                ),
            )


@dataclass(frozen=True, slots=True)
class Choice:
    """The agreed facts from which every rank's plans follow.

    Attributes
    ----------
    world_size : int
        Of the communicator.
    topology : Topology or None
        Where there are several hosts.
    tuning : Tuning
        The communicator's.
    kind, spec, size_class, root, options
        As of `choose_variants`.
    rank_order : bool
        Whether sums must be taken in rank order.
    """

    world_size: int
    topology: Topology | None
    tuning: Tuning
    kind: Kind
    spec: ReduceSpec
    size_class: int
    root: int
    options: Option
    rank_order: bool

    def variants(self, rank: int) -> Variants:
        """Give the plans of a rank."""
        if self.topology is None:
            return choose_variants(
                rank,
                self.world_size,
                self.tuning,
                self.kind,
                self.spec,
                self.size_class,
                self.root,
                self.options,
            )
        return choose_for_hosts(
            rank,
            self.topology,
            self.tuning,
            self.kind,
            self.spec,
            self.size_class,
            self.root,
            self.options,
            rank_order=self.rank_order,
        )


def collective_of(kind: Kind) -> CollectiveKind:
    """Give what a fused or plain operation is as a collective.

    Raises
    ------
    UnsupportedError
        It is none: a barrier, an exchange of bytes, a plan of the caller's.
    """
    match kind:
        case Kind.ALLREDUCE | Kind.ALLREDUCE_FUSED:
            return "allreduce"
        case Kind.REDUCE_SCATTER | Kind.REDUCE_SCATTER_FUSED:
            return "reduce_scatter"
        case Kind.ALLGATHER:
            return "allgather"
        case Kind.BROADCAST:
            return "broadcast"
    raise UnsupportedError(f"there is no cost model of {kind.name.lower()} yet")


def demand_of(
    tuning: Tuning,
    kind: Kind,
    spec: ReduceSpec,
    size_class: int,
    root: int,
    options: Option,
    *,
    rank_order: bool,
) -> Demand:
    """Give what a call over several hosts wants; the arguments are those of `choose_for_hosts`."""
    shards = Option.SHARD in options or kind not in (Kind.REDUCE_SCATTER, Kind.ALLGATHER)
    return Demand(
        collective_of(kind),
        spec,
        1 << max(0, size_class - 2),
        root=max(0, root),
        alignment_elements=SHARD_ALIGNMENT_ELEMENTS if shards else 1,
        replicated=Option.REPLICATED in options,
        rank_order=rank_order,
        staging_bytes=tuning.staging_bytes,
        small_bytes=tuning.one_shot_bytes,
    )


def choose_for_hosts(
    rank: int,
    topology: Topology,
    tuning: Tuning,
    kind: Kind,
    spec: ReduceSpec,
    size_class: int,
    root: int,
    options: Option,
    *,
    rank_order: bool,
) -> Variants:
    """Choose the algorithm of a call over several hosts, and plan it.

    Parameters
    ----------
    rank : int
        Whose plans.
    topology : Topology
        Of the communicator.
    tuning, kind, spec, root, options
        As of `choose_variants`.
    size_class : int
        Two more than the logarithm of the size: it stands for all sizes down to half of it.
    rank_order : bool
        Whether sums must be taken in rank order.

    Returns
    -------
    Variants
        The same choice on every rank.
    """
    if kind is Kind.BARRIER:
        return Variants("barrier", None, flat.plan_barrier(rank, topology.world_size))
    if kind in _MOVEMENT:
        name, hierarchy = kind.name.lower(), make_hierarchy(topology)
        size = topology.world_size
        return Variants(
            *movement.plan_both(name, rank, size, spec, root, tuning, hierarchy, rank_order)
        )
    demand = demand_of(tuning, kind, spec, size_class, root, options, rank_order=rank_order)
    best = candidates(topology, demand)[0]
    staged = best.make(rank, True)
    mapped = best.make(rank, False)
    is_mapped = mapped.mapped_sources or mapped.mapped_results
    return Variants(best.name, mapped if is_mapped else None, staged)


def _allreduce(
    rank: int,
    world_size: int,
    tuning: Tuning,
    spec: ReduceSpec,
    size_class: int,
    replicated: bool,
) -> Variants:
    # Where every rank computes everything, nothing may be sharded, stored once for all, or zeroed
    # by its reader.
    everywhere = not (spec.is_sharded or replicated or spec.zero_source)
    if everywhere and size_class == INLINE and len(spec.result_itemsizes_bytes) == 1:
        return Variants("inline", None, inline.plan_allreduce(rank, world_size, spec))
    if everywhere and size_class <= ONE_SHOT:
        return Variants("one_shot", None, one_shot.plan_allreduce(rank, world_size, spec))
    return Variants(
        "two_shot",
        two_shot.plan_allreduce(
            rank,
            world_size,
            spec,
            chunk_elements=MAPPED_CHUNK_ELEMENTS,
            replicated_result=replicated,
        ),
        two_shot.plan_allreduce_staged(
            rank,
            world_size,
            spec,
            chunk_elements=_chunk_of_owner(world_size, tuning, spec),
            slots=tuning.slots,
            replicated_result=replicated,
        ),
    )


def _chunk_of_owner(world_size: int, tuning: Tuning, spec: ReduceSpec) -> int:
    # A chunk is what all owners get in one iteration; its slots, at their widest, fit the staging.
    itemsize = spec.source_itemsize_bytes
    widest = itemsize + sum(spec.result_itemsizes_bytes)
    padding = 2 * _LINE_BYTES * world_size * tuning.slots
    elements = min(
        tuning.chunk_bytes // (world_size * itemsize),
        (tuning.staging_bytes - padding) // (world_size * tuning.slots * widest),
    )
    unit = SHARD_ALIGNMENT_ELEMENTS
    return max(unit, elements // unit * unit)


def chunk_of_rank(tuning: Tuning, itemsize_bytes: int) -> int:
    """Give the elements of a chunk where one staging of chunks is read by all ranks."""
    room = tuning.staging_bytes // tuning.slots - _LINE_BYTES
    return max(1, min(tuning.chunk_bytes, room) // itemsize_bytes)
