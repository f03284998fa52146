"""What ranks did when: traces of operations, and what bound calls say of themselves."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll.errors import UnsupportedError, UsageError
from cocoll.plan import Builder, Copy, Plan, Receive, Reduce, Send, Span
from cocoll.plan.ranges import block_elements, chunk_range, loop_iterations
from cocoll.simulation import Explanation
from cocoll.testing import run_ranks
from tests.helpers.exercises import EXERCISES

COUNT = 50_000
LAYOUTS = {"one host": None, "two hosts": (0, 0, 1)}
WORDS = {Copy: "copy", Reduce: "reduce", Send: "send", Receive: "receive"}


def moved(plan: Plan) -> Counter[str]:
    """Count the steps that have something to do, by the first word of their text."""
    length = block_elements(COUNT, plan.world_size, plan.alignment_elements)
    found: Counter[str] = Counter()
    loops = [*plan.fragment.opening, *(loop for lane in plan.fragment.lanes for loop in lane.loops)]
    for loop in loops:
        for iteration in loop_iterations(loop, COUNT, length):
            for step in loop.steps:
                if type(step) not in WORDS:
                    continue
                first, stop = chunk_range(loop, step.block, iteration, COUNT, length)
                found[WORDS[type(step)]] += first < stop
    return found


def read(path: Path) -> tuple[dict[int, str], list[dict[str, Any]]]:
    """Give the names of the processes, and the spans."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    return names, [one for one in events if one["ph"] == "X"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", EXERCISES)
