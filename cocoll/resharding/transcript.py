"""Schedules as text, so that one rank can plan for all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cocoll.resharding.bounds import Bound
from cocoll.resharding.planner import MulticastPlan
from cocoll.resharding.problem import Problem
from cocoll.resharding.schedule import Group, Schedule, Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cocoll.resharding.schedule import Hop
    from cocoll.resharding.unit_task import UnitTask
    from cocoll.topology.graph import Topology

__all__ = ["read_plan", "write_plan"]


def write_plan(made: MulticastPlan) -> str:
    """Give what a plan has besides its tasks.

    Parameters
    ----------
    made : MulticastPlan
        Any plan.

    Returns
    -------
    str
        JSON; ways that several transfers take stand in it once.
    """
    ways: dict[tuple[Hop, ...], int] = {}
    groups = [
        [
            group.rounds,
            [
                [one.task, one.start, one.stop, ways.setdefault(one.hops, len(ways))]
                for one in group.transfers
            ],
        ]
        for group in made.schedule.groups
    ]
    fields = {
        "solver": made.schedule.solver,
        "bound": list(made.bound),
        "makespan_nanoseconds": made.makespan_nanoseconds,
        "ways": list(ways),
        "groups": groups,
    }
    return json.dumps(fields, separators=(",", ":"))


def read_plan(text: str, tasks: Sequence[UnitTask], topology: Topology) -> MulticastPlan:
    """Give the plan that `write_plan` has written.

    Parameters
    ----------
    text : str
        What it gave.
    tasks : sequence of UnitTask
        Those that it was made for.
    topology : Topology
        The one that it was made on.

    Returns
    -------
    MulticastPlan
        An equal one.
    """
    fields: dict[str, Any] = json.loads(text)
    ways = [tuple((source, to) for source, to in way) for way in fields["ways"]]
    groups = tuple(
        Group(
            tuple(Transfer(task, start, stop, ways[way]) for task, start, stop, way in transfers),
            rounds,
        )
        for rounds, transfers in fields["groups"]
    )
    nanoseconds, reason = fields["bound"]
    return MulticastPlan(
        Problem(tasks, topology),
        Bound(nanoseconds, reason),
        Schedule(fields["solver"], groups),
        fields["makespan_nanoseconds"],
    )
