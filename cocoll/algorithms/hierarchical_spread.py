"""Giving blocks to all hosts, and on every host to all of its ranks.

A block starts at the rank that has it, goes to its delegate on every other host, straight or along
a chain, and from the delegate to the delegate's neighbours: into their arrays where those are
mapped, else through staging, from which they copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.algorithms.chain import Relay, add_relay, chain_links
from cocoll.algorithms.exchange import lane_over_chunks
from cocoll.plan.ir import Flag, Span, View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.algorithms.host_staging import HostStaging
    from cocoll.plan.builder import Builder
    from cocoll.plan.vocabulary import AfterLanes

__all__ = ["HostSpread", "add_done"]

_TAG = 2


class HostSpread:
    """Adds the lanes that spread blocks to the plan of one rank.

    Parameters
    ----------
    builder : Builder
        Of the rank's plan.
    hierarchy : Hierarchy
        The ranks.
    staging : HostStaging
        Where chunks are kept.
    itemsizes_bytes : tuple of int
        Bytes of one element of each result.
    in_flight : int
        Chunks of messages that may be under way in a lane.
    """

    def __init__(
        self,
        builder: Builder,
        hierarchy: Hierarchy,
        staging: HostStaging,
        itemsizes_bytes: tuple[int, ...],
        in_flight: int,
    ) -> None:
        self._builder = builder
        self._hierarchy = hierarchy
        self._staging = staging
        self._results = [
            builder.result(itemsize_bytes=itemsize, index=index)
            for index, itemsize in enumerate(itemsizes_bytes)
        ]
        self._in_flight = in_flight
        self._rank = builder.rank
        self._handled = staging.handled(builder.rank)

    def add_straight(
        self, sources: Sequence[View], ready: AfterLanes | None, free: AfterLanes | None
    ) -> list[str]:
        """Let owners send their blocks to all delegates.

        Parameters
        ----------
        sources : sequence of View
            Where each result of the own block is.
        ready : mapping, optional
            Lanes after which it is there.
        free : mapping, optional
            Lanes after which results of delegated blocks may be written.

        Returns
        -------
        list of str
            Lanes after which what is delegated has arrived.
        """
        builder, rank = self._builder, self._rank
        delegates = self._hierarchy.delegates(rank)
        with self._lane("spread", len(delegates) * len(sources)):
            for index, source in enumerate(sources):
                for peer in delegates:
                    first = index == 0 and peer == delegates[0]
                    builder.send(
                        peer=peer,
                        source=source,
                        block=rank,
                        tag=_TAG,
                        after=ready if first else None,
                    )
        delegated = self._handled[1:]
        if not delegated:
            return []
        with self._lane("gather", len(delegated) * len(sources)):
            # As a chunk of all results leaves its owner.
            for owner in delegated:
                for index, result in enumerate(self._results):
                    first = index == 0 and owner == delegated[0]
                    builder.recv(
                        peer=owner,
                        destination=result,
                        block=owner,
                        tag=_TAG,
                        after=free if first else None,
                    )
        return ["gather"]

    def add_chains(
        self,
        sources: Sequence[View],
        ready: AfterLanes | None,
        free: Callable[[int], AfterLanes | None],
    ) -> list[str]:
        """Let every block travel from host to host; see `add_straight`."""
        lanes = []
        for owner in self._handled:
            way = (owner, *self._hierarchy.delegates(owner))
            links = chain_links(way, self._rank)
            own = owner == self._rank
            relays = [
                Relay(
                    owner,
                    links,
                    sources[index] if own else result,
                    result,
                    self._staging.tag(self._rank, owner, spreads=True),
                    tuple(
                        self._staging.tag(child, owner, spreads=True) for child in links.children
                    ),
                )
                for index, result in enumerate(self._results)
            ]
            arrived = self.add_relays(
                relays, f"gather{owner}", ready if own else None, None if own else free(owner)
            )
            if arrived is not None:
                lanes.append(arrived)
        return lanes

    def add_relays(
        self,
        relays: Sequence[Relay],
        name: str,
        ready: AfterLanes | None,
        free: AfterLanes | None,
    ) -> str | None:
        """Let blocks that take one way travel along it; gives the lane in which they arrive."""
        return add_relay(
            self._builder,
            relays,
            name=name,
            span=Span.BLOCK,
            chunk_elements=self._staging.chunk_elements,
            in_flight=self._in_flight,
            ready=ready,
            free=free,
        )

    # --- Inside a host. ---

    def add_stores(
        self,
        blocks: Sequence[int],
        sources: Sequence[View],
        neighbours: Sequence[int],
        arrived: Sequence[str],
    ) -> list[str]:
        """Store blocks into the neighbours' arrays; gives the lanes that do.

        Parameters
        ----------
        blocks : sequence of int
            Of those that this rank handles.
        sources : sequence of View
            Where each result of them is.
        neighbours : sequence of int
            Who wants them.
        arrived : sequence of str
            Lanes after which a chunk of every block is there.
        """
        if not (blocks and sources and neighbours):
            return []
        after: dict[str, int | None] | None = dict.fromkeys(arrived, 0)
        with self._lane("distribute"):
            for owner in blocks:
                for index, source in enumerate(sources):
                    for neighbour in neighbours:
                        self._builder.copy(
                            block=owner,
                            source=source,
                            destination=self._builder.result(
                                itemsize_bytes=source.itemsize_bytes, rank=neighbour, index=index
                            ),
                            after=after,
                        )
                        after = None
        return ["distribute"]

    def add_answers(
        self,
        sources: Sequence[View],
        arrived: Sequence[str],
        readers: Sequence[int],
        givers: Sequence[int],
    ) -> None:
        """Show neighbours the handled blocks in staging, and copy what they show.

        Parameters
        ----------
        sources : sequence of View
            Where each result of the handled blocks is.
        arrived : sequence of str
            Lanes after which a chunk of every handled block is there.
        readers, givers : sequence of int
            Neighbours that read here, and that this rank reads from.
        """
        builder, staging = self._builder, self._staging
        if readers:
            after: dict[str, int | None] | None
            after = {**dict.fromkeys(arrived, 0), "emptied": staging.slots}
            with self._lane("distribute"):
                for owner in self._handled:
                    for index, source in enumerate(sources):
                        builder.copy(
                            block=owner,
                            source=source,
                            destination=staging.answer(self._rank, owner, index),
                            after=after,
                        )
                        after = None
                for neighbour in readers:
                    builder.signal(peer=neighbour, flag=Flag.GATHER)
            with self._lane("emptied"):
                for neighbour in readers:
                    builder.wait(peer=neighbour, flag=Flag.GATHERED)
        if givers:
            with self._lane("pull"):
                for neighbour in givers:
                    builder.wait(peer=neighbour, flag=Flag.GATHER)
                    for owner in staging.handled(neighbour):
                        for index, result in enumerate(self._results):
                            builder.copy(
                                block=owner,
                                source=staging.answer(neighbour, owner, index),
                                destination=result,
                            )
                    builder.signal(peer=neighbour, flag=Flag.GATHERED)

    def _lane(self, name: str, messages: int = 0) -> AbstractContextManager[None]:
        in_flight = max(1, messages * self._in_flight)
        return lane_over_chunks(self._builder, name, self._staging.chunk_elements, in_flight)


def add_done(builder: Builder, neighbours: Sequence[int], lanes: Sequence[str]) -> None:
    """Let the ranks of a host end together: those that touch each other's arrays."""
    if not neighbours:
        return
    with builder.lane("done"):
        for neighbour in neighbours:
            first = neighbour == neighbours[0]
            after: dict[str, int | None] | None = dict.fromkeys(lanes, None) if first else None
            builder.signal(peer=neighbour, flag=Flag.DONE, after=after)
        for neighbour in neighbours:
            builder.wait(peer=neighbour, flag=Flag.DONE)
