"""Scatter: every rank's block comes straight from the root."""

from __future__ import annotations

from cocoll.algorithms.block_moves import BlockMove, plan_block_moves
from cocoll.algorithms.exchange import check_root, peers_of
from cocoll.plan.ir import Buffer, Plan, View

__all__ = ["plan_scatter"]


def plan_scatter(
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
    """Plan a scatter of equal blocks.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    root : int
        Whose blocks they are.
    itemsize_bytes : int
        Bytes of one element.
    chunk_elements, slots, staged, hosts, message_elements
        As of `plan_block_moves`.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or, on the root, its block of it.

    Raises
    ------
    RankError
        `root` lies outside the world.
    UsageError
        ``chunk_elements < 1`` or ``slots < 1``.

    Notes
    -----
    Each block crosses once. Scratch on the root, where staged: ``(world_size - 1) * slots`` chunks.
    """
    check_root(root, world_size)

    def move(receiver: int) -> BlockMove:
        return BlockMove(
            root,
            receiver,
            View(Buffer.SOURCE, root, itemsize_bytes),
            receiver,
            View(Buffer.RESULT, receiver, itemsize_bytes, origin=receiver),
            receiver,
            area=receiver - (receiver > root),
        )

    receivers = (rank, *peers_of(rank, world_size)) if rank == root else (rank,)
    return plan_block_moves(
        rank,
        world_size,
        [move(receiver) for receiver in receivers],
        name="flat_scatter",
        chunk_elements=chunk_elements,
        slots=slots,
        staged=staged,
        hosts=hosts,
        message_elements=message_elements,
    )
