"""What moves as one: a step by itself, or the sends and receives of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cocoll.plan.ir import Loop, Receive, Send, Span, Step
from cocoll.plan.ranges import loop_iterations

__all__ = ["Member", "moving_as_one"]


class Member(NamedTuple):
    """A step of a lane, in one of its iterations.

    Attributes
    ----------
    loop_index, step_index, iteration : int
        Where it stands.
    loop : Loop
        Of which it is.
    step : Step
        The step.
    """

    loop_index: int
    step_index: int
    iteration: int
    loop: Loop
    step: Step

    @property
    def ends_iteration(self) -> bool:
        """Whether its iteration has no further step."""
        return self.step_index == len(self.loop.steps) - 1


def moving_as_one(loops: Sequence[Loop], count: int, block_elements: int) -> Iterator[list[Member]]:
    """Cut a lane, unrolled, where it may stop.

    Parameters
    ----------
    loops : sequence of Loop
        Of a lane.
    count, block_elements : int
        As of `loop_iterations`.

    Yields
    ------
    list of Member
        A step, or the neighbouring sends and receives of one group: of an iteration, or of loops
        over ranges that follow each other.
    """
    batch: list[Member] = []
    for loop_index, loop in enumerate(loops):
        for iteration in loop_iterations(loop, count, block_elements):
            for step_index, step in enumerate(loop.steps):
                member = Member(loop_index, step_index, iteration, loop, step)
                if batch and not _goes_on(batch[-1], member):
                    yield batch
                    batch = []
                batch.append(member)
    if batch:
        yield batch


def _goes_on(last: Member, following: Member) -> bool:
    before, step = last.step, following.step
    if not isinstance(before, Send | Receive) or not isinstance(step, Send | Receive):
        return False
    return (
        before.group == step.group != 0
        and ((last.loop.span is Span.RANGE and following.loop.span is Span.RANGE)
             or (last.loop_index, last.iteration) == (following.loop_index, following.iteration))
    )  # fmt: skip
