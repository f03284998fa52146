"""The best order and senders of whole slices, by mixed-integer programming.

The disjunctive formulation of scheduling: a start for each chain, an order for each pair that
cannot share a port, a sender for each task [1]_. HiGHS stops by nodes, never by time, so that the
result is the same wherever it runs.

References
----------
.. [1] A. Manne, "On the job-shop scheduling problem", Operations Research 8(2), 1960.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cocoll.errors import UnsupportedError
from cocoll.resharding.jobs import Job, jobs_of, ordered_schedule
from cocoll.resharding.makespan import makespan_nanoseconds
from cocoll.resharding.solvers.load_balance import balance_jobs

if TYPE_CHECKING:
    from cocoll.resharding.makespan import Shape
    from cocoll.resharding.problem import Problem
    from cocoll.resharding.schedule import Schedule

__all__ = ["MOST_JOBS", "solve_exactly"]

#: Beyond this many chains the search takes minutes.
MOST_JOBS = 8
NODES = 5_000
_WHOLE = 1 << 20
# What times are counted in, in terms of the longest chain. HiGHS gives up some models for reasons
# of its own ("solve error") that it solves with other numbers or without its presolve.
_UNITS = (1.0, 0.3, 0.07)


def solve_exactly(problem: Problem, *, nodes: int = NODES) -> Schedule:
    """Give the best schedule of whole slices along chains.

    Parameters
    ----------
    problem : Problem
        Tasks and ports; at most `MOST_JOBS` tasks, without partial sums.
    nodes : int, default NODES
        How many nodes HiGHS looks at.

    Returns
    -------
    Schedule
        A group for each task and host of holders.

    Raises
    ------
    UnsupportedError
        There are too many tasks or partial sums, SciPy is missing, or the nodes are used up before
        anything is found.
    """
    jobs = jobs_of(problem)
    if len(jobs) > MOST_JOBS or any(problem.tasks[job.task].adds for job in jobs):
        raise UnsupportedError(
            f"the exact solver takes at most {MOST_JOBS} tasks without partial sums; got "
            f"{len(jobs)}: take dfs or auto"
        )
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            "the exact solver needs SciPy: pip install cocoll[plan], or take dfs or auto"
        ) from None
    if len(jobs) < 2 and all(len(job.choices) == 1 for job in jobs):
        return ordered_schedule(problem, "exact", balance_jobs(jobs))
    known = makespan_nanoseconds(problem, ordered_schedule(problem, "exact", balance_jobs(jobs)))
    for scale, presolve in itertools.product(_UNITS, (True, False)):
        model = _Model(jobs, known, scale)
        found = _solve(model, len(jobs), {"node_limit": nodes, "presolve": presolve})
        if found is not None:
            break
    else:
        raise UnsupportedError(f"the exact solver found nothing within {nodes} nodes: take dfs")
    starts = [float(value) for value in found[: len(jobs)]]
    chosen = []
    for _, number in sorted((start, number) for number, start in enumerate(starts)):
        job = jobs[number]
        taken = [float(found[model.sender(number, choice)]) for choice in range(len(job.choices))]
        chosen.append((job, job.choices[taken.index(max(taken))]))
    return ordered_schedule(problem, "exact", chosen)


def _solve(model: _Model, jobs: int, options: dict[str, Any]) -> list[float] | None:
    """Give the values of the variables; None where HiGHS gives none."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    rows = np.zeros((len(model.rows) + len(model.choices), model.variables))
    for number, coefficients in enumerate([row for row, _ in model.rows] + model.choices):
        for variable, value in coefficients.items():
            rows[number, variable] = value
    low = [least for _, least in model.rows] + [1.0] * len(model.choices)
    high = [np.inf] * len(model.rows) + [1.0] * len(model.choices)
    integral = np.ones(model.variables)
    integral[: jobs + 1] = 0
    upper = np.ones(model.variables)
    upper[: jobs + 1] = model.horizon
    cost = np.zeros(model.variables)
    cost[model.end] = 1.0
    solved = milp(
        cost,
        constraints=LinearConstraint(rows, low, high),
        integrality=integral,
        bounds=Bounds(0.0, upper),
        options={"mip_rel_gap": 1e-6, **options},
    )
    return None if solved.x is None else [float(value) for value in solved.x]


class _Model:
    """Variables: a start for each job, the end of all, a bit for each choice, one for each pair.

    Rows are (coefficients, least value). Times are counted in what the longest chain
    takes, times `scale`.
    """

    def __init__(self, jobs: Sequence[Job], known_nanoseconds: int, scale: float) -> None:
        self.end = len(jobs)
        self._first_choice: list[int] = []
        at = len(jobs) + 1
        for job in jobs:
            self._first_choice.append(at)
            at += len(job.choices)
        self.rows: list[tuple[dict[int, float], float]] = []
        #: Of each job its choices, of which one is taken.
        self.choices: list[dict[int, float]] = []
        shapes = [[choice.shape for choice in job.choices] for job in jobs]
        longest = max(shape.end_nanoseconds for choices in shapes for shape in choices)
        unit = max(1, longest) * scale
        # No start is later than the end of a schedule that is known; a little more for rounding.
        self.horizon = horizon = known_nanoseconds / unit * 1.0001 + 1e-4
        # Jobs that nothing tells apart begin in their order.
        kinds: dict[object, int] = {}
        for number, job in enumerate(jobs):
            before = kinds.get((job.errand, job.nbytes))
            if before is not None:
                self.rows.append(({number: 1.0, before: -1.0}, 0.0))
            kinds[job.errand, job.nbytes] = number
        for number, choices in enumerate(shapes):
            bits = {self.sender(number, choice): 1.0 for choice in range(len(choices))}
            self.choices.append(bits)
            ends = {
                self.sender(number, choice): -shape.end_nanoseconds / unit
                for choice, shape in enumerate(choices)
            }
            self.rows.append(({self.end: 1.0, number: -1.0, **ends}, 0.0))
        for one in range(len(jobs)):
            for other in range(one + 1, len(jobs)):
                at = self._separate(one, other, shapes, unit, horizon, at)
        self.variables = at

    def sender(self, job: int, choice: int) -> int:
        """Give the variable that says whether a job takes a choice."""
        return self._first_choice[job] + choice

    def _separate(
        self,
        one: int,
        other: int,
        shapes: Sequence[Sequence[Shape]],
        unit: float,
        horizon: float,
        bit: int,
    ) -> int:
        """Let one of two jobs come first wherever they cannot share a port; give the next bit."""
        rows = []
        for a, first in enumerate(shapes[one]):
            for b, second in enumerate(shapes[other]):
                bits = {self.sender(one, a): -horizon, self.sender(other, b): -horizon}
                gap = _gap(first, second)
                if gap is not None:
                    # second - first >= gap unless the bit is 1.
                    row = {other: 1.0, one: -1.0, bit: horizon, **bits}
                    rows.append((row, gap / unit - 2 * horizon))
                    back = _gap(second, first)
                    assert back is not None
                    row = {one: 1.0, other: -1.0, bit: -horizon, **bits}
                    rows.append((row, back / unit - 3 * horizon))
        self.rows += rows
        return bit + 1 if rows else bit


def _gap(first: Shape, second: Shape) -> int | None:
    """Give how long after a group another may begin; None where they can go at once."""
    uses = {port: (last, share) for port, _, last, share in first.ports}
    gaps = [
        uses[port][0] + first.busy_nanoseconds - begin
        for port, begin, _, share in second.ports
        if port in uses and uses[port][1] + share > _WHOLE
    ]
    return max(gaps, default=None)
