"""Plans made ready to be simulated: what each step does, whom it meets and which ports it crosses.

A *task* is what a lane begins at once: a step, or the sends and receives of one group. Loops are
kept as loops, so that a million iterations take no more room than one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

from cocoll.errors import SimulationError, UnsupportedError
from cocoll.plan.ir import Copy, Loop, Native, Plan, Receive, Send, Signal, Span, Step, View, Wait
from cocoll.plan.listing import describe_step
from cocoll.plan.ranges import block_elements, block_range, loop_iterations
from cocoll.plan.structure import reads_of, writes_of

if TYPE_CHECKING:
    from cocoll.simulation.flows import Route
    from cocoll.simulation.meeting import FlagMeeting, MessageMeeting, Switchboard

__all__ = [
    "COMPUTE",
    "NATIVE",
    "SIGNAL",
    "WAIT",
    "WIRE",
    "Message",
    "Task",
    "TaskLane",
    "TaskLoop",
    "resolve_plan",
]

_TEXT_CHARACTERS = 200

SIGNAL, WAIT, WIRE, COMPUTE, NATIVE = range(5)


class Message(NamedTuple):
    """One side of a message: of a task of the wire."""

    sends: bool
    meeting: MessageMeeting
    block_elements: int
    itemsize_bytes: int


class Task:
    """What a lane begins at once.

    Attributes
    ----------
    kind : int
        ``SIGNAL``, ``WAIT``, ``WIRE``, ``COMPUTE`` or ``NATIVE``.
    after : tuple of (int, int or None)
        Lanes and lags that it waits for.
    steps : tuple of Step
        One, or all of a group.
    loop, step : int
        Where the first of them stands.
    chunk_elements : int
        Of its loop; 0: the whole block at once.
    block_elements : int
        Of the block that it works on.
    bytes_per_element : int
        What it moves of each element: read and written, sent or received.
    flows : tuple of (Route, int)
        For ``COMPUTE``: what the bytes cross, and how many there are of each element.
    latency_nanoseconds : int
        For ``COMPUTE``, before bytes move.
    meeting : FlagMeeting
        For ``SIGNAL`` and ``WAIT``; not there for others.
    messages : tuple of Message
        For ``WIRE``.
    """

    __slots__ = (
        "_texts",
        "after",
        "block_elements",
        "bytes_per_element",
        "chunk_elements",
        "flows",
        "kind",
        "latency_nanoseconds",
        "loop",
        "meeting",
        "messages",
        "step",
        "steps",
    )

    meeting: FlagMeeting

    def __init__(
        self, kind: int, steps: tuple[Step, ...], loop: int, step: int, chunk_elements: int
    ) -> None:
        self.kind = kind
        self.steps = steps
        self.loop = loop
        self.step = step
        self.chunk_elements = chunk_elements
        self.block_elements = 0
        self.bytes_per_element = 0
        self.after: tuple[tuple[int, int | None], ...] = ()
        self.flows: tuple[tuple[Route, int], ...] = ()
        self.latency_nanoseconds = 0
        self.messages: tuple[Message, ...] = ()
        self._texts: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Each step in one line that is not too long: a reduce may have hundreds of sources."""
        if not self._texts:
            self._texts = tuple(
                shorten(describe_step(step), _TEXT_CHARACTERS, placeholder=" ...")
                for step in self.steps
            )
        return self._texts

    def elements(self, block: int, iteration: int) -> int:
        """Give how many of a block of so many elements an iteration works on."""
        chunk = self.chunk_elements
        if not chunk:
            return block
        left = block - iteration * chunk
        return 0 if left < 0 else min(left, chunk)

    def step_bytes(self, iteration: int) -> tuple[int, ...]:
        """Give what each step reads and writes, sends or receives in an iteration."""
        if self.messages:
            return tuple(
                self.elements(message.block_elements, iteration) * message.itemsize_bytes
                for message in self.messages
            )
        return (self.elements(self.block_elements, iteration) * self.bytes_per_element,)


class TaskLoop(NamedTuple):
    """Tasks that are repeated for iterations ``begin`` to ``end``, at least one."""

    begin: int
    end: int
    tasks: tuple[Task, ...]


class TaskLane(NamedTuple):
    """A lane: its loops in order, and how many tasks may be begun and not ended."""

    name: str
    in_flight: int
    loops: tuple[TaskLoop, ...]


def resolve_plan(
    plan: Plan, count: int, switchboard: Switchboard
) -> tuple[TaskLane, tuple[TaskLane, ...]]:
    """Make a representative's plan ready.

    Parameters
    ----------
    plan : Plan
        What it does.
    count : int
        Elements of the vector.
    switchboard : Switchboard
        Whom it meets, and on which ways.

    Returns
    -------
    TaskLane
        The opening.
    tuple of TaskLane
        The lanes.

    Raises
    ------
    SimulationError
        A lane with several steps in flight holds others than sends and receives, or a lane is
        waited for by iteration whose loops do not count on from 0.
    """
    resolver = _Resolver(plan, count, switchboard)
    fragment = plan.fragment
    opening = TaskLane("opening", 1, resolver.resolve(fragment.opening))
    lanes = []
    for lane in fragment.lanes:
        loops = resolver.resolve(lane.loops)
        if lane.in_flight > 1 and any(task.kind != WIRE for loop in loops for task in loop.tasks):
            raise SimulationError(
                f"plan {plan.name!r} of rank {plan.rank}: lane {lane.name!r} has up to "
                f"{lane.in_flight} steps in flight and holds more than sends and receives"
            )
        lanes.append(TaskLane(lane.name, lane.in_flight, loops))
    for index in sorted(resolver.counted):
        expected = 0
        for loop in lanes[index].loops:
            if loop.begin != expected:
                raise SimulationError(
                    f"plan {plan.name!r} of rank {plan.rank}: lane {lanes[index].name!r} is waited "
                    f"for by iteration, so its loops must count on from 0; wanted one that begins "
                    f"with {expected}, got {loop.begin}"
                )
            expected = loop.end
    return opening, tuple(lanes)


