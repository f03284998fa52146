"""Arguments with a fixed set of values: op, root, layout, comm, stream, function, color."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.bootstrap import SelfBootstrap
from cocoll.errors import RankError, UsageError
from cocoll.testing import run_ranks
from tests.helpers.misuse import check_usable, refuse, refuse_on_ranks


@pytest.mark.parametrize("given", ["mean", "SUM", "", None, 0, np.add, ["sum"], {}], ids=str)
@pytest.mark.parametrize("count", [4, 70_001])
def test_an_unknown_op(given: object, count: int) -> None:
    def misuse(comm):
        x = np.ones(count, np.float32)
        return lambda: cocoll.allreduce(x, given, comm=comm), [x]

    refuse_on_ranks(misuse, UsageError, "op must be one of sum, prod, min, max, avg", repr(given))


def test_an_unknown_op_of_a_fused_call() -> None:
    def misuse(comm):
        x = np.ones(40, np.float32)
        call = cocoll.allreduce_fused
        return lambda: call(x, epilogues.relu(), op="norm", comm=comm), [x]

    refuse_on_ranks(misuse, UsageError, "op must be one of", "'norm'")


@pytest.mark.parametrize("root", [2, -1, 100, 1 << 40, -(1 << 70)])
@pytest.mark.parametrize("bound", [False, True])
def test_a_root_outside(root: int, bound: bool) -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        if bound:
            return lambda: comm.bind(cocoll.broadcast, x, root), [x]
        return lambda: cocoll.broadcast(x, root, comm=comm), [x]

    refuse_on_ranks(
        misuse, RankError, "root must be a rank in [0, 2)", f"got {root} on rank {{rank}}"
    )


@pytest.mark.parametrize("root", [None, "0", 0.0, 1.5, [0]], ids=repr)
def test_a_root_that_is_no_number(root: object) -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        return lambda: cocoll.broadcast(x, root, comm=comm), [x]

    refuse_on_ranks(misuse, UsageError, "root must be a rank in [0, 2)", repr(root))


def test_a_root_of_numpy() -> None:
    def body(comm):
        x = np.full(4, comm.rank, np.float32)
        cocoll.broadcast(x, np.int64(1), comm=comm)
        assert x.tolist() == [1.0] * 4

    run_ranks(2, body)


@pytest.mark.parametrize("layout", ["blocks", "SHARD", "", 1, ["shard"]], ids=str)
def test_an_unknown_layout(layout: object) -> None:
    def misuse(comm):
        x = np.ones(8, np.float32)
        return lambda: cocoll.reduce_scatter(x, comm=comm, layout=layout), [x]

    refuse_on_ranks(misuse, UsageError, "layout must be 'block' or 'shard'", repr(layout))


@pytest.mark.parametrize("stream", [0, 1, "stream", object()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("kind", ["call", "barrier", "fused", "bind"])
def test_what_is_no_stream(stream: object, kind: str) -> None:
    def misuse(comm):
        x = np.ones(40, np.float32)
        calls = {
            "call": lambda: cocoll.allreduce(x, comm=comm, stream=stream),
            "barrier": lambda: cocoll.barrier(comm=comm, stream=stream),
            "fused": lambda: cocoll.allreduce_fused(x, epilogues.relu(), comm=comm, stream=stream),
            "bind": lambda: comm.bind(cocoll.allreduce, x, stream=stream),
        }
        return calls[kind], [x]

    refuse_on_ranks(misuse, UsageError, "stream must be a cocoll.Stream", type(stream).__name__)


@pytest.mark.parametrize(
    "comm", [0, "world", object(), SelfBootstrap()], ids=lambda c: type(c).__name__
)
def test_what_is_no_communicator(comm: object) -> None:
    x = np.ones(4, np.float32)
    refuse(
        lambda: cocoll.allreduce(x, comm=comm),
        UsageError,
        "comm must be a cocoll.Communicator",
        type(comm).__name__,
        arrays=[x],
    )
    refuse(lambda: cocoll.barrier(comm=comm), UsageError, "comm must be")


def test_no_communicator_yet() -> None:
    import contextvars

    x = np.ones(4, np.float32)
    for call in (
        lambda: cocoll.allreduce(x),
        lambda: cocoll.barrier(),
        lambda: cocoll.reduce_scatter_fused(x, epilogues.relu()),
    ):
        contextvars.Context().run(
            refuse, call, UsageError, "there is no communicator yet", "cocoll.init()", arrays=[x]
        )


def describe(function: object) -> str:
    """Name a function without its address, which differs from process to process."""
    return getattr(function, "__name__", str(function))


@pytest.mark.parametrize(
    "function", [cocoll.barrier, print, None, "allreduce", np.add], ids=describe
)
def test_binding_what_is_no_collective(function: object) -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        return lambda: comm.bind(function, x), [x]

    refuse_on_ranks(misuse, UsageError, "bind takes a collective of cocoll", repr(function)[:20])


def test_binding_to_another_communicator() -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        other = comm.duplicate()
        return lambda: comm.bind(cocoll.allreduce, x, comm=other), [x]

    refuse_on_ranks(misuse, UsageError, "binds to its own communicator")


@pytest.mark.parametrize("arguments", [(), (1, 2, 3, 4)])
def test_binding_with_the_wrong_arguments(arguments: tuple[object, ...]) -> None:
    def body(comm):
        with pytest.raises(TypeError, match="argument"):
            comm.bind(cocoll.allreduce, *arguments)
        check_usable(comm)

    run_ranks(2, body)


@pytest.mark.parametrize("color", [True, 1.0, "red", (1,)], ids=repr)
def test_a_color_that_is_no_number(color: object) -> None:
    refuse_on_ranks(
        lambda comm: (lambda: comm.split(color), []),
        UsageError,
        "color must be an int or None",
        repr(color),
        "rank {rank}",
    )


@pytest.mark.parametrize("key", [None, 1.5, "first"], ids=repr)
def test_a_key_that_is_no_number(key: object) -> None:
    refuse_on_ranks(
        lambda comm: (lambda: comm.split(0, key), []),
        UsageError,
        "key must be an int",
        repr(key),
        "rank {rank}",
    )


@pytest.mark.parametrize("name", ["timeout", "x", "Timeout_seconds"])
def test_an_unknown_setting(name: str) -> None:
    refuse(
        lambda: cocoll.Communicator(SelfBootstrap(), **{name: 1}),
        UsageError,
        repr(name),
        "timeout_seconds",
    )


@pytest.mark.parametrize("value", [0, -1, "10", float("nan"), True], ids=repr)
def test_a_setting_of_no_sense(value: object) -> None:
    refuse(
        lambda: cocoll.Communicator(SelfBootstrap(), timeout_seconds=value),
        UsageError,
        "timeout_seconds",
        repr(value),
    )


@pytest.mark.parametrize("group", [3, "world", object()], ids=lambda g: type(g).__name__)
def test_what_ranks_cannot_meet_through(group: object) -> None:
    refuse(
        lambda: cocoll.Communicator(group), UsageError, "mpi4py communicator", type(group).__name__
    )


@pytest.mark.parametrize("rank", [2, -1, 100])
def test_the_shard_of_a_rank_outside(rank: int) -> None:
    refuse_on_ranks(
        lambda comm: (lambda: comm.shard_range(40, rank), []),
        RankError,
        "a rank in [0, 2)",
        f"got {rank}",
    )
