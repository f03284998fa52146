"""Reshardings that cannot be: refused in words, before anything has moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import (
    BufferOverlapError,
    CollectiveMismatchError,
    ReshardError,
    UnsupportedError,
    UsageError,
)
from cocoll.resharding import Mesh, TensorMove
from cocoll.testing import run_ranks
from tests.helpers.misuse import check_usable, refuse

A, B = Mesh.arange((2,), 0), Mesh.arange((2,), 2)
SHAPE = (6, 4)
F32 = np.dtype(np.float32)


def plan(comm: cocoll.Communicator, **changes: Any) -> cocoll.Resharding:
    fields = {"shape": SHAPE, "src": (A, "S0,R"), "dst": (B, "R,S0"), "dtype": "float32"}
    solver = changes.pop("solver", "auto")
    return cocoll.plan_reshard(TensorMove(**{**fields, **changes}), solver=solver, comm=comm)


PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "more dims than the spec": ({"shape": (6, 4, 2)}, "wanted a spec for the 3 dims"),
    "an axis that is not there": ({"src": (A, "S1,R")}, "there is no mesh axis 1"),
    "a rank that is not there": (
        {"dst": (Mesh([2, 9]), "R,S0")},
        "dst: wanted a mesh of ranks below 4",
    ),
    "lengths that do not add up": (
        {"lengths": ({0: (3, 4)}, None)},
        "dim 0 of length 6: wanted 2 lengths .* that add up to 6; got .* 7",
    ),
    "uneven where that is not allowed": (
        {"shape": (7, 4), "allow_uneven": False},
        "dim 0: length 7 does not divide by 2",
    ),
    "partial sums at the end": ({"dst": (B, "R,R+P0")}, "cannot hold partial sums"),
}


@pytest.mark.parametrize("name", PLANS)
def test_layouts(name: str) -> None:
    changes, words = PLANS[name]

    def body(comm: cocoll.Communicator) -> None:
        with pytest.raises(ReshardError, match=words):
            plan(comm, **changes)
        check_usable(comm)

    run_ranks(4, body)


def test_a_solver_that_is_not_there() -> None:
    def body(comm: cocoll.Communicator) -> None:
        with pytest.raises(UsageError, match="magic"):
            plan(comm, solver="magic")

    run_ranks(4, body)


def whole_shard(comm: cocoll.Communicator) -> np.ndarray | None:
    return np.ones((3, 4), F32) if comm.rank in A else None


# What one rank gives in place of its shard or its result; the words; which ranks are told.
ARRAYS: dict[str, tuple[Callable[[int], dict[str, Any]], str]] = {
    "no shard": (lambda rank: {"x": None}, "x: wanted this rank's shard, of shape"),
    "another shape": (lambda rank: {"x": np.ones((4, 3), F32)}, r"got \(4, 3\) of float32"),
    "another dtype": (lambda rank: {"x": np.ones((3, 4))}, "got .* of float64"),
    "no array": (lambda rank: {"x": "shard"}, "x must be an array"),
    "several": (lambda rank: {"x": [np.ones((3, 4), F32)] * 2}, "wanted one array; got a list"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_shards(name: str) -> None:
    change, words = ARRAYS[name]

    def body(comm: cocoll.Communicator) -> None:
        planned = plan(comm)
        if comm.rank in A:
            with pytest.raises(UsageError, match=words):
                planned.bind(change(comm.rank)["x"])
        check_usable(comm)
        planned(whole_shard(comm))

    run_ranks(4, body)


def test_forms_of_several() -> None:
    def body(comm: cocoll.Communicator) -> None:
        move = TensorMove(SHAPE, (A, "S0,R"), (B, "R,S0"))
        listed = cocoll.plan_reshard([move, move], comm=comm)
        named = cocoll.plan_reshard({"a": move, "b": move}, comm=comm)
        x = whole_shard(comm)
        for planned, value, words in (
            (listed, [x], "wanted a list of 2 arrays; got 1"),
            (listed, {"a": x, "b": x}, "wanted a list of 2 arrays; got dict"),
            (named, [x, x], "wanted a dict"),
            (named, {"a": x, "c": x}, r"there are no tensors \['c'\]"),
        ):
            with pytest.raises(ReshardError, match=words):
                planned.bind(value)
        if comm.rank in A:
            with pytest.raises(ReshardError, match=r"x\['b'\]: wanted this rank's shard"):
                named.bind({"a": x})
            with pytest.raises(ReshardError, match=r"x\[1\]: wanted this rank's shard"):
                listed.bind([x, None])
        for moves in ([], {}, [move, None], {"a": SHAPE}):
            with pytest.raises(ReshardError, match="wanted"):
                cocoll.plan_reshard(moves, comm=comm)
        check_usable(comm)

    run_ranks(4, body)


def test_results() -> None:
    def body(comm: cocoll.Communicator) -> None:
        planned = plan(comm)
        if comm.rank in B:
            readonly = np.ones((6, 2), F32)
            readonly.flags.writeable = False
            for out, words in (
                (np.ones((2, 6), F32), "out: wanted shape"),
                (np.ones((6, 2)), "out: wanted shape .* of float32"),
                (readonly, "out must be writable"),
            ):
                with pytest.raises(UsageError, match=words):
                    planned.bind(out=out)
            with pytest.raises(ReshardError, match="has no shard; got an array"):
                planned.bind(np.ones((3, 4), F32))
        else:
            with pytest.raises(ReshardError, match="has no shard; got an array"):
                planned.bind(whole_shard(comm), out=np.ones((6, 2), F32))
        check_usable(comm)

    run_ranks(4, body)


def test_memory_that_is_read_and_written() -> None:
    def body(comm: cocoll.Communicator) -> None:
        planned = plan(comm, dst=(A, "R,S0"))
        if comm.rank in A:
            memory = np.ones(24, F32)
            with pytest.raises(BufferOverlapError, match=f"on rank {comm.rank}"):
                planned.bind(memory[:12].reshape(3, 4), out=memory[6:18].reshape(6, 2))
        check_usable(comm)

    run_ranks(4, body)


@pytest.mark.parametrize("hosts", [None, (0, 0, 1, 1)])
@pytest.mark.parametrize("odd", [0, 3])
def test_ranks_that_ask_for_different_things(hosts: tuple[int, ...] | None, odd: int) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for changes in (
            {"solver": "send_recv"},
            {"dst": (B, "S0,R")},
            {"shape": (6, 8)},
            {"dtype": "int64"},
        ):
            mine = changes if comm.rank == odd else {}
            with pytest.raises(CollectiveMismatchError, match="different reshardings"):
                plan(comm, **mine)
        planned = plan(comm)
        other = plan(comm, dst=(B, "S0,R"))
        for call in (other, lambda x: cocoll.barrier(comm=comm)):
            bound = planned.bind(whole_shard(comm))
            mine = (lambda call=call: call(whole_shard(comm))) if comm.rank == odd else bound
            error = refuse(mine, CollectiveMismatchError, "nothing has moved")
            assert "reshard(" in error.requests[3 - odd]
        # What planning refuses is refused on all ranks.
        sides = {"src": (Mesh.arange((4,)), "R,R+P0"), "dst": (A, "R,R")}
        with pytest.raises(UnsupportedError, match="without partial sums"):
            plan(comm, **sides, solver="exact")
        check_usable(comm)

    run_ranks(4, body, hosts=hosts)


def test_epilogues_that_do_not_go_along() -> None:
    drops = cocoll.epilogue(lambda x, *, p: cocoll.dropout(x, p))

    def body(comm: cocoll.Communicator) -> None:
        move = TensorMove(SHAPE, (A, "S0,R"), (B, "R,S0"))
        other = TensorMove(SHAPE, (A, "S0,R"), (B, "R,S0"), "float64")
        for moves, epilogue, words in (
            (move, epilogues.adam(), "takes the arrays"),
            (move, epilogues.bias_dropout_residual(), "takes the arrays"),
            (move, drops, "drops elements by their place"),
            ([move, other], epilogues.relu(), "tensors of one dtype"),
        ):
            with pytest.raises(ReshardError, match=words):
                cocoll.plan_reshard(moves, epilogue=epilogue, comm=comm)
        mine = epilogues.relu() if comm.rank == 1 else None
        with pytest.raises(CollectiveMismatchError, match="epilogue"):
            cocoll.plan_reshard(move, epilogue=mine, comm=comm)
        check_usable(comm)

    run_ranks(4, body)


def test_shards_that_do_not_fit_together() -> None:
    def body(comm: cocoll.Communicator) -> None:
        sides = {"src": (Mesh([[0, 1], [2, 3]]), "S0,R"), "dst": (B, "R,S0")}
        for shapes, words in (
            ([(3, 4), (2, 4), (3, 4), (3, 4)], "disagree on its length: 3, and 2 on rank 1"),
            ([(3, 4), (3, 4), (3, 4, 1), (3, 4)], "shards of 2 dims"),
        ):
            x = np.ones(shapes[comm.rank], F32)
            with pytest.raises(ReshardError, match=words):
                cocoll.reshard(x, comm=comm, **sides)
        x = None if comm.rank == 0 else np.ones((3, 4), F32)
        with pytest.raises(ReshardError, match="rank 0, the first of the source; it has none"):
            cocoll.reshard(x, comm=comm, **sides)
        x = np.ones((3, 4), np.float64 if comm.rank == 2 else F32)
        with pytest.raises(ReshardError, match="got float64 on rank 2"):
            cocoll.reshard(x, comm=comm, **sides)
        check_usable(comm)

    run_ranks(4, body)


def test_a_rank_in_neither_mesh_takes_part() -> None:
    def body(comm: cocoll.Communicator) -> None:
        planned = plan(comm, dst=(Mesh([2]), "R,R"))
        got = planned(whole_shard(comm)).result()
        assert (got is None) == (comm.rank != 2)

    run_ranks(4, body)


def test_a_communicator_without_staging() -> None:
    def body(comm: cocoll.Communicator) -> None:
        with pytest.raises(UsageError, match="staging_bytes of at least 2048; got 1000"):
            plan(comm)

    run_ranks(4, body, tuning=cocoll.Tuning(staging_bytes=1000))


def test_the_least_staging() -> None:
    def body(comm: cocoll.Communicator) -> None:
        got = plan(comm)(whole_shard(comm)).result()
        if comm.rank in B:
            np.testing.assert_array_equal(got, np.ones((6, 2), F32))

    run_ranks(4, body, tuning=cocoll.Tuning(staging_bytes=4096), hosts=(0, 0, 0, 1))
