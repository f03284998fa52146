"""Which plan serves a call whose messages go over NCCL, by agreed facts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.algorithms import native, wire_two_shot
from cocoll.algorithms.host_staging import HostStaging
from cocoll.algorithms.ordered_broadcast import (
    broadcast_staging,
    plan_broadcast_ordered,
    prefers_tree,
)
from cocoll.algorithms.ordered_hosts import (
    plan_allgather_ordered,
    plan_allreduce_ordered,
    plan_reduce_scatter_ordered,
    reduction_staging,
)
from cocoll.algorithms.ordered_lanes import SLOTS
from cocoll.failure import Kind
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS, Plan

if TYPE_CHECKING:
    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.device.request import Request

__all__ = ["choose_for_hosts", "wire_two_shot_plan"]

# A chunk is worth its two groups of messages from here on; there are some of them even so.
_LEAST_CHUNK_BYTES = 256 << 10
_CHUNKS = 8
_WIRE_SLOTS = 2
_LINE_BYTES = 128


def choose_for_hosts(request: Request, *, is_native: bool) -> Plan:
    """Choose the plan of a call over several hosts, whose ranks map their neighbours' memory.

    Parameters
    ----------
    request : Request
        What is to be done.
    is_native : bool
        Whether NCCL's own all-reduce serves.

    Returns
    -------
    Plan
        Of the same way on every rank.
    """
    rank, world_size = request.comm.rank, request.comm.world_size
    itemsize = request.source.dtype.itemsize_bytes
    hierarchy = request.side.hierarchy
    assert hierarchy is not None
    if is_native:
        return native.plan_allreduce_native(rank, world_size, itemsize)
    if request.kind is Kind.BROADCAST:
        return _plan_broadcast(request, hierarchy)
    staged = not request.places()
    if request.kind is Kind.ALLGATHER:
        staging = HostStaging(hierarchy, (itemsize, itemsize), 1, SLOTS, answers=staged)
        return plan_allgather_ordered(
            rank,
            hierarchy,
            itemsize,
            chunk_elements=_chunk_elements(request, staging),
            staged=staged,
            alignment_elements=request.alignment_elements,
        )
    spec = request.reduced
    exact = not request.source.dtype.reduces_in_parts(request.spec.op)
    # What takes no time on the wire is better off with few steps.
    if exact or request.count * itemsize <= request.side.endpoint.staging_bytes:
        return wire_two_shot_plan(request)
    gathers = not request.scattered
    staging = reduction_staging(hierarchy, spec, 1, staged=staged, gathers=gathers)
    chunk = _chunk_elements(request, staging)
    if gathers:
        return plan_allreduce_ordered(rank, hierarchy, spec, chunk_elements=chunk, staged=staged)
    return plan_reduce_scatter_ordered(
        rank,
        hierarchy,
        spec,
        chunk_elements=chunk,
        staged=staged,
        alignment_elements=request.alignment_elements,
    )


def _plan_broadcast(request: Request, hierarchy: Hierarchy) -> Plan:
    # Never from the root's array itself: only the root knows where that is.
    itemsize = request.source.dtype.itemsize_bytes
    chunk = _chunk_elements(request, broadcast_staging(hierarchy, itemsize, 1))
    return plan_broadcast_ordered(
        request.comm.rank,
        hierarchy,
        request.root,
        itemsize,
        chunk_elements=chunk,
        tree=prefers_tree(
            request.comm.topology,
            hierarchy,
            request.root,
            block_bytes=request.block * itemsize,
            chunk_bytes=chunk * itemsize,
        ),
    )


def wire_two_shot_plan(request: Request) -> Plan:
    """Plan a reduction in which every rank sends every owner its part.

    Parameters
    ----------
    request : Request
        A reduction.

    Returns
    -------
    Plan
        Whose sums are in rank order.
    """
    rank, world_size = request.comm.rank, request.comm.world_size
    itemsize = request.source.dtype.itemsize_bytes
    peers = max(1, world_size - 1)
    room = request.side.endpoint.window_bytes // (peers * _WIRE_SLOTS)
    chunk = _fit(request, room // _LINE_BYTES * _LINE_BYTES // itemsize)
    if request.scattered:
        return wire_two_shot.plan_reduce_scatter_wire(
            rank,
            world_size,
            request.reduced,
            chunk_elements=chunk,
            slots=_WIRE_SLOTS,
            alignment_elements=request.alignment_elements,
        )
    return wire_two_shot.plan_allreduce_wire(
        rank, world_size, request.reduced, chunk_elements=chunk, slots=_WIRE_SLOTS
    )


def _chunk_elements(request: Request, staging: HostStaging) -> int:
    return _fit(request, staging.fitting_chunk(request.side.endpoint.window_bytes))


def _fit(request: Request, room_elements: int) -> int:
    """Give the elements of a message, for which there is room."""
    itemsize = request.source.dtype.itemsize_bytes
    wanted = max(_LEAST_CHUNK_BYTES, request.block * itemsize // _CHUNKS) // itemsize
    unit = SHARD_ALIGNMENT_ELEMENTS
    return max(unit, min(room_elements, wanted) // unit * unit)
