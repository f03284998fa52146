"""Schedules: who sends which stripe of which task along which way, and in which order.

A *transfer* takes a range of a task's bytes from a rank that has them along a tree of hops; every
rank passes chunks on as soon as they come. The transfers of a *group* go together, each at a rate
proportional to its size, so that all end at once: a group is cut into rounds, and each round moves
one chunk of every transfer. Groups that share a port follow each other there, in the order of the
schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cocoll.errors import ScheduleError
from cocoll.resharding.ways import traffic_of

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem

__all__ = [
    "LEAST_CHUNK_BYTES",
    "Group",
    "Hop",
    "Schedule",
    "Transfer",
    "check_schedule",
    "port_bytes",
]

#: What cutting makes no chunk smaller than.
LEAST_CHUNK_BYTES = 4 << 10

#: From one rank to another.
Hop: TypeAlias = "tuple[int, int]"


class Transfer(NamedTuple):
    """A stripe of one task on its way to some ranks.

    Attributes
    ----------
    task : int
        Its number.
    start, stop : int
        Which of the task's bytes, counted in row-major order of its box.
    hops : tuple of (int, int)
        Source and destination of each: from a rank that has the stripe before, as the first hop's
        source does, or from one that an earlier hop leads to.
    """

    task: int
    start: int
    stop: int
    hops: tuple[Hop, ...]

    @property
    def root(self) -> int:
        """The rank that has the stripe."""
        return self.hops[0][0]


class Group(NamedTuple):
    """Transfers that go together.

    Attributes
    ----------
    transfers : tuple of Transfer
        At least one.
    rounds : int
        How many chunks the larger ones are cut into; see `chunks_of`.
    """

    transfers: tuple[Transfer, ...]
    rounds: int

    def chunks_of(self, transfer: Transfer) -> int:
        """Give how many chunks a transfer is cut into.

        No chunk is made smaller than `LEAST_CHUNK_BYTES` by cutting: a small transfer has fewer
        chunks, spread over the rounds.
        """
        return max(1, min(self.rounds, (transfer.stop - transfer.start) // LEAST_CHUNK_BYTES))


@dataclass(frozen=True)
class Schedule:
    """What a solver gives.

    Attributes
    ----------
    solver : str
        Whose it is.
    groups : tuple of Group
        In order.
    makespan_nanoseconds : int, optional
        Where the solver has worked it out.
    """

    solver: str
    groups: tuple[Group, ...]
    makespan_nanoseconds: int | None = field(default=None, compare=False)

    @property
    def transfers(self) -> int:
        """How many transfers there are."""
        return sum(len(group.transfers) for group in self.groups)

    @property
    def messages(self) -> int:
        """How many chunks are sent, over all hops."""
        return sum(
            group.chunks_of(transfer) * len(transfer.hops)
            for group in self.groups
            for transfer in group.transfers
        )


def port_bytes(problem: Problem, groups: Iterable[Group]) -> dict[int, int]:
    """Give the bytes that cross each port, by its number.

    Parameters
    ----------
    problem : Problem
        The ports.
    groups : iterable of Group
        What moves.

    Returns
    -------
    dict of int to int
        Ports that carry something; a copy inside a memory counts twice there.
    """
    carried: defaultdict[int, int] = defaultdict(int)
    for group in groups:
        for port, nbytes in traffic_of(problem, group.transfers).carried(problem).items():
            carried[port] += nbytes
    return dict(carried)


def check_schedule(problem: Problem, schedule: Schedule) -> None:
    """Check that every needer gets each byte once, from a rank that has it by then.

    Parameters
    ----------
    problem : Problem
        The tasks.
    schedule : Schedule
        What a solver gave.

    Raises
    ------
    ScheduleError
        It does not; the message names solver, group, task and rank.
    """
    seen: defaultdict[int, list[_Arrival]] = defaultdict(list)
    left = [_owed(problem, number) for number in range(len(problem.tasks))]
    # Many transfers take one way; it is looked at once for each set of holders and needers.
    reached: dict[tuple[int, int, bool], _Reach] = {}
    kinds = problem.kinds
    for index, group in enumerate(schedule.groups):
        where = f"{schedule.solver}, group {index}"
        if not group.transfers or group.rounds < 1:
            raise ScheduleError(f"{where}: wanted transfers and rounds; got {group}")
        new = []
        for transfer in group.transfers:
            task = problem.tasks[transfer.task]
            if not 0 <= transfer.start < transfer.stop <= task.nbytes or not transfer.hops:
                raise ScheduleError(
                    f"{where}, task {transfer.task}: wanted hops for some of {task.nbytes} bytes; "
                    f"got {transfer.start}:{transfer.stop} over {len(transfer.hops)} hops"
                )
            ready = not task.after or not any(left[before] for before in task.after)
            key = id(transfer.hops), kinds[transfer.task], ready
            reach = reached.get(key)
            if not (reach.begins_with_it if reach else _begins(problem, transfer, ready=ready)):
                _check_root(seen[transfer.task], transfer, where)
            if reach is None:
                reach = reached[key] = _reach(problem, transfer, where, ready=ready)
            new.append((transfer, reach))
        for transfer, reach in new:
            seen[transfer.task].append((transfer.start, transfer.stop, reach.ranks))
            left[transfer.task] -= reach.needers * (transfer.stop - transfer.start)
    for number, arrivals in seen.items():
        _check_once(schedule.solver, number, arrivals)
    for number in problem.moving:
        if left[number]:
            raise ScheduleError(
                f"{schedule.solver}: {left[number]} bytes of task {number} do not reach all of "
                f"the ranks {problem.tasks[number].needers}"
            )


# A range of a task's bytes, and the ranks that it comes to.
_Arrival: TypeAlias = "tuple[int, int, frozenset[int]]"


def _owed(problem: Problem, number: int) -> int:
    task = problem.tasks[number]
    return task.nbytes * len(task.needers)


class _Reach(NamedTuple):
    """The ranks that a way leads to, how many need it, and whether its root has it by itself."""

    ranks: frozenset[int]
    needers: int
    begins_with_it: bool


def _begins(problem: Problem, transfer: Transfer, *, ready: bool) -> bool:
    return ready and problem.holds(transfer.task, transfer.root)


def _reach(problem: Problem, transfer: Transfer, where: str, *, ready: bool) -> _Reach:
    """Follow the hops of a transfer."""
    holders = problem.holders_of(transfer.task)
    first: frozenset[int] = holders if ready else frozenset()
    having = {transfer.root}
    for source, destination in transfer.hops:
        if source not in having and source not in first:
            raise ScheduleError(
                f"{where}, task {transfer.task}: rank {source} passes on what it does not receive"
            )
        if destination in having or destination in holders:
            raise ScheduleError(
                f"{where}, task {transfer.task}: rank {destination} receives what it has"
            )
        having.add(destination)
    ranks = frozenset([destination for _, destination in transfer.hops])
    needers = len(ranks & problem.needers_of(transfer.task))
    return _Reach(ranks, needers, _begins(problem, transfer, ready=ready))


def _check_root(arrivals: Sequence[_Arrival], transfer: Transfer, where: str) -> None:
    """Check that a rank that is no holder has got before what it sends."""
    reached = transfer.start
    for start, stop, ranks in sorted(arrivals, key=lambda arrival: arrival[:2]):
        if transfer.root in ranks and start <= reached:
            reached = max(reached, stop)
    if reached < transfer.stop:
        raise ScheduleError(
            f"{where}, task {transfer.task}: rank {transfer.root} sends bytes "
            f"{transfer.start}:{transfer.stop} before it has them"
        )


def _check_once(solver: str, number: int, arrivals: list[_Arrival]) -> None:
    """Check that no rank gets a byte of a task twice."""
    arrivals.sort(key=lambda arrival: arrival[:2])
    for place, (_, stop, ranks) in enumerate(arrivals):
        for start, end, others in arrivals[place + 1 :]:
            if start >= stop:
                break
            for rank in sorted(ranks & others):
                raise ScheduleError(
                    f"{solver}: rank {rank} gets bytes {start}:{min(stop, end)} of task {number} "
                    "twice"
                )
