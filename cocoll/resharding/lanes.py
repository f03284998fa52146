"""Lanes that are written one iteration at a time, each of which may wait for any earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from cocoll.plan.ir import After, Lane, Loop, Span, Step

__all__ = ["LaneWriter", "Moments", "later"]

#: By lane an iteration: the moment at which all of them have ended.
Moments: TypeAlias = "dict[str, int]"


class LaneWriter:
    """Writes the lanes of one rank.

    Parameters
    ----------
    names : sequence of str
        Of the lanes, in the order in which an executor looks at them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._loops: dict[str, list[Loop]] = {name: [] for name in names}

    def add(
        self, lane: str, first: int, stop: int, steps: Sequence[Step], after: Moments
    ) -> Moments:
        """Append an iteration to a lane.

        Parameters
        ----------
        lane : str
            Its name.
        first, stop : int
            The elements that its steps move.
        steps : sequence of Step
            In order; the first one waits.
        after : Moments
            For what; a lane's own iterations end in order.

        Returns
        -------
        Moments
            When it has ended.
        """
        loops = self._loops[lane]
        iteration = len(loops)
        waits = tuple(
            After(self._names.index(other), iteration - moment)
            for other, moment in after.items()
            if other != lane
        )
        if waits:
            steps = (replace(steps[0], after=waits), *steps[1:])
        loops.append(Loop(tuple(steps), Span.RANGE, stop - first, iteration, None, first))
        return {lane: iteration}

    def last(self, lane: str) -> Moments:
        """Give when all that a lane has by now has ended."""
        count = len(self._loops[lane])
        return {lane: count - 1} if count else {}

    def build(self, in_flight: dict[str, int]) -> tuple[Lane, ...]:
        """Give the lanes that have something to do.

        Parameters
        ----------
        in_flight : dict of str to int
            Of lanes of messages, how many may be under way.
        """
        used = [name for name in self._names if self._loops[name]]
        numbers = {self._names.index(name): number for number, name in enumerate(used)}
        return tuple(
            Lane(
                name,
                tuple(_renumber(loop, numbers) for loop in self._loops[name]),
                in_flight.get(name, 1),
            )
            for name in used
        )


def later(some: Moments, others: Moments) -> Moments:
    """Give the moment at which both are past."""
    found = dict(some)
    for lane, moment in others.items():
        found[lane] = max(moment, found.get(lane, moment))
    return found


def _renumber(loop: Loop, numbers: dict[int, int]) -> Loop:
    first, *others = loop.steps
    if not first.after:
        return loop
    after = tuple(After(numbers[one.lane], one.lag) for one in first.after)
    return replace(loop, steps=(replace(first, after=after), *others))
