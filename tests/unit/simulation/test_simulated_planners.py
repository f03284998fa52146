"""Every planner's plans come to an end in a simulation, and load ports with the bytes they move."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from cocoll.algorithms import ReduceSpec
from cocoll.algorithms.choosing import Demand, candidates
from cocoll.algorithms.hierarchy import Hierarchy
from cocoll.plan import Aliasing, Native, Plan, Receive, Send
from cocoll.plan.structure import reads_of, writes_of
from cocoll.plan.trace import Operation
from cocoll.plan.unrolling import unroll
from cocoll.simulation.finding import find_roles
from cocoll.simulation.simulator import simulate
from cocoll.simulation.symmetry import HostSymmetry, Move
from cocoll.topology.graph import Host, Nic, Placement, Port, Topology
from cocoll.topology.presets import load_preset
from tests.helpers.host_cases import DOUBLING_LAYOUTS, LAYOUTS, make_host_cases, runs_by_share
from tests.helpers.plan_cases import make_cases
from tests.helpers.simulated import gpu_hosts

WORLD_SIZE = 3


def topology_of(hierarchy: Hierarchy) -> Topology:
    """Give hosts and NICs as a hierarchy has them."""
    nics = [
        1 + max(hierarchy.nics[rank] for rank in hierarchy.members(host))
        for host in range(hierarchy.host_count)
    ]
    hosts = tuple(
        Host(
            f"h{number}",
            Port(10**10, 100, "half"),
            tuple(Nic(f"e{nic}", Port(10**9, 1000)) for nic in range(count)),
        )
        for number, count in enumerate(nics)
    )
    places = [Placement(*place) for place in zip(hierarchy.hosts, hierarchy.nics, strict=True)]
    return Topology("hierarchy", hosts, tuple(places))


def moved_bytes(plans: tuple[Plan, ...], topology: Topology, count: int) -> list[int]:
    """Count the bytes on every port from the steps that the verifier unrolls."""
    moved = [0] * len(topology.ports)
    trace = unroll([Operation(plans, Aliasing(), zero_source=False, late_opening=False)], count)
    for event in trace.events:
        step = event.step
        if isinstance(step, Send):
            (extent,) = event.reads or [None]
            ports = topology.path(event.rank, step.peer).ports
            for port in ports if extent else ():
                moved[port] += extent.stop - extent.start
        elif not isinstance(step, Receive | Native):
            for views, extents, write in (
                (reads_of(step), event.reads, False),
                (writes_of(step), event.writes, True),
            ):
                for view, extent in zip(views if extents else (), extents, strict=True):
                    path = topology.memory_path(event.rank, view.rank, write=write)
                    for port in path.ports:
                        moved[port] += extent.stop - extent.start
    return moved


def check_bytes(plans: tuple[Plan, ...], topology: Topology, count: int) -> None:
    simulation = simulate(plans, topology, count)
    assert list(simulation.port_bytes) == moved_bytes(plans, topology, count)
    longest = max(
        (
            moved * 10**9 // rate
            for moved, rate in zip(
                simulation.port_bytes, topology.bandwidths_bytes_per_second, strict=True
            )
        ),
        default=0,
    )
    assert simulation.makespan_nanoseconds >= longest
    assert len(simulation.spans) == simulation.steps


def one_host_cases() -> list[object]:
    return [
        pytest.param(name, marks=() if runs_by_share(name, 16) else pytest.mark.long)
        for name in make_cases(WORLD_SIZE)
        if "native" not in name
    ]


@pytest.mark.parametrize("name", one_host_cases())
def test_plans_for_one_host(name: str) -> None:
    operation = make_cases(WORLD_SIZE)[name]
    for topology in (load_preset(f"laptop:{WORLD_SIZE}"), gpu_hosts(1, WORLD_SIZE)):
        for count in (0, 16) if name.startswith("inline") else (0, 1, 97):
            check_bytes(operation.plans, topology, count)


def host_cases() -> list[object]:
    return [
        pytest.param(
            layout,
            name,
            marks=() if runs_by_share(f"simulated {layout} {name}", 100) else pytest.mark.long,
        )
        for layout in sorted({*LAYOUTS, *DOUBLING_LAYOUTS})
        for name in make_host_cases(layout)
    ]


@pytest.mark.parametrize(("layout", "name"), host_cases())
def test_plans_for_several_hosts(layout: str, name: str) -> None:
    operation = make_host_cases(layout)[name]()
    topology = topology_of({**LAYOUTS, **DOUBLING_LAYOUTS}[layout])
    for count in (0, 37) if "doubling" in operation.plans[0].name else (0, 5, 203):
        check_bytes(operation.plans, topology, count)


# --- roles of our own planners -----------------------------------------------------------------


def ways(topology: Topology, kind: str, nbytes: int) -> dict[str, Callable[[int], Plan]]:
    demand = Demand(kind, ReduceSpec(4, (4,)), nbytes, staging_bytes=1 << 30)  # type: ignore[arg-type]
    return {
        one.name: functools.partial(one.make, staged=False)
        for one in candidates(topology, demand)
        if one.name != "recursive_doubling"  # its hosts' first ranks do more than the others
    }


def check_roles(topology: Topology, kind: str, ranks: Move) -> None:
    count = topology.world_size * 16 * 4
    for make in ways(topology, kind, 4 * count).values():
        plan_of = functools.partial(_make, make)
        every = simulate([plan_of(rank) for rank in range(topology.world_size)], topology, count)
        some = simulate(plan_of, topology, count, roles=HostSymmetry(topology, ranks=ranks))
        assert some.makespan_nanoseconds == every.makespan_nanoseconds
        assert some.port_bytes == every.port_bytes
        assert (some.messages, some.steps) == (every.messages, every.steps)
        chosen = some.roles.representatives
        assert sorted(some.spans) == sorted(every.spans_of(chosen))


def _make(make: Callable[[int], Plan], rank: int) -> Plan:
    return make(rank)


@pytest.mark.parametrize("ranks", [Move.KEEP, Move.ROTATE])
@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reduce_scatter"])
def test_hierarchical_plans_have_the_roles_of_equal_hosts(kind: str, ranks: Move) -> None:
    check_roles(gpu_hosts(4, 2), kind, ranks)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [Move.KEEP, Move.ROTATE])
@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reduce_scatter"])
def test_hierarchical_plans_of_128_ranks_have_the_roles_of_equal_hosts(
    kind: str, ranks: Move
) -> None:
    check_roles(gpu_hosts(16, 8), kind, ranks)


@pytest.mark.long
def test_a_hierarchical_all_reduce_on_4096_gpus_runs_one_rank() -> None:
    topology = load_preset("dgx-h100:512")
    count = 1 << 24
    make = ways(topology, "allreduce", 4 * count)["hierarchical"]
    plan_of = functools.cache(functools.partial(_make, make))
    roles = find_roles(plan_of, topology, count)
    assert roles.representatives == (0,)
    simulation = simulate(plan_of, topology, count, roles=roles, check_roles=False)
    # Every host sends and receives 2 (H - 1) / H of the vector, an eighth on each of its NICs.
    nics = {
        moved
        for port, moved in zip(topology.ports, simulation.port_bytes, strict=True)
        if port.kind == "nic_out"
    }
    assert nics == {2 * 511 * 4 * count // 512 // 8}
