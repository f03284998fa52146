"""All-reduce of up to 64 bytes, carried by the arrival lines: no synchronisation of its own.

Every rank puts its source into its line before it arrives, and reduces all lines once it has seen
all arrive. Nobody reads a source, so the result may lie over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cocoll.errors import UsageError
from cocoll.plan.ir import (
    WHOLE_VECTOR,
    Buffer,
    Composite,
    Copy,
    Fragment,
    Lane,
    Loop,
    Plan,
    Reduce,
    View,
)

if TYPE_CHECKING:
    from cocoll.algorithms.operands import ReduceSpec

__all__ = ["InlineAllreduce", "plan_allreduce", "reduce_published"]


@dataclass(frozen=True, slots=True)
class InlineAllreduce(Composite):
    """The steps of :func:`plan_allreduce`."""

    kind: ClassVar[str] = "inline_allreduce"

    spec: ReduceSpec

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Publish in the line, then reduce all lines."""
        return reduce_published(rank, world_size, self.spec, Buffer.LINE)


def reduce_published(rank: int, world_size: int, spec: ReduceSpec, buffer: Buffer) -> Fragment:
    """Give the steps that publish the source in double-buffered scratch and reduce all ranks'.

    Two copies are what makes it safe without flags: a rank fills the copy that nobody reads while
    its peers may still read the other, and cannot come back to that one before all have arrived
    at the operation in between.

    Parameters
    ----------
    rank, world_size : int
        Whose steps.
    spec : ReduceSpec
        What is reduced.
    buffer : Buffer
        LINE or SMALL.

    Returns
    -------
    Fragment
        An opening and one lane.

    Raises
    ------
    UsageError
        An operand is sharded: every rank reduces everything, and would need all of it.
    """
    if spec.is_sharded:
        raise UsageError(
            f"an all-reduce through {buffer.name} runs its epilogue on every rank and has no "
            "shards; use a two-shot plan"
        )
    published = [View(buffer, peer, spec.source_itemsize_bytes) for peer in range(world_size)]
    publish = Copy(WHOLE_VECTOR, spec.source_view(rank), published[rank])
    results = range(len(spec.result_itemsizes_bytes))
    reduce = Reduce(
        WHOLE_VECTOR,
        sources=tuple(published),
        destinations=tuple((spec.result_view(rank, index),) for index in results),
        operands=spec.operand_views(rank),
    )
    return Fragment(lanes=(Lane("reduce", (Loop((reduce,)),)),), opening=(Loop((publish,)),))


def plan_allreduce(rank: int, world_size: int, spec: ReduceSpec) -> Plan:
    """Plan an all-reduce of at most 64 bytes a rank.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        What is reduced; operands replicated, one result.

    Returns
    -------
    Plan
        Legal for any aliasing of source and result; results must not be replicated memory.

    Raises
    ------
    UsageError
        An operand is sharded; or there are several results, whose places take up the line.

    Notes
    -----
    Per rank one line written, ``world_size`` lines read, no flags. Sums in rank order.
    """
    if len(spec.result_itemsizes_bytes) != 1:
        raise UsageError(
            "an arrival line carries data for one result only; "
            f"got {len(spec.result_itemsizes_bytes)}: use a one-shot or two-shot plan"
        )
    plan = Plan(rank, world_size, InlineAllreduce(spec), name="inline")
    _ = plan.fragment  # an illegal operand must show here, not when the plan is first run
    return plan
