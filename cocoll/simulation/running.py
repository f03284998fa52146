"""Lanes under way in a simulation: where each stands, and what it waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cocoll.errors import SimulationError
from cocoll.plan.listing import describe_step
from cocoll.simulation.tasks import NATIVE, WAIT

if TYPE_CHECKING:
    from cocoll.plan.ir import Plan
    from cocoll.simulation.meeting import FlagMeeting
    from cocoll.simulation.tasks import Task, TaskLane, TaskLoop

__all__ = ["Pending", "RunningLane", "RunningRank", "check_ended"]

# How many of the lanes that stand still a message names.
_SHOWN = 4


class Pending:
    """A task that has begun.

    Attributes
    ----------
    left : int
        How many of its parts have not ended; it ends with the last of them, and not before those
        that its lane began earlier.
    ends_iteration : bool
        Whether it is the last of its iteration.
    """

    __slots__ = ("begin", "ends_iteration", "iteration", "lane", "left", "task")

    def __init__(self, lane: RunningLane, task: Task, iteration: int, begin: int) -> None:
        self.lane = lane
        self.task = task
        self.iteration = iteration
        self.begin = begin
        self.ends_iteration = False
        self.left = 0


class RunningLane:
    """One lane of one rank.

    Attributes
    ----------
    task : Task or None
        What it begins next, in `iteration`; None: it has begun everything.
    outstanding : deque of Pending
        What it has begun, in order.
    completed : int
        How many iterations have ended.
    waiters : list of (int or None, RunningLane)
        Who waits until it has completed more than so many, or until its end.
    """

    __slots__ = (
        "_loop",
        "_loops",
        "_position",
        "completed",
        "ended",
        "in_flight",
        "index",
        "iteration",
        "name",
        "outstanding",
        "rank",
        "task",
        "waiters",
    )

    def __init__(self, rank: RunningRank, index: int, lane: TaskLane) -> None:
        self.rank = rank
        self.index = index
        self.name = lane.name
        self.in_flight = lane.in_flight
        self.outstanding: deque[Pending] = deque()
        self.completed = 0
        self.ended = False
        self.waiters: list[tuple[int | None, RunningLane]] = []
        self._loops: tuple[TaskLoop, ...] = lane.loops
        self._loop = 0
        self._position = 0
        self.iteration = lane.loops[0].begin if lane.loops else 0
        self.task: Task | None = lane.loops[0].tasks[0] if lane.loops else None

    def move_on(self) -> bool:
        """Go to the next task; say whether that of before was the last of its iteration."""
        loop = self._loops[self._loop]
        self._position += 1
        if self._position < len(loop.tasks):
            self.task = loop.tasks[self._position]
            return False
        self._position = 0
        self.iteration += 1
        if self.iteration >= loop.end:
            self._loop += 1
            if self._loop == len(self._loops):
                self.task = None
                return True
            loop = self._loops[self._loop]
            self.iteration = loop.begin
        self.task = loop.tasks[0]
        return True

    def blocker(self) -> tuple[RunningLane, int | None] | None:
        """Give the lane that the next task waits for, and which iteration (None: its end).

        Raises
        ------
        SimulationError
            That lane has ended without such an iteration.
        """
        task = self.task
        if task is None:
            return None
        lanes = self.rank.lanes
        for index, lag in task.after:
            other = lanes[index]
            if lag is None:
                if not other.ended:
                    return other, None
                continue
            wanted = self.iteration - lag
            if wanted < 0 or wanted < other.completed:
                continue
            if not other.ended:
                return other, wanted
            if wanted <= self.iteration:
                raise SimulationError(
                    f"rank {self.rank.number}, lane {self.name!r}, iteration {self.iteration}: "
                    f"{self.describe_task(task)}: waits for iteration {wanted} of lane "
                    f"{other.name!r}, which ran {other.completed}",
                )
        return None

    def describe_task(self, task: Task) -> str:
        """Give what a task does, in one line."""
        lanes = self.rank.plan.fragment.lanes
        more = f" and {len(task.steps) - 1} more of its group" if len(task.steps) > 1 else ""
        return describe_step(task.steps[0], lanes) + more

    def describe_wait(self) -> str | None:
        """Say what a lane that stands still waits for; None: it has ended."""
        if self.ended:
            return None
        pending = self.outstanding[0] if self.outstanding else None
        task = pending.task if pending else self.task
        iteration = pending.iteration if pending else self.iteration
        if task is None:
            return f"rank {self.rank.number}, lane {self.name!r}: waits for its turn"
        where = (
            f"rank {self.rank.number}, lane {self.name!r}, iteration {iteration}, "
            f"{self.describe_task(task)}: waits for "
        )
        if pending is None:
            blocker = self.blocker()
            if blocker is None:
                return f"{where}its turn"
            other, wanted = blocker
            which = "the end" if wanted is None else f"iteration {wanted}"
            return f"{where}{which} of lane {other.name!r}, which has completed {other.completed}"
        return where + _describe_missing(task, pending)


def _describe_missing(task: Task, pending: Pending) -> str:
    if task.kind == WAIT:
        return f"rank {task.meeting.writer} to signal"
    if task.kind == NATIVE:
        return "ranks that have not come to the same native collective"
    missing = []
    for message in task.messages:
        side = message.meeting.sends if message.sends else message.meeting.receives
        if any(one is pending for one, _ in side):
            other = message.meeting.receiver if message.sends else message.meeting.sender
            verb = "receive" if message.sends else "send"
            missing.append(f"rank {other} to {verb} (tag {message.meeting.tag})")
    return " and ".join(missing) or "its turn"


class RunningRank:
    """One simulated rank.

    Attributes
    ----------
    number : int
        The rank.
    has_thread : bool
        Whether its copies and reduces run one at a time.
    is_busy : bool
        Whether one runs now.
    queue : list of (int, int, Pending)
        Those that wait for it: since when, and of which lane; a heap.
    """

    __slots__ = (
        "has_thread",
        "is_busy",
        "is_listed",
        "lanes",
        "number",
        "opening",
        "plan",
        "queue",
    )

    def __init__(
        self, plan: Plan, opening: TaskLane, lanes: tuple[TaskLane, ...], *, has_thread: bool
    ) -> None:
        self.number = plan.rank
        self.plan = plan
        self.has_thread = has_thread
        self.is_busy = False
        self.is_listed = False
        self.queue: list[tuple[int, int, Pending]] = []
        self.opening = RunningLane(self, -1, opening)
        self.lanes = [RunningLane(self, index, lane) for index, lane in enumerate(lanes)]


def check_ended(ranks: Iterable[RunningRank], flags: Iterable[FlagMeeting], now: int) -> None:
    """Refuse plans that wait for ever, and signals that nobody waits for.

    Parameters
    ----------
    ranks : iterable of RunningRank
        All that were simulated.
    flags : iterable of FlagMeeting
        All flags.
    now : int
        When nothing could happen any more, in nanoseconds.

    Raises
    ------
    SimulationError
        A lane has not ended, or a flag has signals left.
    """
    stuck = [
        text
        for rank in ranks
        for lane in (rank.opening, *rank.lanes)
        if (text := lane.describe_wait()) is not None
    ]
    if stuck:
        more = f"; and {len(stuck) - _SHOWN} more lanes" if len(stuck) > _SHOWN else ""
        raise SimulationError(
            f"the plans wait for ever, from {now} ns on: {'; '.join(stuck[:_SHOWN])}{more}",
            detail="\n".join(stuck),
        )
    for flag in flags:
        if flag.times:
            raise SimulationError(
                f"rank {flag.writer} signals flag {flag.flag} to rank {flag.reader} more often "
                f"than that waits for it, by {len(flag.times)}"
            )
