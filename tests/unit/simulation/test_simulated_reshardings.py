"""What planners of reshardings claim, held against a simulation of the plans that ranks run."""

from __future__ import annotations

import pytest

from benchmarks.common.reshard_cases import CASES, plan_case
from cocoll.errors import UnsupportedError
from cocoll.plan import Plan
from cocoll.plan.ir import Buffer, Fragment, Lane, Loop, Receive, Send, Span, View
from cocoll.resharding.lowering import ReshardLimits, lower
from cocoll.simulation import simulate
from cocoll.topology import load_topology
from tests.helpers.ring_plans import plan_ring

MIB = 1 << 20
LIMITS = ReshardLimits(512 << 10, MIB, 16, 8)


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        ("case3", "auto"),
        ("case3", "send_recv"),
        ("case5", "auto"),
        ("case7", "auto"),
        ("case7", "send_recv"),
        ("one_to_many_2x2", "auto"),
        ("striping_2to3", "auto"),
        ("striping_2to3", "send_recv"),
    ],
)
def test_makespans_and_bytes(name: str, solver: str) -> None:
    case = CASES[name].scaled(64 * MIB)
    topology = load_topology(f"p3.8xlarge:{case.src_mesh[0] + case.dst_mesh[0]}")
    made = plan_case(case, topology, solver=solver)
    hosts = list(made.problem.hosts)
    ranks = range(topology.world_size)
    plans = [lower(made, rank, [4], LIMITS, hosts=hosts)[0] for rank in ranks]
    # Plans of ranges have no length of a vector.
    simulated = simulate(plans, topology, 0, keep_spans=False)
    assert made.bound.nanoseconds <= simulated.makespan_nanoseconds
    assert simulated.makespan_nanoseconds <= 1.1 * made.makespan_nanoseconds
    nics = [
        port
        for port in range(len(topology.ports))
        if topology.ports[port].kind in ("nic_out", "nic_in")
    ]
    for port in nics:
        assert simulated.port_bytes[port] == made.port_bytes.get(port, 0)


def test_a_range_is_what_it_says() -> None:
    # Iterations 0 and 1 are ranges of 1000 and 250 elements, wherever they begin.
    topology = load_topology("p3.8xlarge:2")
    plans = []
    for rank in range(8):
        view = View(Buffer.PART, rank, 4)
        step = Send(-1, 4, view) if rank == 0 else Receive(-1, 0, view)
        loops = (
            Loop((step,), Span.RANGE, 1000, 0, None, 7),
            Loop((step,), Span.RANGE, 250, 1, None, 4096),
        )
        lanes = (Lane("wire", loops),) if rank in (0, 4) else ()
        plans.append(Plan(rank, 8, Fragment(lanes), "ranges"))
    simulated = simulate(plans, topology, 0)
    begun = min(span.begin_nanoseconds for span in simulated.spans)
    # Each takes 30 us, and then a byte in 0.8 ns.
    assert simulated.makespan_nanoseconds - begun == 2 * 30_000 + 3_200 + 800
    assert sum(simulated.port_bytes) == 2 * 4 * 1250


def test_groups_over_loops_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="not simulated"):
        simulate([plan_ring(rank, 8, group=1) for rank in range(8)], load_topology("laptop:8"), 12)
