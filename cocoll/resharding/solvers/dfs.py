"""The best order and senders of whole slices, by depth-first search with a bound.

What remains after a partial order is bounded by its ports: each must still carry what surely
crosses it. The bound never exceeds what is possible, so nothing better is cut off. (The search of
[1]_ estimates greedily and may miss the best.)

References
----------
.. [1] Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section
   3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cocoll.resharding.jobs import Choice, Job, jobs_of, ordered_schedule
from cocoll.resharding.makespan import Clock, makespan_nanoseconds
from cocoll.resharding.solvers.load_balance import balance_jobs
from cocoll.resharding.solvers.randomized_greedy import draw_jobs

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem
    from cocoll.resharding.schedule import Schedule

__all__ = ["search"]

#: Partial orders that are looked at.
NODES = 4_000


def search(problem: Problem, *, nodes: int = NODES, goal_nanoseconds: int = 0) -> Schedule:
    """Search orders and senders; the best where it ends before its limit.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.
    nodes : int, default NODES
        How many partial orders are looked at.
    goal_nanoseconds : int, default 0
        A makespan that is good enough.

    Returns
    -------
    Schedule
        A group for each task and host of holders.
    """
    jobs = jobs_of(problem)
    firsts = [
        balance_jobs(jobs),
        balance_jobs(sorted(jobs, key=lambda job: (len(job.choices), -job.nbytes))),
        draw_jobs(jobs, 8, 0),
    ]
    candidates = [ordered_schedule(problem, "dfs", chosen) for chosen in firsts]
    times = [makespan_nanoseconds(problem, schedule) for schedule in candidates]
    best = times.index(min(times))
    staged = any(problem.tasks[number].adds for number in problem.moving)
    if staged or times[best] <= goal_nanoseconds or not jobs:
        return candidates[best]
    run = _Search(jobs, nodes, goal_nanoseconds, times[best])
    run.descend(Clock(), tuple(range(len(jobs))))
    return ordered_schedule(problem, "dfs", run.best) if run.best else candidates[best]


class _Search:
    def __init__(self, jobs: Sequence[Job], nodes: int, goal: int, limit: int) -> None:
        self._jobs = jobs
        self._nodes = nodes
        self._goal = goal
        self.limit = limit
        self.best: list[tuple[Job, Choice]] = []
        self._chosen: list[tuple[Job, Choice]] = []
        self._surely = [_sure_loads(job) for job in jobs]
        # What comes after the last byte has crossed whichever port, at least.
        self._latency = min(
            choice.shape.end_nanoseconds - choice.shape.busy_nanoseconds - first
            for job in jobs
            for choice in job.choices
            for _, first, _, _ in choice.shape.ports
        )
        # Jobs that nothing tells apart are taken in their order.
        kinds: dict[object, int] = {}
        self._before = [-1] * len(jobs)
        for number, job in enumerate(jobs):
            key = job.errand, job.nbytes
            self._before[number] = kinds.get(key, -1)
            kinds[key] = number

    def descend(self, clock: Clock, left: tuple[int, ...]) -> None:
        if not left:
            if clock.end_nanoseconds < self.limit:
                self.limit = clock.end_nanoseconds
                self.best = list(self._chosen)
            return
        branches = []
        waiting = set(left)
        for number in left:
            if self._before[number] in waiting:
                continue
            rest = tuple([other for other in left if other != number])
            for index, choice in enumerate(self._jobs[number].choices):
                if self._nodes <= 0:
                    return
                self._nodes -= 1
                twin = clock.copy()
                start = twin.add(choice.shape)
                bound = self._bound(twin, rest)
                if bound < self.limit:
                    branches.append((bound, start, number, index, twin, rest))
        branches.sort(key=lambda branch: branch[:4])
        for bound, _, number, index, twin, rest in branches:
            if bound >= self.limit or self.limit <= self._goal or self._nodes <= 0:
                return
            job = self._jobs[number]
            self._chosen.append((job, job.choices[index]))
            self.descend(twin, rest)
            self._chosen.pop()

    def _bound(self, clock: Clock, left: Sequence[int]) -> int:
        bound = clock.end_nanoseconds
        loads: dict[int, int] = {}
        for number in left:
            for port, time in self._surely[number]:
                loads[port] = loads.get(port, 0) + time
        for port, time in loads.items():
            bound = max(bound, clock.surely_taken_nanoseconds(port) + time + self._latency)
        return bound


def _sure_loads(job: Job) -> list[tuple[int, int]]:
    """Give the ports that every choice of a job keeps busy, and for how long at least."""
    least: dict[int, int] = {}
    for index, choice in enumerate(job.choices):
        times = {
            port: choice.shape.busy_nanoseconds * share >> 20
            for port, _, _, share in choice.shape.ports
        }
        if index == 0:
            least = times
        else:
            least = {port: min(time, times[port]) for port, time in least.items() if port in times}
    return list(least.items())
