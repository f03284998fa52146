"""Rounds of tasks that share no port, each the largest of some random ones; seeded.

References
----------
Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 3.2 (its
randomized greedy order; ports instead of hosts, and slices instead of tiles, here).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cocoll.resharding.jobs import Choice, Job, jobs_of, ordered_schedule

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem
    from cocoll.resharding.schedule import Schedule

__all__ = ["draw_greedily", "draw_jobs"]

# Orders that are drawn for a round: fewer where there are many jobs, and many rounds.
_MOST_TRIALS = 100
_MOST_DRAWN = 2000
_FEWEST_TRIALS = 8


def draw_greedily(problem: Problem, *, trials: int | None = None, seed: int = 0) -> Schedule:
    """Fill rounds with tasks that share no busy port, and let the rounds follow each other.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.
    trials : int, optional
        Random orders for each round. Default: 100, fewer for more than 20 tasks, at least 8.
    seed : int, default 0
        Of the random numbers; the same seed gives the same schedule.

    Returns
    -------
    Schedule
        A group for each task.
    """
    jobs = jobs_of(problem)
    if trials is None:
        trials = max(_FEWEST_TRIALS, min(_MOST_TRIALS, _MOST_DRAWN // max(1, len(jobs))))
    chosen = draw_jobs(jobs, trials, seed)
    return ordered_schedule(problem, "randomized_greedy", chosen)


def draw_jobs(jobs: Sequence[Job], trials: int, seed: int) -> list[tuple[Job, Choice]]:
    """Give all jobs round by round, each with its sender.

    Parameters
    ----------
    jobs : sequence of Job
        What is to be ordered.
    trials : int
        Random orders for each round.
    seed : int
        Of the random numbers.
    """
    generator = random.Random(seed)
    left = list(range(len(jobs)))
    loads: dict[int, int] = {choice.port: 0 for job in jobs for choice in job.choices}
    found: list[tuple[Job, Choice]] = []
    while left:
        best: list[tuple[int, Choice]] = []
        best_spread = -1
        for _ in range(trials):
            # `random` is the same in every version of Python; `shuffle` need not be.
            order = sorted([(generator.random(), number) for number in left])
            now = loads.copy()
            drawn = _draw_round(jobs, [number for _, number in order], now, generator)
            if len(drawn) < len(best):
                continue
            spread = max(now.values()) - min(now.values())
            if len(drawn) > len(best) or spread < best_spread:
                best, best_spread = drawn, spread
            if len(best) == len(left):
                break
        taken = set()
        for number, choice in best:
            loads[choice.port] += jobs[number].nbytes
            taken.add(number)
            found.append((jobs[number], choice))
        left = [number for number in left if number not in taken]
    return found


def _draw_round(
    jobs: Sequence[Job], order: Sequence[int], loads: dict[int, int], generator: random.Random
) -> list[tuple[int, Choice]]:
    room: dict[int, int] = {}
    drawn = []
    for number in order:
        job = jobs[number]
        fitting = [choice for choice in job.choices if _fits(choice, room)]
        if not fitting:
            continue
        choice = _draw_sender(fitting, loads, generator)
        for port, _, _, share in choice.shape.ports:
            room[port] = room.get(port, _WHOLE) - share
        loads[choice.port] += job.nbytes
        drawn.append((number, choice))
    return drawn


_WHOLE = 1 << 20


def _fits(choice: Choice, room: dict[int, int]) -> bool:
    return all(room.get(port, _WHOLE) >= share for port, _, _, share in choice.shape.ports)


def _draw_sender(
    choices: Sequence[Choice], loads: dict[int, int], generator: random.Random
) -> Choice:
    """Draw a sender; the fewer bytes it has sent, the more likely."""
    if len(choices) == 1:
        return choices[0]
    most = max(loads[choice.port] for choice in choices)
    weights = [most - loads[choice.port] + 1 for choice in choices]
    at = generator.random() * sum(weights)
    for choice, weight in zip(choices, weights, strict=True):
        at -= weight
        if at < 0:
            return choice
    return choices[-1]
