"""From the agreed facts of a call to its program: plans and a kernel that serve every length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cocoll.agreed_kernel import load_on_all_ranks
from cocoll.algorithms import ReduceSpec
from cocoll.dtypes import DType
from cocoll.epilogues.stages import split_stages
from cocoll.errors import UsageError
from cocoll.facts import Facts
from cocoll.failure import OP_LABELS, Kind, Option
from cocoll.kernels.build import KernelSpec
from cocoll.program_parts import choose, facts_of, make_program, partial_kernel, spec_of
from cocoll.stage_preparation import prepare_stages

if TYPE_CHECKING:
    from cocoll import _core
    from cocoll.communicator import Communicator
    from cocoll.epilogues import Epilogue

__all__ = ["prepare_fused", "prepare_plain"]


def prepare_plain(
    comm: Communicator,
    kind_code: int,
    op: int,
    dtype_code: int,
    size_class: int,
    root: int,
    options: int,
) -> _core.Program:
    """Plan a collective without epilogue.

    Parameters
    ----------
    comm : Communicator
        Whose.
    kind_code, op, dtype_code, options : int
        The operation: `Kind`, place in `OP_LABELS`, `DType` and `Option` bits.
    size_class : int
        Which sizes the program is for.
    root : int
        -1 where there is none.

    Returns
    -------
    Program
        For any count of this size class.
    """
    kind, dtype = Kind(kind_code), DType(dtype_code)
    itemsize = dtype.itemsize_bytes
    spec = ReduceSpec(itemsize, (itemsize,))
    choice = choose(comm, kind, op, dtype, spec, size_class, root, Option(options))
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
    return make_program(comm, variants, kernel, partial_kernel(comm, op, dtype), facts)


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
    """Trace an epilogue, plan the call and get its kernel, compiling it if it must be.

    Parameters
    ----------
    comm : Communicator
        Whose; collective where a kernel is compiled.
    kind_code, op, dtype_code, size_class, options
        As of `prepare_plain`.
    epilogue : Epilogue
        The caller's.
    arrays : Mapping of str to int
        The dtypes of the arrays that were given.
    out_dtype_code : int
        The dtype of the output, if there is one.

    Returns
    -------
    Program
        For any count of this size class.

    Raises
    ------
    UsageError
        The epilogue updates what a reduce-scatter cannot give to all ranks.
    """
    kind, dtype = Kind(kind_code), DType(dtype_code)
    traced = epilogue.trace(
        dtype,
        {name: DType(code) for name, code in arrays.items()},
        out_dtype=DType(out_dtype_code),
    )
    if kind is Kind.REDUCE_SCATTER_FUSED:
        gathered = [result.name for result in traced.results if result.name != "out"]
        if gathered:
            raise UsageError(
                f"reduce_scatter_fused gathers nothing, and the epilogue updates replicated "
                f"arrays ({', '.join(gathered)}); name them in sharded=, or use allreduce_fused"
            )
    stages = split_stages(traced)
    if stages is not None:
        return prepare_stages(comm, traced, stages, kind, op, size_class, Option(options))
    spec = spec_of(traced, zero_source=bool(options & Option.ZERO_GRAD))
    choice = choose(comm, kind, op, dtype, spec, size_class, -1, Option(options))
    variants = choice.variants(comm.rank)
    kernel = load_on_all_ranks(comm, KernelSpec(OP_LABELS[op], dtype, traced))
    facts = facts_of(traced, variants, options, choice)
    return make_program(comm, variants, kernel, partial_kernel(comm, op, dtype), facts)
