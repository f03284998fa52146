"""Solvers, one a file: each turns a problem into a schedule, the same one every time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from cocoll.errors import UsageError
from cocoll.resharding.bounds import Bound
from cocoll.resharding.problem import Problem
from cocoll.resharding.schedule import Schedule
from cocoll.resharding.solvers.auto import choose_best
from cocoll.resharding.solvers.dfs import search
from cocoll.resharding.solvers.exact import solve_exactly
from cocoll.resharding.solvers.fan_out import send_straight
from cocoll.resharding.solvers.leader_ring import pass_round
from cocoll.resharding.solvers.load_balance import balance
from cocoll.resharding.solvers.naive import take_first
from cocoll.resharding.solvers.randomized_greedy import draw_greedily
from cocoll.resharding.solvers.relay import pass_on
from cocoll.resharding.solvers.strategies import (
    broadcast_in_order,
    gather_globally,
    gather_locally,
    send_each,
)
from cocoll.resharding.solvers.striped import stripe

__all__ = ["SOLVERS", "Solver", "solver_named"]

#: Gives a schedule of a problem, whose lower bound it is told.
Solver: TypeAlias = Callable[[Problem, Bound], Schedule]

#: By name: ``auto`` first, then solvers, then the strategies that they are compared with.
SOLVERS: Mapping[str, Solver] = {
    "auto": choose_best,
    "striped": lambda problem, bound: stripe(problem, bound.nanoseconds),
    "fan_out": lambda problem, _: send_straight(problem),
    "relay": lambda problem, _: pass_on(problem),
    "leader_ring": lambda problem, _: pass_round(problem),
    "exact": lambda problem, _: solve_exactly(problem),
    "dfs": lambda problem, bound: search(problem, goal_nanoseconds=bound.nanoseconds),
    "randomized_greedy": lambda problem, _: draw_greedily(problem),
    "load_balance": lambda problem, _: balance(problem),
    "naive": lambda problem, _: take_first(problem),
    "broadcast": lambda problem, _: broadcast_in_order(problem),
    "send_recv_allgather": lambda problem, _: gather_locally(problem),
    "global_allgather": lambda problem, _: gather_globally(problem),
    "send_recv": lambda problem, _: send_each(problem),
}


def solver_named(name: str) -> Solver:
    """Give the solver of a name.

    Raises
    ------
    UsageError
        There is none.
    """
    found = SOLVERS.get(name)
    if found is None:
        raise UsageError(f"wanted a solver out of {', '.join(SOLVERS)}; got {name!r}")
    return found
