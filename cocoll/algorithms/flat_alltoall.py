"""All-to-all: every pair of ranks exchanges two blocks, directly."""

from __future__ import annotations

from cocoll.algorithms.block_moves import BlockMove, plan_block_moves
from cocoll.algorithms.exchange import peers_of
from cocoll.plan.ir import Buffer, Plan, View

__all__ = ["plan_alltoall"]


def plan_alltoall(
    rank: int,
    world_size: int,
    itemsize_bytes: int,
    *,
    chunk_elements: int,
    slots: int = 2,
    staged: bool = True,
    hosts: tuple[int, ...] | None = None,
    message_elements: int = 0,
) -> Plan:
    """Plan an all-to-all of equal blocks: block d of rank s becomes block s of rank d.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    itemsize_bytes : int
        Bytes of one element.
    chunk_elements, slots, staged, hosts, message_elements
        As of `plan_block_moves`.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source.

    Raises
    ------
    UsageError
        ``chunk_elements < 1`` or ``slots < 1``.

    Notes
    -----
    Each block crosses once. Scratch, where staged: ``(world_size - 1) * slots`` chunks.
    """

    def move(sender: int, receiver: int) -> BlockMove:
        return BlockMove(
            sender,
            receiver,
            View(Buffer.SOURCE, sender, itemsize_bytes),
            receiver,
            View(Buffer.RESULT, receiver, itemsize_bytes),
            sender,
            area=receiver - (receiver > sender),
        )

    peers = peers_of(rank, world_size)
    moves = [
        move(rank, rank),
        *(one for peer in peers for one in (move(rank, peer), move(peer, rank))),
    ]
    return plan_block_moves(
        rank,
        world_size,
        moves,
        name="flat_alltoall",
        chunk_elements=chunk_elements,
        slots=slots,
        staged=staged,
        hosts=hosts,
        message_elements=message_elements,
    )
