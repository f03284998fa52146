"""Blocks that go from one rank to another: what gather, scatter and all-to-all have in common.

Inside a host a receiver copies straight from the sender's array, or from staging that the sender
fills chunk by chunk; between hosts a block is a message. Every block crosses once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from cocoll.algorithms.exchange import check_chunk, check_slots
from cocoll.plan.builder import Builder
from cocoll.plan.ir import Buffer, Flag, Plan, Span, View

__all__ = ["BlockMove", "plan_block_moves"]

_LINE_BYTES = 64
# Messages of one chunk move together: all ranks send and receive at once, in any topology.
_GROUP = 1


@dataclass(frozen=True, slots=True)
class BlockMove:
    """One block on its way.

    Attributes
    ----------
    sender, receiver : int
        Ranks, which may be the same.
    sent, kept : View
        Where it is on the sender, and where it must be on the receiver.
    sent_block, kept_block : int
        Which block it is there.
    area : int, default 0
        Which area of the sender's staging it goes through.
    """

    sender: int
    receiver: int
    sent: View
    sent_block: int
    kept: View
    kept_block: int
    area: int = 0

    @property
    def read(self) -> View:
        """Give the sender's array as a step over the receiver's block reads it."""
        return replace(self.sent, origin=self.sent.origin + self.kept_block - self.sent_block)


def plan_block_moves(
    rank: int,
    world_size: int,
    moves: Sequence[BlockMove],
    *,
    name: str,
    chunk_elements: int,
    slots: int = 2,
    staged: bool = True,
    hosts: tuple[int, ...] | None = None,
    message_elements: int = 0,
) -> Plan:
    """Plan moves of equal blocks.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    moves : sequence of BlockMove
        Those from and to this rank, at most one for each pair of ranks.
    name : str
        Of the plan.
    chunk_elements : int
        Elements that one step copies.
    slots : int, default 2
        Chunks in flight from a sender to a receiver, where they are staged.
    staged : bool, default True
        Whether ranks of one host see each other's arrays through staging only.
    hosts : tuple of int, optional
        The host of every rank; default: one.
    message_elements : int, default 0
        Elements of a message; 0: those of a chunk.

    Returns
    -------
    Plan
        Of blocks of equal length.

    Raises
    ------
    UsageError
        ``chunk_elements < 1`` or ``slots < 1``.

    Notes
    -----
    Scratch: `slots` chunks for each area, where staged. Two flags per chunk and pair of ranks of
    one host, where staged, else one for each pair.
    """
    check_chunk(chunk_elements)
    check_slots(slots)
    home = hosts or (0,) * world_size
    builder = Builder(
        rank,
        world_size,
        name=name,
        alignment_elements=1,
        mapped_sources=not staged and world_size > 1,
        hosts=hosts,
    )
    mover = _Mover(builder, chunk_elements, slots, staged=staged)
    near = [one for one in moves if home[one.sender] == home[one.receiver]]
    far = [one for one in moves if home[one.sender] != home[one.receiver]]
    mover.add_near(near)
    if far:
        mover.add_messages(far, message_elements or chunk_elements)
    return builder.build()


class _Mover:
    def __init__(self, builder: Builder, chunk_elements: int, slots: int, *, staged: bool) -> None:
        self._builder = builder
        self._rank = builder.rank
        self._chunk_elements = chunk_elements
        self._slots = slots
        self._staged = staged

    def add_near(self, moves: Sequence[BlockMove]) -> None:
        """Add what the ranks of one host move between them."""
        builder, rank = self._builder, self._rank
        kept = [one for one in moves if one.receiver == rank]
        taken = [one for one in kept if one.sender != rank]
        given = [one for one in moves if one.sender == rank and one.receiver != rank]
        if kept:
            with builder.lane("keep"), self._loop():
                for one in kept:
                    self._add_copy(one)
        if self._staged:
            if given:
                self._add_staging(given)
        elif taken or given:
            after: dict[str, int | None] = {"keep": None} if kept else {}
            with builder.lane("done"):
                for one in taken:
                    builder.signal(peer=one.sender, flag=Flag.DONE, after=after)
                for one in given:
                    builder.wait(peer=one.receiver, flag=Flag.DONE)

    def add_messages(self, moves: Sequence[BlockMove], message_elements: int) -> None:
        """Add what goes to and comes from other hosts, all of a chunk at once."""
        builder = self._builder
        with (
            builder.lane("messages"),
            builder.loop(span=Span.BLOCK, chunk_elements=message_elements),
        ):
            for one in moves:
                if one.sender == self._rank:
                    builder.send(
                        peer=one.receiver, source=one.sent, block=one.sent_block, group=_GROUP
                    )
                else:
                    builder.recv(
                        peer=one.sender, destination=one.kept, block=one.kept_block, group=_GROUP
                    )

    def _add_copy(self, one: BlockMove) -> None:
        builder = self._builder
        staged = self._staged and one.sender != self._rank
        if staged:
            builder.wait(peer=one.sender, flag=Flag.REQUEST)
        builder.copy(
            block=one.kept_block,
            source=self._slot(one) if staged else one.read,
            destination=one.kept,
        )
        if staged:
            builder.signal(peer=one.sender, flag=Flag.ANSWER)

    def _add_staging(self, given: Sequence[BlockMove]) -> None:
        """Fill staging ahead of the receivers, who give it back."""
        builder = self._builder

        def stage(one: BlockMove, after: dict[str, int | None]) -> None:
            builder.copy(
                block=one.sent_block, source=one.sent, destination=self._slot(one), after=after
            )

        with builder.opening(), self._loop(end=1):
            for one in given:
                stage(one, {})
        with builder.lane("stage"):
            with self._loop(end=1):
                for one in given:
                    builder.signal(peer=one.receiver, flag=Flag.REQUEST)
            with self._loop(begin=1):
                for one in given:
                    stage(one, {"free": self._slots})
                    builder.signal(peer=one.receiver, flag=Flag.REQUEST)
        with builder.lane("free"), self._loop():
            for one in given:
                builder.wait(peer=one.receiver, flag=Flag.ANSWER)

    def _slot(self, one: BlockMove) -> View:
        itemsize = one.sent.itemsize_bytes
        slot_bytes = -(-self._chunk_elements * itemsize // _LINE_BYTES) * _LINE_BYTES
        return View(
            Buffer.STAGING,
            one.sender,
            itemsize,
            offset_bytes=one.area * self._slots * slot_bytes,
            slots=self._slots,
            slot_bytes=slot_bytes,
        )

    def _loop(self, begin: int = 0, end: int | None = None) -> AbstractContextManager[None]:
        return self._builder.loop(
            span=Span.BLOCK, chunk_elements=self._chunk_elements, begin=begin, end=end
        )
