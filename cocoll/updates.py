"""The plans of a later stage of an epilogue with totals, of any rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.algorithms import flat_update
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS
from cocoll.variants import MAPPED_CHUNK_ELEMENTS, Variants, chunk_of_rank

if TYPE_CHECKING:
    from cocoll.algorithms import ReduceSpec
    from cocoll.tuning import Tuning

__all__ = ["Update"]


@dataclass(frozen=True, slots=True)
class Update:
    """The agreed facts from which every rank's plans of a later stage follow.

    Attributes
    ----------
    world_size : int
        Of the communicator.
    tuning : Tuning
        The communicator's.
    spec : ReduceSpec
        Operands and results; nothing is reduced.
    gathers : bool
        Whether the results go to all ranks of a host at once; else each rank keeps its shards.
    replicated : bool
        Whether results are one copy for all ranks.
    """

    world_size: int
    tuning: Tuning
    spec: ReduceSpec
    gathers: bool
    replicated: bool

    def variants(self, rank: int) -> Variants:
        """Give the plans of a rank."""
        world_size, spec = self.world_size, self.spec
        if not self.gathers:
            plan = flat_update.plan_local_update(
                rank, world_size, spec, chunk_elements=MAPPED_CHUNK_ELEMENTS
            )
            return Variants("local_update", None, plan)
        mapped = flat_update.plan_update(
            rank,
            world_size,
            spec,
            chunk_elements=MAPPED_CHUNK_ELEMENTS,
            replicated_result=self.replicated,
        )
        if self.replicated:
            return Variants("flat_update", None, mapped)
        unit = SHARD_ALIGNMENT_ELEMENTS
        chunk = chunk_of_rank(self.tuning, sum(spec.result_itemsizes_bytes)) // unit * unit
        staged = flat_update.plan_update_staged(
            rank, world_size, spec, chunk_elements=max(unit, chunk), slots=self.tuning.slots
        )
        return Variants("flat_update", mapped, staged)
