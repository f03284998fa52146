"""The first holder sends, in listing order: what everything else is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.resharding.jobs import chains_of
from cocoll.resharding.makespan import group_of
from cocoll.resharding.schedule import Group, Schedule

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem

__all__ = ["take_first"]


def take_first(problem: Problem) -> Schedule:
    """Let the first holder of each task send it along a chain, one task after the other.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.

    Returns
    -------
    Schedule
        A group for each task.
    """
    groups: list[Group] = []
    for number in sorted(problem.moving, key=lambda number: not problem.tasks[number].adds):
        task = problem.tasks[number]
        groups.append(group_of(problem, chains_of(problem, number, task.holders[0], task.needers)))
    return Schedule("naive", tuple(groups))
