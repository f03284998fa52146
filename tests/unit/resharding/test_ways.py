"""Groups of many hops: arrays give the same as hops one by one, and what hands work out."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.common.reshard_cases import MODELS
from cocoll.errors import UnsupportedError
from cocoll.resharding import multicast_task, plan_multicast, plan_reshard, ways
from cocoll.resharding.makespan import describe_group, makespan_nanoseconds
from cocoll.resharding.problem import Problem
from cocoll.resharding.schedule import Group, Transfer, port_bytes
from cocoll.resharding.solvers import SOLVERS
from cocoll.topology import load_topology
from tests.helpers.reshard_draws import Draw, reshardings


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(reshardings(), st.sampled_from([name for name in SOLVERS if name != "exact"]))
def test_arrays_give_the_same_as_hops_one_by_one(draw: Draw, solver: str) -> None:
    sides = (draw.src, draw.src_spec), (draw.dst, draw.dst_spec)
    try:
        made = plan_reshard(draw.shape, *sides, "float32", draw.topology, solver=solver)
    except UnsupportedError:
        return
    shapes = [describe_group(made.problem, group) for group in made.schedule.groups]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways, "_MANY_HOPS", 0)
        again = Problem(made.tasks, draw.topology)
        assert port_bytes(again, made.schedule.groups) == made.port_bytes
        for group, shape in zip(made.schedule.groups, shapes, strict=True):
            found = describe_group(again, group)
            assert found._replace(ports=()) == shape._replace(ports=())
            assert sorted(found.ports) == sorted(shape.ports)
        assert makespan_nanoseconds(again, made.schedule) == made.makespan_nanoseconds


def test_a_long_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    # 40 hosts in a row, 10 chunks of 1 MB, at 1.25 GB/s and 30 us a hop: each host begins a chunk
    # and a latency after the one before it.
    monkeypatch.setattr(ways, "_MANY_HOPS", 40)
    topology = load_topology("p3.8xlarge:41")
    problem = Problem([multicast_task([0], [4 * host for host in range(1, 41)], 10**7)], topology)
    hops = tuple((4 * host, 4 * host + 4) for host in range(40))
    group = Group((Transfer(0, 0, 10**7, hops),), 10)
    shape = describe_group(problem, group)
    assert problem.last_traffic is not None
    assert shape.busy_nanoseconds == 8_000_000
    assert shape.late_nanoseconds == 39 * (800_000 + 30_000)
    assert shape.end_nanoseconds == 39 * (800_000 + 30_000) + 8_000_000 + 30_000
    ports = [problem.nic_out(4 * host) for host in range(40)]
    ports += [problem.nic_in(4 * host) for host in range(1, 41)]
    assert port_bytes(problem, [group]) == dict.fromkeys(ports, 10**7)


def test_tensors_that_are_alike_are_planned_as_one() -> None:
    # What a plan of many tensors looks at is told by their kinds, not by their number.
    model = MODELS["model_500x1024"]
    moves = model.moves()
    tensors = {(move.shape, move.src, move.dst) for move in moves}
    assert len(moves) == 500
    assert len(tensors) >= 60
    topology = load_topology("p3.8xlarge:6")
    one = [multicast_task([0, 4], [8, 12], 1 << 20), multicast_task([0], [16], 1 << 20)]
    single, many = plan_multicast(one, topology), plan_multicast(one * 50, topology)
    distinct = {hops for group in many.schedule.groups for *_, hops in group.transfers}
    assert len(distinct) <= 2 * len(
        {hops for group in single.schedule.groups for *_, hops in group.transfers}
    )
    assert len(set(many.problem.kinds)) == 2
