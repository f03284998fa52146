"""The end of a fused call in stages: each rank computes its own block from what it has, for all.

An epilogue with totals reduces in its first pass and stores in its last one. By then nothing is
left to read from peers: the last pass runs an epilogue over this rank's operands alone and gives
the results to all ranks, as the second half of an all-reduce does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cocoll.algorithms.exchange import check_chunk, check_slots, exchange_done, peers_of
from cocoll.plan.ir import (
    After,
    Buffer,
    Composite,
    Copy,
    Flag,
    Fragment,
    Lane,
    Loop,
    Plan,
    Reduce,
    Signal,
    Span,
    Step,
    View,
    Wait,
)

if TYPE_CHECKING:
    from cocoll.algorithms.operands import ReduceSpec

__all__ = [
    "FlatUpdate",
    "LocalUpdate",
    "StagedUpdate",
    "plan_local_update",
    "plan_update",
    "plan_update_staged",
]

_LINE_BYTES = 64


def _update(
    rank: int,
    spec: ReduceSpec,
    destinations: tuple[tuple[View, ...], ...],
    after: tuple[After, ...] = (),
) -> Reduce:
    return Reduce(
        rank,
        sources=(),
        destinations=destinations,
        operands=spec.operand_views(rank),
        updated=spec.updated,
        after=after,
    )


@dataclass(frozen=True, slots=True)
class LocalUpdate(Composite):
    """The steps of :func:`plan_local_update`."""

    kind: ClassVar[str] = "local_update"

    spec: ReduceSpec
    chunk_elements: int

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Compute the own block."""
        del world_size
        results = range(len(self.spec.result_itemsizes_bytes))
        stores = tuple((self.spec.result_view(rank, index, origin=rank),) for index in results)
        step = _update(rank, self.spec, stores)
        return Fragment((Lane("own", (Loop((step,), Span.BLOCK, self.chunk_elements),)),))


@dataclass(frozen=True, slots=True)
class FlatUpdate(Composite):
    """The steps of :func:`plan_update`."""

    kind: ClassVar[str] = "flat_update"

    spec: ReduceSpec
    chunk_elements: int
    replicated_result: bool

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Compute the own block, store it to all, then tell all and wait for all."""
        spec = self.spec
        receivers = (rank,) if self.replicated_result else (rank, *peers_of(rank, world_size))
        stores = tuple(
            tuple(spec.result_view(receiver, index) for receiver in receivers)
            for index in range(len(spec.result_itemsizes_bytes))
        )
        loop = Loop((_update(rank, spec, stores),), Span.BLOCK, self.chunk_elements)
        return Fragment((Lane("own", (loop, *exchange_done(rank, world_size))),))


@dataclass(frozen=True, slots=True)
class StagedUpdate(Composite):
    """The steps of :func:`plan_update_staged`."""

    kind: ClassVar[str] = "flat_update_staged"

    spec: ReduceSpec
    chunk_elements: int
    slots: int

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Compute the own block into slots that all peers copy from, and copy theirs."""
        spec, chunk = self.spec, self.chunk_elements
        results = range(len(spec.result_itemsizes_bytes))
        peers = peers_of(rank, world_size)

        def lane(name: str, steps: list[Step]) -> Lane:
            return Lane(name, (Loop(tuple(steps), Span.BLOCK, chunk),))

        if not peers:
            alone = tuple((spec.result_view(rank, index),) for index in results)
            return Fragment((lane("own", [_update(rank, spec, alone)]),))
        stores = tuple(
            (spec.result_view(rank, index), self._slot(rank, index)) for index in results
        )
        # The third lane's progress says which slots every peer has emptied.
        own: list[Step] = [_update(rank, spec, stores, (After(2, self.slots),))]
        own += [Signal(peer, Flag.REQUEST) for peer in peers]
        read: list[Step] = []
        for owner in peers:
            read.append(Wait(owner, Flag.REQUEST))
            read += [
                Copy(owner, self._slot(owner, index), spec.result_view(rank, index))
                for index in results
            ]
            read.append(Signal(owner, Flag.ANSWER))
        freed: list[Step] = [Wait(peer, Flag.ANSWER) for peer in peers]
        return Fragment((lane("own", own), lane("read", read), lane("free", freed)))

    def _slot(self, owner: int, index: int) -> View:
        sizes = [
            -(-self.chunk_elements * itemsize // _LINE_BYTES) * _LINE_BYTES
            for itemsize in self.spec.result_itemsizes_bytes
        ]
        return View(
            Buffer.STAGING,
            owner,
            self.spec.result_itemsizes_bytes[index],
            offset_bytes=sum(sizes[:index]),
            slots=self.slots,
            slot_bytes=sum(sizes),
        )


def plan_local_update(rank: int, world_size: int, spec: ReduceSpec, *, chunk_elements: int) -> Plan:
    """Plan a pass over this rank's own block that no other rank sees.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        The operands and the results, which are shards; nothing is read from sources.
    chunk_elements : int
        Elements that one step computes.

    Returns
    -------
    Plan
        Without flags: ranks meet at their arrival only.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``.
    """
    check_chunk(chunk_elements)
    return Plan(rank, world_size, LocalUpdate(spec, chunk_elements), name="local_update")


def plan_update(
    rank: int,
    world_size: int,
    spec: ReduceSpec,
    *,
    chunk_elements: int,
    replicated_result: bool = False,
) -> Plan:
    """Plan the pass where the results are symmetric arrays, or one copy for all ranks.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        The operands and results; nothing is read from sources.
    chunk_elements : int
        Elements that one step computes.
    replicated_result : bool, default False
        The results are one physical copy for all ranks: the owner of a block stores it once.

    Returns
    -------
    Plan
        One flag to each peer, no scratch.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``.
    """
    check_chunk(chunk_elements)
    return Plan(
        rank,
        world_size,
        FlatUpdate(spec, chunk_elements, replicated_result),
        name="flat_update",
        mapped_results=world_size > 1 and not replicated_result,
    )


def plan_update_staged(
    rank: int, world_size: int, spec: ReduceSpec, *, chunk_elements: int, slots: int = 2
) -> Plan:
    """Plan the pass where peers cannot map the results.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        The operands and results; nothing is read from sources.
    chunk_elements : int
        Elements that one step computes.
    slots : int, default 2
        Chunks in flight from each owner.

    Returns
    -------
    Plan
        Two flags per chunk and pair of ranks; `slots` chunks of scratch a rank.

    Raises
    ------
    UsageError
        ``chunk_elements < 1`` or ``slots < 1``.
    """
    check_chunk(chunk_elements)
    check_slots(slots)
    return Plan(
        rank, world_size, StagedUpdate(spec, chunk_elements, slots), name="flat_update_staged"
    )
