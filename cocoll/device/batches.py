"""How a plan's lanes are cut for streams: what goes out without a stop, and on which stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.cuda.binding import MAX_STREAMS
from cocoll.errors import UnsupportedError
from cocoll.plan.ir import Native, Receive, Send, Signal, Wait

if TYPE_CHECKING:
    from cocoll.plan.ir import Loop, Plan, Step

__all__ = ["CALLERS_STREAM", "Batch", "grouped_steps", "streams_of", "uses_wire"]

#: The number of the stream that an operation runs on; others are the communicator's own.
CALLERS_STREAM = 0


@dataclass
class Batch:
    """What one lane does without a stop: a step, or the sends and receives of a group."""

    iteration: int
    loop: Loop
    steps: list[Step]
    ends_iteration: bool


def streams_of(plan: Plan, in_turn: bool) -> list[int]:
    """Give each lane's stream: those that use the wire share the caller's.

    Parameters
    ----------
    plan : Plan
        Of the lanes.
    in_turn : bool
        Whether those that signal or wait share it too.

    Returns
    -------
    list of int
        Numbers of streams.

    Raises
    ------
    UnsupportedError
        There are more lanes than streams.
    """
    lanes = plan.fragment.lanes
    wires = [uses_wire(lane.loops) or (in_turn and _signals(lane.loops)) for lane in lanes]
    streams = []
    following = 1 if any(wires) else 0
    for wire in wires:
        streams.append(CALLERS_STREAM if wire else following)
        following += not wire
    if following > MAX_STREAMS:
        raise UnsupportedError(
            f"plan {plan.name!r} has {len(lanes)} lanes; on GPUs at most {MAX_STREAMS} streams "
            f"work for one operation"
        )
    return streams


def uses_wire(loops: Sequence[Loop]) -> bool:
    """Say whether a lane has steps that NCCL runs."""
    return any(isinstance(step, Send | Receive | Native) for loop in loops for step in loop.steps)


def _signals(loops: Sequence[Loop]) -> bool:
    return any(isinstance(step, Signal | Wait) for loop in loops for step in loop.steps)


def grouped_steps(steps: Sequence[Step]) -> Iterator[tuple[list[Step], bool]]:
    """Give what moves as one, and whether it is the last of an iteration."""
    batches: list[list[Step]] = []
    for step in steps:
        last = batches[-1][-1] if batches else None
        group = step.group if isinstance(step, Send | Receive) else 0
        if group and isinstance(last, Send | Receive) and last.group == group:
            batches[-1].append(step)
        else:
            batches.append([step])
    for number, batch in enumerate(batches, 1):
        yield batch, number == len(batches)
