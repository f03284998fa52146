"""Reshardings that ranks run: every shard is what NumPy cuts out of the whole."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cocoll
from cocoll.dtypes import DType
from cocoll.errors import UnsupportedError, UsageError
from cocoll.resharding import Layout, Mesh, TensorMove
from cocoll.resharding.solvers import SOLVERS
from cocoll.testing import run_ranks
from cocoll.topology import load_topology
from tests.helpers.reshard_data import CASES, A, B, shard_of, summand, whole_of
from tests.helpers.reshard_draws import reshardings

LAYOUTS = {
    "one host": None,
    "two hosts": (0, 0, 0, 0, 1, 1, 1, 1),
    "four hosts": (0, 0, 1, 1, 2, 2, 3, 3),
    "a host each": tuple(range(8)),
    "mixed": (0, 1, 1, 0, 2, 0, 1, 2),
}


def check(comm: cocoll.Communicator, move: TensorMove, solver: str, *, strided: bool) -> None:
    src, dst = move.layouts()
    whole = whole_of(move.shape, move.dtype)
    x = out = None
    if comm.rank in src.mesh:
        x = shard_of(summand(whole, src, comm.rank), src, comm.rank)
        x = np.array(x, order="F" if strided else "C")
        before = x.copy()
    if comm.rank in dst.mesh and strided:
        out = np.zeros((*dst.shape_of(comm.rank), 2), move.dtype)[..., 1]
    planned = cocoll.plan_reshard(move, solver=solver, comm=comm)
    for _ in range(2):
        got = planned(x, out=out).result()
        if comm.rank not in dst.mesh:
            assert got is None
            continue
        np.testing.assert_array_equal(got, shard_of(whole, dst, comm.rank))
        assert out is None or got is out
    if x is not None:
        np.testing.assert_array_equal(x, before)


@cocoll.epilogue
def halve(x: Any, *, factor: float) -> Any:
    return cocoll.cast(x * factor, "float16")


# The least staging there is: many chunks, and every slot is filled again.
TUNING = cocoll.Tuning(staging_bytes=16 << 10)


def few(layouts: Sequence[str], short: Sequence[str]) -> list[Any]:
    """Give layouts as parameters: those in `short`, and the others for long runs."""
    return [
        pytest.param(layout, marks=() if layout in short else pytest.mark.long)
        for layout in layouts
    ]


@pytest.mark.parametrize("layout", few(list(LAYOUTS), ["one host", "mixed"]))
@pytest.mark.parametrize("case", CASES)
def test_cases(layout: str, case: str) -> None:
    shape, src, dst = CASES[case]
    move = TensorMove(shape, src, dst, "float32")

    def body(comm: cocoll.Communicator) -> None:
        for strided in (False, True):
            check(comm, move, "auto", strided=strided)

    run_ranks(8, body, hosts=LAYOUTS[layout], tuning=TUNING)


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers(solver: str) -> None:
    def body(comm: cocoll.Communicator) -> None:
        cases = ["replicated", "one to many"]
        # Too many unit tasks for the one that looks at all orders.
        if solver != "exact":
            cases += ["rows to columns", "uneven", "overlapping"]
        for case in cases:
            check(comm, TensorMove(*CASES[case], "int32"), solver, strided=False)

    run_ranks(8, body, hosts=LAYOUTS["mixed"], tuning=TUNING)


# What moves is bytes: one dtype of every size each time.
DTYPES = [
    pytest.param(
        dtype.label,
        marks=() if dtype <= DType.UINT8 or dtype is DType.COMPLEX128 else pytest.mark.long,
    )
    for dtype in DType
    if dtype.carrier is None
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for case in ("uneven", "partial", "permuted"):
            check(comm, TensorMove(*CASES[case], dtype), "auto", strided=False)

    run_ranks(8, body, hosts=LAYOUTS["two hosts"], tuning=TUNING)


EIGHT = (load_topology("laptop:8"),)


@pytest.mark.parametrize("layout", few(["one host", "two hosts", "mixed"], ["mixed"]))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_ones(layout: str, data: st.DataObject) -> None:
    draws = data.draw(st.lists(reshardings(topologies=EIGHT), min_size=8, max_size=8))
    solvers = data.draw(st.lists(st.sampled_from(sorted(SOLVERS)), min_size=8, max_size=8))

    def body(comm: cocoll.Communicator) -> None:
        for number, (draw, solver) in enumerate(zip(draws, solvers, strict=True)):
            src, dst = (draw.src, draw.src_spec), (draw.dst, draw.dst_spec)
            if draw.src_spec.partial:
                solver = "auto"
            check(comm, TensorMove(draw.shape, src, dst, "int64"), solver, strided=number % 2 == 1)

    run_ranks(8, body, hosts=LAYOUTS[layout], tuning=TUNING)


def test_what_an_epilogue_has_changed_is_not_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # As `auto` does on some topologies: slices are divided, and gathered where they arrive.
    monkeypatch.setitem(SOLVERS, "auto", SOLVERS["send_recv_allgather"])
    move = TensorMove(*CASES["replicated"], "float32")

    def body(comm: cocoll.Communicator) -> None:
        plain = cocoll.plan_reshard(move, comm=comm)
        assert not plain.planned.holders_send
        with pytest.raises(UnsupportedError, match="sends on what has arrived"):
            cocoll.plan_reshard(move, solver="send_recv_allgather", epilogue=halve, comm=comm)
        planned = cocoll.plan_reshard(move, epilogue=halve, comm=comm)
        assert planned.planned.holders_send
        whole = whole_of(move.shape, "float32")
        x = whole if comm.rank in A else None
        got = planned(x, factor=0.5).result()
        if comm.rank in B:
            np.testing.assert_array_equal(got, (whole * np.float32(0.5)).astype(np.float16))

    run_ranks(8, body, hosts=LAYOUTS["two hosts"], tuning=TUNING)


def test_what_is_left_out_is_agreed() -> None:
    src, dst = (A, "S0,S1"), (B, "R,S01")

    def body(comm: cocoll.Communicator) -> None:
        # Pieces of any lengths: 3 and 5 rows, 2 and 7 columns.
        whole = whole_of((8, 9), "float64")
        x = None
        if comm.rank in A:
            row, column = A.coordinates(comm.rank)
            x = whole[:3] if row == 0 else whole[3:]
            x = x[:, :2] if column == 0 else x[:, 2:]
        got = cocoll.reshard(x, src=src, dst=dst, comm=comm).result()
        if comm.rank in B:
            layout = Layout((8, 9), *dst)
            np.testing.assert_array_equal(got, shard_of(whole, layout, comm.rank))
            assert got.dtype == np.float64
        else:
            assert got is None

    run_ranks(8, body, hosts=LAYOUTS["four hosts"])


def test_several_tensors_go_together() -> None:
    moves = [
        TensorMove((24, 10), (A, "S0,S1"), (B, "R,S1"), "float32"),
        TensorMove((31,), (A, "S01"), (A, "R"), "float64"),
        TensorMove((5, 6), (B, "S0,R"), (Mesh([0, 7]), "R,S0"), "uint8"),
    ]

    def body(comm: cocoll.Communicator) -> None:
        planned = cocoll.plan_reshard(moves, comm=comm)
        assert cocoll.plan_reshard(moves, comm=comm) is planned
        wholes = [whole_of(move.shape, move.dtype) for move in moves]
        layouts = [move.layouts() for move in moves]
        given = [
            shard_of(whole, src, comm.rank).copy() if comm.rank in src.mesh else None
            for whole, (src, _) in zip(wholes, layouts, strict=True)
        ]
        with cocoll.Stream() as stream:
            bound = planned.bind(given, stream=stream)
            works = [bound() for _ in range(3)]
            for work in works:
                for got, whole, (_, dst) in zip(work.result(), wholes, layouts, strict=True):
                    if comm.rank in dst.mesh:
                        np.testing.assert_array_equal(got, shard_of(whole, dst, comm.rank))
                    else:
                        assert got is None

    run_ranks(8, body, hosts=LAYOUTS["two hosts"], tuning=TUNING)


def test_sums_have_the_same_bits_everywhere() -> None:
    move = TensorMove((37, 11), (A, "R,R+P01"), (Mesh.arange((8,)), "R,R"), "float32")

    def body(comm: cocoll.Communicator) -> tuple[bytes, np.ndarray | None]:
        draw = np.random.default_rng(comm.rank).standard_normal(move.shape).astype(np.float32)
        x = draw if comm.rank in A else None
        planned = cocoll.plan_reshard(move, comm=comm)
        first, second = (planned(x).result().tobytes() for _ in range(2))
        assert first == second
        return first, x

    outcomes = run_ranks(8, body, hosts=LAYOUTS["two hosts"], tuning=TUNING)
    assert len({bits for bits, _ in outcomes}) == 1
    total = np.sum([x for _, x in outcomes if x is not None], axis=0, dtype=np.float64)
    got = np.frombuffer(outcomes[0][0], np.float32).reshape(move.shape)
    np.testing.assert_allclose(got, total, rtol=1e-5, atol=1e-6)


def test_no_rank_takes_more_memory_than_its_slots() -> None:
    # All that a rank has beside its arrays is its staging, which was there before.
    move = TensorMove((512, 1024), (A, "S0,S1"), (B, "S1,S0"), "float32")

    def body(comm: cocoll.Communicator) -> None:
        src, dst = move.layouts()
        x = np.ones(src.shape_of(comm.rank), np.float32) if comm.rank in A else None
        out = np.empty(dst.shape_of(comm.rank), np.float32) if comm.rank in B else None
        bound = cocoll.plan_reshard(move, comm=comm).bind(x, out=out)
        bound()
        cocoll.barrier(comm=comm)
        if comm.rank == 0:
            tracemalloc.start()
        cocoll.barrier(comm=comm)
        bound()
        cocoll.barrier(comm=comm)
        if comm.rank == 0:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 64 << 10

    run_ranks(8, body, tuning=TUNING)


@pytest.mark.parametrize("layout", few(["one host", "two hosts", "mixed"], ["mixed"]))
@pytest.mark.parametrize("case", ["uneven", "overlapping", "one to many", "partial", "the same"])
def test_an_epilogue_on_the_way(layout: str, case: str) -> None:
    shape, src, dst = CASES[case]
    move = TensorMove(shape, src, dst, "float32")

    def body(comm: cocoll.Communicator) -> None:
        source, target = move.layouts()
        whole = whole_of(shape, "float32")
        x = None
        if comm.rank in source.mesh:
            x = shard_of(summand(whole, source, comm.rank), source, comm.rank).copy()
        planned = cocoll.plan_reshard(move, epilogue=halve, comm=comm)
        assert cocoll.plan_reshard(move, epilogue=halve, comm=comm) is planned
        assert cocoll.plan_reshard(move, comm=comm) is not planned
        for factor in (0.5, 3.0):
            got = planned(x, factor=factor).result()
            if comm.rank in target.mesh:
                wanted = shard_of(
                    (whole * np.float32(factor)).astype(np.float16), target, comm.rank
                )
                assert got.dtype == np.float16
                np.testing.assert_array_equal(got, wanted)
            else:
                assert got is None
        with pytest.raises(UsageError, match="factor"):
            planned(x)

    run_ranks(8, body, hosts=LAYOUTS[layout], tuning=TUNING)


@pytest.mark.parametrize("layout", ["one host", "mixed"])
def test_multicasts(layout: str) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for holders, needers in (([2], [0, 1, 7]), ([0, 5], [1, 5, 6, 7]), ([3], [4])):
            for facts in ({}, {"shape": (9, 31), "dtype": "float64"}):
                whole = whole_of((9, 31), "float64")
                x = whole.copy() if comm.rank in holders else None
                got = cocoll.multicast(x, holders=holders, needers=needers, comm=comm, **facts)
                if comm.rank in needers:
                    np.testing.assert_array_equal(got.result(), whole)
                else:
                    assert got.result() is None

    run_ranks(8, body, hosts=LAYOUTS[layout], tuning=TUNING)


def test_state_dicts() -> None:
    moves = {
        "weight": TensorMove((24, 10), (A, "S0,S1"), (B, "R,S1")),
        "bias": TensorMove((10,), (A, "S01"), (B, "R")),
    }

    def body(comm: cocoll.Communicator) -> None:
        wholes = {name: whole_of(move.shape, move.dtype) for name, move in moves.items()}
        state = {
            name: shard_of(wholes[name], move.layouts()[0], comm.rank).copy()
            for name, move in moves.items()
            if comm.rank in A
        }
        planned = cocoll.plan_reshard(moves, comm=comm)
        got = planned(state).result()
        assert list(got) == list(moves)
        for name, move in moves.items():
            if comm.rank in B:
                wanted = shard_of(wholes[name], move.layouts()[1], comm.rank)
                np.testing.assert_array_equal(got[name], wanted)
            else:
                assert got[name] is None

    run_ranks(8, body, hosts=LAYOUTS["two hosts"])


def test_r18_uneven_shards_keep_no_padding() -> None:
    line, grid = Mesh.arange((4,)), Mesh.arange((2, 2))
    ways = [
        ((5, 10), (line, "R,R"), (line, "S0,R"), [2, 2, 1, 0]),
        ((6, 256), (line, "R,R"), (line, "S0,R"), [2, 2, 2, 0]),
        ((5, 7), (line, "S0,R"), (line, "R,S0"), [5] * 4),
        ((5, 7), (line, "S0,R"), (grid, "S01,R"), [2, 1, 1, 1]),
        ((3, 7), (line, "R,R"), (grid, "S01,R"), [1, 1, 1, 0]),
        ((5, 10), (line, "S0[1:4:0:0],R"), (line, "R,R"), [5] * 4),
    ]

    def body(comm: cocoll.Communicator) -> None:
        for shape, src, dst, rows in ways:
            whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            there, back = TensorMove(shape, src, dst), TensorMove(shape, dst, src)
            source, target = there.layouts()
            x = shard_of(whole, source, comm.rank).copy()
            planned = cocoll.plan_reshard(there, comm=comm)
            assert all(task.nbytes > 0 for task in planned.planned.tasks)
            got = planned(x).result()
            assert got.shape[0] == rows[comm.rank]
            assert got.shape == target.shape_of(comm.rank)
            np.testing.assert_array_equal(got, shard_of(whole, target, comm.rank))
            again = cocoll.plan_reshard(back, comm=comm)(got).result()
            assert again.shape == x.shape
            np.testing.assert_array_equal(again, x)

    for hosts in (None, (0, 0, 1, 1)):
        run_ranks(4, body, hosts=hosts)
