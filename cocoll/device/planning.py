"""Which plan serves a call on a GPU: the same planners as on the host, by agreed facts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cocoll.algorithms import flat, native, one_shot, two_shot
from cocoll.cuda.binding import Operation
from cocoll.device.hosts import choose_for_hosts, wire_two_shot_plan
from cocoll.device.launches import add_copy, sign
from cocoll.device.lowering import NCCL_TYPES, lower_plan
from cocoll.device.mapped import (
    add_composite,
    is_pushed,
    owners_chunk_elements,
    shared_chunk_elements,
)
from cocoll.failure import Kind, Option

if TYPE_CHECKING:
    from cocoll.device.request import Request
    from cocoll.plan.ir import Plan

__all__ = ["make_operation"]

# Integers are averaged exactly, and the least and the greatest of floats propagate NaN: NCCL's
# own reductions do neither.
_NATIVE_FLOAT_OPS = ("sum", "prod", "avg")
_NATIVE_INTEGER_OPS = ("sum", "prod", "min", "max")


def make_operation(request: Request) -> tuple[Operation, Plan]:
    """Choose the plan of a call, and make its steps.

    Parameters
    ----------
    request : Request
        What is to be done.

    Returns
    -------
    tuple of Operation and Plan
        The steps, and what they mean.
    """
    side = request.side
    if side.hierarchy is not None:
        plan = choose_for_hosts(request, is_native=_is_native(request))
    else:
        plan = _choose_mapped(request) if side.is_mapped else _choose_wire(request)
    # Kernels work on symmetric arrays where they lie: at one place on all ranks.
    places = request.places() if plan.mapped_sources or plan.mapped_results else ()
    facts = (
        int(request.kind),
        request.spec.name(),
        int(request.source.dtype),
        request.count,
        int(request.options),
        plan.name,
        request.root,
        [(place.segment, place.offset_bytes) for place in places],
    )
    operation = Operation(side.endpoint, sign(*facts))
    if not add_composite(plan, request, operation):
        lower_plan(plan, request, operation, in_turn=plan.hosts is not None)
        if Option.ZERO_GRAD in request.options:
            add_copy(side, operation, request.source.address, 0, request.source.nbytes)
    return operation, plan


def _choose_mapped(request: Request) -> Plan:
    comm, side = request.comm, request.side
    rank, world_size = comm.rank, comm.world_size
    itemsize = request.source.dtype.itemsize_bytes
    in_place = bool(request.places())
    whole = max(1, request.block)
    alignment = request.alignment_elements
    if request.kind is Kind.BROADCAST:
        chunk = shared_chunk_elements(request)
        return flat.plan_broadcast_staged(
            rank, world_size, request.root, itemsize, chunk_elements=chunk, slots=1
        )
    if request.kind is Kind.ALLGATHER:
        if in_place:
            return flat.plan_allgather(
                rank, world_size, itemsize, chunk_elements=whole, alignment_elements=alignment
            )
        return flat.plan_allgather_staged(
            rank,
            world_size,
            itemsize,
            chunk_elements=shared_chunk_elements(request),
            slots=1,
            alignment_elements=alignment,
        )
    spec = request.reduced
    if request.scattered:
        if in_place:
            return flat.plan_reduce_scatter(
                rank, world_size, spec, chunk_elements=whole, alignment_elements=alignment
            )
        return flat.plan_reduce_scatter_staged(
            rank,
            world_size,
            spec,
            chunk_elements=owners_chunk_elements(request),
            slots=1,
            alignment_elements=alignment,
        )
    everywhere = not (spec.zero_source or spec.is_sharded)
    if everywhere and is_pushed(request):
        # The same plan, whose staging is filled by the peers.
        return replace(one_shot.plan_allreduce(rank, world_size, spec), name="low_latency")
    if everywhere and request.count * itemsize <= side.endpoint.staging_bytes:
        return one_shot.plan_allreduce(rank, world_size, spec)
    if side.prefers_native and _is_native(request):
        return native.plan_allreduce_native(rank, world_size, itemsize)
    if in_place:
        return two_shot.plan_allreduce(rank, world_size, spec, chunk_elements=whole)
    chunk = owners_chunk_elements(request)
    return two_shot.plan_allreduce_staged(rank, world_size, spec, chunk_elements=chunk, slots=1)


def _choose_wire(request: Request) -> Plan:
    rank, world_size = request.comm.rank, request.comm.world_size
    itemsize = request.source.dtype.itemsize_bytes
    if request.kind is Kind.BROADCAST:
        return native.plan_broadcast_native(rank, world_size, request.root, itemsize)
    if request.kind is Kind.ALLGATHER:
        if Option.SHARD in request.options:
            return native.plan_allgather_wire(rank, world_size, itemsize)
        return native.plan_allgather_native(rank, world_size, itemsize)
    if _is_native(request):
        return native.plan_allreduce_native(rank, world_size, itemsize)
    return wire_two_shot_plan(request)


def _is_native(request: Request) -> bool:
    """Say whether NCCL's own all-reduce serves: it means the same, and is worth it."""
    dtype, least = request.source.dtype, request.comm.tuning.gpu_native_bytes
    ops = _NATIVE_INTEGER_OPS if dtype.is_integer else _NATIVE_FLOAT_OPS
    return (
        request.kind is Kind.ALLREDUCE
        and request.comm.world_size > 1
        and dtype in NCCL_TYPES
        and request.spec.op in ops
        and 0 < least <= request.count * dtype.itemsize_bytes
    )
