"""What the algorithms share: the order of peers, the closing exchange of flags, their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cocoll.errors import RankError, UsageError
from cocoll.plan.ir import Flag, Loop, Signal, Span, Step, Wait

if TYPE_CHECKING:
    from cocoll.plan.builder import Builder

__all__ = [
    "check_chunk",
    "check_private",
    "check_root",
    "check_slots",
    "exchange_done",
    "lane_over_chunks",
    "peers_of",
]


def peers_of(rank: int, world_size: int) -> tuple[int, ...]:
    """Give the other ranks, from the next one on: no two ranks turn to the same peer at once."""
    return tuple((rank + distance) % world_size for distance in range(1, world_size))


def exchange_done(rank: int, world_size: int) -> tuple[Loop, ...]:
    """Give the loop that tells every peer that this rank is done and waits until it is too.

    A world of one has nobody to tell: no loop.
    """
    peers = peers_of(rank, world_size)
    steps: list[Step] = [Signal(peer, Flag.DONE) for peer in peers]
    steps += [Wait(peer, Flag.DONE) for peer in peers]
    return (Loop(tuple(steps)),) if steps else ()


@contextmanager
def lane_over_chunks(
    builder: Builder, name: str, chunk_elements: int, in_flight: int = 1
) -> Iterator[None]:
    """Write a lane of one loop over the chunks of blocks.

    Parameters
    ----------
    builder : Builder
        Of the plan.
    name : str
        Of the lane.
    chunk_elements : int
        Elements of one iteration.
    in_flight : int, default 1
        Messages that may be under way.
    """
    with (
        builder.lane(name, in_flight=in_flight),
        builder.loop(span=Span.BLOCK, chunk_elements=chunk_elements),
    ):
        yield


def check_chunk(chunk_elements: int) -> None:
    """Refuse a chunk without elements.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``.
    """
    if chunk_elements < 1:
        raise UsageError(f"wanted chunk_elements >= 1, got {chunk_elements}")


def check_slots(slots: int) -> None:
    """Refuse staging without slots.

    Raises
    ------
    UsageError
        ``slots < 1``.
    """
    if slots < 1:
        raise UsageError(f"wanted slots >= 1, got {slots}")


def check_root(root: int, world_size: int) -> None:
    """Refuse a root outside the world.

    Raises
    ------
    RankError
        ``root`` is not in ``[0, world_size)``.
    """
    if not 0 <= root < world_size:
        raise RankError(f"wanted a root in [0, {world_size}), got {root}")


def check_private(*, in_place: bool, replicated_result: bool) -> None:
    """Refuse a source that lies in memory which all ranks map.

    Raises
    ------
    UsageError
        Both are true.
    """
    if in_place and replicated_result:
        raise UsageError("a replicated result, which all ranks map, is no rank's own source")
