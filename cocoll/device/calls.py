"""Calls on a GPU: their arguments described and checked, and bound to steps on a stream."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cocoll.algorithms.flat import plan_barrier
from cocoll.array import numpy_dtype
from cocoll.cuda.binding import BoundDeviceOperation, Operation
from cocoll.device.array import (
    DeviceArray,
    DeviceDescription,
    current_stream,
    describe_device_array,
    read_stream,
)
from cocoll.device.checks import check_pair, describe
from cocoll.device.launches import add_arrival, sign
from cocoll.device.planning import make_operation
from cocoll.device.request import Request
from cocoll.dtypes import DType
from cocoll.errors import (
    BufferMismatchError,
    DTypeError,
    PlanNotReadyError,
    RankError,
    UsageError,
)
from cocoll.failure import OP_LABELS, Kind, Option
from cocoll.kernels.spec import KernelSpec
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS
from cocoll.plan.ranges import block_elements, block_range

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.device.side import DeviceSide
    from cocoll.plan.ir import Plan

__all__ = [
    "bind_barrier",
    "bind_simple",
    "bound_to",
    "make_output",
    "refuse_capture",
]


def bind_simple(
    comm: Communicator,
    kind_code: int,
    x: Any,
    op: str,
    out: Any,
    dtype: str | None,
    root: int | None,
    layout: str | None,
    stream: Any,
) -> BoundDeviceOperation:
    """Bind a collective without epilogue to arrays on the GPU.

    Parameters
    ----------
    comm : Communicator
        Whose.
    kind_code : int
        Which collective.
    x, op, out, dtype, root, layout, stream
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
    kind = Kind(kind_code)
    side = comm._open_side(x if x is not None else out)
    code = -1 if dtype is None else int(DType.parse(str(dtype)))
    if op not in OP_LABELS:
        raise UsageError(f"op must be one of {', '.join(OP_LABELS)}; got {op!r}")
    if layout not in (None, "block", "shard"):
        raise UsageError(f"layout must be 'block' or 'shard'; got {layout!r}")
    if x is None:
        if kind is not Kind.BROADCAST or out is None:
            raise UsageError(f"x must be an array; got None on rank {comm.rank}")
        x = out
    source = describe(side, comm, x, "x", code, written=out is None and kind is Kind.ALLREDUCE)
    if layout is None and _means_shards(side, kind, source, out, code):
        layout = "shard"
    options = Option.SHARD if layout == "shard" else Option(0)
    alignment = SHARD_ALIGNMENT_ELEMENTS
    if kind in (Kind.REDUCE_SCATTER, Kind.ALLGATHER) and layout != "shard":
        alignment = 1
    if out is None and kind is Kind.ALLGATHER and layout == "shard":
        raise UsageError("allgather with layout='shard' needs out=, the whole vector")
    count = source.count
    if kind is Kind.ALLGATHER:
        count = source.count * comm.world_size if out is None else -1
    output = out
    if out is None and kind in (Kind.REDUCE_SCATTER, Kind.ALLGATHER):
        shape = _output_shape(comm, kind, source, options, alignment)
        output = out = make_output(side, x, shape, source.dtype)
    target = x if out is None else out
    root_rank = _read_root(comm, kind, root)
    # What the root broadcasts in place is only read.
    written = not (out is None and root_rank == comm.rank)
    result = describe(side, comm, target, "x" if out is None else "out", code, written)
    if result.dtype != source.dtype:
        raise DTypeError(
            f"out must have the input's dtype {source.dtype.label}; got {result.dtype.label} on "
            f"rank {comm.rank}"
        )
    if kind is Kind.ALLGATHER:
        count = result.count
    block = block_elements(count, comm.world_size, alignment)
    _check_lengths(comm, kind, source, result, count, block, alignment)
    begin, _ = block_range(comm.rank, count, block)
    itemsize = source.dtype.itemsize_bytes
    if kind is Kind.REDUCE_SCATTER:
        check_pair(comm, source, result, "out", source.address + begin * itemsize)
    elif kind is Kind.ALLGATHER:
        check_pair(comm, source, result, "out", source.address - begin * itemsize)
    else:
        check_pair(comm, source, result, "out")
    spec = KernelSpec(op, source.dtype, None)
    request = Request(
        comm, side, kind, spec, source, [result], count, block, options, root=root_rank
    )
    operation, plan = make_operation(request)
    return bound_to(comm, side, operation, plan, stream, x, output=output, keep=(x, out))


def _means_shards(
    side: DeviceSide, kind: Kind, source: DeviceDescription, out: Any, code: int
) -> bool:
    # An array from shard_zeros says by itself that shards are meant.
    if kind is Kind.ALLGATHER:
        return side.is_shard(source.address)
    if kind is not Kind.REDUCE_SCATTER or out is None:
        return False
    return side.is_shard(describe_device_array(out, "out", code).address)


def _read_root(comm: Communicator, kind: Kind, root: Any) -> int:
    if kind is not Kind.BROADCAST:
        return -1
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


