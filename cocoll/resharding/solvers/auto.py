"""The best of what the solvers give, by the makespan of each; stops where nothing can be gained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from cocoll.resharding.makespan import makespan_nanoseconds
from cocoll.resharding.solvers.dfs import search
from cocoll.resharding.solvers.fan_out import send_straight
from cocoll.resharding.solvers.leader_ring import pass_round
from cocoll.resharding.solvers.load_balance import balance
from cocoll.resharding.solvers.naive import take_first
from cocoll.resharding.solvers.randomized_greedy import draw_greedily
from cocoll.resharding.solvers.relay import pass_on
from cocoll.resharding.solvers.strategies import gather_globally, gather_locally, send_each
from cocoll.resharding.solvers.striped import stripe

if TYPE_CHECKING:
    from cocoll.resharding.bounds import Bound
    from cocoll.resharding.problem import Problem
    from cocoll.resharding.schedule import Schedule

__all__ = ["GOOD_ENOUGH", "choose_best"]

#: A makespan this near to the lower bound ends the search.
GOOD_ENOUGH = 1.002

# Beyond this many tasks a search among whole slices takes longer than what it finds saves.
_MOST_TRIED = 256
# Beyond this the solvers that do not divide slices are not asked.
_MOST_HOPS = 20_000


def choose_best(problem: Problem, bound: Bound) -> Schedule:
    """Give the schedule with the least makespan of all solvers'.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.
    bound : Bound
        A lower bound; within `GOOD_ENOUGH` of it no other solver is asked.

    Returns
    -------
    Schedule
        With the name of the solver that it comes from.
    """
    best, shortest = None, 0
    for solve in _attempts(problem, bound):
        schedule = solve()
        makespan = makespan_nanoseconds(problem, schedule)
        if best is None or makespan < shortest:
            best, shortest = schedule, makespan
        if shortest <= bound.nanoseconds * GOOD_ENOUGH:
            break
    assert best is not None
    return replace(best, makespan_nanoseconds=shortest)


def _attempts(problem: Problem, bound: Bound) -> Iterator[Callable[[], Schedule]]:
    # Whole slices first: where their order alone fills the ports, fewer messages do, and where
    # nobody passes anything on, nobody waits for that.
    if len(problem.moving) <= _MOST_TRIED:
        yield lambda: balance(problem)
    hops = sum(len(problem.tasks[number].needers) for number in problem.moving)
    if hops <= _MOST_HOPS:
        yield lambda: send_straight(problem)
    yield lambda: stripe(problem, bound.nanoseconds)
    if hops > _MOST_HOPS:
        return
    yield lambda: send_each(problem)
    yield lambda: pass_round(problem)
    yield lambda: pass_on(problem)
    yield lambda: gather_locally(problem)
    yield lambda: gather_globally(problem)
    yield lambda: take_first(problem)
    if len(problem.moving) <= _MOST_TRIED:
        yield lambda: draw_greedily(problem)
        goal = int(bound.nanoseconds * GOOD_ENOUGH)
        yield lambda: search(problem, goal_nanoseconds=goal)
