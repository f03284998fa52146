"""All-reduce of small vectors from staging, with one synchronisation: the arrival.

Every rank copies its source into its SMALL region before it arrives, and reduces all ranks' regions
once it has seen all arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cocoll.algorithms.inline import reduce_published
from cocoll.plan.ir import Buffer, Composite, Fragment, Plan

if TYPE_CHECKING:
    from cocoll.algorithms.operands import ReduceSpec

__all__ = ["OneShot", "plan_allreduce"]


@dataclass(frozen=True, slots=True)
class OneShot(Composite):
    """The steps of :func:`plan_allreduce`."""

    kind: ClassVar[str] = "one_shot"

    spec: ReduceSpec

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Publish in staging, then reduce all ranks' staging."""
        return reduce_published(rank, world_size, self.spec, Buffer.SMALL)


def plan_allreduce(rank: int, world_size: int, spec: ReduceSpec) -> Plan:
    """Plan an all-reduce in which every rank reduces everything.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        What is reduced; operands replicated.

    Returns
    -------
    Plan
        Legal for any aliasing of source and result; results must not be replicated memory.

    Raises
    ------
    UsageError
        An operand is sharded (docs/plans.md, rule 9).

    Notes
    -----
    With n bytes a rank: n written to staging, ``world_size * n`` read, no flags; ``2 * n`` scratch
    bytes a rank. Sums in rank order. The opening must run before arrival: peers read it then.
    """
    plan = Plan(rank, world_size, OneShot(spec), name="one_shot")
    _ = plan.fragment  # an illegal operand must show here, not when the plan is first run
    return plan
