"""Arrays in symmetric memory that cannot be made, or that the ranks do not agree on."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll.errors import CollectiveMismatchError, DTypeError, UsageError
from cocoll.testing import run_ranks
from tests.helpers.misuse import check_usable, refuse, refuse_on_ranks


def check_memory(comm: cocoll.Communicator) -> None:
    """Make arrays, and see that the ranks find each other's."""
    for replicated in (False, True):
        array = comm.empty(1000, replicated=replicated)
        cocoll.broadcast(np.full(1000, comm.rank + 7.0, np.float32), 1, out=array, comm=comm)
        assert array.tolist() == [8.0] * 1000
    x = comm.empty((7, 10_001))
    x[:] = comm.rank + 1
    cocoll.allreduce(x, comm=comm)
    assert (x == comm.world_size * (comm.world_size + 1) / 2).all()


SHAPES = [-1, (4, -1), "four", None, 1.5, (2.5,), (1, None), [[1]], True]


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
@pytest.mark.parametrize("replicated", [False, True])
def test_a_shape_that_is_none(shape: object, replicated: bool) -> None:
    errors = refuse_on_ranks(
        lambda comm: (lambda: comm.empty(shape, replicated=replicated), []), UsageError, "shape"
    )
    assert all(repr(shape) in str(error) for error in errors)


@pytest.mark.parametrize("shape", [np.int64(5), (np.int32(2), 3), [2, 3], ()], ids=repr)
def test_a_shape_that_is_one(shape: object) -> None:
    expected = np.empty(shape).shape
    assert run_ranks(2, lambda comm: comm.empty(shape).shape) == [expected] * 2


@pytest.mark.parametrize("dtype", ["int128", "complex256", "", "f4", None, 3], ids=repr)
@pytest.mark.parametrize("name", ["empty", "shard_zeros"])
def test_an_unknown_element_type(name: str, dtype: object) -> None:
    refuse_on_ranks(
        lambda comm: (lambda: getattr(comm, name)(4, dtype), []),
        DTypeError,
        "wanted a dtype out of",
        repr(str(dtype)),
    )


# More than the machine has; more than addresses; more than 63 bits of bytes, and of elements.
TOO_LARGE = [1 << 44, 1 << 58, 1 << 62, (1 << 40, 1 << 40)]


@pytest.mark.parametrize("shape", TOO_LARGE, ids=repr)
@pytest.mark.parametrize("replicated", [False, True])
def test_more_than_there_is(shape: object, replicated: bool) -> None:
    def body(comm):
        kept = comm.empty(100)
        kept[:] = comm.rank
        for _ in range(2):
            with pytest.raises(OSError, match=r"rank 0 .*shared memory"):
                comm.empty(shape, replicated=replicated)
            check_usable(comm)
            check_memory(comm)
        assert kept.tolist() == [comm.rank] * 100

    run_ranks(2, body)


DISAGREEMENTS = {
    "length": (lambda comm: comm.empty(100 + comm.rank), ["(100,)", "(101,)"]),
    "shape": (lambda comm: comm.empty([(4, 6), (6, 4)][comm.rank]), ["(4, 6)", "(6, 4)"]),
    "rank of the shape": (lambda comm: comm.empty([6, (6, 1)][comm.rank]), ["(6,)", "(6, 1)"]),
    "type": (
        lambda comm: comm.empty(6, ["float32", "int32"][comm.rank]),
        ["'float32'", "'int32'"],
    ),
    "replicated or not": (
        lambda comm: comm.empty(6, replicated=comm.rank == 0),
        ["replicated=True", "replicated=False"],
    ),
}


@pytest.mark.parametrize("name", sorted(DISAGREEMENTS))
def test_ranks_that_disagree(name: str) -> None:
    call, words = DISAGREEMENTS[name]

    def body(comm):
        error = refuse(
            lambda: call(comm), CollectiveMismatchError, "asked for different arrays", *words
        )
        assert [words[rank] in error.requests[rank] for rank in range(2)] == [True, True]
        check_usable(comm)
        check_memory(comm)

    run_ranks(2, body)


OTHERS = {
    "allreduce": lambda comm: cocoll.allreduce(np.ones(5, np.float32), comm=comm),
    "barrier": lambda comm: comm.barrier(),
    "duplicate": lambda comm: comm.duplicate(),
    "split": lambda comm: comm.split(0),
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_rank_that_calls_something_else(name: str) -> None:
    def body(comm):
        call = OTHERS[name] if comm.rank == 1 else (lambda comm: comm.empty(5))
        error = refuse(lambda: call(comm), CollectiveMismatchError, "rank 0: comm.empty", "rank 1:")
        assert set(error.requests) == {0, 1}
        check_usable(comm)
        check_memory(comm)

    run_ranks(2, body)


def test_duplicate_against_split() -> None:
    def body(comm):
        call = comm.duplicate if comm.rank == 0 else (lambda: comm.split(0))
        refuse(call, CollectiveMismatchError, "rank 0: comm.duplicate", "rank 1: comm.split")
        check_usable(comm)
        check_memory(comm)

    run_ranks(2, body)
