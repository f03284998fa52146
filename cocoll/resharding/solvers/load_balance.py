"""The least loaded sender, in listing order.

References
----------
Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023: its ablation with
balanced sizes and no order. Slices count with their own sizes here, not with those of tiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cocoll.resharding.jobs import Choice, Job, jobs_of, ordered_schedule

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem
    from cocoll.resharding.schedule import Schedule

__all__ = ["balance", "balance_jobs"]


def balance(problem: Problem) -> Schedule:
    """Let the sender with the fewest bytes so far send each task along a chain.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.

    Returns
    -------
    Schedule
        A group for each task, in listing order.
    """
    return ordered_schedule(problem, "load_balance", balance_jobs(jobs_of(problem)))


def balance_jobs(jobs: Iterable[Job]) -> list[tuple[Job, Choice]]:
    """Choose a sender for each job in turn, the one whose port has the fewest bytes so far.

    Parameters
    ----------
    jobs : iterable of Job
        In the order in which they are served.
    """
    loads: dict[int, int] = {}
    chosen = []
    for job in jobs:
        choice = min(job.choices, key=lambda choice: loads.get(choice.port, 0))
        loads[choice.port] = loads.get(choice.port, 0) + job.nbytes
        chosen.append((job, choice))
    return chosen
