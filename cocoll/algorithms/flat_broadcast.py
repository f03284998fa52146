"""Broadcast in which each rank copies straight from the root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cocoll.algorithms.exchange import (
    check_chunk,
    check_private,
    check_root,
    check_slots,
    exchange_done,
    peers_of,
)
from cocoll.algorithms.staging import shared_slot_view, stage_for_all
from cocoll.plan.ir import (
    SHARD_ALIGNMENT_ELEMENTS,
    WHOLE_VECTOR,
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
    View,
    Wait,
)

__all__ = [
    "FlatBroadcast",
    "StagedBroadcast",
    "plan_broadcast",
    "plan_broadcast_staged",
]


@dataclass(frozen=True, slots=True)
class FlatBroadcast(Composite):
    """The steps of :func:`plan_broadcast`."""

    kind: ClassVar[str] = "flat_broadcast"

    root: int
    itemsize_bytes: int
    chunk_elements: int
    in_place: bool
    replicated_result: bool

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Copy from the root's source; the root waits until all have."""
        root, chunk = self.root, self.chunk_elements
        source = View(Buffer.SOURCE, root, self.itemsize_bytes)
        result = View(Buffer.RESULT, rank, self.itemsize_bytes)
        if self.replicated_result:
            loop = Loop((Copy(rank, source, result),), Span.BLOCK, chunk)
            return Fragment((Lane("copy", (loop, *exchange_done(rank, world_size))),))
        loops: list[Loop] = []
        if rank != root or not self.in_place:
            loops.append(Loop((Copy(WHOLE_VECTOR, source, result),), Span.WHOLE, chunk))
        if rank != root:
            loops.append(Loop((Signal(root, Flag.DONE),)))
        elif world_size > 1:
            loops.append(Loop(tuple(Wait(peer, Flag.DONE) for peer in peers_of(root, world_size))))
        return Fragment((Lane("copy", tuple(loops)),))


@dataclass(frozen=True, slots=True)
class StagedBroadcast(Composite):
    """The steps of :func:`plan_broadcast_staged`."""

    kind: ClassVar[str] = "flat_broadcast_staged"

    root: int
    itemsize_bytes: int
    chunk_elements: int
    slots: int
    in_place: bool
    replicated_result: bool

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Stage the root's chunks once for all readers, who give the slots back."""
        root, chunk = self.root, self.chunk_elements
        source = View(Buffer.SOURCE, root, self.itemsize_bytes)
        result = View(Buffer.RESULT, rank, self.itemsize_bytes)
        readers = peers_of(root, world_size)
        own = Loop((Copy(WHOLE_VECTOR, source, result),), Span.WHOLE, chunk)
        if self.replicated_result:
            if rank != root:
                return Fragment((Lane("copy", (Loop((Wait(root, Flag.DONE),)),)),))
            signals = tuple(Signal(reader, Flag.DONE) for reader in readers)
            return Fragment((Lane("copy", (own, Loop(signals)) if signals else (own,)),))
        staging = shared_slot_view(root, self.itemsize_bytes, chunk, self.slots)
        if rank != root:
            read = (
                Wait(root, Flag.REQUEST),
                Copy(WHOLE_VECTOR, staging, result),
                Signal(root, Flag.ANSWER),
            )
            return Fragment((Lane("read", (Loop(read, Span.WHOLE, chunk),)),))
        lanes = () if self.in_place else (Lane("copy", (own,)),)
        if not readers:
            return Fragment(lanes)
        return stage_for_all(
            lanes, Copy(WHOLE_VECTOR, source, staging), readers, Span.WHOLE, chunk, self.slots
        )


def plan_broadcast(
    rank: int,
    world_size: int,
    root: int,
    itemsize_bytes: int,
    *,
    chunk_elements: int,
    in_place: bool = False,
    replicated_result: bool = False,
) -> Plan:
    """Plan a broadcast from a symmetric source.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    root : int
        Whose source all ranks get.
    itemsize_bytes : int
        Bytes of one element.
    chunk_elements : int
        Elements that one step copies.
    in_place : bool, default False
        The root's result is its source, and need not be copied there.
    replicated_result : bool, default False
        The result is one physical copy for all ranks: each copies its own block of the source.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or identical to it.

    Raises
    ------
    RankError
        `root` lies outside the world.
    UsageError
        ``chunk_elements < 1``, or both `in_place` and `replicated_result`.

    Notes
    -----
    No scratch; one flag from each rank to the root (between all ranks with a replicated result).
    """
    check_root(root, world_size)
    check_chunk(chunk_elements)
    check_private(in_place=in_place, replicated_result=replicated_result)
    return Plan(
        rank,
        world_size,
        FlatBroadcast(root, itemsize_bytes, chunk_elements, in_place, replicated_result),
        name="flat_broadcast",
        alignment_elements=SHARD_ALIGNMENT_ELEMENTS,
        mapped_sources=world_size > 1,
    )


def plan_broadcast_staged(
    rank: int,
    world_size: int,
    root: int,
    itemsize_bytes: int,
    *,
    chunk_elements: int,
    slots: int = 2,
    in_place: bool = False,
    replicated_result: bool = False,
) -> Plan:
    """Plan a broadcast from an array that peers cannot map.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    root : int
        Whose source all ranks get.
    itemsize_bytes : int
        Bytes of one element.
    chunk_elements : int
        Elements that one step stages.
    slots : int, default 2
        Chunks in flight.
    in_place : bool, default False
        The root's result is its source, and need not be copied there.
    replicated_result : bool, default False
        The result is one physical copy for all ranks: the root fills it alone.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or identical to it.

    Raises
    ------
    RankError
        `root` lies outside the world.
    UsageError
        ``chunk_elements < 1``, ``slots < 1``, or both `in_place` and `replicated_result`.

    Notes
    -----
    Scratch on the root: `slots` chunks, staged once for all. Two flags per chunk and reader.
    """
    check_root(root, world_size)
    check_chunk(chunk_elements)
    check_slots(slots)
    check_private(in_place=in_place, replicated_result=replicated_result)
    return Plan(
        rank,
        world_size,
        StagedBroadcast(root, itemsize_bytes, chunk_elements, slots, in_place, replicated_result),
        name="flat_broadcast_staged",
        alignment_elements=SHARD_ALIGNMENT_ELEMENTS,
    )
