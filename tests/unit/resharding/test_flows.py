"""The bound of the best flows: an optimum worked out by hand, and that no schedule beats it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cocoll.errors import UnsupportedError
from cocoll.resharding import (
    Bound,
    flows,
    lower_bound,
    multicast_task,
    plan_multicast,
    plan_reshard,
)
from cocoll.resharding.problem import Problem
from cocoll.resharding.solvers import SOLVERS
from cocoll.topology import Topology, load_topology
from cocoll.topology.parts import Host, Link, Nic, Placement, Port
from tests.helpers.reshard_draws import Draw, reshardings

GB = 10**9


def half_duplex(rates: list[int], latency: int = 0, ranks: int = 1) -> Topology:
    """Make hosts whose NIC carries what comes and what goes with one bandwidth."""
    hosts = tuple(
        Host("h", Port(10**12, 2 * latency, "half"), (Nic("e", Port(rate, latency, "half"), "s"),))
        for rate in rates
    )
    seats = [Placement(host) for host in range(len(rates)) for _ in range(ranks)]
    return Topology("half", hosts, tuple(seats))


def of_flows(tasks: list, topology: Topology) -> Bound:
    pytest.importorskip("scipy")
    problem = Problem(tasks, topology)
    known = plan_multicast(tasks, topology, solver="send_recv").makespan_nanoseconds
    found = flows.flow_bound(problem, known)
    assert found is not None
    return found


@pytest.mark.parametrize("latency", [0, 5000])
def test_relays_use_a_half_duplex_nic_twice(latency: int) -> None:
    # Every cut sees a unit cross one NIC. But two messages of a unit cross two NICs each, and there
    # are three: 4/3. (A third goes to both, two thirds to one or the other, who relays.)
    tasks, topology = [multicast_task([0], [1, 2], 3 * GB)], half_duplex([GB] * 3, latency)
    assert lower_bound(Problem(tasks, topology)).nanoseconds == pytest.approx(3e9 + 2 * latency)
    bound = of_flows(tasks, topology)
    assert bound.nanoseconds == pytest.approx(4e9 + 2 * latency, rel=3e-6)
    assert bound.nanoseconds <= 4 * GB + 2 * latency
    assert "3000000000 bytes: the best flows between ranks" in bound.reason


def test_a_narrow_relay_is_of_little_use() -> None:
    # n needers of one unit each: n messages over n + 1 NICs are at least 2 n / (n + 1); a NIC of a
    # tenth has to take its own unit and no more, 10.
    tasks = [multicast_task([0], [1, 2, 3], GB)]
    assert of_flows(tasks, half_duplex([GB] * 4)).nanoseconds == pytest.approx(1.5e9, rel=1e-5)
    narrow = half_duplex([GB, GB, GB, GB // 10])
    assert of_flows(tasks, narrow).nanoseconds == pytest.approx(10e9, rel=1e-5)


def test_the_plan_says_so() -> None:
    pytest.importorskip("scipy")
    tasks, topology = [multicast_task([0], [1, 2], 3 * GB)], half_duplex([GB] * 3)
    made = plan_multicast(tasks, topology)
    assert "best flows" in made.bound.reason
    assert made.gap < 0.15
    # Where a schedule comes near to what the cuts prove, nothing is built.
    easy = plan_multicast([multicast_task([0], [1], GB)], topology)
    assert "best flows" not in easy.bound.reason


def test_hosts_stand_for_ranks_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    # The same three hosts with four ranks each, all of which need it.
    tasks, topology = [multicast_task([0], list(range(4, 12)), 3 * GB)], half_duplex([GB] * 3, 0, 4)
    monkeypatch.setattr(flows, "MOST_VARIABLES", 100)
    bound = of_flows(tasks, topology)
    assert "between hosts" in bound.reason
    assert bound.nanoseconds == pytest.approx(4e9, rel=3e-6)
    monkeypatch.setattr(flows, "MOST_VARIABLES", 10)
    assert flows.flow_bound(Problem(tasks, topology), 10**12) is None
    assert flows.flow_bound(Problem([], topology), 10**12) is None


def test_links_are_crossed_once_an_arc(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two switches and a link of a tenth: both needers lie behind it, and one relays to the other.
    hosts = [Host("h", Port(10**12, 0, "half"), (Nic("e", Port(GB), side),)) for side in "lrr"]
    topology = Topology(
        "links",
        tuple(hosts),
        tuple(Placement(host) for host in range(3)),
        (Link("l", "r", Port(GB // 10)),),
    )
    bound = of_flows([multicast_task([0], [1, 2], GB)], topology)
    assert bound.nanoseconds == pytest.approx(10e9, rel=1e-5)


SMALL = [
    half_duplex([3 * GB, GB, GB, 2 * GB], 1000, 2),
    half_duplex([GB, 2 * GB, GB], 1000, 3),
    load_topology("p3.8xlarge:2"),
]


def check(draw: Draw, solvers: list[str]) -> None:
    sides = (draw.src, draw.src_spec), (draw.dst, draw.dst_spec)
    for solver in solvers:
        try:
            made = plan_reshard(draw.shape, *sides, "float32", draw.topology, solver=solver)
        except UnsupportedError:
            continue
        if made.schedule.groups:
            bound = flows.flow_bound(made.problem, made.makespan_nanoseconds)
            assert bound is None or bound.nanoseconds <= made.makespan_nanoseconds, solver


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    reshardings(topologies=SMALL),
    st.sampled_from([name for name in SOLVERS if name != "exact"]),
)
def test_no_schedule_beats_it(draw: Draw, solver: str) -> None:
    pytest.importorskip("scipy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flows, "MOST_VARIABLES", 1000)
        check(draw, [solver])


# Long: some programs take a second.
@pytest.mark.long
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(reshardings())
def test_no_schedule_of_any_solver_beats_it(draw: Draw) -> None:
    pytest.importorskip("scipy")
    check(draw, list(SOLVERS))
