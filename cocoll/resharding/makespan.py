"""How long a schedule takes: ports that fill and are handed on, without a step for every chunk.

A group keeps its busiest port busy from its first byte to its last; every other port is used at a
rate that is proportional to what it carries. A hop begins when the first chunk has come to its
source, so a port is taken from the first to the last such moment and as long as the group lasts. A
group begins when each of its ports has that much room left, and never before an earlier group of
the schedule has begun there: ports serve groups in order (the rule of [1]_, for ports instead of
hosts and for chunks instead of whole messages).

References
----------
.. [1] Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section
   3.2: a task starts when its sender and all its receivers are free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cocoll.resharding.schedule import LEAST_CHUNK_BYTES, Group, Schedule, Transfer
from cocoll.resharding.ways import Traffic, traffic_of

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem
    from cocoll.resharding.ways import Ways

__all__ = ["Clock", "Shape", "Span", "describe_group", "group_of", "makespan_nanoseconds", "spans"]

_NANOSECONDS = 10**9
# A port's whole rate, in the units that shares of it are counted in.
_WHOLE = 1 << 20

# What the choice of chunks takes for the cost of one more round: most of what starting a message
# costs is hidden by those under way.
_ROUND_NANOSECONDS = 1000


class Shape(NamedTuple):
    """What a group does to ports, from its beginning.

    Attributes
    ----------
    busy_nanoseconds : int
        How long its busiest port is busy.
    ports : tuple of (int, int, int, int)
        Port, when the first and the last hop over it begin, and the share of its rate in 2**-20.
    late_nanoseconds : int
        When the last hop begins.
    end_nanoseconds : int
        When the last byte has arrived.
    """

    busy_nanoseconds: int
    ports: tuple[tuple[int, int, int, int], ...]
    late_nanoseconds: int
    end_nanoseconds: int


class Span(NamedTuple):
    """When a hop is under way.

    Attributes
    ----------
    group, transfer, hop : int
        Which one.
    begin_nanoseconds, end_nanoseconds : int
        From the beginning of the schedule.
    """

    group: int
    transfer: int
    hop: int
    begin_nanoseconds: int
    end_nanoseconds: int


def group_of(problem: Problem, transfers: Sequence[Transfer]) -> Group:
    """Give the group of some transfers, cut into as many rounds as serve it best.

    Parameters
    ----------
    problem : Problem
        The ports.
    transfers : sequence of Transfer
        What goes together.

    Returns
    -------
    Group
        With n rounds the last hop begins a 1/n of the whole later for every hop before it, and
        every round costs something: n is the root of the ratio.
    """
    together = tuple(transfers)
    traffic = traffic_of(problem, together)
    carried = traffic.carried(problem)
    if traffic.arrays is not None:
        whole = _describe_many(problem, traffic.arrays, carried, 1)
    else:
        whole = _describe(problem, traffic, carried, 1)[0]
    busiest = max(carried.values(), default=0)
    rounds = math.isqrt(whole.late_nanoseconds // _ROUND_NANOSECONDS)
    return Group(together, max(1, min(rounds, busiest // LEAST_CHUNK_BYTES)))


def describe_group(problem: Problem, group: Group) -> Shape:
    """Give what a group does to ports.

    Parameters
    ----------
    problem : Problem
        The ports.
    group : Group
        Of the schedule.

    Returns
    -------
    Shape
        Relative to when it begins.
    """
    traffic = traffic_of(problem, group.transfers)
    carried = traffic.carried(problem)
    if traffic.arrays is not None:
        return _describe_many(problem, traffic.arrays, carried, group.rounds)
    return _describe(problem, traffic, carried, group.rounds)[0]


# When a hop begins, and when its last byte has arrived.
_Times: TypeAlias = "tuple[int, int]"


def _describe(
    problem: Problem, traffic: Traffic, carried: Mapping[int, int], rounds: int
) -> tuple[Shape, list[tuple[_Times, ...]]]:
    """Give what some ways do to ports; and for each way, the times of its hops."""
    crossing = problem.crossing
    time = _times_of(problem, carried)
    busy = max(time.values(), default=0)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    of_way = []
    late = end = 0
    for way in traffic.ways:
        at = {way[0][0]: 0}
        found = []
        for source, destination in way:
            ports, latency = crossing(source, destination)
            # A holder that is not the root begins with it.
            begin = at.get(source, 0)
            longest = 0
            for port, _ in ports:
                longest = max(longest, time[port])
                if port not in first:
                    first[port] = last[port] = begin
                elif begin < first[port]:
                    first[port] = begin
                elif begin > last[port]:
                    last[port] = begin
            at[destination] = begin + latency + -(-longest // rounds)
            found.append((begin, begin + busy + latency))
            late = max(late, begin)
            end = max(end, begin + busy + latency)
        of_way.append(tuple(found))
    return Shape(busy, _shares(time, busy, first, last), late, end), of_way


def _describe_many(problem: Problem, ways: Ways, carried: Mapping[int, int], rounds: int) -> Shape:
    """Give the same as `_describe`, of many hops at once."""
    time = _times_of(problem, carried)
    busy = max(time.values(), default=0)
    begins = ways.begins(time, rounds)
    first, last = ways.by_port(begins)
    end = int((begins + ways.latency_nanoseconds[ways.pair]).max(initial=0)) + busy
    late = int(begins.max(initial=0))
    return Shape(busy, _shares(time, busy, first, last), late, end)


def _times_of(problem: Problem, carried: Mapping[int, int]) -> dict[int, int]:
    rates = problem.rates
    return {port: -(-nbytes * _NANOSECONDS // rates[port]) for port, nbytes in carried.items()}


def _shares(
    time: Mapping[int, int], busy: int, first: Mapping[int, int], last: Mapping[int, int]
) -> tuple[tuple[int, int, int, int], ...]:
    return tuple(
        [
            (port, first[port], last[port], time[port] * _WHOLE // busy if busy else 0)
            for port in time
        ]
    )


def _hop_times(problem: Problem, group: Group) -> list[tuple[_Times, ...]]:
    """Give for each transfer of a group the times of its hops, from the group's beginning."""
    traffic = traffic_of(problem, group.transfers)
    of_way = _describe(problem, traffic, traffic.carried(problem), group.rounds)[1]
    known = {id(way): times for way, times in zip(traffic.ways, of_way, strict=True)}
    return [known[id(transfer.hops)] for transfer in group.transfers]


