"""Predicts how plans go together: when every step begins and ends. See docs/simulation.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.errors import UsageError
from cocoll.simulation.engine import Engine
from cocoll.simulation.finding import check_witnesses, plan_getter
from cocoll.simulation.roles import Roles, SeparateRoles

if TYPE_CHECKING:
    from cocoll.simulation.finding import Plans
    from cocoll.simulation.outcome import Simulation
    from cocoll.topology.graph import Topology

__all__ = ["THREAD_BYTES_PER_SECOND", "simulate"]

#: What one thread of a processor reads and writes together, where nothing better is known.
THREAD_BYTES_PER_SECOND = 16_000_000_000


def simulate(
    plans: Plans,
    topology: Topology,
    count: int,
    *,
    roles: Roles | None = None,
    check_roles: bool = True,
    keep_spans: bool = True,
    thread_bytes_per_second: int = THREAD_BYTES_PER_SECOND,
) -> Simulation:
    """Predict how the plans of all ranks go together.

    Pure and deterministic: no clock, no file, whole nanoseconds.

    Parameters
    ----------
    plans : sequence, mapping or callable
        The plan of each rank. With `roles`, only those of representatives and of a few witnesses
        are asked for.
    topology : Topology
        Where the ranks are.
    count : int
        Elements of the vector.
    roles : Roles, optional
        Which ranks are equal; one of each class runs, and stands for the others. Default: all run.
    check_roles : bool, default True
        Whether to hold the plans of witnesses against those that stand for them;
        :func:`~cocoll.simulation.finding.find_roles` has.
    keep_spans : bool, default True
        Whether to note when every step began and ended.
    thread_bytes_per_second : int, default THREAD_BYTES_PER_SECOND
        What one thread reads and writes together. A rank without a GPU is one thread.

    Returns
    -------
    Simulation
        Makespan, timeline, bytes on every port.

    Raises
    ------
    SimulationError
        The plans wait for ever, or do not fit the topology or the roles; ``report()`` lists what
        every lane waits for.
    UsageError
        The plans are not one for each rank of the topology, or a number is out of range.

    Notes
    -----
    Time grows with the steps of the ranks that are simulated: about 10 microseconds each.
    """
    if count < 0 or thread_bytes_per_second < 1:
        raise UsageError(
            f"wanted count >= 0 and thread_bytes_per_second >= 1, got {count} and "
            f"{thread_bytes_per_second}"
        )
    plan_of = plan_getter(plans, topology)
    if roles is None:
        roles = SeparateRoles(topology)
    elif roles.topology is not topology:
        raise UsageError("the roles are those of another topology")
    if check_roles:
        check_witnesses(plan_of, roles, count)
    return Engine(
        [plan_of(rank) for rank in roles.representatives],
        count,
        roles,
        thread_bytes_per_second,
        keep_spans=keep_spans,
    ).run()
