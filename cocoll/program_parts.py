"""The parts of a program: which algorithm serves a call, its kernels, and what is kept of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll import _core
from cocoll.algorithms import OperandSpec, ReduceSpec
from cocoll.facts import Facts
from cocoll.failure import OP_LABELS, Kind, Option
from cocoll.kernels.build import KernelSpec
from cocoll.variants import ALGORITHMS, Choice, Variants

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.dtypes import DType
    from cocoll.epilogues import Traced
    from cocoll.facts import StageFacts
    from cocoll.kernels.build import Kernel
    from cocoll.updates import Update

__all__ = ["choose", "digest_head", "facts_of", "make_program", "partial_kernel", "spec_of"]

_REDUCING = (
    Kind.ALLREDUCE,
    Kind.REDUCE_SCATTER,
    Kind.ALLREDUCE_FUSED,
    Kind.REDUCE_SCATTER_FUSED,
    Kind.REDUCE,
)


def choose(
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
    # Where a host's own result would lose what the whole needs, the sources themselves travel.
    rank_order = kind in _REDUCING and not dtype.reduces_in_parts(OP_LABELS[op])
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


def partial_kernel(comm: Communicator, op: int, dtype: DType) -> Kernel | None:
    """Give what sums up a host's own values before they go to another host."""
    if comm.hosts is None:
        return None
    label = OP_LABELS[op]
    return comm._kernels.load(KernelSpec("sum" if label == "avg" else label, dtype, None))


def spec_of(traced: Traced, *, zero_source: bool = False) -> ReduceSpec:
    """Give what the plans of an epilogue, or of one of its stages, depend on."""
    return ReduceSpec(
        traced.source_dtype.itemsize_bytes,
        tuple(result.dtype.itemsize_bytes for result in traced.results),
        tuple(
            OperandSpec(
                operand.dtype.itemsize_bytes,
                sharded=operand.sharded,
                updated=operand.updated and operand.sharded,
            )
            for operand in traced.operands
        ),
        zero_source=zero_source,
    )


def digest_head(traced: Traced) -> int:
    """Give what ranks compare of an epilogue; never 0, which stands for none."""
    return int(traced.digest[:16], 16) | 1


def facts_of(
    traced: Traced,
    variants: Variants,
    options: int,
    choice: Choice | Update | None,
    stages: StageFacts | None = None,
) -> Facts:
    """Give what binding a call needs to know of an epilogue, or of one of its stages."""
    places = {operand.name: index for index, operand in enumerate(traced.operands)}
    return Facts(
        variants.algorithm,
        int(options),
        digest=digest_head(traced),
        operands=tuple(operand.name for operand in traced.operands),
        sharded=tuple(operand.sharded for operand in traced.operands),
        written=tuple(
            operand.updated or operand.result_index is not None for operand in traced.operands
        ),
        results=tuple(places.get(result.name, -1) for result in traced.results),
        result_dtypes=tuple(result.dtype for result in traced.results),
        scalars=tuple(scalar.name for scalar in traced.scalars),
        defaults=tuple(scalar.default for scalar in traced.scalars),
        variants=variants,
        choice=choice,
        stages=stages,
    )


def make_program(
    comm: Communicator,
    variants: Variants | None,
    kernel: Kernel | None,
    partial: Kernel | None,
    facts: Facts,
) -> _core.Program:
    """Pack plans and kernel; without plans, facts alone: of a call whose stages have programs."""
    mapped = None if variants is None else variants.mapped
    return _core.Program(
        comm,
        None if mapped is None else mapped.pack(),
        None if variants is None else variants.staged.pack(),
        reduce_address=0 if kernel is None else kernel.reduce_address,
        partial_address=0 if partial is None else partial.reduce_address,
        prepare_address=0 if kernel is None else kernel.prepare_address,
        derived_count=0 if kernel is None else kernel.derived_count,
        result_count=len(facts.results),
        algorithm=ALGORITHMS.index(facts.algorithm),
        facts=facts,
    )
