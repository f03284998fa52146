"""The engine of a simulation: a clock, the lanes that run, and what has yet to happen.

A discrete-event simulation of the plans of all ranks, or of one rank of each class of equal ones.
Nothing in it knows an algorithm: it does what executors do, step by step. At one moment, first
everything that happens then happens, then lanes go as far as they can, then rates are worked out
again; what one lane does at a moment changes nothing that another may do then, so that their order
does not matter.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cocoll.errors import SimulationError
from cocoll.simulation.arrival import arrival_nanoseconds
from cocoll.simulation.flows import Traffic
from cocoll.simulation.meeting import Connection, Switchboard
from cocoll.simulation.natives import NativeMeetings
from cocoll.simulation.outcome import Record, Simulation
from cocoll.simulation.running import Pending, RunningLane, RunningRank, check_ended
from cocoll.simulation.tasks import COMPUTE, SIGNAL, WAIT, WIRE, Task, resolve_plan

if TYPE_CHECKING:
    from cocoll.plan.ir import Plan
    from cocoll.simulation.roles import Roles

__all__ = ["Engine"]

# What happens at a time: a step's bytes begin to move, a message is ready to, parts of tasks end,
# lanes begin.
_MOVE, _SEND, _END, _ARRIVE = range(4)


class Engine:
    """One simulation.

    Parameters
    ----------
    plans : sequence of Plan
        Of the representatives.
    count : int
        Elements of the vector.
    roles : Roles
        Whom they stand for.
    thread_bytes_per_second : int
        What a rank without a GPU reads and writes together.
    keep_spans : bool
        Whether to note when every step began and ended.

    Raises
    ------
    SimulationError
        A plan cannot be simulated on this topology with these roles.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        count: int,
        roles: Roles,
        thread_bytes_per_second: int,
        *,
        keep_spans: bool,
    ) -> None:
        topology = roles.topology
        self._roles = roles
        self._port_count = len(topology.ports)
        self._traffic = Traffic(
            (
                *topology.bandwidths_bytes_per_second,
                *((thread_bytes_per_second,) * topology.world_size),
            )
        )
        self._switchboard = Switchboard(roles, self._traffic, self._port_count)
        self._ranks: list[RunningRank] = []
        for plan in plans:
            opening, lanes = resolve_plan(plan, count, self._switchboard)
            has_thread = self._switchboard.has_thread(plan.rank)
            self._ranks.append(RunningRank(plan, opening, lanes, has_thread=has_thread))
        self._arrival_nanoseconds = arrival_nanoseconds(topology)
        self._opening = len(self._ranks)
        self._now = 0
        self._events: list[tuple[int, int, int, Any]] = []
        self._event_count = 0
        self._runnable: list[RunningLane] = []
        self._threads: list[RunningRank] = []
        self._natives = NativeMeetings(topology)
        self._record: list[Record] | None = [] if keep_spans else None
        self._messages = 0
        self._steps = 0

    def run(self) -> Simulation:
        """Run all plans to their ends.

        Returns
        -------
        Simulation
            What came of it.

        Raises
        ------
        SimulationError
            They wait for ever, or do not fit together.
        """
        self._runnable += [rank.opening for rank in self._ranks]
        traffic = self._traffic
        events = self._events
        while True:
            self._drain()
            if events and events[0][0] == self._now:
                self._take_events()
                continue
            traffic.settle(self._now)
            end = traffic.next_end()
            if end is None and not events:
                break
            if end is not None and (not events or end <= events[0][0]):
                self._now = end
                for connection, owners in traffic.pop_ended(end):
                    if connection is not None:
                        self._take_turn(connection)
                    self._end_parts(owners)
            else:
                self._now = events[0][0]
                self._take_events()
        check_ended(self._ranks, self._switchboard.flags.values(), self._now)
        class_bytes: dict[int, int] = {}
        for route in traffic.routes:
            for port, weight in zip(route.ports, route.weights, strict=True):
                if port < self._port_count:
                    class_bytes[port] = class_bytes.get(port, 0) + route.carried_bytes * weight
        lanes = {rank.number: tuple(lane.name for lane in rank.lanes) for rank in self._ranks}
        return Simulation(
            self._now,
            self._messages,
            self._steps,
            lanes,
            self._roles,
            self._record or (),
            class_bytes,
            self._natives.port_bytes,
        )

    # --- Time. ---

    def _at(self, when: int, what: int, payload: object) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (when, self._event_count, what, payload))

    def _take_events(self) -> None:
        events, now = self._events, self._now
        while events and events[0][0] == now:
            _, _, what, payload = heapq.heappop(events)
            if what == _MOVE:
                for route, length_bytes, owners in payload:
                    self._traffic.start(route, length_bytes, (None, owners), now)
            elif what == _SEND:
                self._send(*payload)
            elif what == _END:
                self._end_parts(payload)
            else:
                self._runnable += [lane for rank in self._ranks for lane in rank.lanes]

    def _end_parts(self, owners: tuple[Pending, ...]) -> None:
        for pending in owners:
            pending.left -= 1
            if not pending.left:
                lane = pending.lane
                if pending.task.kind == COMPUTE:
                    lane.rank.is_busy = False
                    self._list_thread(lane.rank)
                self._runnable.append(lane)

    def _drain(self) -> None:
        """Let lanes go as far as they can at this moment."""
        runnable = self._runnable
        while True:
            while runnable:
                self._runnable = []
                for lane in runnable:
                    self._advance(lane)
                runnable = self._runnable
            threads, self._threads = self._threads, []
            for rank in threads:
                rank.is_listed = False
                if rank.queue and not rank.is_busy:
                    self._begin_compute(heapq.heappop(rank.queue)[2])
            runnable = self._runnable
            if not runnable:
                return

    # --- Lanes. ---

    def _advance(self, lane: RunningLane) -> None:
        now = self._now
        outstanding = lane.outstanding
        while True:
            while outstanding and not outstanding[0].left:
                self._end(outstanding.popleft())
            if len(outstanding) >= lane.in_flight:
                return
            task = lane.task
            if task is None:
                if not outstanding and not lane.ended:
                    self._end_lane(lane)
                return
            if task.after:
                blocker = lane.blocker()
                if blocker is not None:
                    other, wanted = blocker
                    other.waiters.append((wanted, lane))
                    return
            pending = Pending(lane, task, lane.iteration, now)
            pending.ends_iteration = lane.move_on()
            outstanding.append(pending)
            kind = task.kind
            if kind == WIRE:
                self._begin_messages(pending)
            elif kind == COMPUTE:
                pending.left = 1
                if lane.rank.has_thread:
                    heapq.heappush(lane.rank.queue, (now, lane.index, pending))
                    self._list_thread(lane.rank)
                else:
                    self._begin_compute(pending)
            elif kind == SIGNAL:
                self._signal(task)
            elif kind == WAIT:
                self._begin_wait(pending)
            else:
                self._begin_native(pending)

    def _end(self, pending: Pending) -> None:
        """Note that a task has ended, and wake who waits for its iteration."""
        lane, task = pending.lane, pending.task
        rank = lane.rank
        self._steps += len(task.steps) * self._roles.class_size(rank.number)
        if self._record is not None:
            self._record.append((lane, task, pending.iteration, pending.begin, self._now))
        if pending.ends_iteration:
            lane.completed += 1
            if lane.waiters:
                waiters, lane.waiters = lane.waiters, []
                for waiter in waiters:
                    if waiter[0] is not None and waiter[0] < lane.completed:
                        self._runnable.append(waiter[1])
                    else:
                        lane.waiters.append(waiter)

    def _end_lane(self, lane: RunningLane) -> None:
        lane.ended = True
        self._runnable += [waiter for _, waiter in lane.waiters]
        lane.waiters = []
        if lane.index < 0:
            self._opening -= 1
            if not self._opening:
                # All ranks go on together: nobody has seen all others before the last has come.
                self._at(self._now + self._arrival_nanoseconds, _ARRIVE, None)

    # --- Steps. ---

    def _signal(self, task: Task) -> None:
        flag = task.meeting
        seen = self._now + flag.latency_nanoseconds
        if flag.waiting:
            self._at(seen, _END, (flag.waiting.popleft(),))
        else:
            flag.times.append(seen)

    def _begin_wait(self, pending: Pending) -> None:
        flag = pending.task.meeting
        if not flag.times:
            pending.left = 1
            flag.waiting.append(pending)
            return
        seen = flag.times.popleft()
        if seen > self._now:
            pending.left = 1
            self._at(seen, _END, (pending,))

    def _begin_messages(self, pending: Pending) -> None:
        iteration, task = pending.iteration, pending.task
        for message in task.messages:
            length_bytes = task.elements(message.block_elements, iteration) * message.itemsize_bytes
            if not length_bytes:
                continue  # executors leave it out, on both sides
            pending.left += 1
            meeting = message.meeting
            here, there = meeting.receives, meeting.sends
            if message.sends:
                here, there = there, here
            if not there:
                here.append((pending, length_bytes))
                continue
            partner, wanted_bytes = there.popleft()
            if wanted_bytes != length_bytes:
                sent, received = length_bytes, wanted_bytes
                if not message.sends:
                    sent, received = received, sent
                raise SimulationError(
                    f"rank {meeting.sender} sends {sent} bytes to rank {meeting.receiver} (tag "
                    f"{meeting.tag}), which receives {received}"
                )
            connection = meeting.connection
            self._messages += connection.multiplicity
            owners = (pending, partner)
            when = self._now + connection.latency_nanoseconds
            if connection.route is None:
                self._at(when, _END, owners)
            elif connection.latency_nanoseconds:
                self._at(when, _SEND, (connection, length_bytes, owners))
            else:
                self._send(connection, length_bytes, owners)

    def _send(self, connection: Connection, length_bytes: int, owners: tuple[Pending, ...]) -> None:
        """Let a message move, when those before it on its connection have."""
        connection.queue.append((length_bytes, owners))
        if not connection.is_busy:
            self._take_turn(connection)

    def _take_turn(self, connection: Connection) -> None:
        connection.is_busy = bool(connection.queue)
        if connection.queue and connection.route is not None:
            length_bytes, owners = connection.queue.popleft()
            self._traffic.start(connection.route, length_bytes, (connection, owners), self._now)

    def _list_thread(self, rank: RunningRank) -> None:
        if rank.has_thread and not rank.is_listed:
            rank.is_listed = True
            self._threads.append(rank)

    def _begin_compute(self, pending: Pending) -> None:
        task = pending.task
        rank = pending.lane.rank
        elements = task.elements(task.block_elements, pending.iteration)
        if not elements or not task.bytes_per_element:
            pending.left = 0
            self._runnable.append(pending.lane)
            self._list_thread(rank)
            return
        rank.is_busy = True
        owners = (pending,)
        flows = tuple((route, elements * each, owners) for route, each in task.flows)
        pending.left = max(1, len(flows))
        when = self._now + task.latency_nanoseconds
        if not flows:
            self._at(when, _END, owners)
        elif task.latency_nanoseconds:
            self._at(when, _MOVE, flows)
        else:
            for route, length_bytes, _ in flows:
                self._traffic.start(route, length_bytes, (None, owners), self._now)

    def _begin_native(self, pending: Pending) -> None:
        pending.left = 1
        rank = pending.lane.rank.number
        together = self._natives.come(rank, pending, len(self._ranks))
        if together is not None:
            duration_nanoseconds, waiting = together
            self._at(self._now + duration_nanoseconds, _END, waiting)
