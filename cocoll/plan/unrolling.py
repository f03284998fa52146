"""Plans of all ranks with their loops unrolled: every step that runs, and what orders the steps.

The model of one operation on one rank: the opening, then arrival (a signal to and a wait for every
other rank), then all lanes side by side, each in its own order; the operation ends when all lanes
have. Between operations the caller does as it likes with its own arrays. An executor that learns at
arrival which variant of a plan serves all ranks may run the opening only then, before the lanes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NoReturn

from cocoll.errors import DependenceError, ScheduleError, SignalMismatchError
from cocoll.plan.grouping import Member, moving_as_one
from cocoll.plan.ir import (
    Buffer,
    Copy,
    Loop,
    Native,
    Receive,
    Reduce,
    Send,
    Signal,
    View,
    Wait,
)
from cocoll.plan.listing import OPENING, Place, describe_step
from cocoll.plan.memory import Extent, MemoryMap
from cocoll.plan.ranges import block_elements, block_range, chunk_range
from cocoll.plan.structure import reads_of, writes_of
from cocoll.plan.trace import TRUNK, Event, Moment, Operation, Trace, raise_illegal

__all__ = ["unroll"]


def unroll(operations: Sequence[Operation], count: int) -> Trace:
    """Unroll a sequence of operations of one communicator for one count.

    Parameters
    ----------
    operations : sequence of Operation
        In the order in which every rank issues them.
    count : int
        Elements of each operation's vector.

    Returns
    -------
    Trace
        With the edges inside ranks and those of arrivals; those between signals and waits and
        between sends and receives are for the verifier to add.

    Raises
    ------
    DependenceError
        A step overwrites bytes that it still has to read, or stores twice to the same bytes.
    SignalMismatchError
        A step waits for an iteration that its lane never completes.
    ScheduleError
        A view cannot hold its chunk.
    """
    trace = Trace(operations, count)
    ends: list[list[int]] = [[] for _ in range(trace.world_size)]
    for number in range(len(operations)):
        ends = _unroll_operation(trace, number, ends)
    last = len(operations) - 1
    for rank in range(trace.world_size):
        _add_user_moment(trace, last, rank, "after", ends[rank])
    return trace


def _add_user_moment(trace: Trace, number: int, rank: int, when: str, before: list[int]) -> int:
    moment = Moment(number, rank, f"the caller, {when}")
    node = trace.add_node(rank, TRUNK, moment, before)
    trace.user_moments.append(node)
    return node


def _unroll_operation(trace: Trace, number: int, ends: list[list[int]]) -> list[list[int]]:
    """Append one operation after the `ends` of the one before; give its own."""
    operation = trace.operations[number]
    unrollers, openings, arrivals = [], [], []
    for rank, plan in enumerate(operation.plans):
        user = _add_user_moment(trace, number, rank, "before", ends[rank])
        unroller = _RankUnroller(trace, number, rank)
        opening = unroller.run_loops(OPENING, plan.fragment.opening, user)
        before = [user] if operation.late_opening else [opening]
        arrivals.append(trace.add_node(rank, TRUNK, Moment(number, rank, "arrives"), before))
        unrollers.append(unroller)
        openings.append(opening)
    ends = []
    for rank, plan in enumerate(operation.plans):
        # Every rank waits for the lines of all ranks, its own included.
        start = trace.add_node(
            rank,
            TRUNK,
            Moment(number, rank, "sees all arrive"),
            [arrivals[rank], openings[rank], *arrivals],
        )
        lane_ends = [
            unrollers[rank].run_loops(index, lane.loops, start, lane.in_flight)
            for index, lane in enumerate(plan.fragment.lanes)
        ]
        unrollers[rank].connect_after(lane_ends)
        moment = Moment(number, rank, "ends")
        ends.append([trace.add_node(rank, TRUNK, moment, [start, *lane_ends])])
    return ends


class _Flight:
    """The nodes of a lane that decide when its next step begins."""

    def __init__(self, in_flight: int, node: int) -> None:
        self.begun = node
        self.ended = node
        self.overlaps = in_flight > 1
        self._ends = deque([node] * in_flight, maxlen=in_flight)

    def conditions(self) -> list[int]:
        return [self.begun, self._ends[0]] if self.overlaps else [self.ended]

    def add(self, begin: int, end: int) -> None:
        self.begun, self.ended = begin, end
        self._ends.append(end)


class _RankUnroller:
    """Unrolls the lanes of one rank in one operation."""

    def __init__(self, trace: Trace, number: int, rank: int) -> None:
        operation = trace.operations[number]
        self._trace = trace
        self._operation = operation
        self._number = number
        self._rank = rank
        self._plan = operation.plans[rank]
        self._block_elements = block_elements(
            trace.count, trace.world_size, self._plan.alignment_elements
        )
        self._memory = MemoryMap(operation.plans, operation.aliasing, trace.count, number)
        # Per lane: its iterations in order, each with the node at which it is complete.
        self._progress: dict[int, list[tuple[int, int]]] = {}
        self._waiting: list[Event] = []

    def run_loops(self, lane: int, loops: Sequence[Loop], node: int, in_flight: int = 1) -> int:
        """Append all iterations after `node`; give the node at which all have ended."""
        progress = self._progress.setdefault(lane, [])
        flight = _Flight(in_flight, node)
        for members in moving_as_one(loops, self._trace.count, self._block_elements):
            self._run_batch(lane, members, flight)
            progress += [(one.iteration, flight.ended) for one in members if one.ends_iteration]
        return flight.ended

    def _run_batch(self, lane: int, members: Sequence[Member], flight: _Flight) -> None:
        trace = self._trace
        events = []
        for loop_index, step_index, iteration, loop, step in members:
            place = Place(lane, loop_index, step_index)
            event = Event(self._number, self._rank, place, iteration, step, flight.begun)
            if not isinstance(step, Signal | Wait):
                self._resolve(event, loop)
            if step.after:
                self._waiting.append(event)
            events.append(event)
        begin = end = trace.add_node(self._rank, lane, events[0], flight.conditions())
        if flight.overlaps:
            before = [begin, flight.ended]
            end = trace.add_node(self._rank, lane, events[-1], before, ends=True)
        elif isinstance(members[0].step, Send | Receive | Native):
            end = trace.add_node(self._rank, lane, events[-1], [begin])
        for event in events:
            event.begin, event.end = begin, end
        trace.events += events
        flight.add(begin, end)

    def _resolve(self, event: Event, loop: Loop) -> None:
        """Fill in which bytes a step touches."""
        step = event.step
        if isinstance(step, Signal | Wait):
            return
        first, stop = chunk_range(
            loop, step.block, event.iteration, self._trace.count, self._block_elements
        )
        event.first, event.stop = first, stop
        if first >= stop:
            return
        read = (first, stop)
        if isinstance(step, Native):
            block = step.source_block
            count = self._trace.count
            read = chunk_range(loop, block, event.iteration, count, self._block_elements)
        event.reads = [self._locate(event, view, *read) for view in reads_of(step)]
        event.writes = [self._locate(event, view, first, stop) for view in writes_of(step)]
        if isinstance(step, Copy) and event.reads == event.writes:
            # Executors leave a copy onto itself out, so that peers may read the bytes meanwhile.
            event.reads, event.writes = [], []
            return
        zeroed: list[Extent] = []
        if self._operation.zero_source and isinstance(step, Reduce):
            zeroed = [
                extent
                for view, extent in zip(step.sources, event.reads, strict=False)
                if view.buffer is Buffer.SOURCE
            ]
        self._check_step_overlaps(event, zeroed)
        event.writes += zeroed

    def _locate(self, event: Event, view: View, first: int, stop: int) -> Extent:
        extent = self._memory.locate(view, event.iteration, first, stop)
        if isinstance(extent, str):
            self._raise(ScheduleError, event, extent)
        return extent

    def _check_step_overlaps(self, event: Event, zeroed: Sequence[Extent]) -> None:
        """Refuse a step that overwrites what it has yet to read.

        A kernel reads a tile of everything before it writes any of that tile, so a store is safe
        over bytes read at the same place in elements of the same size, and nowhere else. A native
        collective takes its source from where it also has to be in the result.
        """
        step = event.step
        home = 0
        if isinstance(step, Native):
            first, _ = block_range(step.source_block, self._trace.count, self._block_elements)
            home = (first - event.first) * step.source.itemsize_bytes
        for write in (*event.writes, *zeroed):
            for read in event.reads:
                if isinstance(step, Native) and read.start == write.start + home:
                    continue
                if write.overlaps(read) and write != read:
                    self._raise(DependenceError, event, f"writes {write} while it reads {read}")
        stores = list(_labelled_stores(event)) + [(("zero",), extent) for extent in zeroed]
        for index, (label, write) in enumerate(stores):
            for other_label, other in stores[:index]:
                # One result may be stored twice to one place: the bytes are the same.
                if write.overlaps(other) and (label != other_label or write != other):
                    self._raise(
                        DependenceError, event, f"stores twice to the same bytes: {other}, {write}"
                    )

    def _raise(self, error: type[ScheduleError], event: Event, reason: str) -> NoReturn:
        step = describe_step(event.step, self._plan.fragment.lanes)
        message = f"rank {self._rank}, {step}: {reason}"
        raise_illegal(error, message, self._trace, [(event, reason)])

    def connect_after(self, ends: Sequence[int]) -> None:
        """Add the edges of `after`, once all lanes are unrolled."""
        for event in self._waiting:
            for after in event.step.after:
                if after.lag is None:
                    node = ends[after.lane]
                elif event.iteration < after.lag:
                    continue
                else:
                    later = self._completion(event, after.lane, event.iteration - after.lag)
                    node = ends[after.lane] if later is None else later
                self._trace.before[event.begin].append(node)

    def _completion(self, event: Event, lane: int, iteration: int) -> int | None:
        """Give the node at which `lane` has completed `iteration`; None: it has no later one."""
        progress = self._progress[lane]
        name = self._plan.fragment.lanes[lane].name
        # An executor keeps one number per lane, so its iterations must count up from 0.
        if any(number != place for place, (number, _) in enumerate(progress)):
            self._raise(
                SignalMismatchError,
                event,
                f"lane {name!r} is waited for by iteration, so its loops must continue each "
                f"other's iterations from 0; got {[number for number, _ in progress]}",
            )
        if iteration >= len(progress) and iteration > event.iteration:
            return None
        if iteration >= len(progress):
            self._raise(
                SignalMismatchError,
                event,
                f"waits for iteration {iteration} of lane {name!r}, which runs {len(progress)}",
            )
        return progress[iteration][1]


def _labelled_stores(event: Event) -> Iterator[tuple[tuple[object, ...], Extent]]:
    """Give what a step stores, labelled by the value."""
    step = event.step
    if not isinstance(step, Reduce):
        for index, extent in enumerate(event.writes):
            yield ("write", index), extent
        return
    extents = iter(event.writes)
    for result, views in enumerate(step.destinations):
        for _ in views:
            yield ("result", result), next(extents)
    for operand in step.updated:
        yield ("operand", operand), next(extents)
