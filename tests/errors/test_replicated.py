"""Arrays of which the host has one copy, where every rank would change it."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import CollectiveMismatchError, UsageError
from cocoll.testing import run_ranks
from tests.helpers.misuse import check_usable, refuse_on_ranks

N = 40


def replicated(comm, count: int = N) -> np.ndarray:
    array = comm.empty(count, replicated=True)
    cocoll.broadcast(np.arange(count, dtype=np.float32), out=array, comm=comm)
    return array


@pytest.mark.parametrize("count", [4, 1000, 70_001])
def test_allreduce_in_place(count: int) -> None:
    def misuse(comm):
        x = replicated(comm, count)
        return lambda: cocoll.allreduce(x, comm=comm), [x]

    refuse_on_ranks(
        misuse, UsageError, "x is a replicated array", "one copy", "rank {rank}", "comm.empty"
    )


@pytest.mark.parametrize("count", [4, 1000, 70_001])
def test_allreduce_into_it(count: int) -> None:
    def misuse(comm):
        x, out = np.ones(count, np.float32), replicated(comm, count)
        return lambda: cocoll.allreduce(x, out=out, comm=comm), [x, out]

    refuse_on_ranks(misuse, UsageError, "out is a replicated array", "one copy", "rank {rank}")


def test_reduce_scatter_into_it() -> None:
    def misuse(comm):
        x, out = np.ones(2 * N, np.float32), replicated(comm)
        return lambda: cocoll.reduce_scatter(x, out=out, comm=comm), [x, out]

    refuse_on_ranks(misuse, UsageError, "out is a replicated array", "rank {rank}")


def test_sharded_state_in_it() -> None:
    def misuse(comm):
        start, stop = comm.shard_range(N)
        buffer = replicated(comm)[: stop - start]
        x, param = np.ones(N, np.float32), np.ones(N, np.float32)
        sgd = epilogues.sgd(lr=0.1, momentum=0.5)
        call = cocoll.allreduce_fused
        return (
            lambda: call(x, sgd, param=param, momentum_buffer=buffer, comm=comm),
            [x, param, buffer],
        )

    refuse_on_ranks(misuse, UsageError, "momentum_buffer is a replicated array", "rank {rank}")


def test_zero_grad_of_it() -> None:
    def misuse(comm):
        x, param = replicated(comm), replicated(comm)
        call = cocoll.allreduce_fused
        return (
            lambda: call(x, epilogues.sgd(lr=0.1), param=param, zero_grad=True, comm=comm),
            [x, param],
        )

    refuse_on_ranks(misuse, UsageError, "x is a replicated array", "rank {rank}")


def test_an_in_place_epilogue_over_it() -> None:
    def misuse(comm):
        x = replicated(comm)
        return lambda: cocoll.allreduce_fused(x, epilogues.relu(), comm=comm), [x]

    refuse_on_ranks(misuse, UsageError, "x is a replicated array", "rank {rank}")


def test_one_updated_array_of_two() -> None:
    @epilogues.epilogue
    def both(g, a, b):
        return {"a": a + g, "b": b - g}

    def misuse(comm):
        x, a, b = np.ones(N, np.float32), replicated(comm), np.ones(N, np.float32)
        return lambda: cocoll.allreduce_fused(x, both, a=a, b=b, comm=comm), [x, a, b]

    refuse_on_ranks(
        misuse,
        UsageError,
        "either all arrays that a fused call updates are replicated",
        "rank {rank}",
    )


def test_writing_to_it() -> None:
    def body(comm):
        array = replicated(comm)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
        assert array.tolist() == list(range(N))
        check_usable(comm)

    run_ranks(2, body)


@pytest.mark.parametrize("count", [4, 1000, 70_001])
def test_on_some_ranks_only(count: int) -> None:
    def body(comm):
        shared = replicated(comm, count)
        param = shared if comm.rank == 0 else np.arange(count, dtype=np.float32)
        x = np.ones(count, np.float32)
        before = param.tobytes()
        with pytest.raises(CollectiveMismatchError) as caught:
            cocoll.allreduce_fused(x, epilogues.sgd(lr=0.1), param=param, comm=comm)
        assert "replicated" in caught.value.requests[0]
        assert "replicated" not in caught.value.requests[1]
        assert param.tobytes() == before
        assert x.tobytes() == np.ones(count, np.float32).tobytes()
        check_usable(comm)

    run_ranks(2, body)
