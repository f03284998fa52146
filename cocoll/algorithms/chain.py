"""A multicast along a chain: every rank passes on what it receives, chunk by chunk.

After the first chunks have reached the end all links are busy at once, so n bytes reach any number
of ranks in little more than the time of one message of n bytes.

References
----------
Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 3.2
(broadcast-based resharding); van de Geijn, "On Global Combine Operations", 1991 (the pipelined
ring).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.errors import UsageError

if TYPE_CHECKING:
    from cocoll.plan.builder import Builder
    from cocoll.plan.ir import Span, View
    from cocoll.plan.vocabulary import AfterLanes

__all__ = ["Links", "Relay", "add_relay", "chain_links", "find_place"]


@dataclass(frozen=True, slots=True)
class Links:
    """Where a rank stands in a multicast.

    Attributes
    ----------
    parent : int or None
        Whom it receives from; None for the first rank.
    children : tuple of int
        Whom it sends to.
    """

    parent: int | None
    children: tuple[int, ...]


def chain_links(ranks: Sequence[int], rank: int) -> Links:
    """Give a rank's place in a chain.

    Parameters
    ----------
    ranks : sequence of int
        In the order of the chain; the first one has the data.
    rank : int
        One of them.

    Returns
    -------
    Links
        Its parent and its child.

    Raises
    ------
    UsageError
        `rank` does not stand in `ranks` once.
    """
    place = find_place(ranks, rank)
    parent = None if place == 0 else ranks[place - 1]
    return Links(parent, tuple(ranks[place + 1 : place + 2]))


def find_place(ranks: Sequence[int], rank: int) -> int:
    """Give where a rank stands in a list.

    Raises
    ------
    UsageError
        It stands there not at all, or more than once.
    """
    if list(ranks).count(rank) != 1:
        raise UsageError(f"wanted rank {rank} once among the ranks of a multicast; got {ranks}")
    return list(ranks).index(rank)


@dataclass(frozen=True, slots=True)
class Relay:
    """One piece that a rank receives and passes on.

    Attributes
    ----------
    block : int
        Which block of the vector.
    links : Links
        From whom and to whom.
    source : View
        Where it is sent from, once it is there.
    destination : View
        Where it is received; not used by the first rank.
    tag : int, default 0
        Of the messages that bring it here.
    onward_tags : tuple of int, default ()
        Of the messages to each child. Default: `tag`.
    """

    block: int
    links: Links
    source: View
    destination: View
    tag: int = 0
    onward_tags: tuple[int, ...] = ()


def add_relay(
    builder: Builder,
    relays: Sequence[Relay],
    *,
    name: str,
    span: Span,
    chunk_elements: int,
    in_flight: int,
    ready: AfterLanes | None = None,
    free: AfterLanes | None = None,
) -> str | None:
    """Add the lanes that receive pieces and pass them on, chunk by chunk.

    Parameters
    ----------
    builder : Builder
        Of the rank's plan; the lanes are ``NAME`` (receives) and ``NAME_on`` (sends).
    relays : sequence of Relay
        Pieces that take the same way: a chunk of each, in this order, before the next chunk. Pieces
        whose ways differ need calls of their own: a rank would wait for the longest way of all.
    name : str
        Of the lanes.
    span : Span
        What `chunk_elements` cuts.
    chunk_elements : int
        Elements of one message.
    in_flight : int
        Messages of a lane that may be under way.
    ready : mapping of str to int or None, optional
        What sends of a rank without parent wait for.
    free : mapping of str to int or None, optional
        What receives wait for: the destination may be written from then on.

    Returns
    -------
    str or None
        The lane after whose iteration a chunk of every piece has arrived; None where nothing is
        received here.
    """
    received = [relay for relay in relays if relay.links.parent is not None]
    if received:
        with (
            builder.lane(name, in_flight=in_flight * len(received)),
            builder.loop(span=span, chunk_elements=chunk_elements),
        ):
            for relay in received:
                assert relay.links.parent is not None
                builder.recv(
                    peer=relay.links.parent,
                    destination=relay.destination,
                    block=relay.block,
                    tag=relay.tag,
                    after=free if relay is received[0] else None,
                )
    messages = [
        (relay, child, relay.onward_tags[place] if relay.onward_tags else relay.tag)
        for relay in relays
        for place, child in enumerate(relay.links.children)
    ]
    if messages:
        after = {name: 0} if received else (ready or {})
        with (
            builder.lane(f"{name}_on", in_flight=in_flight * len(messages)),
            builder.loop(span=span, chunk_elements=chunk_elements),
        ):
            for index, (relay, child, tag) in enumerate(messages):
                builder.send(
                    peer=child,
                    source=relay.source,
                    block=relay.block,
                    tag=tag,
                    after=after if index == 0 else None,
                )
    return name if received else None
