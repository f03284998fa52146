"""One rank of each class gives exactly what the simulation of all ranks gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cocoll.errors import SimulationError, UsageError
from cocoll.plan import WHOLE_VECTOR, Fragment, Lane, Loop, Native, Plan, Receive, Send
from cocoll.simulation.finding import find_roles
from cocoll.simulation.refinement import refine_roles
from cocoll.simulation.roles import Roles, SeparateRoles
from cocoll.simulation.simulator import simulate
from cocoll.simulation.symmetry import HostSymmetry, Move
from cocoll.topology.graph import Placement, Port, Topology
from tests.helpers.simulated import (
    PlanOf,
    all_plans,
    binary_tree,
    chain,
    doubling,
    exchange,
    gpu_hosts,
    idle,
    lane,
    plan_of_lanes,
    result,
    ring,
    source,
    wired_hosts,
)

RATE = 10**9
CHUNK = 64

PLANNERS: dict[str, Callable[[Topology], PlanOf]] = {
    "ring": lambda topology: ring(topology, CHUNK),
    "chain": lambda topology: chain(topology, CHUNK),
    "chain_of_two_in_flight": lambda topology: chain(topology, CHUNK, 2),
    "tree": lambda topology: binary_tree(topology, CHUNK),
    "exchange": exchange,
}


def wires(kind: str, hosts: int) -> Topology:
    if kind == "one_slow_nic":
        rates = [RATE] * hosts
        rates[hosts // 2] = RATE // 3
        return wired_hosts(hosts, rates=rates)
    return wired_hosts(hosts, core=RATE if kind == "slow_core" else None)


def check_equal(plan: PlanOf, topology: Topology, count: int, roles: Roles) -> None:
    """Compare a simulation with roles to the one of all ranks, in every number."""
    every = simulate(all_plans(plan, topology), topology, count)
    asked = []

    def noting(rank: int) -> Plan:
        asked.append(rank)
        return plan(rank)

    some = simulate(noting, topology, count, roles=roles)
    assert some.makespan_nanoseconds == every.makespan_nanoseconds
    assert some.port_bytes == every.port_bytes
    assert sum(some.port_bytes) > 0
    assert some.messages == every.messages
    assert some.steps == every.steps
    assert set(asked) == {*roles.representatives, *roles.witnesses()}
    assert sorted(some.spans) == sorted(every.spans_of(roles.representatives))


@pytest.mark.parametrize("links", ["equal", "one_slow_nic", "slow_core"])
@pytest.mark.parametrize("hosts", [2, 9])
@pytest.mark.parametrize("name", PLANNERS)
def test_refined_roles_give_the_full_simulation(name: str, hosts: int, links: str) -> None:
    topology = wires(links, hosts)
    plan = PLANNERS[name](topology)
    count = hosts * CHUNK
    roles = refine_roles(all_plans(plan, topology), topology, count)
    check_equal(plan, topology, count, roles)


# A ring of n has n times n steps, all of which have to run where a slow NIC tells all ranks apart.
MANY = [
    (name, hosts, links)
    for name in PLANNERS
    for links in ("equal", "one_slow_nic", "slow_core")
    for hosts in (64, 256 if (name, links) == ("ring", "one_slow_nic") else 512)
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "hosts", "links"), MANY)
def test_refined_roles_give_the_full_simulation_of_many(name: str, hosts: int, links: str) -> None:
    topology = wires(links, hosts)
    plan = PLANNERS[name](topology)
    count = CHUNK * (hosts if name in ("ring", "exchange") else 16)
    roles = refine_roles(all_plans(plan, topology), topology, count)
    check_equal(plan, topology, count, roles)


@pytest.mark.parametrize(
    ("name", "links", "classes"),
    [
        ("ring", "equal", 1),
        ("exchange", "equal", 1),
        # The distance from the root, or from the slow NIC, tells all apart; so does the way down a
        # tree, for a rank serves its two children in an order.
        ("chain", "equal", 15),
        ("tree", "equal", 15),
        ("ring", "one_slow_nic", 15),
    ],
)
def test_how_many_classes_there_are(name: str, links: str, classes: int) -> None:
    topology = wires(links, 15)
    plans = all_plans(PLANNERS[name](topology), topology)
    assert len(refine_roles(plans, topology, 15 * CHUNK).representatives) == classes


def test_a_core_that_all_share_leaves_one_class_in_a_ring() -> None:
    """Hosts alternate on two switches, so that every message of the ring crosses the link."""
    topology = wires("slow_core", 16)
    plans = all_plans(PLANNERS["ring"](topology), topology)
    roles = refine_roles(plans, topology, 16 * CHUNK)
    assert roles.representatives == (0,)
    assert roles.class_size(5) == 16
    # Each direction of the link carries the messages of eight hosts.
    assert roles.weigh("send", 0, 1).weights == (1, 8, 1)


def test_a_last_block_that_is_short_tells_ranks_apart() -> None:
    topology = wired_hosts(4)
    plan = exchange(topology)
    count = 4 * CHUNK - 16
    roles = refine_roles(all_plans(plan, topology), topology, count)
    assert len(roles.representatives) == 4
    check_equal(plan, topology, count, roles)


@pytest.mark.parametrize("ranks", [Move.KEEP, Move.ROTATE])
@pytest.mark.parametrize(("hosts", "gpus"), [(2, 4), (3, 1), (5, 3)])
def test_equal_hosts_give_the_full_simulation(hosts: int, gpus: int, ranks: Move) -> None:
    topology = gpu_hosts(hosts, gpus)
    plan = ring(topology, CHUNK, members=gpus)
    roles = HostSymmetry(topology, ranks=ranks)
    assert len(roles.representatives) == (gpus if ranks is Move.KEEP else 1)
    check_equal(plan, topology, hosts * gpus * CHUNK, roles)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [Move.KEEP, Move.ROTATE])
def test_equal_hosts_give_the_full_simulation_of_512_ranks(ranks: Move) -> None:
    topology = gpu_hosts(64, 8)
    plan = ring(topology, CHUNK, members=8)
    check_equal(plan, topology, 512 * CHUNK, HostSymmetry(topology, ranks=ranks))


@pytest.mark.parametrize("nics", [1, 2, 4])
def test_ranks_that_share_a_nic_have_equal_roles_where_nics_move_with_them(nics: int) -> None:
    topology = gpu_hosts(3, 4, nics=nics)
    plan = ring(topology, CHUNK, members=4)
    roles = HostSymmetry(topology, ranks=Move.ROTATE)
    # Four ranks of a host share its NICs equally.
    assert roles.weigh("send", 0, 4).weights == (4 // nics, 4 // nics)
    check_equal(plan, topology, 12 * CHUNK, roles)


@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_ranks_may_be_exchanged_instead_of_rotated(hosts: int) -> None:
    topology = wired_hosts(hosts)
    plan = doubling(topology)
    check_equal(plan, topology, CHUNK, HostSymmetry(topology, hosts=Move.EXCHANGE))
    if hosts > 2:  # of two, adding one and flipping a bit are the same
        with pytest.raises(SimulationError, match="equal roles"):
            simulate(plan, topology, CHUNK, roles=HostSymmetry(topology))


def test_hosts_on_processors_with_a_shared_memory_port() -> None:
    topology = wired_hosts(3, 4, memory=RATE)
    plan = ring(topology, CHUNK, members=4)
    for ranks in Move.KEEP, Move.ROTATE:
        check_equal(plan, topology, 12 * CHUNK, HostSymmetry(topology, ranks=ranks))


# --- what is refused ---------------------------------------------------------------------------


def test_unequal_hosts_are_not_exchanged() -> None:
    with pytest.raises(SimulationError, match="are not all equal"):
        HostSymmetry(wires("one_slow_nic", 4))
    with pytest.raises(SimulationError, match="are not all equal"):
        HostSymmetry(wires("slow_core", 4))
    with pytest.raises(SimulationError, match=r"a power of two to exchange hosts .*; got 6"):
        HostSymmetry(wired_hosts(6), hosts=Move.EXCHANGE)


def test_ranks_of_unequal_gpus_are_not_rotated() -> None:
    equal = gpu_hosts(2, 2)
    slow = replace(equal.hosts[0].devices[0], port=Port(10**9, 300))
    host = replace(equal.hosts[0], devices=(slow, equal.hosts[0].devices[1]))
    topology = Topology("unequal", (host, host), equal.placements)
    plan = ring(topology, CHUNK, members=2)
    with pytest.raises(SimulationError, match="do not have equal roles"):
        simulate(plan, topology, 4 * CHUNK, roles=HostSymmetry(topology, ranks=Move.ROTATE))
    check_equal(plan, topology, 4 * CHUNK, HostSymmetry(topology))


def test_neighbours_that_share_nics_are_not_rotated() -> None:
    """GPUs 0 and 1 share a NIC, and so do 2 and 3; moved by one, 1 and 2 would."""
    host = gpu_hosts(1, 4, nics=2).hosts[0]
    places = [Placement(number, gpu // 2, gpu) for number in range(2) for gpu in range(4)]
    topology = Topology("neighbours", (host, host), tuple(places))
    plan = ring(topology, CHUNK, members=4)
    with pytest.raises(SimulationError, match="one port would have to move to two places"):
        simulate(plan, topology, 8 * CHUNK, roles=HostSymmetry(topology, ranks=Move.ROTATE))
    exchanged = HostSymmetry(topology, hosts=Move.EXCHANGE, ranks=Move.EXCHANGE)
    check_equal(doubling(topology), topology, 8 * CHUNK, exchanged)


def test_plans_that_are_not_symmetric_are_noticed() -> None:
    topology = wired_hosts(6)
    for planner in (chain(topology, CHUNK), binary_tree(topology, CHUNK)):
        with pytest.raises(SimulationError, match="not equal with all ranks renamed"):
            simulate(planner, topology, CHUNK, roles=HostSymmetry(topology))


class Trusting(HostSymmetry):
    """Looks at no witness."""

    def witnesses(self) -> tuple[int, ...]:
        return ()


def test_roles_that_do_not_fit_are_noticed_while_it_runs() -> None:
    """Rank 0 of a chain only sends, so that it would wait for itself to receive."""
    topology = wired_hosts(6)
    with pytest.raises(SimulationError, match=r"waits for rank 0 to receive"):
        simulate(chain(topology, CHUNK), topology, CHUNK, roles=Trusting(topology))


class Confused(SeparateRoles):
    """Takes rank 2 for rank 1, and says so on one side only."""

    def representative(self, rank: int) -> int:
        return 1 if rank == 2 else rank


def test_partners_of_another_role_are_noticed() -> None:
    topology = wired_hosts(4)
    with pytest.raises(SimulationError, match="the roles are not those of these plans"):
        simulate(ring(topology, CHUNK), topology, 4 * CHUNK, roles=Confused(topology))


def test_a_peer_whose_plan_does_not_name_the_rank_is_noticed() -> None:
    topology = wired_hosts(3)
    lonely = Send(WHOLE_VECTOR, 2, source(0))
    plans = [
        Plan(0, 3, Fragment((lane("send", [lonely]),)), "lonely"),
        idle(1, topology),
        idle(2, topology),
    ]
    roles = refine_roles(plans, topology, CHUNK)
    with pytest.raises(SimulationError, match="whose plan never names rank 0"):
        simulate(plans, topology, CHUNK, roles=roles)


def test_representatives_suffice_where_roles_are_refined() -> None:
    topology = wired_hosts(8)
    plan = exchange(topology)
    roles = refine_roles(all_plans(plan, topology), topology, 8 * CHUNK)
    simulation = simulate({0: plan(0)}, topology, 8 * CHUNK, roles=roles)
    assert simulation.messages == 56
    with pytest.raises(UsageError, match="the plan of rank 0 is needed, and not given"):
        simulate({1: plan(1)}, topology, 8 * CHUNK, roles=roles)


# --- finding roles -----------------------------------------------------------------------------


def test_few_ranks_are_all_simulated() -> None:
    topology = wired_hosts(32)
    assert isinstance(find_roles(ring(topology, CHUNK), topology, 32 * CHUNK), SeparateRoles)


@pytest.mark.parametrize(
    ("planner", "classes"),
    [(lambda topology: ring(topology, CHUNK, members=4), 1), (doubling, 1)],
    ids=["ring", "doubling"],
)
def test_a_symmetry_is_found_for_many(planner: Callable[[Topology], PlanOf], classes: int) -> None:
    topology = gpu_hosts(32, 4)
    roles = find_roles(planner(topology), topology, 128 * CHUNK)
    assert isinstance(roles, HostSymmetry)
    assert len(roles.representatives) == classes


def test_classes_are_worked_out_where_no_symmetry_fits() -> None:
    """Hosts on two switches are not equal, and yet all do the same."""
    topology = wires("slow_core", 66)

    def plan(rank: int) -> Plan:
        after, before = (rank + 1) % 66, (rank - 1) % 66
        steps = [Send(rank, after, source(rank), 1), Receive(before, before, result(rank), 1)]
        return plan_of_lanes(rank, topology, lane("neighbours", steps))

    roles = find_roles(plan, topology, 66 * CHUNK)
    assert roles.representatives == (0,)
    check_equal(plan, topology, 66 * CHUNK, roles)


def test_native_steps_count_for_all_ranks() -> None:
    topology = wired_hosts(4)

    def plan(rank: int) -> Plan:
        step = Native("allreduce", WHOLE_VECTOR, source(rank), result(rank))
        return Plan(rank, 4, Fragment((Lane("n", (Loop((step,)),)),)), "native")

    check_equal(plan, topology, CHUNK, HostSymmetry(topology))
