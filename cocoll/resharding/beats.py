"""The order of all messages of a schedule, in which no rank has to wait for what it sends.

A chunk that is passed on has come just before. If ranks went through the chunks one by one, what a
rank has itself would stand in line behind what it must wait for first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cocoll.resharding.chunks import Chunk

__all__ = ["Message", "beats_of"]


class Message(NamedTuple):
    """A chunk on one hop of its way."""

    chunk: Chunk
    source: int
    destination: int


def beats_of(
    rounds: Iterable[Sequence[Chunk]], takes_time: Callable[[int, int], bool]
) -> Iterator[list[Message]]:
    """Give the messages of a group beat by beat.

    Parameters
    ----------
    rounds : iterable of sequence of Chunk
        Those of round n begin on their ways in beat n.
    takes_time : callable
        Whether what goes from a rank to another is there to be passed on one beat later, and not at
        once.

    Yields
    ------
    list of Message
        What has just begun comes first, for it is there; of one chunk in the order of its hops.
    """
    beats: dict[int, dict[int, list[Message]]] = {}
    for number, chunks in enumerate(rounds):
        for chunk in chunks:
            ready: dict[int, int] = {}
            for source, destination in chunk.hops:
                beat = ready.get(source, number)
                ready[destination] = beat + takes_time(source, destination)
                message = Message(chunk, source, destination)
                beats.setdefault(beat, {}).setdefault(number, []).append(message)
    for beat in sorted(beats):
        begun = beats[beat]
        yield [message for number in sorted(begun, reverse=True) for message in begun[number]]
