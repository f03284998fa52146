"""Gather: every rank's block goes straight to the root."""

from __future__ import annotations

from cocoll.algorithms.block_moves import BlockMove, plan_block_moves
from cocoll.algorithms.exchange import check_root, peers_of
from cocoll.plan.ir import Buffer, Plan, View

__all__ = ["plan_gather"]


def plan_gather(
    rank: int,
    world_size: int,
    root: int,
    itemsize_bytes: int,
    *,
    chunk_elements: int,
    slots: int = 2,
    staged: bool = True,
    hosts: tuple[int, ...] | None = None,
    message_elements: int = 0,
) -> Plan:
    """Plan a gather of equal blocks.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    root : int
        Who gets all blocks.
    itemsize_bytes : int
        Bytes of one element.
    chunk_elements, slots, staged, hosts, message_elements
        As of `plan_block_moves`.

    Returns
    -------
    Plan
        Legal for a source that is disjoint from the result or, on the root, its block of it.

    Raises
    ------
    RankError
        `root` lies outside the world.
    UsageError
        ``chunk_elements < 1`` or ``slots < 1``.

    Notes
    -----
    Each block crosses once. Scratch, where staged: `slots` chunks on every rank but the root.
    """
    check_root(root, world_size)

    def move(sender: int) -> BlockMove:
        return BlockMove(
            sender,
            root,
            View(Buffer.SOURCE, sender, itemsize_bytes, origin=sender),
            sender,
            View(Buffer.RESULT, root, itemsize_bytes),
            sender,
        )

    senders = (rank, *peers_of(rank, world_size)) if rank == root else (rank,)
    return plan_block_moves(
        rank,
        world_size,
        [move(sender) for sender in senders],
        name="flat_gather",
        chunk_elements=chunk_elements,
        slots=slots,
        staged=staged,
        hosts=hosts,
        message_elements=message_elements,
    )
