"""The slow path: what `_core` calls the first time a communicator meets a call, and on failure.

A call's program is made by `cocoll.preparation`; `_core` keeps the programs and comes here on a
miss only.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cocoll.array import ArrayDescription, describe_array, make_output
from cocoll.device.array import is_on_device
from cocoll.dtypes import DType
from cocoll.epilogues import Epilogue
from cocoll.errors import UsageError
from cocoll.failure import Kind, make_failure
from cocoll.points import make_point_failure, share_bytes
from cocoll.preparation import prepare_fused, prepare_plain
from cocoll.stream import is_cuda_stream, resolve_stream
from cocoll.uneven import bind_given, call_uneven

if TYPE_CHECKING:
    from cocoll.communicator import Communicator

__all__ = ["SlowPath"]


class SlowPath:
    """The functions that `_core` calls; one object, handed in when `cocoll` is imported."""

    describe_array = staticmethod(describe_array)
    resolve_stream = staticmethod(resolve_stream)
    is_on_device = staticmethod(is_on_device)
    make_failure = staticmethod(make_failure)
    call_uneven = staticmethod(call_uneven)
    bind_uneven = staticmethod(bind_given)
    make_point_failure = staticmethod(make_point_failure)
    share_bytes = staticmethod(share_bytes)
    prepare = staticmethod(prepare_plain)
    prepare_fused = staticmethod(prepare_fused)

    @staticmethod
    def explain_call(comm: Communicator, facts: object, count: int, mapped: bool) -> object:
        """Explain the algorithm of a bound call."""
        # Loads the simulator, which no call needs.
        from cocoll.explaining import explain_call

        return explain_call(comm, facts, count, mapped)

    @staticmethod
    def parse_dtype(label: object) -> int:
        """Give the code of a dtype's name."""
        return int(DType.parse(str(label)))

    @staticmethod
    def array_names(epilogue: object) -> tuple[str, ...]:
        """Give the epilogue's array parameters after the first."""
        if not isinstance(epilogue, Epilogue):
            raise UsageError(
                f"epilogue must come from cocoll.epilogues or be decorated with @cocoll.epilogue; "
                f"got {type(epilogue).__name__}"
            )
        return tuple(epilogue.array_names)

    @staticmethod
    def make_output(
        comm: Communicator,
        kind_code: int,
        x: object,
        shape: tuple[int, ...],
        dtype_code: int,
        shard: int,
    ) -> object:
        """Make the output of a collective whose result has another shape than its input."""
        world_size, dtype = comm.world_size, DType(dtype_code)
        count = 1
        for length in shape:
            count *= length
        if kind_code == Kind.ALLTOALL:
            return make_output(x, shape, dtype)
        if kind_code in (Kind.ALLGATHER, Kind.GATHER):
            if shard:
                raise UsageError("allgather with layout='shard' needs out=, the whole vector")
            head, rest = (shape[0], shape[1:]) if shape else (1, ())
            return make_output(x, (head * world_size, *rest), dtype)
        if shard:
            start, stop = comm.shard_range(count)
            return make_output(x, (stop - start,), dtype)
        if shape and shape[0] % world_size == 0:
            return make_output(x, (shape[0] // world_size, *shape[1:]), dtype)
        return make_output(x, (count // world_size,), dtype)

    @staticmethod
    def make_output_like(value: object, count: int, dtype: DType) -> object:
        """Make a vector of the kind of array that `value` is."""
        return make_output(value, (count,), dtype)

    @staticmethod
    def make_shard_output(
        comm: Communicator,
        epilogue: Epilogue,
        x: object,
        dtype: str | None,
        operands: Mapping[str, object],
    ) -> object:
        """Make the output of a reduce_scatter_fused, or None where the epilogue has none."""
        code = -1 if dtype is None else int(DType.parse(dtype))
        described = _describe_tensors(x, "x", code)
        names = SlowPath.array_names(epilogue)
        dtypes = {
            name: _describe_tensors(value, name, code)[0].dtype
            for name, value in operands.items()
            if name in names and value is not None
        }
        traced = epilogue.trace(described[0].dtype, dtypes)
        outputs = [result for result in traced.results if result.name == "out"]
        if not outputs:
            return None
        start, stop = comm.shard_range(sum(math.prod(one.shape) for one in described))
        like = x[0] if isinstance(x, list | tuple) else x
        return make_output(like, (stop - start,), outputs[0].dtype)

    @staticmethod
    def bind_arguments(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Give a call's arguments by name, defaults filled in."""
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    # The executor for GPUs is imported when the first of its arrays comes.

    @staticmethod
    def call_on_device(
        comm: Communicator,
        kind_code: int,
        x: object,
        op: str,
        out: object,
        stream: object,
        dtype: str | None,
        root: int | None,
        layout: str | None,
    ) -> object:
        """Run a collective on arrays of a GPU once."""
        from cocoll.device import calls

        calls.refuse_capture(comm, out if x is None else x, stream)
        if kind_code >= Kind.REDUCE:
            from cocoll.device.block_calls import bind_blocks

            return bind_blocks(comm, Kind(kind_code), x, op, out, dtype, root, stream)()
        return calls.bind_simple(comm, kind_code, x, op, out, dtype, root, layout, stream)()

    @staticmethod
    def call_fused_on_device(
        comm: Communicator,
        kind_code: int,
        x: object,
        epilogue: Epilogue,
        op: str,
        out: object,
        stream: object,
        dtype: str | None,
        zero_grad: bool,
        names: dict[str, object],
    ) -> object:
        """Run a fused collective on arrays of a GPU once."""
        from cocoll.device import calls, fused_calls

        SlowPath.array_names(epilogue)
        calls.refuse_capture(comm, x, stream)
        return fused_calls.bind_fused(
            comm, kind_code, x, epilogue, op, out, dtype, zero_grad, names, stream, partial=False
        )()

    @staticmethod
    def move_points_on_device(
        comm: Communicator, ends: list[tuple[bool, Any, int, str, int]], stream: object, out: object
    ) -> object:
        """Move messages between arrays on GPUs."""
        from cocoll.device import points

        return points.move_points(comm, ends, stream, out)

    @staticmethod
    def make_pending_work(output: object) -> object:
        """Make what stands for a message of a group on GPUs."""
        from cocoll.device import points

        return points.PendingWork(output)

    @staticmethod
    def barrier_on_device(comm: Communicator, stream: object) -> object:
        """Let a stream of every rank's GPU wait for those of the others."""
        # An int is a stream only where there is a GPU that it may be of.
        handle = isinstance(stream, int) and comm._side is not None
        if not handle and not is_cuda_stream(stream):
            return resolve_stream(stream)
        from cocoll.device import calls

        calls.refuse_capture(comm, None, stream)
        return calls.bind_barrier(comm, stream)()

    @staticmethod
    def bind_on_device(
        comm: Communicator, kind_code: int, given: dict[str, Any], stream: object
    ) -> object:
        """Bind a call's arrays on a GPU."""
        from cocoll.device import calls, fused_calls

        if kind_code >= Kind.REDUCE:
            from cocoll.device.block_calls import bind_blocks

            return bind_blocks(
                comm,
                Kind(kind_code),
                given["x"],
                given.get("op", "sum"),
                given["out"],
                given["dtype"],
                given.get("root"),
                stream,
            )
        if kind_code not in (Kind.ALLREDUCE_FUSED, Kind.REDUCE_SCATTER_FUSED):
            return calls.bind_simple(
                comm,
                kind_code,
                given["x"],
                given.get("op", "sum"),
                given["out"],
                given["dtype"],
                given.get("root"),
                given.get("layout"),
                stream,
            )
        SlowPath.array_names(given["epilogue"])
        return fused_calls.bind_fused(
            comm,
            kind_code,
            given["x"],
            given["epilogue"],
            given["op"],
            given["out"],
            given["dtype"],
            given["zero_grad"],
            given["operands"],
            stream,
            partial=True,
        )


def _describe_tensors(value: object, name: str, code: int) -> list[ArrayDescription]:
    """Describe an array, or each of a list of them."""
    if not isinstance(value, list | tuple):
        return [describe_array(value, name, code)]
    if not value:
        raise UsageError(f"{name} must hold at least one array; got an empty list")
    return [describe_array(one, f"{name}[{index}]", code) for index, one in enumerate(value)]
