"""All-reduce in two halves: every rank reduces its own block, and gives the result to all.

In the direct form a rank reads its block straight from all peers' sources and stores the results
straight into all peers' arrays. In the staged form the arrays need not be mapped: a rank stages for
each owner what that owner reduces, chunk by chunk, and the owner writes the results over the same
staged lines, from where they are copied out. So every line of staging is only ever in use by one
rank, crosses between caches twice, and is never left shared.
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
    "StagedTwoShot",
    "TwoShot",
    "plan_allreduce",
    "plan_allreduce_staged",
    "reduce_staged",
]

# Sections of a slot start on a cache line of their own: two ranks never write the same line.
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class TwoShot(Composite):
    """The steps of :func:`plan_allreduce`."""

    kind: ClassVar[str] = "two_shot"

    spec: ReduceSpec
    chunk_elements: int
    replicated_result: bool

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Reduce the own block from all, store it to all, then tell all and wait for all."""
        spec = self.spec
        receivers = (rank,) if self.replicated_result else (rank, *peers_of(rank, world_size))
        reduce = Reduce(
            rank,
            sources=tuple(spec.source_view(peer) for peer in range(world_size)),
            destinations=tuple(
                tuple(spec.result_view(receiver, index) for receiver in receivers)
                for index in range(len(spec.result_itemsizes_bytes))
            ),
            operands=spec.operand_views(rank),
            updated=spec.updated,
        )
        loop = Loop((reduce,), Span.BLOCK, self.chunk_elements)
        return Fragment((Lane("own", (loop, *exchange_done(rank, world_size))),))


