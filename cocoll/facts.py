"""What is kept of a program besides what runs: for binding, traces and explanations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.errors import InternalError

if TYPE_CHECKING:
    from cocoll._core import Program
    from cocoll.dtypes import DType
    from cocoll.plan.ir import Plan
    from cocoll.updates import Update
    from cocoll.variants import Choice, Variants

__all__ = ["Facts", "OwnPlanFacts", "PlanFacts", "StageFacts"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What binding a call needs to know of its program.

    Attributes
    ----------
    algorithm : str
        What serves the call.
    options : int
        Agreed `Option` bits.
    digest : int
        The head of the epilogue's digest, 0 without one.
    operands : tuple of str
        The epilogue's arrays that were given, in its order.
    sharded, written : tuple of bool
        Of each operand: whether it holds a shard, whether the epilogue changes it.
    results : tuple of int
        Which operand each result is, -1 for the output.
    result_dtypes : tuple of DType
        Their element types.
    scalars : tuple of str
        Names, in the kernel's order.
    defaults : tuple of float or None
        Their values where the call gives none.
    variants : Variants, optional
        This rank's plans.
    choice : Choice or Update, optional
        What all ranks' plans follow from.
    stages : StageFacts, optional
        Of an epilogue with totals, which runs as several operations.
    """

    algorithm: str
    options: int = 0
    digest: int = 0
    operands: tuple[str, ...] = ()
    sharded: tuple[bool, ...] = ()
    written: tuple[bool, ...] = ()
    results: tuple[int, ...] = (-1,)
    result_dtypes: tuple[DType, ...] = ()
    scalars: tuple[str, ...] = ()
    defaults: tuple[float | None, ...] = ()
    variants: Variants | None = None
    choice: Choice | Update | None = None
    stages: StageFacts | None = None

    def plan(self, mapped: bool) -> Plan:
        """Give this rank's plan, for symmetric arrays or others."""
        if self.variants is None:
            raise InternalError(f"no plans are kept of {self.algorithm!r}")
        return self.variants.plan(mapped)

    def make(self, rank: int, mapped: bool) -> Plan:
        """Give the plan of any rank."""
        if self.choice is None:
            raise InternalError(f"no plans can be made of {self.algorithm!r}")
        return self.choice.variants(rank).plan(mapped)


@dataclass(frozen=True, slots=True)
class StageFacts:
    """How an epilogue with totals runs.

    Attributes
    ----------
    programs : tuple of Program
        One for each stage.
    digests : tuple of int
        The heads of the stages' digests.
    operands : tuple of tuple of int
        For each operand of a stage its place among the epilogue's, or -1 - k for held array k.
    held_itemsizes_bytes : tuple of int
        Bytes of one element of each held array, which has the length of a shard.
    per_tensor : tuple of bool
        Of each total whether each tensor of a list has its own.
    labels : tuple of str
        By which callers ask for totals; empty for those that they cannot ask for.
    known : tuple of int
        How many totals each stage reads, the first ones.
    summed : tuple of (int, int)
        The first total that each stage adds up and the one after its last.
    gathers : bool
        Whether the results of the last stage are shards that all-gathers follow.
    """

    programs: tuple[Program, ...]
    digests: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    held_itemsizes_bytes: tuple[int, ...]
    per_tensor: tuple[bool, ...]
    labels: tuple[str, ...]
    known: tuple[int, ...]
    summed: tuple[tuple[int, int], ...]
    gathers: bool


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What a bound operation knows of a plan that the caller made.

    Attributes
    ----------
    algorithm : str
        The plan's name.
    plans : tuple of Plan
        Of all ranks.
    rank : int
        Whose facts these are.
    """

    algorithm: str
    plans: tuple[Plan, ...]
    rank: int
    scalars: tuple[str, ...] = ()

    def plan(self, mapped: bool) -> Plan:
        """Give this rank's plan."""
        del mapped
        return self.plans[self.rank]

    def make(self, rank: int, mapped: bool) -> Plan:
        """Give the plan of any rank."""
        del mapped
        return self.plans[rank]


@dataclass(frozen=True, slots=True)
class OwnPlanFacts:
    """What a bound operation knows where a rank makes its own plan alone.

    Attributes
    ----------
    algorithm : str
        The plan's name.
    own : Plan
        This rank's.
    scalars : tuple of str
        Names, in the kernel's order.
    defaults : tuple of float or None
        Their values where the call gives none.
    """

    algorithm: str
    own: Plan
    scalars: tuple[str, ...] = ()
    defaults: tuple[float | None, ...] = ()

    def plan(self, mapped: bool) -> Plan:
        """Give this rank's plan."""
        del mapped
        return self.own
