"""Rings whose messages go to the right before any comes from the left."""

from __future__ import annotations

from cocoll.plan import Buffer, Fragment, Lane, Loop, Plan, Receive, Send, Span, View

__all__ = ["plan_ring"]


def plan_ring(rank: int, world_size: int, *, group: int, pieces: int = 3, length: int = 4) -> Plan:
    """Send the whole source to the right, piece by piece, each a loop over a range of its own.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    group : int
        Of all messages; 0: each moves by itself, and all ranks send while nobody receives.
    pieces, length : int
        How many, and of how many elements of 4 bytes.
    """
    source, result = View(Buffer.SOURCE, rank, 4), View(Buffer.RESULT, rank, 4)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    loops = []
    for piece in range(2 * pieces):
        step = Send(-1, right, source, group)
        if piece >= pieces:
            step = Receive(-1, left, result, group)
        first = piece % pieces * length
        loops.append(Loop((step,), Span.RANGE, length, piece, None, first))
    hosts = tuple(range(world_size))
    return Plan(rank, world_size, Fragment((Lane("ring", tuple(loops)),)), "ring", hosts=hosts)