def plan_allreduce(
    rank: int,
    world_size: int,
    spec: ReduceSpec,
    *,
    chunk_elements: int,
    replicated_result: bool = False,
) -> Plan:
    """Plan an all-reduce over symmetric arrays.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        What is reduced; operands may be sharded.
    chunk_elements : int
        Elements that one step reduces.
    replicated_result : bool, default False
        The results are one physical copy for all ranks: the owner of a block stores it once.

    Returns
    -------
    Plan
        Legal for a result that is disjoint from the source or identical to it.

    Raises
    ------
    UsageError
        ``chunk_elements < 1``.

    Notes
    -----
    With n bytes a rank: ``n`` read and ``n`` written per rank (``n / world_size`` with replicated
    results), no scratch, one flag to each peer. Sums in rank order.
    """
    check_chunk(chunk_elements)
    return Plan(
        rank,
        world_size,
        TwoShot(spec, chunk_elements, replicated_result),
        name="two_shot",
        mapped_sources=world_size > 1,
        mapped_results=world_size > 1 and not replicated_result,
    )


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a chunk and its answers lie in one slot of staging."""

    slots: int
    slot_bytes: int
    source_itemsize_bytes: int
    result_itemsizes_bytes: tuple[int, ...]
    result_offsets_bytes: tuple[int, ...]

    @staticmethod
    def of(spec: ReduceSpec, chunk_elements: int, slots: int, *, answered: bool) -> _Slot:
        def section_bytes(itemsize_bytes: int) -> int:
            return -(-chunk_elements * itemsize_bytes // _LINE_BYTES) * _LINE_BYTES

        results = spec.result_itemsizes_bytes if answered else ()
        source_bytes = section_bytes(spec.source_itemsize_bytes)
        # A kernel reads a tile of everything before it writes any of that tile. An answer of
        # another element size would overwrite what the next tiles have yet to read.
        end = 0 if results == (spec.source_itemsize_bytes,) else source_bytes
        offsets = []
        for itemsize in results:
            offsets.append(end)
            end += section_bytes(itemsize)
        return _Slot(
            slots, max(end, source_bytes), spec.source_itemsize_bytes, results, tuple(offsets)
        )

    def source_view(self, owner: int, reader: int) -> View:
        """Give what `owner` stages for `reader`."""
        return self._view(owner, reader, self.source_itemsize_bytes, 0)

    def result_view(self, owner: int, reader: int, index: int) -> View:
        """Give the answer to it."""
        itemsize = self.result_itemsizes_bytes[index]
        return self._view(owner, reader, itemsize, self.result_offsets_bytes[index])

    def _view(self, owner: int, reader: int, itemsize: int, offset_bytes: int) -> View:
        area = reader - (reader > owner)
        return View(
            Buffer.STAGING,
            owner,
            itemsize,
            offset_bytes=area * self.slots * self.slot_bytes + offset_bytes,
            slots=self.slots,
            slot_bytes=self.slot_bytes,
        )


def reduce_staged(
    rank: int,
    world_size: int,
    spec: ReduceSpec,
    chunk_elements: int,
    slots: int,
    *,
    answered: bool,
    result_origin: int = 0,
) -> Fragment:
    """Give the steps in which ranks stage for each other and every rank reduces its own block.

    Parameters
    ----------
    rank, world_size : int
        Whose steps.
    spec : ReduceSpec
        What is reduced.
    chunk_elements, slots : int
        Elements of a chunk, and how many are in flight to each owner.
    answered : bool
        Whether the owner hands the results back through the slots; otherwise it only says that
        they are free.
    result_origin : int, default 0
        The block that this rank's results begin with.

    Returns
    -------
    Fragment
        An opening, and lanes "own", "request" and "answer" (a world of one needs "own" only).
    """
    peers = peers_of(rank, world_size)
    slot = _Slot.of(spec, chunk_elements, slots, answered=answered)
    results = range(len(spec.result_itemsizes_bytes))

    def loop(steps: list[Step], begin: int = 0, end: int | None = None) -> Loop:
        return Loop(tuple(steps), Span.BLOCK, chunk_elements, begin, end)

    own = loop(
        [
            *(Wait(peer, Flag.REQUEST) for peer in peers),
            Reduce(
                rank,
                sources=tuple(
                    spec.source_view(rank) if peer == rank else slot.source_view(peer, rank)
                    for peer in range(world_size)
                ),
                destinations=tuple(
                    (
                        spec.result_view(rank, index, result_origin),
                        *(slot.result_view(peer, rank, index) for peer in peers if answered),
                    )
                    for index in results
                ),
                operands=spec.operand_views(rank),
                updated=spec.updated,
            ),
            *(Signal(peer, Flag.ANSWER) for peer in peers),
        ]
    )
    if not peers:
        return Fragment((Lane("own", (own,)),))

    def stage(after: tuple[After, ...]) -> list[Step]:
        return [
            Copy(owner, spec.source_view(rank), slot.source_view(rank, owner), after)
            for owner in peers
        ]

    # The answer lane is the third. Its progress says which slots have been emptied.
    restaged = stage((After(2, slots),))
    signals: list[Step] = [Signal(owner, Flag.REQUEST) for owner in peers]
    alternating = [step for pair in zip(restaged, signals, strict=True) for step in pair]
    answers: list[Step] = []
    for owner in peers:
        answers.append(Wait(owner, Flag.ANSWER))
        if answered:
            answers += (
                Copy(owner, slot.result_view(rank, owner, index), spec.result_view(rank, index))
                for index in results
            )
    return Fragment(
        lanes=(
            Lane("own", (own,)),
            Lane("request", (loop(signals, end=1), loop(alternating, begin=1))),
            Lane("answer", (loop(answers),)),
        ),
        opening=(loop(stage(()), end=1),),
    )


@dataclass(frozen=True, slots=True)
class StagedTwoShot(Composite):
    """The steps of :func:`plan_allreduce_staged`."""

    kind: ClassVar[str] = "two_shot_staged"

    spec: ReduceSpec
    chunk_elements: int
    slots: int
    replicated_result: bool

    def expand(self, rank: int, world_size: int) -> Fragment:
        """Stage for the owners, reduce the own block, copy out the owners' answers."""
        return reduce_staged(
            rank,
            world_size,
            self.spec,
            self.chunk_elements,
            self.slots,
            answered=not self.replicated_result,
        )


def plan_allreduce_staged(
    rank: int,
    world_size: int,
    spec: ReduceSpec,
    *,
    chunk_elements: int,
    slots: int = 2,
    replicated_result: bool = False,
) -> Plan:
    """Plan an all-reduce over arrays that peers cannot map.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.
    spec : ReduceSpec
        What is reduced; operands may be sharded.
    chunk_elements : int
        Elements that one step stages and reduces.
    slots : int, default 2
        Chunks in flight to each owner.
    replicated_result : bool, default False
        The results are one physical copy for all ranks: nothing is handed back.

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
    Scratch per rank: ``(world_size - 1) * slots`` slots of one chunk; an answer shares the bytes
    of its chunk where there is one result of the source's element size, and follows it otherwise.
    Two flags per chunk and pair of ranks. Sums in rank order.
    """
    check_chunk(chunk_elements)
    check_slots(slots)
    return Plan(
        rank,
        world_size,
        StagedTwoShot(spec, chunk_elements, slots, replicated_result),
        name="two_shot_staged",
    )
