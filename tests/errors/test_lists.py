"""Lists of arrays that fit nothing: refused before anything has moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import (
    BufferMismatchError,
    BufferOverlapError,
    CollectiveMismatchError,
    DTypeError,
    UsageError,
)
from cocoll.testing import run_ranks
from tests.helpers.misuse import refuse_on_ranks


def ones(*sizes: int, dtype: Any = np.float32) -> list[Any]:
    return [np.ones(size, dtype) for size in sizes]


ALLREDUCES = {
    "nothing": (lambda: ([], None), UsageError, ["at least one array", "empty list"]),
    "a set": (lambda: ({1.0}, None), UsageError, ["x must be an array", "got set"]),
    "a dict": (lambda: ({"a": 1.0}, None), UsageError, ["x must be an array", "got dict"]),
    "two dtypes": (
        lambda: ([*ones(3), *ones(2, dtype=np.float64)], None),
        DTypeError,
        ["arrays of one dtype", "at index 1", "float64"],
    ),
    "no array": (lambda: ([*ones(3), "text"], None), UsageError, ["x[1] must be an array"]),
    "a list in a list": (lambda: ([ones(3)], None), UsageError, ["x[0] must be an array"]),
    "one twice": (lambda: (ones(3) * 2, None), BufferOverlapError, ["arrays must be apart"]),
    "one output": (
        lambda: (ones(3, 4), np.ones(7, np.float32)),
        UsageError,
        ["out must be a list"],
    ),
    "outputs of one": (
        lambda: (np.ones(7, np.float32), ones(3, 4)),
        UsageError,
        ["out must be one array"],
    ),
    "fewer outputs": (
        lambda: (ones(3, 4), ones(7)),
        BufferMismatchError,
        ["out must hold 2 arrays", "got 1"],
    ),
    "other lengths": (
        lambda: (ones(3, 4), ones(4, 3)),
        BufferMismatchError,
        ["out[0] must have 3 elements", "got 4"],
    ),
}


@pytest.mark.parametrize("name", ALLREDUCES)
def test_allreduce(name: str) -> None:
    make, error, parts = ALLREDUCES[name]

    def misuse(comm: cocoll.Communicator) -> Any:
        x, out = make()
        return lambda: cocoll.allreduce(x, out=out, comm=comm), []

    refuse_on_ranks(misuse, error, *parts)


def test_a_read_only_array() -> None:
    def misuse(comm: cocoll.Communicator) -> Any:
        x = ones(3, 4)
        x[1].flags.writeable = False
        return lambda: cocoll.allreduce(x, comm=comm), x

    refuse_on_ranks(misuse, UsageError, "x[1] must be writable")


def test_outputs_that_overlap_inputs_in_part() -> None:
    def misuse(comm: cocoll.Communicator) -> Any:
        memory = np.ones(20, np.float32)
        x, out = [memory[:8], memory[10:12]], [np.ones(8, np.float32), memory[11:13]]
        return lambda: cocoll.allreduce(x, out=out, comm=comm), [memory]

    refuse_on_ranks(misuse, BufferOverlapError, "must be disjoint, identical")


def test_shards_are_one_array() -> None:
    def scatter(comm: cocoll.Communicator) -> Any:
        x = ones(30, 34)
        return lambda: cocoll.reduce_scatter(x, out=ones(16, 16), comm=comm), x

    def gather(comm: cocoll.Communicator) -> Any:
        out = ones(30, 34)
        return lambda: cocoll.allgather(ones(16, 16), out=out, comm=comm), out

    def blocks(comm: cocoll.Communicator) -> Any:
        x = ones(30, 34)
        return lambda: cocoll.reduce_scatter(x, layout="block", comm=comm), x

    refuse_on_ranks(scatter, UsageError)
    refuse_on_ranks(gather, UsageError)
    refuse_on_ranks(blocks, UsageError, "not into equal blocks")


FUSED = {
    "one parameter array": ({"param": np.ones(7, np.float32)}, ["param must be a list of 2"]),
    "fewer parameters": ({"param": ones(7)}, ["param must be a list of 2", "got 1"]),
    "other shapes": ({"param": ones(4, 3)}, ["param[0] must have the input's shape (3,)"]),
    "a list of shards": ({"m": ones(4, 3)}, ["m holds this rank's shard of all tensors"]),
    "too many rates": ({"lr": [0.1] * 3}, ["the scalar 'lr' must be a number, or 2", "got 3"]),
    "text among rates": ({"lr": [0.1, "fast"]}, ["the scalar 'lr' must be a number", "got str"]),
}


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
def test_fused(name: str, optimizer: str) -> None:
    changes, parts = FUSED[name]

    def misuse(comm: cocoll.Communicator) -> Any:
        x, start = ones(3, 4), comm.shard_range(7)
        state = {name: np.ones(start[1] - start[0], np.float32) for name in ("m", "v")}
        names: dict[str, Any] = {"param": ones(3, 4), **state, "lr": 0.1, "step": 1, **changes}
        epilogue = getattr(epilogues, optimizer)()
        call = cocoll.allreduce_fused
        return lambda: call(x, epilogue, comm=comm, **names), x

    refuse_on_ranks(misuse, BufferMismatchError if "param" in changes else UsageError, *parts)


def test_ranks_whose_lists_are_cut_elsewhere() -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = ones(3, 4) if comm.rank == 0 else ones(4, 3)
        with pytest.raises(CollectiveMismatchError):
            cocoll.allreduce(x, comm=comm)
        assert all(np.all(array == 1) for array in x)
        cocoll.allreduce(ones(3, 4), comm=comm)

    run_ranks(2, body)


def test_a_list_and_one_vector_of_its_length() -> None:
    def body(comm: cocoll.Communicator) -> None:
        x: Any = ones(3, 4) if comm.rank == 0 else np.ones(7, np.float32)
        with pytest.raises(CollectiveMismatchError):
            cocoll.allreduce(x, comm=comm)

    run_ranks(2, body)