class _Resolver:
    def __init__(self, plan: Plan, count: int, switchboard: Switchboard) -> None:
        self._rank = plan.rank
        self._count = count
        self._switchboard = switchboard
        self._length = block_elements(count, plan.world_size, plan.alignment_elements)
        self._lengths: dict[int, int] = {}
        #: The lanes that steps wait for by iteration.
        self.counted: set[int] = set()

    def resolve(self, loops: Sequence[Loop]) -> tuple[TaskLoop, ...]:
        resolved = []
        for index, loop in enumerate(loops):
            self._check_group(loops[index - 1 : index + 1])
            iterations = loop_iterations(loop, self._count, self._length)
            if iterations and loop.steps:
                tasks = tuple(self._tasks(index, loop))
                resolved.append(TaskLoop(iterations.start, iterations.stop, tasks))
        return tuple(resolved)

    def _check_group(self, loops: Sequence[Loop]) -> None:
        """Refuse a group that goes on from one loop to the next: a task is of one loop."""
        if len(loops) < 2 or any(loop.span is not Span.RANGE for loop in loops):
            return
        last, following = (
            getattr(step, "group", 0) for step in (loops[0].steps[-1], loops[1].steps[0])
        )
        if last == following != 0:
            raise UnsupportedError(
                f"a group of messages that goes on over loops is not simulated; rank {self._rank} "
                f"has group {last} in two"
            )

    def _tasks(self, index: int, loop: Loop) -> Iterator[Task]:
        # A range is a block of its own, all of it at once.
        fixed = loop.chunk_elements if loop.span is Span.RANGE else None
        chunk = 0 if loop.span in (Span.ONCE, Span.RANGE) else loop.chunk_elements
        steps = loop.steps
        place = 0
        while place < len(steps):
            step = steps[place]
            end = place + 1
            if isinstance(step, Send | Receive):
                if step.group:
                    while end < len(steps) and getattr(steps[end], "group", 0) == step.group:
                        end += 1
                task = Task(WIRE, steps[place:end], index, place, chunk)
                self._add_messages(task, fixed)
            elif isinstance(step, Signal):
                task = Task(SIGNAL, (step,), index, place, chunk)
                task.meeting = self._switchboard.flag_from(self._rank, step.peer, step.flag)
            elif isinstance(step, Wait):
                task = Task(WAIT, (step,), index, place, chunk)
                task.meeting = self._switchboard.flag_to(self._rank, step.peer, step.flag)
            elif isinstance(step, Native):
                task = Task(NATIVE, (step,), index, place, chunk)
                task.block_elements = self._block(step.block, fixed)
                task.bytes_per_element = step.destination.itemsize_bytes
            else:
                task = Task(COMPUTE, (step,), index, place, chunk)
                task.block_elements = self._block(step.block, fixed)
                self._add_flows(task, step)
            task.after = tuple(
                (after.lane, after.lag) for member in task.steps for after in member.after
            )
            self.counted.update(lane for lane, lag in task.after if lag is not None)
            yield task
            place = end

    def _add_messages(self, task: Task, fixed: int | None) -> None:
        messages = []
        for step in task.steps:
            if isinstance(step, Send):
                meeting = self._switchboard.message_from(self._rank, step.peer, step.tag)
                length = self._block(step.block, fixed)
                messages.append(Message(True, meeting, length, step.source.itemsize_bytes))
            elif isinstance(step, Receive):
                meeting = self._switchboard.message_to(self._rank, step.peer, step.tag)
                length = self._block(step.block, fixed)
                messages.append(Message(False, meeting, length, step.destination.itemsize_bytes))
        task.messages = tuple(messages)

    def _add_flows(self, task: Task, step: Step) -> None:
        if isinstance(step, Copy) and step.source == step.destination:
            return  # executors leave it out
        flows: dict[Route, int] = {}
        for use, views in (("read", reads_of(step)), ("write", writes_of(step))):
            for view in views:
                self._add_flow(task, flows, use, view)
        task.flows = tuple(flows.items())

    def _add_flow(self, task: Task, flows: dict[Route, int], use: str, view: View) -> None:
        route, latency_nanoseconds = self._switchboard.way(use, self._rank, view.rank)
        if route is not None:
            flows[route] = flows.get(route, 0) + view.itemsize_bytes
        task.bytes_per_element += view.itemsize_bytes
        task.latency_nanoseconds = max(task.latency_nanoseconds, latency_nanoseconds)

    def _block(self, block: int, fixed: int | None) -> int:
        if fixed is not None:
            return fixed
        length = self._lengths.get(block)
        if length is None:
            first, stop = block_range(block, self._count, self._length)
            length = self._lengths[block] = stop - first
        return length
