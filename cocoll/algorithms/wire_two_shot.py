"""All-reduce and reduce-scatter between ranks that map nothing of each other.

Every rank sends each owner what that owner reduces, chunk by chunk; the owner reduces the chunk of
all ranks, in rank order, runs the epilogue once, and sends the results to all. While it reduces one
chunk the next one is on the wire: the two lanes of the wire take turns, and the third computes.
Nothing is packed: what is sent lies where the caller has it, and results arrive where they belong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cocoll.algorithms.exchange import check_chunk, check_slots, peers_of
from cocoll.plan.ir import (
    SHARD_ALIGNMENT_ELEMENTS,
    After,
    Buffer,
    Composite,
    Fragment,
    Lane,
    Loop,
    Plan,
    Receive,
    Reduce,
    Send,
    Span,
    Step,
    View,
)

if TYPE_CHECKING:
    from cocoll.algorithms.operands import ReduceSpec

__all__ = ["WireTwoShot", "plan_allreduce_wire", "plan_reduce_scatter_wire"]

_SCATTER, _REDUCE, _GATHER = range(3)
_SCATTER_GROUP, _GATHER_GROUP = 1, 2
# Where a peer's chunk may begin: what the widest loads of a kernel want.
_LINE_BYTES = 128


@dataclass(frozen=True, slots=True)
class WireTwoShot(Composite):
    """The steps of :func:`plan_allreduce_wire` and :func:`plan_reduce_scatter_wire`."""

    kind: ClassVar[str] = "wire_two_shot"

    spec: ReduceSpec
    chunk_elements: int
    slots: int
    scattered: bool

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Send parts to their owners, reduce the own block, send the results to all."""
        spec = self.spec
        peers = peers_of(rank, world_size)
        gathered = () if self.scattered else range(len(spec.result_itemsizes_bytes))

        def lane(name: str, steps: list[Step]) -> Lane:
            return Lane(name, (Loop(tuple(steps), Span.BLOCK, self.chunk_elements),))

        results = range(len(spec.result_itemsizes_bytes))
        origin = rank if self.scattered else 0
        reduce = Reduce(
            rank,
            sources=tuple(
                spec.source_view(rank) if peer == rank else self._slot(rank, peer)
                for peer in range(world_size)
            ),
            destinations=tuple((spec.result_view(rank, index, origin),) for index in results),
            operands=spec.operand_views(rank),
            updated=spec.updated,
            after=(After(_SCATTER),) if peers else (),
        )
        if not peers:
            return Fragment((lane("reduce", [reduce]),))
        # A slot is free when what it held has been reduced. The gather before last: the wire's two
        # lanes take turns, the scatter one chunk ahead.
        waits = (After(_REDUCE, self.slots), *((After(_GATHER, 2),) if gathered else ()))
        scatter: list[Step] = []
        for peer in peers:
            after = () if scatter else waits
            scatter += (
                Send(peer, peer, spec.source_view(rank), _SCATTER_GROUP, after=after),
                Receive(rank, peer, self._slot(rank, peer), _SCATTER_GROUP),
            )
        lanes = [lane("scatter", scatter), lane("reduce", [reduce])]
        gather: list[Step] = []
        for peer in peers:
            for index in gathered:
                after = () if gather else (After(_REDUCE), After(_SCATTER, -1))
                gather += (
                    Send(rank, peer, spec.result_view(rank, index), _GATHER_GROUP, after=after),
                    Receive(peer, peer, spec.result_view(rank, index), _GATHER_GROUP),
                )
        if gather:
            lanes.append(lane("gather", gather))
        return Fragment(tuple(lanes))

    def _slot(self, rank: int, peer: int) -> View:
        """Give where a rank has what a peer sent it."""
        itemsize = self.spec.source_itemsize_bytes
        slot_bytes = -(-self.chunk_elements * itemsize // _LINE_BYTES) * _LINE_BYTES
        area = peer - (peer > rank)
        return View(
            Buffer.STAGING,
            rank,
            itemsize,
            offset_bytes=area * self.slots * slot_bytes,
            slots=self.slots,
            slot_bytes=slot_bytes,
        )


def plan_allreduce_wire(
    rank: int, world_size: int, spec: ReduceSpec, *, chunk_elements: int, slots: int = 2
) -> Plan:
    """Plan an all-reduce that goes through sends and receives alone.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        What is reduced; operands may be sharded.
    chunk_elements : int
        Elements of every block that are on the wire at a time.
    slots : int, default 2
        Chunks of every peer that a rank has room for.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or identical to it.

    Raises
    ------
    UsageError
        ``chunk_elements < 1`` or ``slots < 1``.

    Notes
    -----
    With n bytes a rank: ``n * (world_size - 1) / world_size`` sent and received twice, which is the
    least that an all-reduce needs; two groups a chunk. Scratch per rank:
    ``(world_size - 1) * slots`` chunks. Sums in rank order.
    """
    check_chunk(chunk_elements)
    check_slots(slots)
    body = WireTwoShot(spec, chunk_elements, slots, scattered=False)
    return Plan(rank, world_size, body, name="wire_two_shot")


def plan_reduce_scatter_wire(
    rank: int,
    world_size: int,
    spec: ReduceSpec,
    *,
    chunk_elements: int,
    slots: int = 2,
    alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS,
) -> Plan:
    """Plan a reduce-scatter that goes through sends and receives alone.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        What is reduced; each result is this rank's block.
    chunk_elements : int
        Elements of every block that are on the wire at a time.
    slots : int, default 2
        Chunks of every peer that a rank has room for.
    alignment_elements : int, default SHARD_ALIGNMENT_ELEMENTS
        1 for the equal blocks of a plain reduce-scatter.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or this rank's block of it.

    Raises
    ------
    UsageError
        ``chunk_elements < 1`` or ``slots < 1``.

    Notes
    -----
    With n bytes a rank: ``n * (world_size - 1) / world_size`` sent and received. Sums in rank
    order.
    """
    check_chunk(chunk_elements)
    check_slots(slots)
    body = WireTwoShot(spec, chunk_elements, slots, scattered=True)
    return Plan(rank, world_size, body, name="wire_two_shot", alignment_elements=alignment_elements)
