"""Schedules: who sends which stripe of which task along which way, and in which order.

A *transfer* takes a range of a task's bytes from a rank that has them along a tree of hops; every
rank passes chunks on as soon as they come. The transfers of a *group* go together, each at a rate
proportional to its size, so that all end at once: a group is cut into rounds, and each round moves
one chunk of every transfer. Groups that share a port follow each other there, in the order of the
schedule.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cocoll.errors import ScheduleError

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem

__all__ = ["Group", "Hop", "Schedule", "Transfer", "check_schedule", "port_bytes"]

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
        How many chunks each is cut into.
    """

    transfers: tuple[Transfer, ...]
    rounds: int


@dataclass(frozen=True)
class Schedule:
    """What a solver gives.

    Attributes
    ----------
    solver : str
        Whose it is.
    groups : tuple of Group
        In order.
    """

    solver: str
    groups: tuple[Group, ...]

    @property
    def transfers(self) -> int:
        """How many transfers there are."""
        return sum(len(group.transfers) for group in self.groups)

    @property
    def messages(self) -> int:
        """How many chunks are sent, over all hops."""
        return sum(
            group.rounds * len(transfer.hops)
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
        for transfer in group.transfers:
            nbytes = transfer.stop - transfer.start
            for source, destination in transfer.hops:
                for port, times in problem.crossing(source, destination).ports:
                    carried[port] += times * nbytes
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
    arrived: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    left = [_owed(problem, number) for number in range(len(problem.tasks))]
    for index, group in enumerate(schedule.groups):
        where = f"{schedule.solver}, group {index}"
        if not group.transfers or group.rounds < 1:
            raise ScheduleError(f"{where}: wanted transfers and rounds; got {group}")
        new = []
        for transfer in group.transfers:
            _check_transfer(problem, transfer, where, arrived, left)
            new += [(transfer, destination) for _, destination in transfer.hops]
        for transfer, rank in new:
            task = problem.tasks[transfer.task]
            arrived[transfer.task, rank].append((transfer.start, transfer.stop))
            if rank in task.needers:
                left[transfer.task] -= transfer.stop - transfer.start
    for (number, rank), ranges in arrived.items():
        ranges.sort()
        for (_, stop), (start, _) in itertools.pairwise(ranges):
            if start < stop:
                raise ScheduleError(
                    f"{schedule.solver}: rank {rank} gets bytes {start}:{stop} of task {number} "
                    "twice"
                )
    for number in problem.moving:
        if left[number]:
            raise ScheduleError(
                f"{schedule.solver}: {left[number]} bytes of task {number} do not reach all of "
                f"the ranks {problem.tasks[number].needers}"
            )


def _owed(problem: Problem, number: int) -> int:
    task = problem.tasks[number]
    return task.nbytes * len(task.needers)


def _check_transfer(
    problem: Problem,
    transfer: Transfer,
    where: str,
    arrived: dict[tuple[int, int], list[tuple[int, int]]],
    left: Sequence[int],
) -> None:
    task = problem.tasks[transfer.task]
    where = f"{where}, task {transfer.task}"
    if not 0 <= transfer.start < transfer.stop <= task.nbytes or not transfer.hops:
        raise ScheduleError(
            f"{where}: wanted hops for some of {task.nbytes} bytes; got "
            f"{transfer.start}:{transfer.stop} over {len(transfer.hops)} hops"
        )
    root = transfer.root
    ready = problem.holds(transfer.task, root) and not any(left[before] for before in task.after)
    if not ready and not _covered(arrived.get((transfer.task, root), []), transfer):
        raise ScheduleError(
            f"{where}: rank {root} sends bytes {transfer.start}:{transfer.stop} before it has them"
        )
    having = {root}
    for source, destination in transfer.hops:
        if source not in having and not (ready and problem.holds(transfer.task, source)):
            raise ScheduleError(f"{where}: rank {source} passes on what it does not receive")
        if destination in having or problem.holds(transfer.task, destination):
            raise ScheduleError(f"{where}: rank {destination} receives what it has")
        having.add(destination)


def _covered(ranges: Sequence[tuple[int, int]], transfer: Transfer) -> bool:
    reached = transfer.start
    for start, stop in sorted(ranges):
        if start <= reached:
            reached = max(reached, stop)
    return reached >= transfer.stop
