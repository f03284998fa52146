"""What solvers that never divide a slice decide about: who sends each errand, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cocoll.resharding.makespan import Shape, describe_group, group_of
from cocoll.resharding.routes import Errand, chain_hops, errands_of, sender_choices
from cocoll.resharding.schedule import Group, Schedule, Transfer

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem

__all__ = ["Choice", "Job", "chains_of", "jobs_of", "ordered_schedule", "sending_port"]


class Choice(NamedTuple):
    """A chain that serves an errand.

    Attributes
    ----------
    sender : int
        Its first rank.
    port : int
        What the sender sends by first, as `sending_port` gives it.
    group : Group
        The chain.
    shape : Shape
        What it does to ports.
    """

    sender: int
    port: int
    group: Group
    shape: Shape


class Job(NamedTuple):
    """An errand of a task, with the chains that could serve it.

    Attributes
    ----------
    task : int
        Its number.
    errand : Errand
        Who must get it.
    nbytes : int
        Of the task.
    choices : tuple of Choice
        Senders that differ in their ports.
    """

    task: int
    errand: Errand
    nbytes: int
    choices: tuple[Choice, ...]


def sending_port(problem: Problem, sender: int, needer: int) -> int:
    """Give the first port that bytes cross from one rank to another."""
    return problem.crossing(sender, needer).ports[0][0]


def jobs_of(problem: Problem) -> list[Job]:
    """Give all errands of all tasks, in listing order.

    Parameters
    ----------
    problem : Problem
        The tasks.
    """
    jobs = []
    for number in problem.moving:
        task = problem.tasks[number]
        for errand in errands_of(problem, task.holders, task.needers):
            choices = []
            for sender in sender_choices(problem, errand):
                group = group_of(problem, chains_of(problem, number, sender, errand.needers))
                port = sending_port(problem, sender, errand.needers[0])
                choices.append(Choice(sender, port, group, describe_group(problem, group)))
            jobs.append(Job(number, errand, task.nbytes, tuple(choices)))
    return jobs


def chains_of(
    problem: Problem, task: int, sender: int, needers: Sequence[int]
) -> tuple[Transfer, ...]:
    """Give the one transfer of a whole slice along a chain."""
    hops = chain_hops(problem, sender, needers)
    return (Transfer(task, 0, problem.tasks[task].nbytes, hops),)


def ordered_schedule(
    problem: Problem, solver: str, chosen: Sequence[tuple[Job, Choice]]
) -> Schedule:
    """Give the schedule of jobs in an order, those that add summands first.

    Parameters
    ----------
    problem : Problem
        The tasks.
    solver : str
        Whose it is.
    chosen : sequence of (Job, Choice)
        In order.
    """
    first = [choice.group for job, choice in chosen if problem.tasks[job.task].adds]
    then = [choice.group for job, choice in chosen if not problem.tasks[job.task].adds]
    return Schedule(solver, (*first, *then))
