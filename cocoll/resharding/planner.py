"""Plans for resharding: tasks, a lower bound, a schedule, and how far it is from the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cocoll.dtypes import DType
from cocoll.resharding.bounds import Bound, lower_bound
from cocoll.resharding.flows import flow_bound
from cocoll.resharding.layout import Layout
from cocoll.resharding.makespan import Span, makespan_nanoseconds, spans
from cocoll.resharding.problem import Problem
from cocoll.resharding.schedule import Schedule, check_schedule, port_bytes
from cocoll.resharding.sharding_spec import ShardingSpec
from cocoll.resharding.solvers import solver_named
from cocoll.resharding.unit_task import UnitTask, decompose

if TYPE_CHECKING:
    from cocoll.resharding.mesh import Mesh
    from cocoll.topology.graph import Topology

__all__ = [
    "MulticastPlan",
    "TensorMove",
    "plan_multicast",
    "plan_reshard",
    "plan_reshards",
    "tasks_of",
]


# How far from what cuts prove a makespan may be before a better bound is worth its time.
_WORTH_PROVING = 1.01


@dataclass(frozen=True)
class TensorMove:
    """One tensor that goes from a mesh to another.

    Attributes
    ----------
    shape : tuple of int
        Of the whole tensor.
    src, dst : tuple of (Mesh, str or ShardingSpec)
        Where it is, and where it must be.
    dtype : str
        Of its elements.
    lengths : pair of mapping, default (None, None)
        By dim, the lengths of the pieces of source and destination, where they are not equal.
    allow_uneven : bool, default True
        Whether dims may be cut that do not divide.
    """

    shape: tuple[int, ...]
    src: tuple[Mesh, str | ShardingSpec]
    dst: tuple[Mesh, str | ShardingSpec]
    dtype: str = "float32"
    lengths: tuple[Mapping[int, Sequence[int]] | None, Mapping[int, Sequence[int]] | None] = (
        None,
        None,
    )
    allow_uneven: bool = True

    def layouts(self) -> tuple[Layout, Layout]:
        """Give where it is and where it must be, checked.

        Raises
        ------
        ReshardError
            A spec does not fit its mesh or the shape.
        """
        source, destination = (
            Layout(
                self.shape,
                mesh,
                ShardingSpec.parse(spec).with_lengths(lengths),
                allow_uneven=self.allow_uneven,
                name=name,
            )
            for name, (mesh, spec), lengths in zip(
                ("src", "dst"), (self.src, self.dst), self.lengths, strict=True
            )
        )
        return source, destination


@dataclass(frozen=True)
class MulticastPlan:
    """Tasks with the schedule that serves them.

    Attributes
    ----------
    problem : Problem
        The tasks, on their topology.
    bound : Bound
        A time that no schedule beats.
    schedule : Schedule
        Who sends what to whom; `Schedule.solver` says who made it.
    makespan_nanoseconds : int
        When its last byte has arrived.
    """

    problem: Problem
    bound: Bound
    schedule: Schedule
    makespan_nanoseconds: int

    @property
    def tasks(self) -> tuple[UnitTask, ...]:
        """The unit tasks."""
        return self.problem.tasks

    @property
    def gap(self) -> float:
        """How much longer than the bound it takes: 0.02 is 2 %; 0 where nothing moves."""
        if not self.makespan_nanoseconds:
            return 0.0
        return self.makespan_nanoseconds / max(1, self.bound.nanoseconds) - 1.0

    @property
    def holders_send(self) -> bool:
        """Whether all that is sent comes from ranks that have it from the start."""
        return all(
            self.problem.holds(transfer.task, transfer.root)
            for group in self.schedule.groups
            for transfer in group.transfers
        )

    @cached_property
    def port_bytes(self) -> dict[int, int]:
        """The bytes that cross each port."""
        return port_bytes(self.problem, self.schedule.groups)

    @cached_property
    def spans(self) -> list[Span]:
        """When every hop is under way."""
        return spans(self.problem, self.schedule)


def plan_multicast(
    tasks: Sequence[UnitTask], topology: Topology, *, solver: str = "auto"
) -> MulticastPlan:
    """Plan multicasts, all of them together.

    Parameters
    ----------
    tasks : sequence of UnitTask
        From `multicast_task` or `decompose`.
    topology : Topology
        Where the ranks are.
    solver : str, default "auto"
        A name of `cocoll.resharding.solvers.SOLVERS`.

    Returns
    -------
    MulticastPlan
        Checked: every needer gets every byte once.

    Raises
    ------
    ReshardError
        A task names a rank that is not there.
    UsageError
        There is no such solver.
    UnsupportedError
        The solver does not serve such tasks.
    """
    solve = solver_named(solver)
    problem = Problem(tasks, topology)
    bound = lower_bound(problem)
    if problem.moving:
        schedule = solve(problem, bound)
        check_schedule(problem, schedule)
    else:
        schedule = Schedule(solver, ())
    makespan = schedule.makespan_nanoseconds
    if makespan is None:
        makespan = makespan_nanoseconds(problem, schedule)
    if solver == "auto" and makespan > bound.nanoseconds * _WORTH_PROVING:
        # Either there is something better or the cuts prove too little.
        flows = flow_bound(problem, makespan)
        if flows is not None and flows.nanoseconds > bound.nanoseconds:
            bound = flows
    return MulticastPlan(problem, bound, schedule, makespan)


def plan_reshard(
    shape: Sequence[int],
    src: tuple[Mesh, str | ShardingSpec],
    dst: tuple[Mesh, str | ShardingSpec],
    dtype: str,
    topology: Topology,
    *,
    solver: str = "auto",
    src_lengths: Mapping[int, Sequence[int]] | None = None,
    dst_lengths: Mapping[int, Sequence[int]] | None = None,
    allow_uneven: bool = True,
) -> MulticastPlan:
    """Plan how a tensor goes from one mesh and layout to another.

    Parameters
    ----------
    shape : sequence of int
        Of the whole tensor.
    src, dst : (Mesh, str or ShardingSpec)
        Where it is, and where it must be; the meshes may overlap.
    dtype : str
        Of its elements.
    topology : Topology
        Where the ranks are.
    solver : str, default "auto"
        A name of `cocoll.resharding.solvers.SOLVERS`.
    src_lengths, dst_lengths : mapping of int to sequence of int, optional
        By dim, the lengths of the pieces, where they are not equal.
    allow_uneven : bool, default True
        Whether dims may be cut that do not divide.

    Returns
    -------
    MulticastPlan
        Checked: every needer gets every byte once.

    Raises
    ------
    ReshardError
        A spec does not fit its mesh or the shape; the message names dim, axis and sizes.
    UsageError
        There is no such solver.
    UnsupportedError
        The solver does not serve such tasks.
    """
    move = TensorMove(
        tuple(shape), src, dst, dtype, (src_lengths, dst_lengths), allow_uneven=allow_uneven
    )
    return plan_reshards([move], topology, solver=solver)


def plan_reshards(
    moves: Sequence[TensorMove], topology: Topology, *, solver: str = "auto"
) -> MulticastPlan:
    """Plan several tensors together, so that each takes the ports that the others leave idle.

    Parameters
    ----------
    moves : sequence of TensorMove
        A state dict's, say.
    topology : Topology
        Where the ranks are.
    solver : str, default "auto"
        A name of `cocoll.resharding.solvers.SOLVERS`.

    Returns
    -------
    MulticastPlan
        `UnitTask.tensor` is the place in `moves`.

    Raises
    ------
    ReshardError, UsageError, UnsupportedError
        As in `plan_reshard`.
    """
    return plan_multicast(tasks_of(moves), topology, solver=solver)


def tasks_of(moves: Sequence[TensorMove]) -> list[UnitTask]:
    """Give the unit tasks of several tensors.

    Parameters
    ----------
    moves : sequence of TensorMove
        The tensors.

    Returns
    -------
    list of UnitTask
        Those of the first tensor first; `UnitTask.tensor` is the place in `moves`.

    Raises
    ------
    ReshardError
        A spec does not fit its mesh or the shape.
    """
    tasks: list[UnitTask] = []
    for number, move in enumerate(moves):
        source, destination = move.layouts()
        itemsize = DType.parse(move.dtype).itemsize_bytes
        tasks += decompose(source, destination, itemsize, tensor=number, first=len(tasks))
    return tasks