def test_every_operation_can_be_traced(tmp_path: Path, layout: str, name: str) -> None:
    path = tmp_path / "trace.json"

    def body(comm: cocoll.Communicator) -> None:
        with comm.trace(path):
            EXERCISES[name](comm, np.random.default_rng(5))

    run_ranks(3, body, hosts=LAYOUTS[layout])
    names, _ = read(path)
    # Messages of two ranks are no operations of the sequence, and leave no rows.
    traced = set() if name == "sendrecv" else {f"rank {rank}" for rank in range(3)}
    assert traced <= set(names.values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", ["totals", "alltoall"])
def test_what_is_not_explained_says_so(layout: str, call: str) -> None:
    @cocoll.epilogue
    def scaled(x: Any) -> Any:
        return x / cocoll.norm(x)

    def body(comm: cocoll.Communicator) -> None:
        x = np.ones(300, np.float32)
        if call == "totals":
            bound, words = comm.bind(cocoll.allreduce_fused, x, scaled), "takes several"
        else:
            bound = comm.bind(cocoll.alltoall, x, out=np.empty_like(x))
            words = "no cost model of alltoall"
        with pytest.raises(UnsupportedError, match=words):
            bound.explain()

    run_ranks(3, body, hosts=LAYOUTS[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_step_is_there(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "trace.json"

    def body(comm: cocoll.Communicator) -> Counter[str]:
        x = np.ones(COUNT, np.float32)
        bound = comm.bind(cocoll.allreduce, x)
        bound()
        with comm.trace(path):
            bound()
            bound()
        assert x[0] == 27
        bound()
        facts = bound_facts(comm)
        return moved(facts.plan(False))

    wanted = run_ranks(3, body, hosts=LAYOUTS[layout])
    names, spans = read(path)
    assert sorted(names.values()) == sorted(
        [*(f"rank {rank}" for rank in range(3)), *(f"rank {rank} (predicted)" for rank in range(3))]
    )
    for process, name in names.items():
        own = [one for one in spans if one["pid"] == process]
        if name.endswith("(predicted)"):
            assert own
            continue
        rank = int(name.split()[1])
        got = Counter(one["cat"] for one in own if ", operation " not in one["name"])
        assert got == Counter({word: 2 * times for word, times in wanted[rank].items() if times})
        assert all(one["dur"] >= 0 for one in own)
        operations = [one for one in own if ", operation " in one["name"]]
        # Two operations, each with its arrival.
        assert len(operations) == 4
        begins = [one["ts"] for one in operations]
        ends = [one["ts"] + one["dur"] for one in operations]
        assert all(
            min(begins) - 1 <= one["ts"] and one["ts"] + one["dur"] <= max(ends) + 1 for one in own
        )


def bound_facts(comm: cocoll.Communicator) -> Any:
    """Give the facts of the one program that the communicator has run last."""
    comm._start_recording()
    cocoll.allreduce(np.ones(COUNT, np.float32), comm=comm)
    _, programs, dropped = comm._stop_recording()
    assert dropped == 0
    (facts,) = programs.values()
    return facts


def test_streams_belong_to_the_block(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def body(comm: cocoll.Communicator) -> None:
        x = np.ones(COUNT, np.float32)
        with cocoll.Stream() as stream, comm.trace(path):
            for _ in range(3):
                cocoll.allreduce(x, "max", comm=comm, stream=stream)

    run_ranks(2, body)
    names, spans = read(path)
    process = next(number for number, name in names.items() if name == "rank 0")
    operations = [one for one in spans if one["pid"] == process and "arrival" in one["name"]]
    assert len(operations) == 3


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    def body(comm: cocoll.Communicator) -> None:
        with (
            pytest.raises(UsageError, match="folder that exists"),
            comm.trace(tmp_path / "none" / "trace.json"),
        ):
            raise AssertionError("entered")
        cocoll.barrier(comm=comm)

    run_ranks(2, body)


def test_an_exception_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def fail_inside(comm: cocoll.Communicator) -> None:
        with comm.trace(path):
            cocoll.barrier(comm=comm)
            raise ArithmeticError

    def body(comm: cocoll.Communicator) -> None:
        with pytest.raises(ArithmeticError):
            fail_inside(comm)
        # The recorder is off, and the communicator as good as before.
        cocoll.barrier(comm=comm)
        assert comm._stop_recording()[0] == []

    run_ranks(2, body)
    assert not path.exists()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_setting(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / "traces"

    def body(comm: cocoll.Communicator) -> None:
        cocoll.broadcast(np.ones(COUNT, np.float32), comm=comm)

    run_ranks(3, body, hosts=LAYOUTS[layout], trace=folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        f"rank-{rank}-0.json" for rank in range(3)
    ]
    for rank in range(3):
        names, spans = read(folder / f"rank-{rank}-0.json")
        assert list(names.values()) == [f"rank {rank}"]
        assert sum(", operation 0" in one["name"] for one in spans) == 2


@pytest.mark.parametrize("memory", ["ordinary", "symmetric"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bound_calls_explain_themselves(layout: str, memory: str) -> None:
    def body(comm: cocoll.Communicator) -> Explanation:
        x = comm.empty(COUNT) if memory == "symmetric" else np.ones(COUNT, np.float32)
        bound = comm.bind(cocoll.allreduce, x)
        explained = bound.explain()
        assert explained.algorithm == bound.algorithm
        return explained

    everyone = run_ranks(3, body, hosts=LAYOUTS[layout])
    assert len({str(explained) for explained in everyone}) == 1
    explained = everyone[0]
    assert explained.bytes == 4 * COUNT
    assert explained.hosts == (1 if layout == "one host" else 2)
    assert 0 < explained.bound.nanoseconds <= explained.predicted_nanoseconds
    assert (explained.messages > 0) == (layout == "two hosts")


def test_plans_of_the_callers_own_are_not_explained() -> None:
    def planner(rank: int, world_size: int) -> Plan:
        builder = Builder(rank, world_size, name="own")
        with builder.lane("copy"), builder.loop(span=Span.WHOLE, chunk_elements=100):
            builder.copy(
                source=builder.source(itemsize_bytes=4),
                destination=builder.result(itemsize_bytes=4),
            )
        return builder.build()

    def body(comm: cocoll.Communicator) -> None:
        bound = comm.bind_plan(planner, np.ones(10, np.float32), out=np.zeros(10, np.float32))
        with pytest.raises(UnsupportedError, match="cocoll's own"):
            bound.explain()

    run_ranks(2, body)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reshardings_are_recorded(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "trace.json"
    everyone = cocoll.Mesh.arange((3,))
    move = cocoll.TensorMove((300, 40), (everyone, "S0,R"), (everyone, "R,S0"))

    def body(comm: cocoll.Communicator) -> None:
        planned = cocoll.plan_reshard(move, comm=comm)
        bound = planned.bind(np.ones((100, 40), np.float32))
        with comm.trace(path):
            bound()
        with pytest.raises(UnsupportedError):
            bound.explain()

    run_ranks(3, body, hosts=LAYOUTS[layout])
    names, spans = read(path)
    assert sorted(names.values()) == [f"rank {rank}" for rank in range(3)]
    for process in names:
        own = [one for one in spans if one["pid"] == process]
        assert any("reshard" in one["name"] for one in own)
        # Two boxes come and two go; one stays.
        assert {"copy"} <= {one["cat"] for one in own}
