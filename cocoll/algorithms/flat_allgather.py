"""All-gather in which each rank copies each block straight from its owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cocoll.algorithms.exchange import (
    check_chunk,
    check_private,
    check_slots,
    exchange_done,
    peers_of,
)
from cocoll.algorithms.staging import shared_slot_view, stage_for_all
from cocoll.plan.ir import (
    Buffer,
    Composite,
    Copy,
    Flag,
    Fragment,
    Lane,
    Loop,
    Plan,
    Signal,
    Span,
    Step,
    View,
    Wait,
)

__all__ = [
    "FlatAllgather",
    "StagedAllgather",
    "plan_allgather",
    "plan_allgather_staged",
]


def _gather_replicated(rank: int, world_size: int, itemsize: int, chunk_elements: int) -> Fragment:
    """Give the steps where all ranks map one result: each stores its own block, then all know."""
    source = View(Buffer.SOURCE, rank, itemsize, origin=rank)
    copy = Copy(rank, source, View(Buffer.RESULT, rank, itemsize))
    loop = Loop((copy,), Span.BLOCK, chunk_elements)
    return Fragment((Lane("own", (loop, *exchange_done(rank, world_size))),))


@dataclass(frozen=True, slots=True)
class FlatAllgather(Composite):
    """The steps of :func:`plan_allgather`."""

    kind: ClassVar[str] = "flat_allgather"

    itemsize_bytes: int
    chunk_elements: int
    in_place: bool
    replicated_result: bool

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Copy each block from its owner, then tell all and wait for all."""
        itemsize, chunk = self.itemsize_bytes, self.chunk_elements
        if self.replicated_result:
            return _gather_replicated(rank, world_size, itemsize, chunk)
        owners = peers_of(rank, world_size)
        if not self.in_place:
            owners = (rank, *owners)
        result = View(Buffer.RESULT, rank, itemsize)
        loops = tuple(
            Loop(
                (Copy(owner, View(Buffer.SOURCE, owner, itemsize, origin=owner), result),),
                Span.BLOCK,
                chunk,
            )
            for owner in owners
        )
        return Fragment((Lane("gather", (*loops, *exchange_done(rank, world_size))),))


@dataclass(frozen=True, slots=True)
class StagedAllgather(Composite):
    """The steps of :func:`plan_allgather_staged`."""

    kind: ClassVar[str] = "flat_allgather_staged"

    itemsize_bytes: int
    chunk_elements: int
    slots: int
    in_place: bool
    replicated_result: bool

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Stage the own block once for all, read the others', give the slots back."""
        itemsize, chunk = self.itemsize_bytes, self.chunk_elements
        if self.replicated_result:
            return _gather_replicated(rank, world_size, itemsize, chunk)
        peers = peers_of(rank, world_size)
        source = View(Buffer.SOURCE, rank, itemsize, origin=rank)
        result = View(Buffer.RESULT, rank, itemsize)
        read: list[Step] = [] if self.in_place else [Copy(rank, source, result)]
        for owner in peers:
            read.append(Wait(owner, Flag.REQUEST))
            read.append(Copy(owner, shared_slot_view(owner, itemsize, chunk, self.slots), result))
            read.append(Signal(owner, Flag.ANSWER))
        lanes = (Lane("read", (Loop(tuple(read), Span.BLOCK, chunk),)),) if read else ()
        if not peers:
            return Fragment(lanes)
        staging = shared_slot_view(rank, itemsize, chunk, self.slots)
        return stage_for_all(
            lanes, Copy(rank, source, staging), peers, Span.BLOCK, chunk, self.slots
        )


def plan_allgather(
    rank: int,
    world_size: int,
    itemsize_bytes: int,
    *,
    chunk_elements: int,
    alignment_elements: int = 1,
    in_place: bool = False,
    replicated_result: bool = False,
) -> Plan:
    """Plan an all-gather over symmetric sources.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    itemsize_bytes : int
        Bytes of one element.
    chunk_elements : int
        Elements that one step copies.
    alignment_elements : int, default 1
        What a block is rounded up to: 1 for equal blocks, SHARD_ALIGNMENT_ELEMENTS for shards.
    in_place : bool, default False
        The source is this rank's block of the result, and need not be copied there.
    replicated_result : bool, default False
        The result is one physical copy for all ranks: each stores its own block, and no source
        need be mapped.

    Returns
    -------
    Plan
        Legal for a source that is disjoint from the result or this rank's block of it.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``, or both `in_place` and `replicated_result`.

    Notes
    -----
    Per rank the whole result read and written once, no scratch, one flag to each peer.
    """
    check_chunk(chunk_elements)
    check_private(in_place=in_place, replicated_result=replicated_result)
    return Plan(
        rank,
        world_size,
        FlatAllgather(itemsize_bytes, chunk_elements, in_place, replicated_result),
        name="flat_allgather",
        alignment_elements=alignment_elements,
        mapped_sources=world_size > 1 and not replicated_result,
    )


def plan_allgather_staged(
    rank: int,
    world_size: int,
    itemsize_bytes: int,
    *,
    chunk_elements: int,
    slots: int = 2,
    alignment_elements: int = 1,
    in_place: bool = False,
    replicated_result: bool = False,
) -> Plan:
    """Plan an all-gather over arrays that peers cannot map.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    itemsize_bytes : int
        Bytes of one element.
    chunk_elements : int
        Elements that one step stages.
    slots : int, default 2
        Chunks in flight from each owner.
    alignment_elements : int, default 1
        As of :func:`plan_allgather`, as the next two.
    in_place : bool, default False
        The source is this rank's block of the result, and need not be copied there.
    replicated_result : bool, default False
        The result is one physical copy for all ranks: each stores its own block.

    Returns
    -------
    Plan
        Legal for a source that is disjoint from the result or this rank's block of it.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``, ``slots < 1``, or both `in_place` and `replicated_result`.

    Notes
    -----
    Scratch per rank: `slots` chunks, staged once for all readers. Two flags per chunk and pair.
    """
    check_chunk(chunk_elements)
    check_slots(slots)
    check_private(in_place=in_place, replicated_result=replicated_result)
    return Plan(
        rank,
        world_size,
        StagedAllgather(itemsize_bytes, chunk_elements, slots, in_place, replicated_result),
        name="flat_allgather_staged",
        alignment_elements=alignment_elements,
    )
