"""Memory that must not be written, and memory that several elements share."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import BufferMismatchError, BufferOverlapError, UsageError
from tests.helpers.misuse import refuse_on_ranks


def read_only(shape: object = 40) -> np.ndarray:
    array = np.ones(shape, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("count", [4, 1000, 70_001])
@pytest.mark.parametrize("function", [cocoll.allreduce, cocoll.broadcast])
def test_in_place(function, count: int) -> None:
    def misuse(comm):
        x = read_only(count)
        # What a root broadcasts is only read; each rank names the other one.
        names = {"root": 1 - comm.rank} if function is cocoll.broadcast else {}
        return lambda: function(x, comm=comm, **names), [x]

    refuse_on_ranks(misuse, UsageError, "x must be writable", "read-only", "rank {rank}", "out=")


@pytest.mark.parametrize(
    ("function", "count", "out_count"),
    [
        (cocoll.allreduce, 8, 8),
        (cocoll.broadcast, 8, 8),
        (cocoll.reduce_scatter, 8, 4),
        (cocoll.allgather, 4, 8),
    ],
)
def test_the_output(function, count: int, out_count: int) -> None:
    def misuse(comm):
        x, out = np.ones(count, np.float32), read_only(out_count)
        return lambda: function(x, out=out, comm=comm), [x, out]

    refuse_on_ranks(misuse, UsageError, "out must be writable", "read-only", "rank {rank}")


@pytest.mark.parametrize("given", [b"12345678", memoryview(b"12345678")])
def test_bytes(given: object) -> None:
    refuse_on_ranks(
        lambda comm: (lambda: cocoll.allreduce(given, comm=comm), []),
        UsageError,
        "x must be writable",
    )


@pytest.mark.parametrize("name", ["param", "momentum_buffer", "out"])
@pytest.mark.parametrize("bound", [False, True])
def test_what_an_epilogue_updates(name: str, bound: bool) -> None:
    def misuse(comm):
        start, stop = comm.shard_range(40)
        x = np.ones(40, np.float32)
        if name == "out":
            epilogue, arrays = epilogues.relu(), {"out": read_only()}
        else:
            epilogue = epilogues.sgd(lr=0.1, momentum=0.5)
            arrays = {
                "param": np.ones(40, np.float32),
                "momentum_buffer": np.ones(stop - start, np.float32),
            }
            arrays[name] = read_only(arrays[name].shape)
        if bound:
            return lambda: comm.bind(cocoll.allreduce_fused, x, epilogue, **arrays), [x]
        call = cocoll.allreduce_fused
        return lambda: call(x, epilogue, comm=comm, **arrays), [x, *arrays.values()]

    refuse_on_ranks(misuse, UsageError, f"{name} must be writable", "rank {rank}")


def test_a_gradient_that_would_be_zeroed() -> None:
    def misuse(comm):
        x, param = read_only(), np.ones(40, np.float32)
        names = {"param": param, "lr": 0.1, "zero_grad": True}
        call = cocoll.allreduce_fused
        return lambda: call(x, epilogues.sgd(), comm=comm, **names), [x, param]

    refuse_on_ranks(misuse, UsageError, "x must be writable", "rank {rank}")


SHARED = {
    "broadcast": lambda: np.lib.stride_tricks.as_strided(np.ones(6, np.float32), (4, 6), (0, 4)),
    "windows": lambda: np.lib.stride_tricks.as_strided(np.ones(9, np.float32), (4, 6), (4, 4)),
    "backwards": lambda: np.lib.stride_tricks.as_strided(
        np.ones(9, np.float32)[5:], (4, 6), (4, -4)
    ),
    "half an element apart": lambda: np.lib.stride_tricks.as_strided(
        np.ones(40, np.float32), (24,), (2,)
    ),
}


@pytest.mark.parametrize("name", sorted(SHARED))
@pytest.mark.parametrize("argument", ["x", "out"])
def test_elements_that_share_memory(name: str, argument: str) -> None:
    def misuse(comm):
        shared = SHARED[name]()
        arrays = {"x": np.ones(24, np.float32), argument: shared}
        return lambda: cocoll.allreduce(comm=comm, **arrays), arrays.values()

    refuse_on_ranks(
        misuse, BufferOverlapError, f"{argument} is written", "distinct", "rank {rank}", "copy"
    )


@pytest.mark.parametrize("name", ["param", "momentum_buffer"])
def test_elements_of_an_operand_that_share_memory(name: str) -> None:
    def misuse(comm):
        start, stop = comm.shard_range(32)
        arrays = {
            "param": np.ones((4, 8), np.float32),
            "momentum_buffer": np.ones(stop - start, np.float32),
        }
        if name == "param":
            arrays[name] = np.lib.stride_tricks.as_strided(np.ones(20, np.float32), (4, 8), (4, 4))
        else:
            # Sharded arrays are contiguous anyway, so that is what is said of this one.
            arrays[name] = np.lib.stride_tricks.as_strided(np.ones(20, np.float32), (16,), (0,))
        x = np.ones((4, 8), np.float32)
        sgd = epilogues.sgd(lr=0.1, momentum=0.5)
        call = cocoll.allreduce_fused
        return lambda: call(x, sgd, comm=comm, **arrays), [x, *arrays.values()]

    if name == "param":
        refuse_on_ranks(misuse, BufferOverlapError, "param is written", "rank {rank}")
    else:
        refuse_on_ranks(misuse, BufferMismatchError, "contiguous")
