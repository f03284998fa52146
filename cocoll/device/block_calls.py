"""Reduce, gather, scatter and all-to-all on a GPU: arguments, and plans lowered step by step.

Where ranks map each other's memory chunks go through their windows; elsewhere every block is a
message of NCCL's.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from cocoll.algorithms.flat_alltoall import plan_alltoall
from cocoll.algorithms.flat_gather import plan_gather
from cocoll.algorithms.flat_reduce import areas_needed, plan_reduce_staged
from cocoll.algorithms.flat_scatter import plan_scatter
from cocoll.cuda.binding import BoundDeviceOperation, Operation
from cocoll.device.calls import bound_to, make_output
from cocoll.device.checks import check_pair, describe
from cocoll.device.launches import sign
from cocoll.device.lowering import lower_plan
from cocoll.device.request import Request
from cocoll.dtypes import DType
from cocoll.errors import (
    BufferMismatchError,
    BufferOverlapError,
    DTypeError,
    RankError,
    UsageError,
)
from cocoll.failure import OP_LABELS, Kind, Option
from cocoll.kernels.spec import KernelSpec

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.device.array import DeviceDescription
    from cocoll.device.side import DeviceSide
    from cocoll.plan.ir import Plan

__all__ = ["bind_blocks"]

_SLOTS = 2
_LINE_BYTES = 128
_MESSAGE_BYTES = 16 << 20


def bind_blocks(
    comm: Communicator,
    kind: Kind,
    x: Any,
    op: str,
    out: Any,
    dtype: str | None,
    root: int | None,
    stream: Any,
) -> BoundDeviceOperation:
    """Bind one of these operations to arrays on the GPU.

    Parameters
    ----------
    comm : Communicator
        Whose.
    kind : Kind
        REDUCE, GATHER, SCATTER or ALLTOALL.
    x, op, out, dtype, root, stream
        As in the call.

    Returns
    -------
    BoundDeviceOperation
        Not yet run.

    Raises
    ------
    UsageError
        An argument does not fit.
    """
    side = comm._open_side(x if x is not None else out)
    code = -1 if dtype is None else int(DType.parse(str(dtype)))
    if op not in OP_LABELS:
        raise UsageError(f"op must be one of {', '.join(OP_LABELS)}; got {op!r}")
    root_rank = -1 if kind is Kind.ALLTOALL else _read_root(comm, root)
    at_root = comm.rank == root_rank
    gives = kind is not Kind.SCATTER or at_root
    takes = kind in (Kind.SCATTER, Kind.ALLTOALL) or at_root
    in_place = kind is Kind.REDUCE and at_root and out is None
    if gives and x is None:
        raise UsageError(f"x must be an array; got None on rank {comm.rank}")
    if not gives and out is None:
        raise UsageError(
            f"a scatter needs out=, this rank's block, on every rank but the root {root_rank}; got "
            f"None on rank {comm.rank}"
        )
    source = describe(side, comm, x, "x", code, in_place) if gives else None
    output = None
    if takes and not in_place:
        output = out
        if output is None:
            assert source is not None
            output = make_output(side, x, _shape_of(comm, kind, source), source.dtype)
    result = None if output is None else describe(side, comm, output, "out", code, True)
    count = _check(comm, kind, source, result)
    known = source or result
    assert known is not None
    request = Request(
        comm,
        side,
        kind,
        KernelSpec(op, known.dtype, None),
        known,
        [result or known],
        count,
        -(-count // comm.world_size),
        Option(0),
        root=root_rank,
    )
    plan = _plan(request)
    facts = (int(kind), request.spec.name(), int(known.dtype), count, plan.name, root_rank)
    operation = Operation(side.endpoint, sign(*facts))
    lower_plan(plan, request, operation)
    near = x if x is not None else out
    return bound_to(comm, side, operation, plan, stream, near, output=output, keep=(x, out))


def _read_root(comm: Communicator, root: Any) -> int:
    try:
        rank = operator.index(root)
    except TypeError:
        raise UsageError(
            f"root must be a rank in [0, {comm.world_size}); got {root!r} on rank {comm.rank}"
        ) from None
    if not 0 <= rank < comm.world_size:
        raise RankError(
            f"root must be a rank in [0, {comm.world_size}); got {rank} on rank {comm.rank}"
        )
    return rank


def _shape_of(comm: Communicator, kind: Kind, source: DeviceDescription) -> tuple[int, ...]:
    """Give the shape of an output that is not given."""
    shape, size = source.shape, comm.world_size
    if kind is Kind.ALLTOALL:
        return shape
    if kind is Kind.GATHER:
        head, rest = (shape[0], shape[1:]) if shape else (1, ())
        return (head * size, *rest)
    if shape and shape[0] % size == 0:
        return (shape[0] // size, *shape[1:])
    return (source.count // size,)


def _check(
    comm: Communicator,
    kind: Kind,
    source: DeviceDescription | None,
    result: DeviceDescription | None,
) -> int:
    """Refuse arrays that do not fit each other; give the length of the whole vector."""
    size, rank = comm.world_size, comm.rank
    if source is None:
        assert result is not None
        return result.count * size
    count = source.count * size if kind is Kind.GATHER else source.count
    if kind is not Kind.REDUCE and count % size:
        raise BufferMismatchError(
            f"the vector must divide into {size} equal blocks; got {count} elements on rank "
            f"{rank}. Pad it, or give counts"
        )
    if result is None:
        return count
    if result.dtype is not source.dtype:
        raise DTypeError(
            f"out must have the input's dtype {source.dtype.label}; got {result.dtype.label} on "
            f"rank {rank}"
        )
    wanted = count // size if kind is Kind.SCATTER else count
    if result.count != wanted:
        raise BufferMismatchError(
            f"out must have {wanted} elements on rank {rank}; got {result.count}"
        )
    offset_bytes = count // size * rank * source.dtype.itemsize_bytes
    if kind is Kind.ALLTOALL and size > 1:
        if source.overlaps(result):
            raise BufferOverlapError(
                f"out and the input of an alltoall must be disjoint; they overlap on rank {rank}. "
                f"Leave out= away, or give other memory"
            )
    elif kind is Kind.GATHER:
        check_pair(comm, source, result, "out", source.address - offset_bytes)
    elif kind is Kind.SCATTER:
        check_pair(comm, source, result, "out", source.address + offset_bytes)
    else:
        check_pair(comm, source, result, "out")
    return count


def _plan(request: Request) -> Plan:
    comm, side = request.comm, request.side
    rank, size = comm.rank, comm.world_size
    itemsize = request.source.dtype.itemsize_bytes
    hosts = None if _meets_in_memory(side) else tuple(range(size))
    if request.kind is Kind.REDUCE:
        areas = areas_needed(size, _SLOTS, in_rank_order=hosts is not None)
        return plan_reduce_staged(
            rank,
            size,
            request.root,
            request.reduced,
            chunk_elements=_chunk_elements(side, itemsize, areas),
            slots=_SLOTS,
            hosts=hosts,
            in_rank_order=True,
        )
    areas = _SLOTS * (1 if request.kind is Kind.GATHER else max(1, size - 1))
    chunk = _chunk_elements(side, itemsize, areas)
    message = max(1, _MESSAGE_BYTES // itemsize)
    if request.kind is Kind.ALLTOALL:
        return plan_alltoall(
            rank,
            size,
            itemsize,
            chunk_elements=chunk,
            slots=_SLOTS,
            hosts=hosts,
            message_elements=message,
        )
    return (plan_gather if request.kind is Kind.GATHER else plan_scatter)(
        rank,
        size,
        request.root,
        itemsize,
        chunk_elements=chunk,
        slots=_SLOTS,
        hosts=hosts,
        message_elements=message,
    )


def _meets_in_memory(side: DeviceSide) -> bool:
    return side.hierarchy is None and side.is_mapped


def _chunk_elements(side: DeviceSide, itemsize_bytes: int, areas: int) -> int:
    room = side.endpoint.window_bytes // areas // _LINE_BYTES * _LINE_BYTES
    return max(1, room // itemsize_bytes)
