"""Reshardings of arrays on GPUs: every shard is what NumPy cuts out of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import cocoll
from cocoll.array import numpy_dtype
from cocoll.cuda.binding import Operation
from cocoll.device.boxes import DeviceBox, add_box_copy
from cocoll.dtypes import DType
from cocoll.errors import (
    AbortedError,
    CollectiveMismatchError,
    PlanNotReadyError,
    ReshardError,
    UsageError,
)
from cocoll.resharding import Layout, TensorMove
from cocoll.resharding.solvers import SOLVERS
from cocoll.testing import run_ranks
from tests.helpers.on_device import TUNING, Watch, gpu_stream, put
from tests.helpers.reshard_data import CASES, A, B, shard_of, summand, whole_of

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit
    from cocoll.testing.graphs import Graphs

HOSTS = (0, 0, 0, 0, 1, 1, 1, 1)
Run = Callable[..., list[Any]]


# The ways differ in how ranks arrive and what is mapped; what reshards is the same.
LONG = pytest.mark.long
WAYS = [pytest.param("mapped", marks=LONG), pytest.param("wire", marks=LONG), "hosts"]


@pytest.fixture(params=WAYS)
def run(request: pytest.FixtureRequest, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(request.param, toolkit, monkeypatch)


def runner(way: str, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give what runs eight ranks with a GPU each, in one of the ways in which they can reach."""
    monkeypatch.setenv("COCOLL_EMULATED_DEVICES", "8")
    hosts = HOSTS if way == "hosts" else None
    if way == "wire":
        monkeypatch.setenv("COCOLL_EMULATED_PEER_ACCESS", "0")
    if hosts is not None:
        monkeypatch.setenv("COCOLL_EMULATED_HOSTS", ",".join(map(str, hosts)))

    def start(body: Callable[[cocoll.Communicator], Any]) -> list[Any]:
        return run_ranks(8, opened(body), hosts=hosts, toolkit=toolkit, tuning=TUNING)

    return start


def opened(body: Callable[[cocoll.Communicator], Any]) -> Callable[[cocoll.Communicator], Any]:
    """Open every rank's GPU first: `put` does so on the ranks alone that have a shard."""

    def with_gpu(comm: cocoll.Communicator) -> Any:
        comm.empty(1, device=f"cuda:{comm.rank}")
        return body(comm)

    return with_gpu


def shard_on_device(comm: cocoll.Communicator, move: TensorMove) -> Any:
    src = move.layouts()[0]
    if comm.rank not in src.mesh:
        return None
    whole = whole_of(move.shape, "float32" if move.dtype == "bfloat16" else move.dtype)
    mine = shard_of(summand(whole, src, comm.rank), src, comm.rank)
    return put(comm, np.array(mine, order="C"), "ordinary")


def check(comm: cocoll.Communicator, move: TensorMove, solver: str = "auto") -> None:
    dst = move.layouts()[1]
    x = shard_on_device(comm, move)
    planned = cocoll.plan_reshard(move, solver=solver, device="cuda", comm=comm)
    for _ in range(2):
        got = planned(x).result()
        if comm.rank not in dst.mesh:
            assert got is None
            continue
        wanted = shard_of(whole_of(move.shape, move.dtype), dst, comm.rank)
        np.testing.assert_array_equal(got.get(), wanted)


