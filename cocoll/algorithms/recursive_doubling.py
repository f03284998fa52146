"""A small all-reduce over several hosts, whose first ranks exchange sums that grow by doubling.

References
----------
Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
section 4.5 (recursive doubling, and what hosts beyond a power of two do).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.errors import UsageError
from cocoll.plan.builder import Builder
from cocoll.plan.ir import Buffer, Flag

if TYPE_CHECKING:
    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.algorithms.operands import ReduceSpec
    from cocoll.plan.ir import Plan, View

__all__ = ["buffers_needed", "plan_allreduce"]

_TAG = 1
_LINE_BYTES = 128


def buffers_needed(hierarchy: Hierarchy) -> int:
    """Give how many vectors the staging of a first rank must hold."""
    return 2 * hierarchy.host_count.bit_length() + 2


def plan_allreduce(
    rank: int, hierarchy: Hierarchy, spec: ReduceSpec, *, longest_elements: int
) -> Plan:
    """Plan an all-reduce of a small vector, each of whose elements every rank computes.

    Parameters
    ----------
    rank : int
        Whose plan.
    hierarchy : Hierarchy
        Which rank is on which host.
    spec : ReduceSpec
        What is reduced; no operand is sharded and nothing zeroed.
    longest_elements : int
        Elements of the longest vector that it serves.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or identical to it.

    Raises
    ------
    UsageError
        An operand is sharded, or the source is to be zeroed.

    Notes
    -----
    ceil(log2(hosts)) messages one after the other, two more where the number of hosts is no power
    of two. Sums are of a host's ranks in rank order, then of hosts in pairs, the lower one first:
    the same bits everywhere.
    """
    if spec.is_sharded or spec.zero_source:
        raise UsageError("recursive doubling computes every element on every rank")
    builder = Builder(rank, hierarchy.world_size, name="recursive_doubling", hosts=hierarchy.hosts)
    members = hierarchy.members(hierarchy.hosts[rank])
    leader = members[0]
    itemsize = spec.source_itemsize_bytes
    small = [builder.scratch(Buffer.SMALL, itemsize_bytes=itemsize, rank=one) for one in members]
    with builder.opening():
        builder.copy(source=spec.source_view(rank), destination=small[members.index(rank)])
    rounds = _Rounds(builder, hierarchy, itemsize, longest_elements)
    # In memory that the next operation leaves alone: neighbours may still read it then. What the
    # first rank staged there it alone has read.
    total = small[0]
    with builder.lane("double"):
        if rank == leader:
            builder.reduce(sources=small, destinations=[[rounds.next_buffer()]], partial=True)
            rounds.add()
            builder.copy(source=rounds.current(), destination=total)
            for one in members[1:]:
                builder.signal(peer=one, flag=Flag.GATHER)
        else:
            builder.wait(peer=leader, flag=Flag.GATHER)
        builder.reduce(
            sources=[total],
            destinations=[
                [spec.result_view(rank, index)] for index in range(len(spec.result_itemsizes_bytes))
            ],
            operands=spec.operand_views(rank),
        )
    return builder.build()


class _Rounds:
    """The messages of a first rank, and the buffers that they come in."""

    def __init__(
        self, builder: Builder, hierarchy: Hierarchy, itemsize: int, longest_elements: int
    ) -> None:
        self._builder = builder
        self._hierarchy = hierarchy
        self._itemsize = itemsize
        self._room_bytes = -(-longest_elements * itemsize // _LINE_BYTES) * _LINE_BYTES
        self._used = 0

    def next_buffer(self) -> View:
        """Give a buffer that nothing has been in."""
        self._used += 1
        return self.current()

    def current(self) -> View:
        """Give the buffer used last."""
        return self._builder.scratch(
            Buffer.STAGING,
            itemsize_bytes=self._itemsize,
            offset_bytes=(self._used - 1) * self._room_bytes,
        )

    def add(self) -> None:
        """Add the exchanges of this host with others, until the last buffer has the total."""
        hierarchy, builder = self._hierarchy, self._builder
        host = hierarchy.hosts[builder.rank]
        hosts = hierarchy.host_count
        power = 1 << hosts.bit_length() - 1
        extra = hosts - power
        # Of the first 2 * extra hosts the odd ones stand for their even neighbours.
        if host < 2 * extra and host % 2 == 0:
            builder.send(peer=self._leader(host + 1), source=self.current(), tag=_TAG)
            builder.recv(peer=self._leader(host + 1), destination=self.next_buffer(), tag=_TAG)
            return
        if host < 2 * extra:
            self._take_in(host - 1)
        place = host // 2 if host < 2 * extra else host - extra
        distance = 1
        while distance < power:
            other = place ^ distance
            self._exchange(2 * other + 1 if other < extra else other + extra, host, distance)
            distance <<= 1
        if host < 2 * extra:
            builder.send(peer=self._leader(host - 1), source=self.current(), tag=_TAG)

    def _leader(self, host: int) -> int:
        return self._hierarchy.members(host)[0]

    def _take_in(self, host: int) -> None:
        """Add what a host without a partner has."""
        mine, theirs = self.current(), self.next_buffer()
        self._builder.recv(peer=self._leader(host), destination=theirs, tag=_TAG)
        self._add_up([theirs, mine])

    def _exchange(self, other: int, host: int, distance: int) -> None:
        mine, theirs = self.current(), self.next_buffer()
        peer = self._leader(other)
        self._builder.send(peer=peer, source=mine, group=distance, tag=_TAG)
        self._builder.recv(peer=peer, destination=theirs, group=distance, tag=_TAG)
        self._add_up([mine, theirs] if host < other else [theirs, mine])

    def _add_up(self, sources: list[View]) -> None:
        self._builder.reduce(sources=sources, destinations=[[self.next_buffer()]], partial=True)
