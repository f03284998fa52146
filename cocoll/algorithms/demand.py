"""What a collective over several hosts wants, and one way to do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS

if TYPE_CHECKING:
    from cocoll.algorithms.operands import ReduceSpec
    from cocoll.plan.ir import Plan
    from cocoll.topology.cost import CollectiveKind

__all__ = ["Candidate", "Demand", "PlanMaker"]


@dataclass(frozen=True, slots=True)
class Demand:
    """What is wanted, as far as algorithms depend on it.

    Attributes
    ----------
    kind : {"allreduce", "reduce_scatter", "allgather", "broadcast"}
        The collective.
    spec : ReduceSpec
        Its arrays; of a copy the source and one result.
    nbytes : int
        Bytes of the whole vector in the source's element type.
    root : int
        Of a broadcast.
    alignment_elements : int
        1 for equal blocks.
    replicated : bool
        Every host has one copy of the results.
    rank_order : bool
        Sums must be taken in rank order.
    staging_bytes, small_bytes : int
        What ranks have room for.
    """

    kind: CollectiveKind
    spec: ReduceSpec
    nbytes: int
    root: int = 0
    alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS
    replicated: bool = False
    rank_order: bool = False
    staging_bytes: int = 16 << 20
    small_bytes: int = 16 << 10


class PlanMaker(Protocol):
    """Makes the plan of a rank."""

    def __call__(self, rank: int, staged: bool) -> Plan:
        """Give it, for arrays that neighbours see through staging only, or for symmetric ones."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to do it.

    Attributes
    ----------
    name : str
        The algorithm.
    why : str
        What speaks for it, for people.
    cost_nanoseconds : int
        The estimate.
    chunk_elements : int
        Of one message; 0 where messages are whole.
    make : callable
        Gives the plan of a rank: ``make(rank, staged)``.
    """

    name: str
    why: str
    cost_nanoseconds: int
    chunk_elements: int
    make: PlanMaker
