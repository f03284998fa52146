"""Reduce-scatter, all-gather and broadcast in which each block goes straight from owner to reader.

The direct forms read and write peers' arrays and exchange one flag per pair of ranks at the end.
The staged forms need no mapped arrays: chunks go through slots of the owner's staging, and a second
flag gives a slot back. Reductions are in rank order, one pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cocoll.algorithms.exchange import check_chunk, check_root, check_slots, exchange, peers_of
from cocoll.algorithms.two_shot import reduce_staged
from cocoll.errors import UsageError
from cocoll.plan.ir import (
    SHARD_ALIGNMENT_ELEMENTS,
    WHOLE_VECTOR,
    After,
    Arrive,
    Buffer,
    Composite,
    Copy,
    Flag,
    Fragment,
    Lane,
    Loop,
    Plan,
    Reduce,
    Signal,
    Span,
    Step,
    View,
    Wait,
)

if TYPE_CHECKING:
    from cocoll.algorithms.operands import ReduceSpec

__all__ = [
    "FlatAllgather",
    "FlatBroadcast",
    "FlatReduceScatter",
    "StagedAllgather",
    "StagedBroadcast",
    "StagedReduceScatter",
    "plan_allgather",
    "plan_allgather_staged",
    "plan_barrier",
    "plan_broadcast",
    "plan_broadcast_staged",
    "plan_reduce_scatter",
    "plan_reduce_scatter_staged",
]

_LINE_BYTES = 64


def plan_barrier(rank: int, world_size: int) -> Plan:
    """Plan a barrier: the arrival that opens every operation, and nothing else.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.

    Returns
    -------
    Plan
        Without steps.
    """
    return Plan(rank, world_size, Arrive(), name="barrier")


# --- reduce-scatter ----------------------------------------------------------------------------


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
        return Fragment((Lane("own", (loop, *exchange(rank, world_size))),))


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


# --- all-gather --------------------------------------------------------------------------------


def _gather_replicated(rank: int, world_size: int, itemsize: int, chunk_elements: int) -> Fragment:
    """Give the steps where all ranks map one result: each stores its own block, then all know."""
    source = View(Buffer.SOURCE, rank, itemsize, origin=rank)
    copy = Copy(rank, source, View(Buffer.RESULT, rank, itemsize))
    loop = Loop((copy,), Span.BLOCK, chunk_elements)
    return Fragment((Lane("own", (loop, *exchange(rank, world_size))),))


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
        return Fragment((Lane("gather", (*loops, *exchange(rank, world_size))),))


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
            read.append(Copy(owner, _slot_view(owner, itemsize, chunk, self.slots), result))
            read.append(Signal(owner, Flag.ANSWER))
        lanes = (Lane("read", (Loop(tuple(read), Span.BLOCK, chunk),)),) if read else ()
        if not peers:
            return Fragment(lanes)
        staging = _slot_view(rank, itemsize, chunk, self.slots)
        return _staged_for_all(
            lanes, Copy(rank, source, staging), peers, Span.BLOCK, chunk, self.slots
        )


def _slot_view(owner: int, itemsize: int, chunk_elements: int, slots: int) -> View:
    slot_bytes = -(-chunk_elements * itemsize // _LINE_BYTES) * _LINE_BYTES
    return View(Buffer.STAGING, owner, itemsize, slots=slots, slot_bytes=slot_bytes)


def _staged_for_all(
    lanes: tuple[Lane, ...],
    copy: Copy,
    readers: tuple[int, ...],
    span: Span,
    chunk_elements: int,
    slots: int,
) -> Fragment:
    """Add to `lanes` the two that stage chunks once for all readers and take the slots back."""
    free_lane = len(lanes) + 1
    restage = Copy(copy.block, copy.source, copy.destination, (After(free_lane, slots),))
    signals = tuple(Signal(reader, Flag.REQUEST) for reader in readers)
    waits = tuple(Wait(reader, Flag.ANSWER) for reader in readers)
    return Fragment(
        lanes=(
            *lanes,
            Lane(
                "stage",
                (
                    Loop(signals, span, chunk_elements, end=1),
                    Loop((restage, *signals), span, chunk_elements, begin=1),
                ),
            ),
            Lane("free", (Loop(waits, span, chunk_elements),)),
        ),
        opening=(Loop((copy,), span, chunk_elements, end=1),),
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
        The source is this rank's block of the result.
    replicated_result : bool, default False
        The result is one physical copy for all ranks: each stores its own block, and no source
        need be mapped.

    Returns
    -------
    Plan
        Legal for a source that is disjoint from the result, or with `in_place` its block.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``, or both `in_place` and `replicated_result`.

    Notes
    -----
    Per rank the whole result read and written once, no scratch, one flag to each peer.
    """
    check_chunk(chunk_elements)
    _check_private(in_place=in_place, replicated_result=replicated_result)
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
    alignment_elements, in_place, replicated_result
        As of :func:`plan_allgather`.

    Returns
    -------
    Plan
        Legal for a source that is disjoint from the result, or with `in_place` its block.

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
    _check_private(in_place=in_place, replicated_result=replicated_result)
    return Plan(
        rank,
        world_size,
        StagedAllgather(itemsize_bytes, chunk_elements, slots, in_place, replicated_result),
        name="flat_allgather_staged",
        alignment_elements=alignment_elements,
    )


# --- broadcast ---------------------------------------------------------------------------------


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
            return Fragment((Lane("copy", (loop, *exchange(rank, world_size))),))
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
        staging = _slot_view(root, self.itemsize_bytes, chunk, self.slots)
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
        return _staged_for_all(
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
        The root's result is its source.
    replicated_result : bool, default False
        The result is one physical copy for all ranks: each copies its own block of the source.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source, or with `in_place` identical to it.

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
    _check_private(in_place=in_place, replicated_result=replicated_result)
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
        The root's result is its source.
    replicated_result : bool, default False
        The result is one physical copy for all ranks: the root fills it alone.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source, or with `in_place` identical to it.

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
    _check_private(in_place=in_place, replicated_result=replicated_result)
    return Plan(
        rank,
        world_size,
        StagedBroadcast(root, itemsize_bytes, chunk_elements, slots, in_place, replicated_result),
        name="flat_broadcast_staged",
        alignment_elements=SHARD_ALIGNMENT_ELEMENTS,
    )


def _check_private(*, in_place: bool, replicated_result: bool) -> None:
    if in_place and replicated_result:
        raise UsageError("a replicated result, which all ranks map, is no rank's own source")
