"""Reduce-scatter in one pass: each owner reads all peers in rank order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cocoll.algorithms.exchange import (
    check_chunk,
    check_slots,
    exchange_done,
)
from cocoll.algorithms.two_shot import reduce_staged
from cocoll.plan.ir import (
    Composite,
    Fragment,
    Lane,
    Loop,
    Plan,
    Reduce,
    Span,
)

if TYPE_CHECKING:
    from cocoll.algorithms.operands import ReduceSpec

__all__ = [
    "FlatReduceScatter",
    "StagedReduceScatter",
    "plan_reduce_scatter",
    "plan_reduce_scatter_staged",
]


@dataclass(frozen=True, slots=True)
class FlatReduceScatter(Composite):
    """The steps of :func:`plan_reduce_scatter`."""

    kind: ClassVar[str] = "flat_reduce_scatter"

    spec: ReduceSpec
    chunk_elements: int

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Reduce the own block from all, then tell all and wait for all."""
        spec = self.spec
        reduce = Reduce(
            rank,
            sources=tuple(spec.source_view(peer) for peer in range(world_size)),
            destinations=tuple(
                (spec.result_view(rank, index, origin=rank),)
                for index in range(len(spec.result_itemsizes_bytes))
            ),
            operands=spec.operand_views(rank),
            updated=spec.updated,
        )
        loop = Loop((reduce,), Span.BLOCK, self.chunk_elements)
        return Fragment((Lane("own", (loop, *exchange_done(rank, world_size))),))


@dataclass(frozen=True, slots=True)
class StagedReduceScatter(Composite):
    """The steps of :func:`plan_reduce_scatter_staged`."""

    kind: ClassVar[str] = "flat_reduce_scatter_staged"

    spec: ReduceSpec
    chunk_elements: int
    slots: int

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Stage for the owners and reduce the own block."""
        return reduce_staged(
            rank,
            world_size,
            self.spec,
            self.chunk_elements,
            self.slots,
            answered=False,
            result_origin=rank,
        )


def plan_reduce_scatter(
    rank: int,
    world_size: int,
    spec: ReduceSpec,
    *,
    chunk_elements: int,
    alignment_elements: int = 1,
) -> Plan:
    """Plan a reduce-scatter over symmetric arrays.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        What is reduced; results are sharded, operands may be.
    chunk_elements : int
        Elements that one step reduces.
    alignment_elements : int, default 1
        What a block is rounded up to: 1 for equal blocks, SHARD_ALIGNMENT_ELEMENTS for shards.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or this rank's block of it.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``.

    Notes
    -----
    With n bytes a rank: ``n`` read and ``n / world_size`` written per rank, no scratch, one flag to
    each peer. Sums in rank order.
    """
    check_chunk(chunk_elements)
    return Plan(
        rank,
        world_size,
        FlatReduceScatter(spec, chunk_elements),
        name="flat_reduce_scatter",
        alignment_elements=alignment_elements,
        mapped_sources=world_size > 1,
    )


def plan_reduce_scatter_staged(
    rank: int,
    world_size: int,
    spec: ReduceSpec,
    *,
    chunk_elements: int,
    slots: int = 2,
    alignment_elements: int = 1,
) -> Plan:
    """Plan a reduce-scatter over arrays that peers cannot map.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        What is reduced; results are sharded, operands may be.
    chunk_elements : int
        Elements that one step stages and reduces.
    slots : int, default 2
        Chunks in flight to each owner.
    alignment_elements : int, default 1
        As of :func:`plan_reduce_scatter`.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or this rank's block of it.

    Raises
    ------
    UsageError
        ``chunk_elements < 1`` or ``slots < 1``.

    Notes
    -----
    Scratch per rank: ``(world_size - 1) * slots`` chunks. Two flags per chunk and pair of ranks.
    """
    check_chunk(chunk_elements)
    check_slots(slots)
    return Plan(
        rank,
        world_size,
        StagedReduceScatter(spec, chunk_elements, slots),
        name="flat_reduce_scatter_staged",
        alignment_elements=alignment_elements,
    )
