"""Fused calls on a GPU: an epilogue's arrays and scalars checked, and bound to steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cocoll.cuda.binding import MAX_LAYOUTS, read_number
from cocoll.device.array import DeviceDescription, describe_device_array
from cocoll.device.calls import bound_to
from cocoll.device.checks import check_device, check_pair, check_writable, describe
from cocoll.device.layout import place_operand
from cocoll.device.planning import make_operation
from cocoll.device.request import Request
from cocoll.dtypes import DType
from cocoll.epilogues.stages import has_totals
from cocoll.errors import (
    BufferMismatchError,
    BufferOverlapError,
    DTypeError,
    UnsupportedError,
    UsageError,
)
from cocoll.failure import OP_LABELS, Kind, Option
from cocoll.kernels.spec import KernelSpec
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS
from cocoll.plan.ranges import block_elements, block_range

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.cuda.binding import BoundDeviceOperation
    from cocoll.device.side import DeviceSide
    from cocoll.epilogues import Epilogue
    from cocoll.epilogues.traced import Traced

__all__ = ["bind_fused"]


def bind_fused(
    comm: Communicator,
    kind_code: int,
    x: Any,
    epilogue: Epilogue,
    op: str,
    out: Any,
    dtype: str | None,
    zero_grad: bool,
    names: Mapping[str, Any],
    stream: Any,
    *,
    partial: bool,
) -> BoundDeviceOperation:
    """Bind a fused collective to arrays on the GPU.

    Parameters
    ----------
    comm : Communicator
        Whose.
    kind_code : int
        Which collective.
    x, epilogue, op, out, dtype, zero_grad, stream
        As in the call.
    names : mapping of str to object
        The epilogue's arrays and scalars.
    partial : bool
        Whether scalars may be missing.

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
    side = comm._open_side(x)
    code = -1 if dtype is None else int(DType.parse(str(dtype)))
    options = Option.ZERO_GRAD if zero_grad else Option(0)
    if op not in OP_LABELS:
        raise UsageError(f"op must be one of {', '.join(OP_LABELS)}; got {op!r}")
    source = describe(side, comm, x, "x", code, written=zero_grad)
    arrays = {}
    for name in epilogue.array_names:
        if names.get(name) is not None:
            arrays[name] = describe_device_array(names[name], name, code)
    traced = epilogue.trace(
        source.dtype,
        {name: found.dtype for name, found in arrays.items()},
        out_dtype=source.dtype if out is None else describe_device_array(out, "out", code).dtype,
    )
    if has_totals(traced):
        raise UnsupportedError(
            f"epilogue {traced.name!r} has sums or norms of tensors, which run in host memory "
            f"only; got arrays on a GPU on rank {comm.rank}"
        )
    unknown = [name for name in names if name not in arrays and name not in _scalar_names(traced)]
    if unknown:
        raise UsageError(
            f"the epilogue has no array or scalar {unknown[0]!r}; it has "
            f"{', '.join((*epilogue.array_names, *_scalar_names(traced)))} (rank {comm.rank})"
        )
    block = block_elements(source.count, comm.world_size, SHARD_ALIGNMENT_ELEMENTS)
    begin, end = block_range(comm.rank, source.count, block)
    operands = [
        place_operand(arrays[operand.name], source, operand, begin, end, comm.rank)
        for operand in traced.operands
    ]
    for operand in traced.operands:
        check_device(side, comm, arrays[operand.name], operand.name)
        written = operand.updated or operand.result_index is not None
        check_writable(comm, arrays[operand.name], operand.name, written)
    layouts = {operand.layout for operand in operands if operand.layout is not None}
    if len(layouts) > MAX_LAYOUTS:
        raise UnsupportedError(
            f"a kernel on a GPU takes strided or broadcast arrays of at most {MAX_LAYOUTS} kinds; "
            f"got {len(layouts)} on rank {comm.rank}. Make some of them contiguous, of x's shape"
        )
    results, output = _fused_results(
        comm, side, kind, x, source, traced, arrays, out, code, begin, end
    )
    allowed = None
    if kind is Kind.REDUCE_SCATTER_FUSED:
        allowed = source.address + begin * source.dtype.itemsize_bytes
    _check_apart(comm, source, results, traced, arrays, zero_grad, allowed)
    spec = KernelSpec(op, source.dtype, traced)
    request = Request(
        comm, side, kind, spec, source, results, source.count, block, options, operands
    )
    operation, plan = make_operation(request)
    kernel = comm._kernels.load(spec) if traced.derived else None
    operation.derive(0 if kernel is None else kernel.prepare_address, len(traced.derived))
    scalars = []
    for scalar in traced.scalars:
        value = names.get(scalar.name, scalar.default)
        if value is None and not partial:
            raise UsageError(
                f"the epilogue needs the scalar {scalar.name!r}; got none on rank {comm.rank}"
            )
        scalars.append(None if value is None else read_number(value, scalar.name))
    return bound_to(
        comm,
        side,
        operation,
        plan,
        stream,
        x,
        output=output,
        keep=(x, out, dict(names)),
        names=_scalar_names(traced),
        scalars=scalars,
    )