def _output_shape(
    comm: Communicator, kind: Kind, source: DeviceDescription, options: Option, alignment: int
) -> tuple[int, ...]:
    shape, world_size = source.shape, comm.world_size
    if kind is Kind.ALLGATHER:
        head, rest = (shape[0], shape[1:]) if shape else (1, ())
        return (head * world_size, *rest)
    if Option.SHARD not in options and shape and shape[0] % world_size == 0:
        return (shape[0] // world_size, *shape[1:])
    block = block_elements(source.count, world_size, alignment)
    begin, end = block_range(comm.rank, source.count, block)
    return (end - begin,)


def _check_lengths(
    comm: Communicator,
    kind: Kind,
    source: DeviceDescription,
    result: DeviceDescription,
    count: int,
    block: int,
    alignment: int,
) -> None:
    if kind not in (Kind.REDUCE_SCATTER, Kind.ALLGATHER):
        if source.count != result.count:
            raise BufferMismatchError(
                f"out must have the input's {source.count} elements; got {result.count} on rank "
                f"{comm.rank}"
            )
        return
    if alignment == 1 and count % comm.world_size:
        raise BufferMismatchError(
            f"the vector must divide into {comm.world_size} equal blocks; got {count} elements on "
            f"rank {comm.rank}. Pad it, or use layout='shard'"
        )
    begin, end = block_range(comm.rank, count, block)
    part, name = (result, "out") if kind is Kind.REDUCE_SCATTER else (source, "x")
    if part.count != end - begin:
        raise BufferMismatchError(
            f"{name} must have {end - begin} of the {count} elements on rank {comm.rank}; got "
            f"{part.count}"
        )


def make_output(side: DeviceSide, like: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Make an array for a result.

    Parameters
    ----------
    side : DeviceSide
        On whose GPU.
    like : object
        An array of the framework that the result shall be of; else it is a `DeviceArray`.
    shape, dtype : tuple of int, DType
        The result's.

    Returns
    -------
    object
        Its elements are arbitrary.
    """
    module = type(like).__module__.partition(".")[0]
    if module == "torch":
        import torch

        return like.new_empty(shape, dtype=getattr(torch, dtype.label))
    if module == "cupy":
        import cupy

        return cupy.empty(shape, numpy_dtype(dtype))
    return side.zeros(shape, dtype)


def bind_barrier(comm: Communicator, stream: Any) -> BoundDeviceOperation:
    """Bind a barrier of streams.

    Parameters
    ----------
    comm : Communicator
        Whose.
    stream : object
        What `read_stream` takes.

    Returns
    -------
    BoundDeviceOperation
        Not yet run.
    """
    side = comm._open_side(None)
    operation = Operation(side.endpoint, sign(int(Kind.BARRIER)))
    add_arrival(comm, side, operation)
    plan = plan_barrier(comm.rank, comm.world_size)
    return bound_to(comm, side, operation, plan, stream, None, output=None, keep=None)


def bound_to(
    comm: Communicator,
    side: DeviceSide,
    operation: Operation,
    plan: Plan,
    stream: Any,
    x: Any,
    *,
    output: Any,
    keep: Any,
    names: tuple[str, ...] = (),
    scalars: Sequence[float | None] = (),
) -> BoundDeviceOperation:
    """Give a call whose steps are made, ready to run.

    Parameters
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    operation, plan : Operation, Plan
        Its steps, and what they mean.
    stream : object
        As in the call.
    x : object
        Whose framework's current stream it runs on where `stream` is None.
    output, keep : object
        What the call gives, and what must live as long as it.
    names, scalars : sequence
        Of the epilogue; None where a run must give the value.

    Returns
    -------
    BoundDeviceOperation
        Not yet run.
    """
    resolve = None
    handle: int | None = None
    if stream is not None:
        handle = read_stream(stream)
    elif isinstance(x, DeviceArray):
        handle = x.stream.handle
    else:
        resolve = _CurrentStream(x)
    return BoundDeviceOperation(
        comm,
        side,
        operation,
        resolve=resolve,
        stream=handle,
        names=names,
        scalars=scalars,
        output=output,
        keep=(keep, output, stream),
        plan=plan,
    )


class _CurrentStream:
    """Gives the stream that an array's framework works on, each time it is asked."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __call__(self) -> int:
        return current_stream(self._array)


def refuse_capture(comm: Communicator, x: Any, stream: Any) -> None:
    """Refuse a call that is not bound while its stream is being captured.

    Parameters
    ----------
    comm : Communicator
        Whose call.
    x : object
        Its first array, or None.
    stream : object
        What the call was given.

    Raises
    ------
    PlanNotReadyError
        The stream is being captured; nothing has been asked of the GPU.
    """
    side = comm._side
    if side is None:
        return
    if stream is not None:
        handle = read_stream(stream)
    else:
        handle = x.stream.handle if isinstance(x, DeviceArray) else current_stream(x)
    if side.endpoint.is_capturing(handle):
        raise PlanNotReadyError(
            f"an operation must be bound before it is captured in a graph; got a call on rank "
            f"{comm.rank}. Use comm.bind(...) before the capture begins"
        )
