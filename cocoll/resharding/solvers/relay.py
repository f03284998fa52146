"""Whole slices host by host; whoever has received one may send it on.

Good for small slices, whose time is latency: the number of hosts that have a slice doubles with
each message, as in a binomial tree, and each message takes the ports that are free first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.resharding.jobs import chains_of
from cocoll.resharding.makespan import Clock, Shape, describe_group, group_of
from cocoll.resharding.routes import Errand, errands_of, sender_choices
from cocoll.resharding.schedule import Group, Schedule

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem

__all__ = ["pass_on"]

# Of the ranks that have a slice, those who are looked at as senders of its next message.
_MOST_SENDERS = 16


def pass_on(problem: Problem) -> Schedule:
    """Serve the hosts of each task one by one, each from whoever can be done first.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.

    Returns
    -------
    Schedule
        A group for each task and host of needers; the largest tasks first.
    """
    run = _Run(problem)
    order = sorted(
        problem.moving,
        key=lambda number: (not problem.tasks[number].adds, -problem.tasks[number].nbytes, number),
    )
    for number in order:
        task = problem.tasks[number]
        for errand in errands_of(problem, task.holders, task.needers):
            run.serve(number, errand)
    return Schedule("relay", tuple(run.groups))


class _Run:
    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._clock = Clock()
        self._ends: dict[int, int] = {}
        self.groups: list[Group] = []

    def serve(self, number: int, errand: Errand) -> None:
        problem = self._problem
        ready = max([self._ends.get(task, 0) for task in problem.tasks[number].after], default=0)
        having = [(rank, ready) for rank in sender_choices(problem, errand)]
        waiting: dict[int, list[int]] = {}
        for rank in errand.needers:
            waiting.setdefault(problem.hosts[rank], []).append(rank)
        while waiting:
            host, members = next(iter(waiting.items()))
            del waiting[host]
            best: tuple[int, int, int, Group, Shape] | None = None
            for rank, since in having[:_MOST_SENDERS]:
                group = group_of(problem, chains_of(problem, number, rank, members))
                shape = describe_group(problem, group)
                end = max(since, self._clock.start_of(shape, since)) + shape.end_nanoseconds
                if best is None or end < best[0]:
                    best = end, rank, since, group, shape
            assert best is not None
            end, _, since, group, shape = best
            self._clock.add(shape, since)
            self.groups.append(group)
            self._ends[number] = max(self._ends.get(number, 0), end)
            if not errand.local:
                having.append((members[0], end))
