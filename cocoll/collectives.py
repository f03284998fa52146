"""The slow path: what happens the first time a communicator meets a call.

Here a call's agreed facts become plans and a kernel, wrapped as a `Program` that serves every
later call of the same kind, whatever its length. `_core` keeps the programs and comes here on a
miss only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cocoll import _core
from cocoll.agreed_kernel import load_on_all_ranks
from cocoll.algorithms import OperandSpec, ReduceSpec
from cocoll.array import describe_array, make_output
from cocoll.device.array import is_on_device
from cocoll.dtypes import DType
from cocoll.epilogues import Epilogue
from cocoll.errors import UsageError
from cocoll.facts import Facts
from cocoll.failure import OP_LABELS, Kind, Option, make_failure
from cocoll.kernels.build import Kernel, KernelSpec
from cocoll.points import make_point_failure, share_bytes
from cocoll.stream import is_cuda_stream, resolve_stream
from cocoll.variants import ALGORITHMS, Choice, Variants

if TYPE_CHECKING:
    from cocoll.communicator import Communicator

__all__ = ["SlowPath"]

_INTEGERS = (DType.INT32, DType.INT64, DType.UINT8)
_REDUCING = (
    Kind.ALLREDUCE,
    Kind.REDUCE_SCATTER,
    Kind.ALLREDUCE_FUSED,
    Kind.REDUCE_SCATTER_FUSED,
)


class SlowPath:
    """The functions that `_core` calls; one object, handed in when `cocoll` is imported."""

    describe_array = staticmethod(describe_array)
    resolve_stream = staticmethod(resolve_stream)
    is_on_device = staticmethod(is_on_device)
    make_failure = staticmethod(make_failure)
    make_point_failure = staticmethod(make_point_failure)
    share_bytes = staticmethod(share_bytes)

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
        """Make the output of a reduce_scatter or an allgather."""
        world_size, dtype = comm.world_size, DType(dtype_code)
        count = 1
        for length in shape:
            count *= length
        if kind_code == Kind.ALLGATHER:
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
    def make_shard_output(
        comm: Communicator,
        epilogue: Epilogue,
        x: object,
        dtype: str | None,
        operands: Mapping[str, object],
    ) -> object:
        """Make the output of a reduce_scatter_fused, or None where the epilogue has none."""
        code = -1 if dtype is None else int(DType.parse(dtype))
        description = describe_array(x, "x", code)
        names = SlowPath.array_names(epilogue)
        dtypes = {
            name: describe_array(value, name, code).dtype
            for name, value in operands.items()
            if name in names and value is not None
        }
        traced = epilogue.trace(description.dtype, dtypes)
        outputs = [result for result in traced.results if result.name == "out"]
        if not outputs:
            return None
        count = 1
        for length in description.shape:
            count *= length
        start, stop = comm.shard_range(count)
        return make_output(x, (stop - start,), outputs[0].dtype)

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

    @staticmethod
    def prepare(
        comm: Communicator,
        kind_code: int,
        op: int,
        dtype_code: int,
        size_class: int,
        root: int,
        options: int,
    ) -> _core.Program:
        """Plan a collective without epilogue."""
        kind, dtype = Kind(kind_code), DType(dtype_code)
        itemsize = dtype.itemsize_bytes
        spec = ReduceSpec(itemsize, (itemsize,))
        choice = _choose(comm, kind, op, dtype, spec, size_class, root, Option(options))
        variants = choice.variants(comm.rank)
        kernel = None
        if kind in (Kind.ALLREDUCE, Kind.REDUCE_SCATTER):
            kernel = comm._kernels.load(KernelSpec(OP_LABELS[op], dtype, None))
        facts = Facts(
            variants.algorithm,
            options,
            result_dtypes=(dtype,),
            variants=variants,
            choice=choice,
        )
        return _make_program(comm, variants, kernel, _partial_kernel(comm, op, dtype), facts)

    @staticmethod
    def prepare_fused(
        comm: Communicator,
        kind_code: int,
        epilogue: Epilogue,
        op: int,
        dtype_code: int,
        arrays: Mapping[str, int],
        out_dtype_code: int,
        size_class: int,
        options: int,
    ) -> _core.Program:
        """Trace an epilogue, plan the call and get its kernel, compiling it if it must be."""
        kind, dtype = Kind(kind_code), DType(dtype_code)
        traced = epilogue.trace(
            dtype,
            {name: DType(code) for name, code in arrays.items()},
            out_dtype=DType(out_dtype_code),
        )
        facts_of = {operand.name: index for index, operand in enumerate(traced.operands)}
        spec = ReduceSpec(
            dtype.itemsize_bytes,
            tuple(result.dtype.itemsize_bytes for result in traced.results),
            tuple(
                OperandSpec(
                    operand.dtype.itemsize_bytes,
                    sharded=operand.sharded,
                    updated=operand.updated and operand.sharded,
                )
                for operand in traced.operands
            ),
            zero_source=bool(options & Option.ZERO_GRAD),
        )
        if kind is Kind.REDUCE_SCATTER_FUSED:
            gathered = [result.name for result in traced.results if result.name != "out"]
            if gathered:
                raise UsageError(
                    f"reduce_scatter_fused gathers nothing, and the epilogue updates replicated "
                    f"arrays ({', '.join(gathered)}); name them in sharded=, or use allreduce_fused"
                )
        choice = _choose(comm, kind, op, dtype, spec, size_class, -1, Option(options))
        variants = choice.variants(comm.rank)
        kernel = load_on_all_ranks(comm, KernelSpec(OP_LABELS[op], dtype, traced))
        facts = Facts(
            variants.algorithm,
            options,
            digest=int(traced.digest[:16], 16) | 1,
            operands=tuple(operand.name for operand in traced.operands),
            sharded=tuple(operand.sharded for operand in traced.operands),
            written=tuple(
                operand.updated or operand.result_index is not None for operand in traced.operands
            ),
            results=tuple(facts_of.get(result.name, -1) for result in traced.results),
            result_dtypes=tuple(result.dtype for result in traced.results),
            scalars=tuple(scalar.name for scalar in traced.scalars),
            defaults=tuple(scalar.default for scalar in traced.scalars),
            variants=variants,
            choice=choice,
        )
        return _make_program(comm, variants, kernel, _partial_kernel(comm, op, dtype), facts)


def _choose(
    comm: Communicator,
    kind: Kind,
    op: int,
    dtype: DType,
    spec: ReduceSpec,
    size_class: int,
    root: int,
    options: Option,
) -> Choice:
    """Collect the agreed facts from which plans follow."""
    # An average of integers is the exact sum divided once: sums of hosts would wrap before.
    rank_order = OP_LABELS[op] == "avg" and dtype in _INTEGERS and kind in _REDUCING
    return Choice(
        comm.world_size,
        None if comm.hosts is None else comm.topology,
        comm.tuning,
        kind,
        spec,
        size_class,
        root,
        options,
        rank_order,
    )


def _partial_kernel(comm: Communicator, op: int, dtype: DType) -> Kernel | None:
    """Give what sums up a host's own values before they go to another host."""
    if comm.hosts is None:
        return None
    label = OP_LABELS[op]
    return comm._kernels.load(KernelSpec("sum" if label == "avg" else label, dtype, None))


def _make_program(
    comm: Communicator,
    variants: Variants,
    kernel: Kernel | None,
    partial: Kernel | None,
    facts: Facts,
) -> _core.Program:
    return _core.Program(
        comm,
        None if variants.mapped is None else variants.mapped.pack(),
        variants.staged.pack(),
        reduce_address=0 if kernel is None else kernel.reduce_address,
        partial_address=0 if partial is None else partial.reduce_address,
        prepare_address=0 if kernel is None else kernel.prepare_address,
        derived_count=0 if kernel is None else kernel.derived_count,
        result_count=len(facts.results),
        algorithm=ALGORITHMS.index(variants.algorithm),
        facts=facts,
    )
