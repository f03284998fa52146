"""The arrays that a rank's part in a schedule touches, and when they hold what is sent on."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cocoll.plan.ir import Buffer, View
from cocoll.resharding.lanes import Moments, later

if TYPE_CHECKING:
    from cocoll.resharding.layout import Box
    from cocoll.resharding.planner import MulticastPlan

__all__ = ["Part", "Parts"]


class Part(NamedTuple):
    """An array that a plan's steps touch: a box of one of the caller's tensors, or a sum of it.

    Attributes
    ----------
    role : str
        ``"source"``: of what the rank has; ``"result"``: of what it shall have; ``"sum"``: memory
        for the sum of a box, which whoever runs the plan provides.
    tensor : int
        Which tensor.
    box : Box
        Which elements of the whole tensor.
    """

    role: str
    tensor: int
    box: Box


class Parts:
    """Numbers the parts of one rank's plan as they come up.

    Parameters
    ----------
    made : MulticastPlan
        Tasks and their schedule.
    rank : int
        Whose plan.
    itemsizes_bytes : sequence of int
        Of each tensor.
    result_itemsizes_bytes : sequence of int, optional
        Of each tensor where it arrives. Default: the same.
    """

    def __init__(
        self,
        made: MulticastPlan,
        rank: int,
        itemsizes_bytes: Sequence[int],
        result_itemsizes_bytes: Sequence[int] | None,
    ) -> None:
        self._made = made
        self._rank = rank
        self._itemsizes = itemsizes_bytes
        self._result_itemsizes = result_itemsizes_bytes or itemsizes_bytes
        self._numbers: dict[Part, int] = {}
        # By task, when what has come so far is where it belongs.
        self._arrived: dict[int, Moments] = {}
        # The same for each chunk of it, as first element, one past its last, and when.
        self._arrivals: dict[int, list[tuple[int, int, Moments]]] = {}

    @property
    def found(self) -> tuple[Part, ...]:
        """All that have come up, by number."""
        return tuple(self._numbers)

    def part_of(self, view: View) -> Part | None:
        """Give what a view is of; None where it is of no part."""
        return self.found[view.index] if view.buffer is Buffer.PART else None

    def view(self, role: str, number: int) -> View:
        """Give a task's box as a part.

        Parameters
        ----------
        role : str
            As of `Part`.
        number : int
            Of the task.
        """
        task = self._made.tasks[number]
        itemsizes = self._result_itemsizes if role == "result" else self._itemsizes
        part = Part(role, task.tensor, task.box)
        index = self._numbers.setdefault(part, len(self._numbers))
        return View(Buffer.PART, self._rank, itemsizes[task.tensor], index=index)

    def target(self, number: int) -> View:
        """Give where this rank shall have what a task moves."""
        return self.view("result", number)

    def origin(self, number: int, first: int, stop: int) -> tuple[View, Moments]:
        """Give where this rank has what a task moves, and when some of its elements are there.

        Parameters
        ----------
        number : int
            Of the task.
        first, stop : int
            Which elements, counted as those of chunks.
        """
        task = self._made.tasks[number]
        if not self._made.problem.holds(number, self._rank):
            # An earlier transfer has brought it here. Others may still bring the rest.
            return self.target(number), self._arrival_of(number, first, stop)
        if not task.after:
            return self.view("source", number), {}
        ready: Moments = {}
        for before in task.after:
            ready = later(ready, self._arrived.get(before, {}))
        return self.view("sum", number), ready

    def arrive(self, number: int, first: int, stop: int, moment: Moments) -> None:
        """Note when a chunk of a task has come to where it belongs.

        Parameters
        ----------
        number : int
            Of the task.
        first, stop : int
            The chunk's elements, which come once.
        moment : Moments
            When.
        """
        self._arrived[number] = later(self._arrived.get(number, {}), moment)
        insort(self._arrivals.setdefault(number, []), (first, stop, moment), key=_first_of)

    def _arrival_of(self, number: int, first: int, stop: int) -> Moments:
        arrivals = self._arrivals[number]
        ready: Moments = {}
        place = max(bisect_right(arrivals, first, key=_first_of) - 1, 0)
        while place < len(arrivals) and arrivals[place][0] < stop:
            _, end, moment = arrivals[place]
            if end > first:
                ready = later(ready, moment)
            place += 1
        return ready

    def first_summands(self) -> Iterator[tuple[int, View, View]]:
        """Give what sums begin with.

        Yields
        ------
        tuple of int, View, View
            A task that adds to a sum here, this rank's own summand, and the sum; each sum once.
        """
        begun: set[View] = set()
        for number, task in enumerate(self._made.tasks):
            if not task.adds or task.needers != (self._rank,):
                continue
            total = self.view("sum", number)
            if total not in begun:
                begun.add(total)
                yield number, self.view("source", number), total


def _first_of(arrival: tuple[int, int, Moments]) -> int:
    return arrival[0]
