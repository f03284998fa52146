"""On which streams the lanes of a plan run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cocoll.cuda.binding import MAX_STREAMS
from cocoll.errors import UnsupportedError
from cocoll.plan.ir import Native, Receive, Send, Signal, Wait

if TYPE_CHECKING:
    from cocoll.plan.ir import Loop, Plan

__all__ = ["CALLERS_STREAM", "streams_of", "uses_wire"]

#: The number of the stream that an operation runs on; others are the communicator's own.
CALLERS_STREAM = 0


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
