"""Reduce to one rank: all ranks share the work where they map each other's arrays, else the root.

Where they do not, ranks stage their chunks for their host's leader, who adds them up. Hosts form a
chain that ends at the root's: each adds its own and sends the sum on, so that every host sends and
receives the vector once. Where sums must be in rank order, every rank sends the root what it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cocoll.algorithms.exchange import check_chunk, check_root, check_slots, exchange_done
from cocoll.algorithms.staging import shared_slot_view
from cocoll.plan.builder import Builder
from cocoll.plan.ir import Buffer, Flag, Fragment, Lane, Loop, Plan, Reduce, Span, View

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cocoll.algorithms.operands import ReduceSpec

__all__ = ["areas_needed", "plan_reduce", "plan_reduce_staged"]

_LINE_BYTES = 64
_GROUP = 1


def plan_reduce(
    rank: int, world_size: int, root: int, spec: ReduceSpec, *, chunk_elements: int
) -> Plan:
    """Plan a reduction to one rank over symmetric arrays.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    root : int
        Who gets the result.
    spec : ReduceSpec
        What is reduced; one result, no operands.
    chunk_elements : int
        Elements that one step reduces.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the root's source or identical to it.

    Raises
    ------
    RankError
        `root` lies outside the world.
    UsageError
        ``chunk_elements < 1``.

    Notes
    -----
    Each rank reads its block of all sources and stores it to the root; one flag to each peer. Sums
    in rank order.
    """
    check_root(root, world_size)
    check_chunk(chunk_elements)
    reduce = Reduce(
        rank,
        sources=tuple(spec.source_view(peer) for peer in range(world_size)),
        destinations=((spec.result_view(root, 0),),),
    )
    loop = Loop((reduce,), Span.BLOCK, chunk_elements)
    return Plan(
        rank,
        world_size,
        Fragment((Lane("own", (loop, *exchange_done(rank, world_size))),)),
        name="flat_reduce",
        mapped_sources=world_size > 1,
        mapped_results=world_size > 1,
    )


def areas_needed(world_size: int, slots: int, *, in_rank_order: bool) -> int:
    """Give of how many chunks the staging of `plan_reduce_staged` is, at most."""
    return max(slots, world_size - 1 if in_rank_order else 2)


def plan_reduce_staged(
    rank: int,
    world_size: int,
    root: int,
    spec: ReduceSpec,
    *,
    chunk_elements: int,
    slots: int = 2,
    hosts: tuple[int, ...] | None = None,
    order: tuple[int, ...] = (),
    in_rank_order: bool = False,
) -> Plan:
    """Plan a reduction to one rank over arrays that peers cannot map.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    root : int
        Who gets the result.
    spec : ReduceSpec
        What is reduced; one result, no operands.
    chunk_elements : int
        Elements that one step stages, reduces and sends.
    slots : int, default 2
        Chunks that a rank stages ahead.
    hosts : tuple of int, optional
        The host of every rank; default: one.
    order : tuple of int, optional
        The hosts in an order in which neighbours are near each other. Default: by number.
    in_rank_order : bool, default False
        Whether sums must be taken in rank order over several hosts too.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the root's source or identical to it.

    Raises
    ------
    RankError
        `root` lies outside the world.
    UsageError
        ``chunk_elements < 1`` or ``slots < 1``.

    Notes
    -----
    Along the chain a host sends and receives n bytes; in rank order the root's host receives n of
    every rank. Scratch: `slots` chunks of a rank that stages; of a leader two.
    """
    check_root(root, world_size)
    check_chunk(chunk_elements)
    check_slots(slots)
    builder = Builder(rank, world_size, name="flat_reduce_staged", hosts=hosts)
    home = hosts or (0,) * world_size
    _Reducer(builder, spec, root, home, chunk_elements, slots).add(
        order or tuple(range(max(home) + 1)), in_rank_order=in_rank_order
    )
    return builder.build()


class _Reducer:
    def __init__(
        self,
        builder: Builder,
        spec: ReduceSpec,
        root: int,
        hosts: tuple[int, ...],
        chunk_elements: int,
        slots: int,
    ) -> None:
        self._builder = builder
        self._spec = spec
        self._root = root
        self._hosts = hosts
        self._chunk_elements = chunk_elements
        self._slots = slots
        self._rank = builder.rank

    def add(self, order: tuple[int, ...], *, in_rank_order: bool) -> None:
        """Add all lanes."""
        rank, root, hosts = self._rank, self._root, self._hosts
        host = hosts[rank]
        members = [peer for peer in range(len(hosts)) if hosts[peer] == host]
        place = order.index(hosts[root])
        way = (*order[place + 1 :], *order[: place + 1])
        if in_rank_order and host != hosts[root]:
            with self._chunks("reduce"):
                self._send(self._spec.source_view(rank), root)
        elif in_rank_order and rank == root:
            others = [peer for peer in range(len(hosts)) if hosts[peer] != host]
            self._add_sum(others, members, in_rank_order=True)
        elif rank != self._leader(host):
            self._add_staging(self._leader(host))
        else:
            number = way.index(host)
            before = [self._leader(way[number - 1])] if number and not in_rank_order else []
            onward = None if rank == root else self._leader(way[number + 1])
            self._add_sum(before, members, onward)

    def _leader(self, host: int) -> int:
        return self._root if host == self._hosts[self._root] else self._hosts.index(host)

    def _add_staging(self, leader: int) -> None:
        """Stage chunks for the leader, who gives them back."""
        builder, source = self._builder, self._spec.source_view(self._rank)
        slot = self._shared(self._rank)
        with builder.opening(), self._loop(end=1):
            builder.copy(source=source, destination=slot)
        with builder.lane("stage"):
            with self._loop(end=1):
                builder.signal(peer=leader, flag=Flag.REQUEST)
            with self._loop(begin=1):
                builder.copy(source=source, destination=slot, after={"free": self._slots})
                builder.signal(peer=leader, flag=Flag.REQUEST)
        with self._chunks("free"):
            builder.wait(peer=leader, flag=Flag.ANSWER)

    def _add_sum(
        self,
        senders: list[int],
        members: list[int],
        onward: int | None = None,
        *,
        in_rank_order: bool = False,
    ) -> None:
        """Add up what has come from other hosts and what this one has; keep it, or send it on."""
        builder, rank, spec = self._builder, self._rank, self._spec
        neighbours = [member for member in members if member != rank]
        if onward is not None and not senders and not neighbours:
            with self._chunks("reduce"):
                self._send(spec.source_view(rank), onward)
            return
        arrived = {peer: self._area(number) for number, peer in enumerate(senders)}
        own = {
            member: spec.source_view(rank) if member == rank else self._shared(member)
            for member in members
        }
        # In a chain what has come is the sum of the hosts before.
        peers = sorted({**arrived, **own}) if in_rank_order else [*senders, *members]
        total = spec.result_view(rank, 0) if onward is None else self._area(len(senders))
        with self._chunks("reduce"):
            for peer in senders:
                builder.recv(peer=peer, destination=arrived[peer], group=_GROUP)
            for member in neighbours:
                builder.wait(peer=member, flag=Flag.REQUEST)
            builder.reduce(
                sources=[{**arrived, **own}[peer] for peer in peers],
                destinations=[[total]],
                partial=onward is not None,
            )
            for member in neighbours:
                builder.signal(peer=member, flag=Flag.ANSWER)
            if onward is not None:
                self._send(total, onward)

    def _send(self, source: View, peer: int) -> None:
        self._builder.send(peer=peer, source=source)

    def _shared(self, member: int) -> View:
        itemsize = self._spec.source_itemsize_bytes
        return shared_slot_view(member, itemsize, self._chunk_elements, self._slots)

    def _area(self, number: int) -> View:
        itemsize = self._spec.source_itemsize_bytes
        nbytes = -(-self._chunk_elements * itemsize // _LINE_BYTES) * _LINE_BYTES
        return View(
            Buffer.STAGING,
            self._rank,
            itemsize,
            offset_bytes=number * nbytes,
            slots=1,
            slot_bytes=nbytes,
        )

    @contextmanager
    def _chunks(self, name: str) -> Iterator[None]:
        with self._builder.lane(name), self._loop():
            yield

    def _loop(self, begin: int = 0, end: int | None = None) -> AbstractContextManager[None]:
        return self._builder.loop(
            span=Span.WHOLE, chunk_elements=self._chunk_elements, begin=begin, end=end
        )
