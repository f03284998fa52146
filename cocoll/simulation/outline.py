"""What a plan does, with the numbers of its peers left out: equal for ranks of equal roles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cocoll.plan.ir import (
    Call,
    Copy,
    Loop,
    Native,
    Plan,
    Receive,
    Reduce,
    Send,
    Signal,
    Span,
    Step,
    Wait,
)
from cocoll.plan.ranges import block_elements, block_range, loop_iterations
from cocoll.plan.structure import reads_of, writes_of

__all__ = ["USES", "Outline", "outline_plan"]

#: How bytes move between a rank and a peer.
USES = ("send", "read", "write")


@dataclass(frozen=True, slots=True)
class Outline:
    """The shape of a plan for one count.

    Parameters
    ----------
    shape : tuple
        Everything that its time depends on; peers are numbered by when they are first named.
    peers : tuple of int
        Their ranks, in that order; the plan's own rank is the first.
    uses : frozenset of (str, int)
        How which peer is used: ("send" | "read" | "write" | "signal", its number).
    """

    shape: tuple[object, ...]
    peers: tuple[int, ...]
    uses: frozenset[tuple[str, int]]


def outline_plan(plan: Plan, count: int, names: Callable[[int], int] | None = None) -> Outline:
    """Give the shape of a plan.

    Parameters
    ----------
    plan : Plan
        Of one rank.
    count : int
        Elements of the vector.
    names : callable, optional
        What to call each rank. Default: the number of ranks that were named before it; of ranks
        that one step names in no order (the sources of a reduce) the next after the plan's own
        comes first, so that ranks in a ring have equal outlines.

    Returns
    -------
    Outline
        Two ranks of one shape do the same in the same time as long as their peers do.
    """
    return _Outliner(plan, count, names).run()


class _Outliner:
    def __init__(self, plan: Plan, count: int, names: Callable[[int], int] | None) -> None:
        self._plan = plan
        self._names = names
        self._count = count
        self._block_elements = block_elements(count, plan.world_size, plan.alignment_elements)
        self._numbers: dict[int, int] = {}
        self._number(plan.rank)
        self._uses: set[tuple[str, int]] = set()
        self._lengths: dict[int, int] = {}

    def run(self) -> Outline:
        fragment = self._plan.fragment
        shape = (
            tuple(map(self._loop, fragment.opening)),
            tuple((lane.in_flight, tuple(map(self._loop, lane.loops))) for lane in fragment.lanes),
        )
        return Outline(shape, tuple(self._numbers), frozenset(self._uses))

    def _loop(self, loop: Loop) -> tuple[object, ...]:
        iterations = loop_iterations(loop, self._count, self._block_elements)
        chunk = 0 if loop.span is Span.ONCE else loop.chunk_elements
        is_range = loop.span is Span.RANGE
        steps = tuple(map(self._step, loop.steps))
        return (iterations.start, iterations.stop, chunk, is_range, steps)

    def _step(self, step: Step) -> tuple[object, ...]:
        after = tuple((one.lane, one.lag) for one in step.after)
        match step:
            case Signal(peer, flag):
                self._uses.add(("signal", self._number(peer)))
                return ("Signal", self._number(peer), flag, after)
            case Wait(peer, flag):
                return ("Wait", self._number(peer), flag, after)
            case Send(block, peer, view, group, tag):
                self._uses.add(("send", self._number(peer)))
                facts = (self._number(peer), group, tag, view.itemsize_bytes)
                return ("Send", *facts, self._length(block), after)
            case Receive(block, peer, view, group, tag):
                facts = (self._number(peer), group, tag, view.itemsize_bytes)
                return ("Receive", *facts, self._length(block), after)
            case Copy(block, source, destination):
                if source == destination:
                    return ("Copy", after)
                return self._compute(step, block, after)
            case Reduce(block) | Call(_, block):
                return self._compute(step, block, after)
            case Native(name, block, source):
                return ("Native", name, source.itemsize_bytes, self._length(block), after)

    def _compute(self, step: Step, block: int, after: tuple[object, ...]) -> tuple[object, ...]:
        accesses = [("read", view) for view in reads_of(step)]
        accesses += [("write", view) for view in writes_of(step)]
        size = self._plan.world_size
        ranks = {view.rank for _, view in accesses}
        for rank in sorted(ranks, key=lambda rank: (rank - self._plan.rank) % size):
            self._number(rank)
        for use, view in accesses:
            self._uses.add((use, self._numbers[view.rank]))
        moved = sorted(
            (use, self._numbers[view.rank], view.itemsize_bytes) for use, view in accesses
        )
        return ("Compute", tuple(moved), self._length(block), after)

    def _number(self, rank: int) -> int:
        number = self._numbers.get(rank)
        if number is None:
            number = len(self._numbers) if self._names is None else self._names(rank)
            self._numbers[rank] = number
        return number

    def _length(self, block: int) -> int:
        length = self._lengths.get(block)
        if length is None:
            first, stop = block_range(block, self._count, self._block_elements)
            length = self._lengths[block] = stop - first
        return length
