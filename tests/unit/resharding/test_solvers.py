"""Every solver on random reshardings: data arrive, bounds hold, results repeat."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.common.reshard_cases import CASES, plan_case
from cocoll.errors import ReshardError, ScheduleError, UnsupportedError, UsageError
from cocoll.resharding import (
    Layout,
    Mesh,
    MulticastPlan,
    Schedule,
    TensorMove,
    decompose,
    multicast_task,
    plan_multicast,
    plan_reshard,
    plan_reshards,
)
from cocoll.resharding.problem import Problem
from cocoll.resharding.schedule import check_schedule
from cocoll.resharding.solvers import SOLVERS
from cocoll.resharding.solvers.auto import GOOD_ENOUGH
from cocoll.topology import load_topology
from tests.helpers.reshard_data import Memory
from tests.helpers.reshard_draws import Draw, reshardings

TOPOLOGY = load_topology("p3.8xlarge:4")
# SciPy takes a second to import; the other solvers do without it here.
WITHOUT_SCIPY = [name for name in SOLVERS if name != "exact"]


def plan(draw: Draw, solver: str) -> MulticastPlan:
    return plan_reshard(
        draw.shape,
        (draw.src, draw.src_spec),
        (draw.dst, draw.dst_spec),
        "int64",
        draw.topology,
        solver=solver,
    )


def check(draw: Draw, solver: str) -> MulticastPlan:
    made = plan(draw, solver)
    assert made.bound.nanoseconds <= made.makespan_nanoseconds, made.bound
    memory = Memory(
        made,
        Layout(draw.shape, draw.src, draw.src_spec),
        Layout(draw.shape, draw.dst, draw.dst_spec),
    )
    memory.run()
    memory.check()
    return made


@settings(max_examples=60, deadline=None)
@given(reshardings(), st.sampled_from(WITHOUT_SCIPY))
def test_data_arrive_and_bounds_hold(draw: Draw, solver: str) -> None:
    check(draw, solver)


# Long: the exact solver and the search take their time.
@pytest.mark.long
@settings(max_examples=1000, deadline=None)
@given(reshardings())
def test_no_solver_is_better_than_auto(draw: Draw) -> None:
    auto = check(draw, "auto")
    for solver in SOLVERS:
        try:
            other = check(draw, solver)
        except UnsupportedError:
            assert solver == "exact"
            continue
        limit = max(auto.bound.nanoseconds * GOOD_ENOUGH, other.makespan_nanoseconds)
        assert auto.makespan_nanoseconds <= limit, (solver, other.makespan_nanoseconds)


@pytest.mark.parametrize("solver", WITHOUT_SCIPY)
def test_the_same_every_time(solver: str) -> None:
    for name in ("case5", "case6"):
        first = plan_case(CASES[name], load_topology("p3.8xlarge:8"), solver=solver)
        again = plan_case(CASES[name], load_topology("p3.8xlarge:8"), solver=solver)
        assert first.schedule == again.schedule
        assert first.makespan_nanoseconds == again.makespan_nanoseconds


def test_uneven_shards_come_back_whole() -> None:
    # (5, 10) on four ranks: [2, 2, 1, 0] rows, and back to all, without padding.
    mesh = Mesh.arange((4,))
    for src, dst in [("R,R", "S0,R"), ("S0,R", "R,R"), ("S0,R", "R,S0"), ("S0[1:4:0:0],R", "R,R")]:
        made = plan_reshard((5, 10), (mesh, src), (mesh, dst), "int64", TOPOLOGY)
        memory = Memory(made, Layout((5, 10), mesh, src), Layout((5, 10), mesh, dst))
        memory.run()
        memory.check()
        # Nothing is sent for shards that are empty, nor what a rank has already.
        for group in made.schedule.groups:
            for transfer in group.transfers:
                assert transfer.stop > transfer.start
    nothing = plan_reshard((5, 10), (mesh, "R,R"), (mesh, "S0,R"), "int64", TOPOLOGY)
    assert nothing.schedule.groups == ()
    assert (nothing.makespan_nanoseconds, nothing.bound.nanoseconds, nothing.gap) == (0, 0, 0.0)


def test_the_planted_fault_of_wrong_sizes_is_found() -> None:
    # A schedule that was made for whole tiles sends more, or less, than the slices.
    made = plan_case(CASES["case6"], load_topology("p3.8xlarge:8"), solver="load_balance")
    groups = list(made.schedule.groups)
    smallest = min(group.transfers[0].stop for group in groups)
    for place, group in enumerate(groups):
        transfer = group.transfers[0]
        wrong = transfer.stop * 2 if transfer.stop == smallest else smallest
        cut = group._replace(transfers=(transfer._replace(stop=wrong),))
        planted = Schedule("planted", (*groups[:place], cut, *groups[place + 1 :]))
        with pytest.raises(ScheduleError, match=r"wanted hops for some of|do not reach all"):
            check_schedule(made.problem, planted)


def test_other_faults_of_schedules_are_found() -> None:
    tasks = [multicast_task([0], [4, 8], 1 << 20)]
    problem = Problem(tasks, TOPOLOGY)
    made = plan_multicast(tasks, TOPOLOGY, solver="load_balance")
    (group,) = made.schedule.groups
    (transfer,) = group.transfers
    for hops, message in [
        (((4, 8), (8, 4)), "rank 4 sends bytes 0:1048576 before it has them"),
        (((0, 4), (8, 4)), "rank 8 passes on what it does not receive"),
        (((0, 4), (0, 4)), "rank 4 receives what it has"),
        (((0, 4),), "1048576 bytes of task 0 do not reach all"),
    ]:
        planted = Schedule("planted", (group._replace(transfers=(transfer._replace(hops=hops),)),))
        with pytest.raises(ScheduleError, match=message):
            check_schedule(problem, planted)
    with pytest.raises(ScheduleError, match="gets bytes 0:1048576 of task 0 twice"):
        check_schedule(problem, Schedule("planted", (group, group)))


def test_several_tensors_together_are_better_than_each_alone() -> None:
    # Each alone may take either of two senders, and naive choices meet at one of them.
    src, dst = Mesh.on_hosts(TOPOLOGY, 2, 1), Mesh.on_hosts(TOPOLOGY, 2, 1, first_host=2)
    rows = 1 << 20
    moves = [
        TensorMove((rows,), (src, "R"), (Mesh([dst.ranks[0]]), "R")),
        TensorMove((rows,), (src, "R"), (Mesh([dst.ranks[1]]), "R")),
    ]
    joint = plan_reshards(moves, TOPOLOGY, solver="load_balance")
    alone = [plan_reshards([move], TOPOLOGY, solver="load_balance") for move in moves]
    assert {task.tensor for task in joint.tasks} == {0, 1}
    senders = {group.transfers[0].root for group in joint.schedule.groups}
    assert senders == set(src.ranks)
    assert joint.makespan_nanoseconds == alone[0].makespan_nanoseconds


def test_partial_sums_are_reduced_on_the_way() -> None:
    src, dst = Mesh.on_hosts(TOPOLOGY, 2, 4), Mesh.on_hosts(TOPOLOGY, 2, 4, first_host=2)
    made = plan_reshard((1 << 20, 8), (src, "R,R+P1"), (dst, "S0,R"), "float32", TOPOLOGY)
    # Summands are added inside hosts: what crosses to the others is the tensor once.
    leaving = sum(
        nbytes for port, nbytes in made.port_bytes.items()
        if TOPOLOGY.ports[port].kind == "nic_out" and TOPOLOGY.ports[port].host < 2
    )  # fmt: skip
    assert leaving == 4 * 8 << 20
    assert made.gap <= 0.05


def test_dfs_finds_what_greedy_orders_miss() -> None:
    # Jobs of sizes 3, 3, 2, 2, 2 on two senders with one receiver each: 6, not 7.
    topology = load_topology("p3.8xlarge:8")
    tasks = [
        multicast_task([0, 4], [8 + 4 * number], size << 26)
        for number, size in enumerate([3, 3, 2, 2, 2])
    ]
    unit = (1 << 26) / 1.25e9
    times = {
        solver: plan_multicast(tasks, topology, solver=solver).makespan_nanoseconds / 1e9 / unit
        for solver in ("load_balance", "dfs")
    }
    assert times["load_balance"] == pytest.approx(7, rel=0.01)
    assert times["dfs"] == pytest.approx(6, rel=0.01)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 2), min_size=1, max_size=2),
            st.sets(st.integers(3, 5), min_size=1, max_size=2),
            st.integers(1, 4),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_exact_and_dfs_agree(drawn: list[tuple[set[int], set[int], int]]) -> None:
    topology = load_topology("p3.8xlarge:6")
    tasks = [
        multicast_task(
            [4 * host for host in sorted(holders)],
            [4 * host for host in sorted(needers)],
            size << 24,
        )
        for holders, needers, size in drawn
    ]  # fmt: skip
    exact = plan_multicast(tasks, topology, solver="exact").makespan_nanoseconds
    dfs = plan_multicast(tasks, topology, solver="dfs").makespan_nanoseconds
    assert dfs == pytest.approx(exact, rel=1e-4)


def test_bad_requests() -> None:
    mesh = Mesh.arange((4,))
    with pytest.raises(UsageError, match="wanted a solver out of auto, striped"):
        plan_reshard((4,), (mesh, "R"), (mesh, "S0"), "uint8", TOPOLOGY, solver="magic")
    with pytest.raises(ReshardError, match="dst: spec S1, dim 0: there is no mesh axis 1"):
        plan_reshard((4,), (mesh, "R"), (mesh, "S1"), "uint8", TOPOLOGY)
    with pytest.raises(ReshardError, match=r"p3\.8xlarge:4, which has 16; got rank 16"):
        plan_reshard((4,), (mesh, "R"), (Mesh([16]), "R"), "uint8", TOPOLOGY)
    many = [multicast_task([0], [4], 1)] * 9
    with pytest.raises(UnsupportedError, match="at most 8 tasks without partial sums; got 9"):
        plan_multicast(many, TOPOLOGY, solver="exact")


def test_tasks_can_be_given_by_themselves() -> None:
    src = Layout((64,), Mesh.arange((4,)), "S0")
    dst = Layout((64,), Mesh.arange((4,), 4), "R")
    tasks = decompose(src, dst, 4)
    assert plan_multicast(tasks, TOPOLOGY).tasks == tuple(tasks)
    assert dataclasses.is_dataclass(plan_multicast(tasks, TOPOLOGY))
