"""What others do, to compare with: point to point, with all-gathers, and ordered broadcasts.

References
----------
Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 3.1: a
slice to A hosts of B needers each takes A B t point to point, A t with an all-gather in each host,
about 2 t with one over all, and t with a pipelined broadcast.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cocoll.resharding.jobs import jobs_of, ordered_schedule
from cocoll.resharding.makespan import group_of, makespan_nanoseconds
from cocoll.resharding.routes import Errand, errands_of, sender_choices
from cocoll.resharding.schedule import Schedule, Transfer
from cocoll.resharding.solvers.dfs import search
from cocoll.resharding.solvers.load_balance import balance_jobs
from cocoll.resharding.solvers.randomized_greedy import draw_greedily

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem

__all__ = ["broadcast_in_order", "gather_globally", "gather_locally", "send_each"]


def send_each(problem: Problem) -> Schedule:
    """Send every needer its own copy, from the least loaded holder; all at once.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.

    Returns
    -------
    Schedule
        One group; two where summands are added first.
    """
    loads: dict[int, int] = {}
    stages: tuple[list[Transfer], list[Transfer]] = ([], [])
    for number in problem.moving:
        task = problem.tasks[number]
        for errand in errands_of(problem, task.holders, task.needers):
            for needer in errand.needers:
                sender = _least_loaded(problem, errand, loads, task.nbytes)
                transfer = Transfer(number, 0, task.nbytes, ((sender, needer),))
                stages[0 if task.adds else 1].append(transfer)
    return _schedule(problem, "send_recv", stages)


def gather_locally(problem: Problem) -> Schedule:
    """Send each host a slice once, divided over its needers, who then all-gather it in the host.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.

    Returns
    -------
    Schedule
        A group that sends and a group that gathers.
    """
    return _gather(problem, "send_recv_allgather", by_host=True)


def gather_globally(problem: Problem) -> Schedule:
    """Send a slice once, divided over all its needers, who then all-gather it over all hosts.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.

    Returns
    -------
    Schedule
        A group that sends and a group that gathers.
    """
    return _gather(problem, "global_allgather", by_host=False)


def broadcast_in_order(problem: Problem) -> Schedule:
    """Broadcast whole slices along chains, in the best order that is known for them.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.

    Returns
    -------
    Schedule
        The best of the searched, the drawn and the balanced order.
    """
    candidates = [
        ordered_schedule(problem, "broadcast", balance_jobs(jobs_of(problem))),
        draw_greedily(problem),
    ]
    if len(problem.moving) <= 12:
        candidates.append(search(problem))
    best = min(candidates, key=lambda schedule: makespan_nanoseconds(problem, schedule))
    return Schedule("broadcast", best.groups)


def _least_loaded(problem: Problem, errand: Errand, loads: dict[int, int], nbytes: int) -> int:
    sender = min(sender_choices(problem, errand), key=lambda rank: loads.get(rank, 0))
    loads[sender] = loads.get(sender, 0) + nbytes
    return sender


def _gather(problem: Problem, solver: str, *, by_host: bool) -> Schedule:
    loads: dict[int, int] = {}
    added: list[Transfer] = []
    sent: list[Transfer] = []
    gathered: list[Transfer] = []
    for number in problem.moving:
        task = problem.tasks[number]
        for errand in errands_of(problem, task.holders, task.needers):
            teams: dict[int, list[int]] = {}
            for rank in errand.needers:
                teams.setdefault(problem.hosts[rank] if by_host else 0, []).append(rank)
            for ranks in teams.values():
                sender = _least_loaded(problem, errand, loads, task.nbytes)
                for place, (start, stop) in enumerate(_parts(problem, number, len(ranks))):
                    piece = Transfer(number, start, stop, ((sender, ranks[place]),))
                    (added if task.adds else sent).append(piece)
                    ring = (*ranks[place:], *ranks[:place])
                    if len(ranks) > 1:
                        hops = tuple(itertools.pairwise(ring))
                        gathered.append(Transfer(number, start, stop, hops))
    return _schedule(problem, solver, (added, sent, gathered))


def _parts(problem: Problem, number: int, count: int) -> list[tuple[int, int]]:
    nbytes, grain = problem.tasks[number].nbytes, problem.grain_bytes(number)
    step = -(-nbytes // (count * grain)) * grain
    return [(start, min(nbytes, start + step)) for start in range(0, nbytes, step)]


def _schedule(problem: Problem, solver: str, stages: Sequence[Sequence[Transfer]]) -> Schedule:
    return Schedule(solver, tuple(group_of(problem, stage) for stage in stages if stage))