class Clock:
    """Ports as groups take them, one group after the other."""

    def __init__(self) -> None:
        # For each port: when the last group began there, and what is taken until when.
        self._ports: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = {}
        self.end_nanoseconds = 0

    def copy(self) -> Clock:
        """Give a clock that goes on from here by itself."""
        twin = Clock()
        twin._ports = self._ports.copy()
        twin.end_nanoseconds = self.end_nanoseconds
        return twin

    def surely_taken_nanoseconds(self, port: int) -> int:
        """Give a time before which a group that is added later carries nothing over a port."""
        taken = self._ports.get(port)
        if taken is None:
            return 0
        begun, uses = taken
        return max([begun, *(end for end, share in uses if share >= _WHOLE)])

    def start_of(self, shape: Shape, ready_nanoseconds: int = 0) -> int:
        """Give when a group would begin that is added now."""
        start = ready_nanoseconds
        ports = self._ports
        for port, first, _, share in shape.ports:
            taken = ports.get(port)
            if taken is None:
                continue
            begun, uses = taken
            start = max(start, begun - first)
            used = sum([other for end, other in uses if end > start + first])
            if used + share > _WHOLE:
                for end, other in sorted(uses):
                    if end > start + first:
                        start = end - first
                        used -= other
                        if used + share <= _WHOLE:
                            break
        return start

    def add(self, shape: Shape, ready_nanoseconds: int = 0) -> int:
        """Let a group begin as early as it can; give when."""
        start = self.start_of(shape, ready_nanoseconds)
        for port, first, last, share in shape.ports:
            begin = start + first
            taken = self._ports.get(port)
            kept = tuple([use for use in taken[1] if use[0] > begin]) if taken else ()
            use = (start + last + shape.busy_nanoseconds, share)
            self._ports[port] = begin, (*kept, use)
        self.end_nanoseconds = max(self.end_nanoseconds, start + shape.end_nanoseconds)
        return start


def makespan_nanoseconds(problem: Problem, schedule: Schedule) -> int:
    """Give when the last byte of a schedule has arrived.

    Parameters
    ----------
    problem : Problem
        The tasks and ports.
    schedule : Schedule
        What a solver gave.

    Returns
    -------
    int
        In nanoseconds, rounded up.
    """
    return _Run(problem, schedule).end_nanoseconds


def spans(problem: Problem, schedule: Schedule) -> list[Span]:
    """Give when every hop of a schedule is under way.

    Parameters
    ----------
    problem : Problem
        The tasks and ports.
    schedule : Schedule
        What a solver gave.

    Returns
    -------
    list of Span
        In the order of the schedule.
    """
    found = []
    for index, (start, group) in enumerate(_Run(problem, schedule).groups):
        for number, hops in enumerate(_hop_times(problem, group)):
            found += [
                Span(index, number, hop, start + begin, start + end)
                for hop, (begin, end) in enumerate(hops)
            ]
    return found


class _Run:
    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self._problem = problem
        clock = Clock()
        #: When each group begins.
        self.groups: list[tuple[int, Group]] = []
        self._arrivals: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._ends: dict[int, int] = {}
        tracked = any(
            problem.tasks[transfer.task].after or not problem.holds(transfer.task, transfer.root)
            for group in schedule.groups
            for transfer in group.transfers
        )
        for group in schedule.groups:
            shape = describe_group(problem, group)
            start = clock.add(shape, self._ready(group) if tracked else 0)
            self.groups.append((start, group))
            if tracked:
                self._note(group, start)
        self.end_nanoseconds = clock.end_nanoseconds

    def _ready(self, group: Group) -> int:
        ready = 0
        for transfer in group.transfers:
            for before in self._problem.tasks[transfer.task].after:
                ready = max(ready, self._ends.get(before, 0))
            arrived = self._arrivals.get((transfer.task, transfer.root), ())
            for start, stop, when in arrived:
                if start < transfer.stop and transfer.start < stop:
                    ready = max(ready, when)
        return ready

    def _note(self, group: Group, begun: int) -> None:
        times = _hop_times(self._problem, group)
        for transfer, hops in zip(group.transfers, times, strict=True):
            for (_, rank), (_, end) in zip(transfer.hops, hops, strict=True):
                arrival = transfer.start, transfer.stop, begun + end
                self._arrivals.setdefault((transfer.task, rank), []).append(arrival)
            ended = begun + max(end for _, end in hops)
            self._ends[transfer.task] = max(self._ends.get(transfer.task, 0), ended)
