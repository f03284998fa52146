"""The published cases on hosts of 4 GPUs with one 10 Gbit/s NIC: tasks, bounds, ratios."""

from __future__ import annotations

import pytest

from benchmarks.common.reshard_cases import CASES, plan_case
from cocoll.resharding import Mesh, plan_reshard
from cocoll.topology import load_topology

TOPOLOGY = load_topology("p3.8xlarge:8")
NIC_BYTES_PER_SECOND = 1_250_000_000

# Tasks; senders and receivers of a task; parts of the tensor in tasks; lower bound; makespans of
# the first sender, of balanced senders, and of the best order, in (tensor / NIC).
TABLE = {
    "case1": (2, 4, 4, {1 / 2}, 0.5, 0.5, 0.5, 0.5),
    "case2": (2, 8, 4, {1 / 2}, 0.5, 1.0, 0.5, 0.5),
    "case3": (4, 4, 4, {1 / 4}, 0.5, 0.75, 0.75, 0.5),
    "case4": (64, 1, 1, {1 / 64}, 0.5, 0.9375, 0.9375, 0.5),
    "case5": (4, 2, 4, {1 / 4}, 0.5, 1.0, 0.75, 0.5),
    "case6": (4, 4, 4, {1 / 3, 1 / 6}, 0.5, 1.0, 1.0, 0.5),
    "case7": (4, 1, 8, {1 / 4}, 1.0, 1.0, 1.0, 1.0),
    "case8": (4, 1, 8, {1 / 4}, 1.0, 1.0, 1.0, 1.0),
    "case9": (4, 4, 4, {1 / 4}, 0.5, 0.75, 0.75, 0.5),
}


def tensor_seconds(name: str) -> float:
    case = CASES[name]
    nbytes = 4
    for length in case.shape:
        nbytes *= length
    return nbytes / NIC_BYTES_PER_SECOND


@pytest.mark.parametrize("name", TABLE)
def test_case(name: str) -> None:
    count, senders, receivers, parts, bound, naive, balanced, ordered = TABLE[name]
    whole = tensor_seconds(name)
    auto = plan_case(CASES[name], TOPOLOGY)
    assert len(auto.tasks) == count
    assert {len(task.holders) for task in auto.tasks} == {senders}
    assert {len(task.needers) for task in auto.tasks} == {receivers}
    found = {task.nbytes / NIC_BYTES_PER_SECOND / whole for task in auto.tasks}
    assert sorted(found) == pytest.approx(sorted(parts))
    assert auto.bound.nanoseconds / 1e9 == pytest.approx(bound * whole, rel=1e-3)
    assert auto.gap <= 0.02
    makespans = {}
    for solver in ("naive", "load_balance", "broadcast"):
        plan = plan_case(CASES[name], TOPOLOGY, solver=solver)
        makespans[solver] = plan.makespan_nanoseconds / 1e9 / whole
    assert makespans["naive"] == pytest.approx(naive, rel=0.02)
    assert makespans["load_balance"] == pytest.approx(balanced, rel=0.02)
    assert makespans["broadcast"] == pytest.approx(ordered, rel=0.02)


@pytest.mark.parametrize("name", TABLE)
def test_point_to_point_is_limited_by_copies(name: str) -> None:
    # 20 GPUs' effective rates: 5 Gbit/s for four copies of halves, 20 for case4, 1.25 for eight.
    bounds = {"case4": 0.5, "case7": 8.0, "case8": 8.0}
    plan = plan_case(CASES[name], TOPOLOGY, solver="send_recv")
    whole = tensor_seconds(name)
    assert plan.makespan_nanoseconds / 1e9 / whole == pytest.approx(bounds.get(name, 2.0), rel=0.01)


@pytest.mark.parametrize("hosts", [1, 2, 3, 4])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_one_to_many(hosts: int, ranks: int) -> None:
    src, dst = Mesh([[0]]), Mesh.on_hosts(TOPOLOGY, hosts, ranks, first_host=1)
    unit = 64 << 20
    seconds = unit / NIC_BYTES_PER_SECOND
    expected = {
        "auto": 1,
        "broadcast": 1,
        "send_recv": hosts * ranks,
        "send_recv_allgather": hosts,
    }
    for solver, times in expected.items():
        plan = plan_reshard((unit // 4,), (src, "R"), (dst, "R"), "int32", TOPOLOGY, solver=solver)
        assert plan.makespan_nanoseconds / 1e9 == pytest.approx(times * seconds, rel=0.02)
        assert plan.bound.nanoseconds / 1e9 == pytest.approx(seconds, rel=1e-3)


def test_striping_beats_whole_slices() -> None:
    # Three thirds, two sending hosts: one sends two of them, unless slices are divided.
    case = CASES["striping_2to3"]
    striped = plan_case(case, TOPOLOGY)
    whole = plan_case(case, TOPOLOGY, solver="dfs")
    assert whole.makespan_nanoseconds / striped.makespan_nanoseconds >= 1.3
    assert striped.gap <= 0.02


def test_uneven() -> None:
    plan = plan_case(CASES["uneven"], TOPOLOGY)
    assert plan.gap <= 0.02
    assert sum(task.nbytes for task in plan.tasks) == 4 * 1000 * 1021 * 509


def test_slices_count_and_not_tiles() -> None:
    # In case6 tiles of thirds meet tiles of halves. Counted as whole tiles all four slices are
    # equal, which hides that a host that sends a third must not wait for one that sends a sixth.
    plan = plan_case(CASES["case6"], TOPOLOGY)
    thirds = 4 * 3072 * 1024 * 170 // 3
    assert sorted(task.nbytes for task in plan.tasks) == [
        thirds // 2, thirds // 2, thirds, thirds
    ]  # fmt: skip
    entering = [nbytes for port, nbytes in sorted(plan.port_bytes.items())
                if TOPOLOGY.ports[port].kind == "nic_in"]  # fmt: skip
    assert entering == [thirds] * 3