@pytest.mark.parametrize("way", ["mapped", "wire"])
def test_other_ways(way: str, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    start = runner(way, toolkit, monkeypatch)
    for case in ("uneven", "partial"):
        start(lambda comm, case=case: check(comm, TensorMove(*CASES[case], "float32")))


USUAL_CASES = (
    "replicated",
    "rows to columns",
    "overlapping",
    "partial in place",
    "empty",
    "a number",
)
SOME_CASES = [pytest.param(case, marks=() if case in USUAL_CASES else LONG) for case in CASES]


@pytest.mark.parametrize("case", SOME_CASES)
def test_cases(case: str, run: Run) -> None:
    shape, src, dst = CASES[case]
    run(lambda comm: check(comm, TensorMove(shape, src, dst, "float32")))


@LONG
def test_solvers(run: Run) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for solver in SOLVERS:
            check(comm, TensorMove(*CASES["replicated"], "int32"), solver)
            if solver != "exact":
                check(comm, TensorMove(*CASES["overlapping"], "int32"), solver)

    run(body)


USUAL_DTYPES = ("float16", "int64")
DTYPES = [
    pytest.param(one.label, marks=() if one.label in USUAL_DTYPES else LONG)
    for one in DType
    if one.carrier is None
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, run: Run) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for case in ("uneven", "partial"):
            check(comm, TensorMove(*CASES[case], dtype))

    run(body)


@cocoll.epilogue
def halve(x: Any, *, factor: float) -> Any:
    return cocoll.cast(x * factor, "float16")


EPILOGUE_CASES = [
    "overlapping",
    "uneven",
    pytest.param("rows to columns", marks=LONG),
    pytest.param("many to one", marks=LONG),
]


@pytest.mark.parametrize("case", EPILOGUE_CASES)
def test_epilogues(case: str, run: Run) -> None:
    shape, src, dst = CASES[case]
    move = TensorMove(shape, src, dst, "float32")

    def body(comm: cocoll.Communicator) -> None:
        x = shard_on_device(comm, move)
        planned = cocoll.plan_reshard(move, epilogue=halve, device="cuda", comm=comm)
        for factor in (0.5, 2.0):
            got = planned(x, factor=factor).result()
            if got is not None:
                whole = (whole_of(shape, "float32") * np.float32(factor)).astype(np.float16)
                wanted = shard_of(whole, Layout(shape, *dst), comm.rank)
                np.testing.assert_array_equal(got.get(), wanted)

    run(body)


def test_several_tensors_by_name_on_a_stream(run: Run) -> None:
    moves = {
        "weight": TensorMove((24, 10), (A, "S0,S1"), (B, "R,S01"), "float32"),
        "bias": TensorMove((11,), (A, "S0"), (B, "R"), "float64"),
        "ids": TensorMove((16,), (A, "R"), (B, "S01"), "uint8"),
    }

    def body(comm: cocoll.Communicator) -> None:
        planned = cocoll.plan_reshard(moves, device="cuda", comm=comm)
        shards = {name: shard_on_device(comm, move) for name, move in moves.items()}
        with gpu_stream(comm) as stream:
            work = planned(shards if comm.rank in A else None, stream=stream)
            results = work.result()
        for name, move in moves.items():
            if comm.rank in B:
                wanted = shard_of(whole_of(move.shape, move.dtype), move.layouts()[1], comm.rank)
                np.testing.assert_array_equal(results[name].get(), wanted)

    run(body)


def test_where_arrays_are_is_agreed_once(run: Run) -> None:
    src, dst = (A, "S0,S1"), (B, "R,S01")

    def body(comm: cocoll.Communicator) -> None:
        move = TensorMove((8, 12), src, dst, "float32")
        x = shard_on_device(comm, move)
        for facts in ({}, {"shape": (8, 12), "dtype": "float32"}):
            got = cocoll.reshard(x, src=src, dst=dst, comm=comm, **facts).result()
            if comm.rank in B:
                wanted = shard_of(whole_of((8, 12), "float32"), Layout((8, 12), *dst), comm.rank)
                np.testing.assert_array_equal(got.get(), wanted)
        value = put(comm, np.arange(5.0), "ordinary") if comm.rank == 3 else None
        got = cocoll.multicast(value, holders=[3], needers=[0, 6], comm=comm).result()
        if comm.rank in (0, 6):
            np.testing.assert_array_equal(got.get(), np.arange(5.0))

    run(body)


def test_bad_input(run: Run) -> None:
    move = TensorMove((8, 6), (A, "S0,S1"), (B, "S0,S1"), "float32")

    def body(comm: cocoll.Communicator) -> None:
        planned = cocoll.plan_reshard(move, device="cuda", comm=comm)
        with pytest.raises(UsageError, match="'cpu', 'cuda' or 'cuda:N'"):
            cocoll.plan_reshard(move, device="tpu", comm=comm)
        x = np.zeros((4, 3), np.float32)
        if comm.rank in A:
            with pytest.raises(ReshardError, match="device='cpu'"):
                planned(x)
            with pytest.raises(ReshardError, match="wanted shape"):
                planned(put(comm, np.zeros((4, 4), np.float32), "ordinary"))
        else:
            with pytest.raises(ReshardError, match="wanted shape"):
                planned(out=put(comm, np.zeros((4, 4), np.float32), "ordinary"))
        mixed = x if comm.rank in A else None
        out = put(comm, x, "ordinary") if comm.rank in B else None
        with pytest.raises(UsageError, match="rank by rank"):
            cocoll.reshard(mixed, src=move.src, dst=move.dst, shape=(8, 6), dtype="float32",
                           out=out, comm=comm)  # fmt: skip
        check(comm, move)

    run(body)


def test_graphs_replay_what_is_bound(run: Run, graphs: Graphs) -> None:
    move = TensorMove((64, 48), (A, "S0,S1"), (B, "R,S01"), "float32")

    def body(comm: cocoll.Communicator) -> None:
        x = shard_on_device(comm, move)
        planned = cocoll.plan_reshard(move, device="cuda", comm=comm)
        with gpu_stream(comm) as stream:
            bound = planned.bind(x, stream=stream)
            out = bound().result()
            with graphs.capture(stream), pytest.raises(PlanNotReadyError, match=r"bind\("):
                planned(x, stream=stream)
            with graphs.capture(stream) as capture:
                bound()
            if out is not None:
                out.set(np.zeros(out.shape, np.float32))
            for _ in range(2):
                capture.launch(stream)
            comm._open_side(None).device.synchronize_all()
            if out is not None:
                wanted = shard_of(whole_of(move.shape, "float32"), move.layouts()[1], comm.rank)
                np.testing.assert_array_equal(out.get(), wanted)

    run(body)


def test_ranks_that_move_different_things_are_told(run: Run) -> None:
    moves = [TensorMove(*CASES[case], "float32") for case in ("rows to columns", "replicated")]

    def body(comm: cocoll.Communicator) -> None:
        plans = [cocoll.plan_reshard(move, device="cuda", comm=comm) for move in moves]
        number = int(comm.rank == 5)
        with pytest.raises((CollectiveMismatchError, AbortedError)):
            plans[number](shard_on_device(comm, moves[number])).wait()

    run(body)


def test_what_crosses_the_wire_is_what_the_plan_says(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_DEVICES", "8")
    monkeypatch.setenv("COCOLL_EMULATED_HOSTS", ",".join(map(str, HOSTS)))
    watch = Watch(toolkit)
    move = TensorMove((64, 48), (A, "S0,R"), (B, "R,S1"), "float32")
    pairs = [(one, other) for one in range(8) for other in range(8) if one != other]

    def body(comm: cocoll.Communicator) -> Any:
        x = shard_on_device(comm, move)
        planned = cocoll.plan_reshard(move, device="cuda", comm=comm)
        bound = planned.bind(x)
        bound().wait()
        cocoll.barrier(comm=comm)
        if comm.rank == 0:
            for pair in pairs:
                watch.take_sent_bytes(*pair)
        cocoll.barrier(comm=comm)
        bound().wait()
        cocoll.barrier(comm=comm)
        return planned.planned

    made = run_ranks(8, opened(body), hosts=HOSTS, toolkit=toolkit, tuning=TUNING)[0]
    wanted = dict.fromkeys(pairs, 0)
    for group in made.schedule.groups:
        for transfer in group.transfers:
            for hop in transfer.hops:
                wanted[hop] += transfer.stop - transfer.start
    sent = {pair: watch.take_sent_bytes(*pair) for pair in pairs}
    words = {pair: sent[pair] - wanted[pair] for pair in pairs}
    # Beside the tensors only a word of each rank to each other.
    assert set(words.values()) == {4}


BOXES = [
    ((6, 8), (slice(1, 5), slice(2, 6))),
    ((6, 8, 4), (slice(0, 6), slice(3, 4), slice(0, 4))),
    ((5, 7, 3), (slice(2, 5), slice(0, 7), slice(1, 3))),
    ((40,), (slice(3, 33),)),
]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("box", BOXES)
def test_boxes_are_copied(box: Any, dtype: str, toolkit: Toolkit) -> None:
    shape, index = box

    def body(comm: cocoll.Communicator) -> None:
        side = comm._open_side(None)
        itemsize = DType.parse(dtype).itemsize_bytes
        whole = (np.arange(np.prod(shape)) % 251).astype(numpy_dtype(DType.parse(dtype)))
        whole = whole.reshape(shape)
        x, flat = put(comm, whole, "ordinary"), whole[index].copy()
        target = put(comm, np.zeros_like(whole), "ordinary")
        slot = put(comm, np.zeros(flat.size + 4, whole.dtype), "ordinary")

        def part_of(array: Any) -> DeviceBox:
            offset = whole[index].__array_interface__["data"][0] - whole.ctypes.data
            address = array.__cuda_array_interface__["data"][0] + offset
            return DeviceBox.of_array(address, itemsize, flat.shape, whole[index].strides)

        base = slot.__cuda_array_interface__["data"][0]
        for first, stop in ((0, flat.size), (1, flat.size - 2), (4, flat.size), (3, 3)):
            operation = Operation(side.endpoint, 1)
            packed = DeviceBox(base, itemsize, origin=first)
            add_box_copy(side, operation, packed, part_of(x), first, stop, 0)
            add_box_copy(side, operation, part_of(target), packed, first, stop, 0)
            target.set(np.zeros_like(whole))
            operation.run(side.stream.handle)
            side.stream.synchronize()
            wanted = np.zeros_like(whole)
            piece = np.zeros(flat.size, whole.dtype)
            piece[first:stop] = flat.reshape(-1)[first:stop]
            wanted[index] = piece.reshape(flat.shape)
            np.testing.assert_array_equal(target.get(), wanted)

    run_ranks(1, body, toolkit=toolkit, tuning=TUNING)
