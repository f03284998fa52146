"""Plans from schedules: they neither race nor wait in a circle, and move what the schedule says."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cocoll.errors import UnsupportedError
from cocoll.plan import Buffer, Plan, Receive, Send, verify
from cocoll.plan.grouping import moving_as_one
from cocoll.plan.structure import matches_by_tag, reads_of, writes_of
from cocoll.resharding import (
    Mesh,
    MulticastPlan,
    ShardingSpec,
    multicast_task,
    plan_multicast,
    plan_reshard,
)
from cocoll.resharding.lowering import ReshardLimits, lower
from cocoll.resharding.solvers import SOLVERS
from cocoll.resharding.wire_lowering import WireLimits, lower_for_wire
from cocoll.topology import load_topology
from tests.helpers.reshard_draws import Draw, reshardings

LIMITS = [ReshardLimits(4, 64, 1, 2), ReshardLimits(64, 64, 2, 2), ReshardLimits(64, 128, 16, 8)]


def lower_all(
    made: MulticastPlan, limits: ReshardLimits, *, hosts: list[int] | None, itemsize: int = 4
) -> list[Plan]:
    ranks = range(made.problem.topology.world_size)
    return [lower(made, rank, [itemsize], limits, hosts=hosts)[0] for rank in ranks]


def lower_all_for_wire(
    made: MulticastPlan, limits: WireLimits, results: list[int] | None, *, itemsize: int = 4
) -> list[Plan]:
    # Which boxes lie side by side differs between ranks, as it does in their arrays.
    return [
        lower_for_wire(made, rank, [itemsize], limits,
                       lambda part, rank=rank: (len(part.role) + part.box[0][0] + rank) % 2 == 0
                       or part.role == "sum",
                       result_itemsizes_bytes=results)[0]
        for rank in range(made.problem.topology.world_size)
    ]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(reshardings(), st.sampled_from(sorted(SOLVERS)), st.sampled_from(LIMITS), st.booleans())
def test_plans_are_verified(draw: Draw, solver: str, limits: ReshardLimits, together: bool) -> None:
    sides = (draw.src, draw.src_spec), (draw.dst, draw.dst_spec)
    try:
        made = plan_reshard(draw.shape, *sides, "float32", draw.topology, solver=solver)
    except UnsupportedError:
        made = plan_reshard(draw.shape, *sides, "float32", draw.topology)
    hosts = None if together else list(made.problem.hosts)
    verify(lower_all(made, limits, hosts=hosts), counts=[0])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(reshardings(), st.sampled_from(sorted(SOLVERS)), st.sampled_from([512, 1 << 13]),
       st.sampled_from([None, 2, 8]))  # fmt: skip
def test_plans_for_wires_have_one_order(
    draw: Draw, solver: str, staging: int, result_itemsize: int | None
) -> None:
    sides = (draw.src, draw.src_spec), (draw.dst, draw.dst_spec)
    results = None if result_itemsize is None else [result_itemsize]
    limits = WireLimits(16, 256, staging)
    try:
        made = plan_reshard(draw.shape, *sides, "float32", draw.topology, solver=solver)
        if results is not None and not made.holders_send:
            raise UnsupportedError("what has been converted is never sent on")
        plans = lower_all_for_wire(made, limits, results)
    except UnsupportedError:
        made = plan_reshard(draw.shape, *sides, "float32", draw.topology, solver="naive")
        plans = lower_all_for_wire(made, limits, results)
    assert not any(map(matches_by_tag, plans))
    verify(plans, counts=[0])


def test_a_rank_passes_a_chunk_on_while_the_next_one_comes() -> None:
    topology = load_topology("p3.8xlarge:4")
    task = multicast_task([0], [4, 8, 12], 1 << 12)
    made = plan_multicast([task], topology, solver="striped")
    plans = lower_all_for_wire(made, WireLimits(64, 256, 1 << 14), None, itemsize=1)
    passed_on = 0
    for plan in plans:
        for lane in plan.fragment.lanes:
            for batch in moving_as_one(lane.loops, 0, 0):
                kinds = {type(member.step) for member in batch}
                passed_on += {Send, Receive} <= kinds
    assert passed_on > 2


def test_too_little_staging_for_what_is_passed_on_is_refused() -> None:
    topology = load_topology("p3.8xlarge:4")
    made = plan_multicast([multicast_task([0], [4, 8, 12], 1 << 12)], topology, solver="striped")
    with pytest.raises(UnsupportedError, match="gpu_window_bytes"):
        lower_for_wire(made, 0, [8], WireLimits(64, 256, 32), lambda _: True)


def claimed_and_carried(draw: Draw, solver: str, limits: ReshardLimits) -> MulticastPlan | None:
    """Hold the bytes that a plan says cross each NIC against the messages of the lowered plans."""
    sides = (draw.src, draw.src_spec), (draw.dst, draw.dst_spec)
    try:
        made = plan_reshard(draw.shape, *sides, "float32", draw.topology, solver=solver)
    except UnsupportedError:
        return None
    problem = made.problem
    carried: Counter[int] = Counter()
    for plan in lower_all(made, limits, hosts=list(problem.hosts)):
        for lane in plan.fragment.lanes:
            for loop in lane.loops:
                for step in loop.steps:
                    if isinstance(step, Send):
                        carried[problem.nic_out(plan.rank)] += 4 * loop.chunk_elements
                    elif isinstance(step, Receive):
                        carried[problem.nic_in(plan.rank)] += 4 * loop.chunk_elements
    nics = {nic for rank in range(problem.topology.world_size)
            for nic in (problem.nic_out(rank), problem.nic_in(rank))}  # fmt: skip
    assert carried == {port: count for port, count in made.port_bytes.items() if port in nics}
    return made


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=reshardings(), limits=st.sampled_from(LIMITS))
def test_nics_carry_what_plans_claim(solver: str, draw: Draw, limits: ReshardLimits) -> None:
    claimed_and_carried(draw, solver, limits)


@pytest.mark.parametrize("solver", SOLVERS)
def test_nics_carry_what_plans_claim_of_a_case(solver: str) -> None:
    topology = load_topology("dgx-h100:2")
    src, dst = Mesh.on_hosts(topology, 1, 8), Mesh.on_hosts(topology, 2, 8)
    draw = Draw(topology, (64, 12), src, ShardingSpec.parse("S1,R"), dst, ShardingSpec.parse("R,R"))
    made = claimed_and_carried(draw, solver, LIMITS[2])
    assert made is None or sum(made.port_bytes.values()) > 4 * 64 * 12


@pytest.mark.parametrize("solver", SOLVERS)
def test_messages_carry_what_the_schedule_says(solver: str) -> None:
    topology = load_topology("p3.8xlarge:4")
    src, dst = Mesh.on_hosts(topology, 2, 4), Mesh.on_hosts(topology, 2, 4, first_host=2)
    made = plan_reshard((64, 48, 8), (src, "R,S0,R"), (dst, "S0,R,R"), "int32", topology,
                        solver=solver)  # fmt: skip
    hosts = list(made.problem.hosts)
    sent: Counter[int] = Counter()
    for plan in lower_all(made, ReshardLimits(128, 512, 4, 4), hosts=hosts):
        for lane in plan.fragment.lanes:
            for loop in lane.loops:
                assert loop.chunk_elements * 4 <= max(512, 1 << 20 if lane.name == "keep" else 0)
                sends = sum(isinstance(step, Send) for step in loop.steps)
                sent[hosts[plan.rank]] += sends * loop.chunk_elements * 4
    wanted: Counter[int] = Counter()
    for group in made.schedule.groups:
        for transfer in group.transfers:
            for source, destination in transfer.hops:
                if hosts[source] != hosts[destination]:
                    wanted[hosts[source]] += transfer.stop - transfer.start
    assert sent == wanted


def lower_strided(made: MulticastPlan, limits: WireLimits) -> list[Plan]:
    itemsizes = [1] * (1 + max(task.tensor for task in made.tasks))
    return [
        lower_for_wire(made, rank, itemsizes, limits, lambda part: part.role == "sum")[0]
        for rank in range(made.problem.topology.world_size)
    ]


def test_what_is_sent_on_waits_for_itself_alone() -> None:
    topology = load_topology("p3.8xlarge:4")
    made = plan_multicast([multicast_task([0], [4, 5, 6], 3000)], topology,
                          solver="global_allgather")  # fmt: skip
    # Each needer sends its part on while the parts of others come.
    verify(lower_strided(made, WireLimits(64, 4096, 1 << 14)), counts=[0])


@pytest.mark.parametrize("count", [5, 7])
def test_a_slot_is_filled_again_after_what_moves_now(count: int) -> None:
    topology = load_topology("p3.8xlarge:4")
    passed_on = multicast_task([0], [4, 8, 12], 1 << 12)
    others = [multicast_task([0], [4], 1 << 12) for _ in range(count)]
    tasks = [task._replace(tensor=number) for number, task in enumerate([passed_on, *others])]
    made = plan_multicast(tasks, topology, solver="striped")
    verify(lower_strided(made, WireLimits(64, 256, 1 << 11)), counts=[0])


def test_the_least_slots_begin_where_elements_may() -> None:
    topology = load_topology("p3.8xlarge:4")
    made = plan_multicast([multicast_task([0], [4, 8, 12], 1 << 10)], topology, solver="striped")
    for staging in range(256, 640, 40):
        for rank in range(16):
            plan, _ = lower_for_wire(made, rank, [1], WireLimits(16, 256, staging),
                                     lambda _: False, result_itemsizes_bytes=[8])  # fmt: skip
            views = [
                view
                for lane in plan.fragment.lanes
                for loop in lane.loops
                for step in loop.steps
                for view in (*reads_of(step), *writes_of(step))
                if view.buffer is Buffer.STAGING
            ]
            assert not any(view.offset_bytes % view.itemsize_bytes for view in views)
