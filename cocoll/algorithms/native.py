"""Whole collectives of the library below, and the all-gather of blocks that it has no call for."""

from __future__ import annotations

from cocoll.algorithms.exchange import check_root, peers_of
from cocoll.plan.ir import (
    SHARD_ALIGNMENT_ELEMENTS,
    WHOLE_VECTOR,
    Buffer,
    Copy,
    Fragment,
    Lane,
    Loop,
    Native,
    Plan,
    Receive,
    Send,
    Step,
    View,
)

__all__ = [
    "plan_allgather_native",
    "plan_allgather_wire",
    "plan_allreduce_native",
    "plan_broadcast_native",
]

_GROUP = 1


def plan_allreduce_native(rank: int, world_size: int, itemsize_bytes: int) -> Plan:
    """Plan an all-reduce that the library below does as it likes.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    itemsize_bytes : int
        Bytes of one element.

    Returns
    -------
    Plan
        Of one step. The order of summation is the library's.
    """
    source = View(Buffer.SOURCE, rank, itemsize_bytes)
    result = View(Buffer.RESULT, rank, itemsize_bytes)
    return _plan(rank, world_size, [Native("allreduce", WHOLE_VECTOR, source, result)])


def plan_broadcast_native(rank: int, world_size: int, root: int, itemsize_bytes: int) -> Plan:
    """Plan a broadcast that the library below does.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    root : int
        Whose data.
    itemsize_bytes : int
        Bytes of one element.

    Returns
    -------
    Plan
        Of one step.

    Raises
    ------
    RankError
        ``root`` is not in ``[0, world_size)``.
    """
    check_root(root, world_size)
    source = View(Buffer.SOURCE, rank, itemsize_bytes)
    result = View(Buffer.RESULT, rank, itemsize_bytes)
    step = Native("broadcast", WHOLE_VECTOR, source, result, root)
    return _plan(rank, world_size, [step])


def plan_allgather_native(rank: int, world_size: int, itemsize_bytes: int) -> Plan:
    """Plan an all-gather of equal blocks that the library below does.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    itemsize_bytes : int
        Bytes of one element.

    Returns
    -------
    Plan
        Of one step.
    """
    source = View(Buffer.SOURCE, rank, itemsize_bytes, origin=rank)
    result = View(Buffer.RESULT, rank, itemsize_bytes)
    step = Native("allgather", WHOLE_VECTOR, source, result, source_block=rank)
    return _plan(rank, world_size, [step], alignment_elements=1)


def plan_allgather_wire(
    rank: int,
    world_size: int,
    itemsize_bytes: int,
    *,
    alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS,
) -> Plan:
    """Plan an all-gather of blocks of any lengths through sends and receives.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    itemsize_bytes : int
        Bytes of one element.
    alignment_elements : int, default SHARD_ALIGNMENT_ELEMENTS
        1 for equal blocks.

    Returns
    -------
    Plan
        Legal for a source that is disjoint from the result or this rank's block of it.
    """
    source = View(Buffer.SOURCE, rank, itemsize_bytes, origin=rank)
    result = View(Buffer.RESULT, rank, itemsize_bytes)
    steps: list[Step] = [Copy(rank, source, result)]
    for peer in peers_of(rank, world_size):
        steps += (Send(rank, peer, source, _GROUP), Receive(peer, peer, result, _GROUP))
    return _plan(
        rank, world_size, steps, name="wire_allgather", alignment_elements=alignment_elements
    )


def _plan(
    rank: int,
    world_size: int,
    steps: list[Step],
    *,
    name: str = "native",
    alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS,
) -> Plan:
    body = Fragment((Lane("wire", (Loop(tuple(steps)),)),))
    return Plan(rank, world_size, body, name=name, alignment_elements=alignment_elements)