def _scalar_names(traced: Traced) -> tuple[str, ...]:
    return tuple(scalar.name for scalar in traced.scalars)


def _check_apart(
    comm: Communicator,
    source: DeviceDescription,
    results: Sequence[DeviceDescription],
    traced: Traced,
    arrays: Mapping[str, DeviceDescription],
    zero_grad: bool,
    allowed: int | None,
) -> None:
    """Refuse arrays that overlap where one of them is written."""
    named = [("x", source, zero_grad)]
    for operand in traced.operands:
        written = operand.updated or operand.result_index is not None
        named.append((operand.name, arrays[operand.name], written))
    for result, target in zip(traced.results, results, strict=True):
        if result.name == "out":
            named.append(("the output", target, True))
            if zero_grad and source.overlaps(target):
                raise UsageError(
                    f"zero_grad would erase the output, which lies in x itself on rank "
                    f"{comm.rank}; give out="
                )
    for place, (name, array, written) in enumerate(named):
        for other_name, other, other_written in named[:place]:
            if not (written or other_written) or not array.overlaps(other):
                continue
            if _is_own_shard(array, other, allowed) or _is_own_shard(other, array, allowed):
                continue
            if not array.is_same_memory(other) or (written and other_written):
                raise BufferOverlapError(
                    f"{name} overlaps {other_name} on rank {comm.rank}, and one of them is "
                    f"written. Use a copy"
                )


def _is_own_shard(part: DeviceDescription, whole: DeviceDescription, allowed: int | None) -> bool:
    # The output of a reduce-scatter may be this rank's shard of the input.
    return allowed is not None and part.address == allowed and part.count <= whole.count


def _fused_results(
    comm: Communicator,
    side: DeviceSide,
    kind: Kind,
    x: Any,
    source: DeviceDescription,
    traced: Traced,
    arrays: Mapping[str, DeviceDescription],
    out: Any,
    code: int,
    begin: int,
    end: int,
) -> tuple[list[DeviceDescription], Any]:
    """Give where each result goes, and the output of the call."""
    output = out
    shard = end - begin
    allowed = None
    if kind is Kind.REDUCE_SCATTER_FUSED:
        allowed = source.address + begin * source.dtype.itemsize_bytes
    gathered = [result.name for result in traced.results if result.name != "out"]
    if kind is Kind.REDUCE_SCATTER_FUSED and gathered:
        raise UsageError(
            f"reduce_scatter_fused gathers nothing, and the epilogue updates replicated arrays "
            f"({', '.join(gathered)}); name them in sharded=, or use allreduce_fused"
        )
    if out is not None and len(gathered) == len(traced.results):
        raise UsageError(f"the epilogue has no output; got out= on rank {comm.rank}. Leave it out")
    found = []
    for result in traced.results:
        if result.name != "out":
            target = arrays[result.name]
            if not target.contiguous or target.shape != source.shape:
                raise BufferMismatchError(
                    f"{result.name} must be contiguous and have the input's shape {source.shape}; "
                    f"got {target.shape} on rank {comm.rank}"
                )
            found.append(target)
            continue
        if kind is Kind.REDUCE_SCATTER_FUSED and out is None:
            output = out = side.zeros((shard,), result.dtype)
        name = "x" if out is None else "out"
        target = describe(side, comm, x if out is None else out, name, code, written=True)
        if target.dtype != result.dtype:
            raise DTypeError(
                f"the epilogue's output has dtype {result.dtype.label}, and {name} has "
                f"{target.dtype.label} on rank {comm.rank}"
            )
        wanted = shard if kind is Kind.REDUCE_SCATTER_FUSED else source.count
        if target.count != wanted:
            raise BufferMismatchError(
                f"out must have {wanted} elements on rank {comm.rank}; got {target.count}"
            )
        check_pair(comm, source, target, name, allowed)
        found.append(target)
    return found, output
