"""Reduce, gather, scatter and all-to-all: the plan of each, with chunks that fit what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.algorithms.flat_alltoall import plan_alltoall
from cocoll.algorithms.flat_gather import plan_gather
from cocoll.algorithms.flat_reduce import areas_needed, plan_reduce, plan_reduce_staged
from cocoll.algorithms.flat_scatter import plan_scatter

if TYPE_CHECKING:
    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.algorithms.operands import ReduceSpec
    from cocoll.plan.ir import Plan
    from cocoll.tuning import Tuning

__all__ = ["plan_both", "plan_movement"]

_MAPPED_CHUNK_ELEMENTS = 1 << 20
_LINE_BYTES = 64
# Long enough that what a message costs besides its bytes does not count.
_MESSAGE_BYTES = 4 << 20


def plan_both(
    name: str,
    rank: int,
    world_size: int,
    spec: ReduceSpec,
    root: int,
    tuning: Tuning,
    hierarchy: Hierarchy | None = None,
    in_rank_order: bool = False,
) -> tuple[str, Plan | None, Plan]:
    """Plan for symmetric and for ordinary arrays.

    Parameters
    ----------
    name, rank, world_size, spec, root, tuning, hierarchy, in_rank_order
        As of `plan_movement`.

    Returns
    -------
    tuple of str, Plan or None, Plan
        The algorithm; the plan for symmetric arrays, where that makes a difference; the other.
    """
    mapped, staged = (
        plan_movement(
            name,
            rank,
            world_size,
            spec,
            root,
            tuning,
            staged=one,
            hierarchy=hierarchy,
            in_rank_order=in_rank_order,
        )
        for one in (False, True)
    )
    algorithm = "flat"
    if hierarchy is not None:
        chained = name == "reduce" and not in_rank_order
        algorithm = "hierarchical_chain" if chained else "direct"
    return algorithm, mapped if mapped.mapped_sources else None, staged


def plan_movement(
    name: str,
    rank: int,
    world_size: int,
    spec: ReduceSpec,
    root: int,
    tuning: Tuning,
    *,
    staged: bool,
    hierarchy: Hierarchy | None = None,
    in_rank_order: bool = False,
) -> Plan:
    """Plan one of these operations.

    Parameters
    ----------
    name : {"reduce", "gather", "scatter", "alltoall"}
        Which.
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        Its arrays: the source and one result.
    root : int
        Of all but the all-to-all.
    tuning : Tuning
        The communicator's.
    staged : bool
        Whether ranks of one host see each other's arrays through staging only.
    hierarchy : Hierarchy, optional
        Where there are several hosts.
    in_rank_order : bool, default False
        Whether sums must be taken in rank order over several hosts too.

    Returns
    -------
    Plan
        The same way on every rank.
    """
    itemsize, slots = spec.source_itemsize_bytes, tuning.slots
    hosts = None if hierarchy is None else hierarchy.hosts
    if name == "reduce":
        if not staged and hosts is None:
            return plan_reduce(rank, world_size, root, spec, chunk_elements=_MAPPED_CHUNK_ELEMENTS)
        areas = areas_needed(world_size, slots, in_rank_order=in_rank_order)
        return plan_reduce_staged(
            rank,
            world_size,
            root,
            spec,
            chunk_elements=_fitting_chunk(tuning, itemsize, areas),
            slots=slots,
            hosts=hosts,
            order=() if hierarchy is None else hierarchy.order,
            in_rank_order=in_rank_order,
        )
    areas = slots if name == "gather" else slots * max(1, world_size - 1)
    chunk = _fitting_chunk(tuning, itemsize, areas) if staged else _MAPPED_CHUNK_ELEMENTS
    message = max(1, _MESSAGE_BYTES // itemsize)
    if name == "alltoall":
        return plan_alltoall(
            rank,
            world_size,
            itemsize,
            chunk_elements=chunk,
            slots=slots,
            staged=staged,
            hosts=hosts,
            message_elements=message,
        )
    return (plan_gather if name == "gather" else plan_scatter)(
        rank,
        world_size,
        root,
        itemsize,
        chunk_elements=chunk,
        slots=slots,
        staged=staged,
        hosts=hosts,
        message_elements=message,
    )


def _fitting_chunk(tuning: Tuning, itemsize_bytes: int, areas: int) -> int:
    """Give the elements of a chunk of which `areas` fit the staging."""
    room = tuning.staging_bytes // areas // _LINE_BYTES * _LINE_BYTES
    return max(1, min(tuning.chunk_bytes, room) // itemsize_bytes)
