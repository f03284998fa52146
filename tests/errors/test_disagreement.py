"""Ranks that ask for different operations: all of them are told, and what each one asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import CollectiveMismatchError
from cocoll.testing import run_ranks
from tests.helpers.misuse import check_usable, refuse, run_everywhere

# Inline, one-shot, two-shot, not divisible by ranks or by 16.
COUNTS = [1, 16, 17, 1_000, 5_000, 70_001, 1_048_579]

Ask = Callable[[cocoll.Communicator], tuple[Callable[[], object], list[np.ndarray]]]


def disagree(world_size: int, asks: dict[int, Ask], other: Ask, words: dict[int, str]) -> None:
    """Let rank r do asks[r], or `other`; all must be told `words` about each other."""

    def body(comm):
        call, arrays = asks.get(comm.rank, other)(comm)
        error = refuse(
            call,
            CollectiveMismatchError,
            "asked for different operations",
            "nothing has moved",
            arrays=arrays,
        )
        assert set(error.requests) == set(range(world_size))
        for rank, word in words.items():
            assert word in error.requests[rank], error.requests
            assert f"rank {rank}: {error.requests[rank]}" in str(error)
        check_usable(comm)
        check_usable(comm)

    run_everywhere(world_size, body)


def reduce(count: int, dtype: object = np.float32, **options: object) -> Ask:
    def ask(comm):
        # Memory of both kinds, so that plans of both kinds meet the disagreement.
        symmetric = comm.rank % 2 == 1 and np.dtype(dtype) == np.float32 and count > 5000
        x = np.empty(count, dtype)
        x[:] = np.arange(count) % 7 + comm.rank
        names = dict(options)
        if symmetric:
            names["out"] = np.zeros_like(x)
        return lambda: cocoll.allreduce(x, comm=comm, **names), [x]

    return ask


def broadcast(count: int, root: int = 0) -> Ask:
    def ask(comm):
        x = np.full(count, comm.rank + 1, np.float32)
        return lambda: cocoll.broadcast(x, root, comm=comm), [x]

    return ask


@pytest.mark.parametrize(
    ("first", "others"), [(1, 2), (16, 17), (2560, 5120), (256_000, 512_000), (0, 5), (70_001, 0)]
)
def test_the_number_of_elements(first: int, others: int) -> None:
    words = {0: f"count={first}"} | dict.fromkeys((1, 2, 3), f"count={others}")
    disagree(4, {0: reduce(first)}, reduce(others), words)


@pytest.mark.parametrize("count", COUNTS)
def test_one_element_more(count: int) -> None:
    words = {0: f"count={count}", 1: f"count={count + 1}", 2: f"count={count}"}
    disagree(3, {1: reduce(count + 1)}, reduce(count), words)


@pytest.mark.parametrize("count", COUNTS)
def test_the_element_type_at_equal_bytes(count: int) -> None:
    words = {0: "dtype=float32", 1: "dtype=int32", 2: "dtype=int32", 3: "dtype=int32"}
    disagree(4, {0: reduce(count)}, reduce(count, np.int32), words)


@pytest.mark.parametrize("count", COUNTS)
def test_a_narrower_type_of_double_length(count: int) -> None:
    words = {0: f"count={count}, dtype=float32", 1: f"count={2 * count}, dtype=bfloat16"}
    disagree(4, {0: reduce(count)}, reduce(2 * count, ml_dtypes.bfloat16), words)


@pytest.mark.parametrize("count", COUNTS)
def test_another_operation(count: int) -> None:
    words = {0: f"broadcast(count={count}", 1: f"allreduce(count={count}", 3: "allreduce"}
    disagree(4, {0: broadcast(count)}, reduce(count), words)


@pytest.mark.parametrize("count", COUNTS)
def test_the_root(count: int) -> None:
    words = {0: "root=1", 1: "root=0", 2: "root=0", 3: "root=0"}
    disagree(4, {0: broadcast(count, 1)}, broadcast(count), words)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("op", ["prod", "min", "max", "avg"])
def test_the_reduction(op: str, count: int) -> None:
    words = {0: "op=sum", 1: f"op={op}"}
    disagree(2, {1: reduce(count, op=op)}, reduce(count), words)


@pytest.mark.parametrize("size", [4, 400, 40_000])
def test_every_rank_something_else(size: int) -> None:
    def scatter(comm):
        x = np.ones(4 * size, np.float32)
        return lambda: cocoll.reduce_scatter(x, comm=comm), [x]

    def gather(comm):
        x = np.ones(size, np.float32)
        return lambda: cocoll.allgather(x, comm=comm), [x]

    def barrier(comm):
        return comm.barrier, []

    asks = {1: scatter, 2: gather, 3: barrier}
    words = {0: "allreduce(", 1: "reduce_scatter(", 2: "allgather(", 3: "barrier()"}
    disagree(4, asks, reduce(size), words)


@pytest.mark.parametrize("count", [48, 39_999])
def test_blocks_or_shards(count: int) -> None:
    def scatter(layout):
        def ask(comm):
            x = np.ones(count, np.float32)
            return lambda: cocoll.reduce_scatter(x, comm=comm, layout=layout), [x]

        return ask

    disagree(3, {0: scatter("shard")}, scatter("block"), {0: "shard", 1: f"count={count}"})


# ---- fused calls ----


def fused(epilogue: object, count: int = 1000, **names: object) -> Ask:
    def ask(comm):
        x, param = np.ones(count, np.float32), np.ones(count, np.float32)
        arrays = (
            {"param": param}
            if "param" in epilogue.array_names
            else {"out": np.zeros(count, np.float32)}
        )
        call = cocoll.allreduce_fused
        return lambda: call(x, epilogue, comm=comm, **arrays, **names), [x, *arrays.values()]

    return ask


@pytest.mark.parametrize("count", COUNTS[:-1])
def test_the_epilogue(count: int) -> None:
    disagree(
        2,
        {1: fused(epilogues.gelu(), count)},
        fused(epilogues.relu(), count),
        {0: "epilogue=", 1: "epilogue="},
    )


def test_fused_or_not() -> None:
    disagree(
        2, {1: reduce(1000)}, fused(epilogues.relu()), {0: "allreduce_fused(", 1: "allreduce("}
    )


@pytest.mark.parametrize("count", COUNTS[:-1])
def test_the_scalars(count: int) -> None:
    def body(comm):
        x, param = np.ones(count, np.float32), np.ones(count, np.float32)
        lr = 0.1 * (comm.rank + 1)
        call = cocoll.allreduce_fused
        refuse(
            lambda: call(x, epilogues.sgd(), param=param, lr=lr, comm=comm),
            CollectiveMismatchError,
            "They differ in an epilogue or in its scalars",
            "lr",
            arrays=[x, param],
        )
        check_usable(comm)
        # Bound once, run with scalars of its own.
        bound = comm.bind(call, x, epilogues.sgd(), param=param)
        refuse(lambda: bound(lr=lr), CollectiveMismatchError, "scalars", arrays=[x, param])
        check_usable(comm)
        bound(lr=0.5)
        assert param.tolist() == [0.0] * count

    run_everywhere(2, body)


def test_zeroing_or_not() -> None:
    sgd = epilogues.sgd(lr=0.1)
    disagree(2, {1: fused(sgd, zero_grad=True)}, fused(sgd), {1: "zero_grad"})


def test_an_epilogue_from_the_catalogue_and_one_that_is_compiled() -> None:
    @epilogues.epilogue
    def strange(x, *, weight):
        return x * weight + 0.125

    asks = {1: fused(strange, weight=2.0)}
    disagree(2, asks, fused(epilogues.relu()), {0: "allreduce_fused(", 1: "preparation"})


# ---- on streams, bound, and again and again ----


@pytest.mark.parametrize("count", COUNTS)
def test_on_a_stream(count: int) -> None:
    def body(comm):
        x = np.ones(count, np.float32)
        with cocoll.Stream() as stream:
            op = "sum" if comm.rank else "max"
            work = cocoll.allreduce(x, op, comm=comm, stream=stream)
            after = cocoll.allreduce(np.ones(5, np.float32), comm=comm, stream=stream)
            refuse(work.wait, CollectiveMismatchError, "op=sum", "op=max", arrays=[x])
            assert isinstance(work.exception(), CollectiveMismatchError)
            assert work.done()
            after.wait()
        check_usable(comm)

    run_everywhere(2, body)


def test_a_bound_operation_may_be_run_again() -> None:
    def body(comm):
        x = np.ones(1000, np.float32)
        bound = comm.bind(cocoll.allreduce, x)
        if comm.rank == 0:
            refuse(bound, CollectiveMismatchError, "allreduce", "barrier()", arrays=[x])
        else:
            refuse(comm.barrier, CollectiveMismatchError, "allreduce", "barrier()")
        bound()
        assert x.tolist() == [2.0] * 1000

    run_ranks(2, body)


def test_three_hundred_times() -> None:
    # More than the flight recorder has places for; every report is about its own operation.
    def body(comm):
        for turn in range(300):
            x = np.full(turn % 40 + comm.rank, 1.0, np.float32)
            with pytest.raises(CollectiveMismatchError) as caught:
                cocoll.allreduce(x, comm=comm)
            assert f"count={turn % 40}," in caught.value.requests[0]
            assert f"count={turn % 40 + 1}," in caught.value.requests[1]
            assert caught.value.sequence == turn
            assert (x == 1.0).all()
        check_usable(comm)

    run_ranks(2, body)


def test_a_rank_that_looks_late_is_told_the_same() -> None:
    # A rank that reports a disagreement after its peers have gone on must not tell of their later
    # operations.
    gone_on = threading.Event()

    def body(comm):
        with cocoll.Stream() as stream:
            x = np.ones(3 + comm.rank, np.float32)
            work = cocoll.allreduce(x, comm=comm, stream=stream)
            if comm.rank == 0:
                assert gone_on.wait(60)
            else:
                while not work.done():
                    gone_on.wait(0.001)
                refuse(work.wait, CollectiveMismatchError, "count=3", "count=4", arrays=[x])
                gone_on.set()
                for _ in range(2):
                    check_usable(comm)
            if comm.rank == 0:
                refuse(work.wait, CollectiveMismatchError, "count=3", "count=4", arrays=[x])
                for _ in range(2):
                    check_usable(comm)

    run_ranks(2, body)
