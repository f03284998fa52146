"""Programs of the stages of an epilogue with totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.agreed_kernel import load_on_all_ranks
from cocoll.errors import UsageError
from cocoll.facts import StageFacts
from cocoll.failure import OP_LABELS, Kind, Option
from cocoll.kernels.build import KernelSpec
from cocoll.program_parts import (
    choose,
    digest_head,
    facts_of,
    make_program,
    partial_kernel,
    spec_of,
)
from cocoll.updates import Update
from cocoll.variants import Variants

if TYPE_CHECKING:
    from cocoll import _core
    from cocoll.communicator import Communicator
    from cocoll.epilogues import Traced
    from cocoll.epilogues.stages import Stages
    from cocoll.variants import Choice

__all__ = ["prepare_stages"]

# COCOLL_MAX_TOTALS of host/totals.h: a test compares them.
MAX_TOTALS = 8


def prepare_stages(
    comm: Communicator,
    traced: Traced,
    stages: Stages,
    kind: Kind,
    op: int,
    size_class: int,
    options: Option,
) -> _core.Program:
    """Make the programs of all stages; collective where kernels are compiled.

    Parameters
    ----------
    comm : Communicator
        Whose.
    traced : Traced
        The whole epilogue.
    stages : Stages
        What it runs as.
    kind : Kind
        Whether all ranks get the results or each its shard.
    op, size_class, options
        As of `cocoll.preparation.prepare_fused`.

    Returns
    -------
    Program
        Facts alone, which name the programs of the stages.

    Raises
    ------
    UsageError
        There are more totals than a call can keep.
    """
    if len(stages.totals) > MAX_TOTALS:
        raise UsageError(
            f"an epilogue has at most {MAX_TOTALS} sums and norms; {traced.name!r} has "
            f"{len(stages.totals)}"
        )
    at_once = kind is Kind.ALLREDUCE_FUSED and comm.hosts is None
    dtype = traced.source_dtype
    programs = []
    choice: Choice | Update
    for number, stage in enumerate(stages.stages):
        if number == 0:
            zeroing = Option.ZERO_GRAD in options
            choice = choose(
                comm,
                Kind.REDUCE_SCATTER_FUSED,
                op,
                dtype,
                spec_of(stage, zero_source=zeroing),
                size_class,
                -1,
                options & ~Option.REPLICATED,
            )
            partial = partial_kernel(comm, op, dtype)
        else:
            partial = None
            choice = Update(
                comm.world_size,
                comm.tuning,
                spec_of(stage),
                gathers=at_once and bool(stage.results),
                replicated=Option.REPLICATED in options,
            )
        variants = choice.variants(comm.rank)
        label = OP_LABELS[op] if stage.reads_sources else "sum"
        kernel = load_on_all_ranks(comm, KernelSpec(label, dtype, stage))
        facts = facts_of(stage, variants, options, choice)
        programs.append(make_program(comm, variants, kernel, partial, facts))
    whole = facts_of(
        traced,
        Variants("two_shot" if at_once else "flat", None, variants.staged),
        options,
        None,
        _stage_facts(traced, stages, tuple(programs), gathers=_gathers(comm, kind, traced)),
    )
    return make_program(comm, None, None, None, whole)


def _gathers(comm: Communicator, kind: Kind, traced: Traced) -> bool:
    """Whether shards of the last stage have yet to go to other hosts."""
    return kind is Kind.ALLREDUCE_FUSED and comm.hosts is not None and bool(traced.results)


def _stage_facts(
    traced: Traced, stages: Stages, programs: tuple[_core.Program, ...], *, gathers: bool
) -> StageFacts:
    places = {operand.name: index for index, operand in enumerate(traced.operands)}
    places |= {name: -1 - index for index, (name, _) in enumerate(stages.held)}
    known = [len(stage.scalars) - len(traced.scalars) for stage in stages.stages]
    ends = [count + len(stage.summands) for count, stage in zip(known, stages.stages, strict=True)]
    return StageFacts(
        programs=programs,
        digests=tuple(digest_head(stage) for stage in stages.stages),
        operands=tuple(
            tuple(places[operand.name] for operand in stage.operands) for stage in stages.stages
        ),
        held_itemsizes_bytes=tuple(dtype.itemsize_bytes for _, dtype in stages.held),
        per_tensor=tuple(total.per_tensor for total in stages.totals),
        labels=tuple(total.label for total in stages.totals),
        known=tuple(known),
        summed=tuple(zip(known, ends, strict=True)),
        gathers=gathers,
    )
