"""Lengths and shapes that do not fit the operation."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import BufferMismatchError, UsageError
from tests.helpers.misuse import refuse_on_ranks


@pytest.mark.parametrize("function", [cocoll.allreduce, cocoll.broadcast])
@pytest.mark.parametrize(("count", "got"), [(4, 3), (4, 5), (16, 0), (0, 1), (70_001, 70_000)])
def test_out_of_another_length(function, count: int, got: int) -> None:
    def misuse(comm):
        x, out = np.ones(count, np.float32), np.zeros(got, np.float32)
        return lambda: function(x, out=out, comm=comm), [x, out]

    refuse_on_ranks(
        misuse,
        BufferMismatchError,
        f"out must have the input's {count} elements",
        f"got {got}",
        "rank {rank}",
    )


@pytest.mark.parametrize("given", [False, True])
def test_a_vector_that_does_not_divide(given: bool) -> None:
    def misuse(comm):
        x = np.ones(10, np.float32)
        out = np.zeros(3, np.float32) if given else None
        return lambda: cocoll.reduce_scatter(x, out=out, comm=comm), [x]

    refuse_on_ranks(
        misuse,
        BufferMismatchError,
        "must divide into 3 equal blocks",
        "got 10 elements on rank {rank}",
        "layout='shard'",
        world_size=3,
    )


@pytest.mark.parametrize("got", [0, 3, 5, 12])
def test_a_block_of_another_length(got: int) -> None:
    def misuse(comm):
        x, out = np.ones(12, np.float32), np.zeros(got, np.float32)
        return lambda: cocoll.reduce_scatter(x, out=out, comm=comm), [x, out]

    refuse_on_ranks(
        misuse,
        BufferMismatchError,
        "out must have 4 of the 12 elements on rank {rank}",
        f"got {got}",
        world_size=3,
    )


@pytest.mark.parametrize("got", [11, 13])
def test_a_gathered_vector_that_does_not_divide(got: int) -> None:
    def misuse(comm):
        x, out = np.ones(4, np.float32), np.zeros(got, np.float32)
        return lambda: cocoll.allgather(x, out=out, comm=comm), [x, out]

    refuse_on_ranks(
        misuse, BufferMismatchError, "must divide into 3 equal blocks", f"got {got}", world_size=3
    )


@pytest.mark.parametrize("got", [0, 3, 5])
def test_a_gathered_block_of_another_length(got: int) -> None:
    def misuse(comm):
        x, out = np.ones(got, np.float32), np.zeros(12, np.float32)
        return lambda: cocoll.allgather(x, out=out, comm=comm), [x, out]

    refuse_on_ranks(
        misuse,
        BufferMismatchError,
        "x must have 4 of the 12 elements on rank {rank}",
        f"got {got}",
        world_size=3,
    )


@pytest.mark.parametrize("function", [cocoll.reduce_scatter, cocoll.allgather])
def test_a_shard_of_another_length(function) -> None:
    # 40 elements on 2 ranks are shards of 32 and 8, not of 20.
    def misuse(comm):
        whole, part = np.ones(40, np.float32), np.zeros(20, np.float32)
        x, out = (whole, part) if function is cocoll.reduce_scatter else (part, whole)
        return lambda: function(x, out=out, comm=comm, layout="shard"), [x, out]

    def check(rank: int) -> str:
        return f"must have {(32, 8)[rank]} of the 40 elements on rank {rank}; got 20"

    errors = refuse_on_ranks(misuse, BufferMismatchError)
    assert all(check(rank) in str(error) for rank, error in enumerate(errors))


def test_allgather_of_shards_needs_the_whole_vector() -> None:
    def misuse(comm):
        x = np.ones(16, np.float32)
        return lambda: cocoll.allgather(x, comm=comm, layout="shard"), [x]

    refuse_on_ranks(misuse, UsageError, "needs out=", "the whole vector")


def test_nine_dimensions() -> None:
    def misuse(comm):
        x = np.ones((1,) * 9, np.float32)
        return lambda: cocoll.allreduce(x, comm=comm), [x]

    refuse_on_ranks(misuse, BufferMismatchError, "x may have 8 dimensions; got 9", "Reshape")


FUSED = {
    "a shard that is whole": ({"momentum_buffer": 40}, "momentum_buffer holds this rank's shard"),
    "a shard of another vector": ({"momentum_buffer": 31}, "got 31"),
    "no shard": ({"momentum_buffer": 0}, "comm.shard_zeros(40)"),
    "parameters of another length": ({"param": 41}, "param must have the input's shape (40,)"),
    "parameters that would broadcast": ({"param": 1}, "got (1,) on rank {rank}"),
    "parameters of another shape": ({"param": (4, 10)}, "got (4, 10)"),
}


@pytest.mark.parametrize("name", sorted(FUSED))
@pytest.mark.parametrize("bound", [False, True])
def test_an_array_of_an_epilogue(name: str, bound: bool) -> None:
    wrong, part = FUSED[name]

    def misuse(comm):
        start, stop = comm.shard_range(40)
        shapes = {"param": 40, "momentum_buffer": stop - start, **wrong}
        arrays = {key: np.ones(shape, np.float32) for key, shape in shapes.items()}
        x = np.ones(40, np.float32)
        sgd = epilogues.sgd(lr=0.1, momentum=0.9)
        if bound:
            return lambda: comm.bind(cocoll.allreduce_fused, x, sgd, **arrays), [x]
        return lambda: cocoll.allreduce_fused(x, sgd, comm=comm, **arrays), [x, *arrays.values()]

    refuse_on_ranks(misuse, BufferMismatchError, part, "rank {rank}")


def test_an_operand_that_does_not_broadcast() -> None:
    def misuse(comm):
        x, bias, residual = (np.ones(shape, np.float32) for shape in ((4, 6), 4, (4, 6)))
        block = epilogues.bias_dropout_residual(0.0)
        names = {"bias": bias, "residual": residual}
        return lambda: cocoll.allreduce_fused(x, block, comm=comm, step=0, **names), [x, bias]

    refuse_on_ranks(
        misuse,
        BufferMismatchError,
        "bias must broadcast to the input's shape (4, 6)",
        "got (4,) on rank {rank}",
    )


@pytest.mark.parametrize("got", [39, 41])
def test_the_output_of_a_fused_call(got: int) -> None:
    def misuse(comm):
        x, out = np.ones(40, np.float32), np.zeros(got, np.float32)
        return lambda: cocoll.allreduce_fused(x, epilogues.relu(), out=out, comm=comm), [x, out]

    refuse_on_ranks(
        misuse,
        BufferMismatchError,
        "out must have the input's 40 elements",
        f"got {got} on rank {{rank}}",
    )


def test_the_output_of_a_fused_reduce_scatter() -> None:
    def misuse(comm):
        x, out = np.ones(40, np.float32), np.zeros(20, np.float32)
        call = cocoll.reduce_scatter_fused
        return lambda: call(x, epilogues.relu(), out=out, comm=comm), [x, out]

    errors = refuse_on_ranks(misuse, BufferMismatchError, "out must have this rank's", "got 20")
    assert ["32 of the 40" in str(errors[0]), "8 of the 40" in str(errors[1])] == [True, True]


def test_a_shard_with_strides() -> None:
    def misuse(comm):
        start, stop = comm.shard_range(40)
        x, param = np.ones(40, np.float32), np.ones(40, np.float32)
        buffer = np.ones(2 * (stop - start), np.float32)[::2]
        names = {"param": param, "momentum_buffer": buffer, "lr": 0.1}
        sgd = epilogues.sgd(momentum=0.9)
        return lambda: cocoll.allreduce_fused(x, sgd, comm=comm, **names), [x, param, buffer]

    refuse_on_ranks(
        misuse, BufferMismatchError, "momentum_buffer must be contiguous", "rank {rank}"
    )


def test_zero_grad_of_a_strided_gradient() -> None:
    def misuse(comm):
        x, param = np.ones(80, np.float32)[::2], np.ones(40, np.float32)
        names = {"param": param, "lr": 0.1, "zero_grad": True}
        call = cocoll.allreduce_fused
        return lambda: call(x, epilogues.sgd(), comm=comm, **names), [x, param]

    refuse_on_ranks(misuse, BufferMismatchError, "zero_grad needs a contiguous x", "rank {rank}")


@pytest.mark.parametrize("explicit", [False, True])
def test_zero_grad_where_the_result_goes(explicit: bool) -> None:
    def misuse(comm):
        x = np.ones(40, np.float32)
        out = x if explicit else None
        call = cocoll.allreduce_fused
        return lambda: call(x, epilogues.relu(), out=out, comm=comm, zero_grad=True), [x]

    name = "out" if explicit else "x"
    refuse_on_ranks(misuse, UsageError, f"zero_grad would erase {name}", "rank {rank}")


def test_zero_grad_of_what_an_epilogue_updates() -> None:
    def misuse(comm):
        x = np.ones(40, np.float32)
        call = cocoll.allreduce_fused
        return (
            lambda: call(x, epilogues.sgd(lr=0.1), param=x, comm=comm, zero_grad=True),
            [x],
        )

    refuse_on_ranks(misuse, UsageError, "zero_grad would erase param", "rank {rank}")


def test_out_of_an_epilogue_without_output() -> None:
    def misuse(comm):
        x, param, out = (np.ones(40, np.float32) for _ in range(3))
        call = cocoll.allreduce_fused
        return (
            lambda: call(x, epilogues.sgd(lr=0.1), param=param, out=out, comm=comm),
            [x, param, out],
        )

    refuse_on_ranks(misuse, UsageError, "the epilogue has no output", "param", "rank {rank}")


@pytest.mark.parametrize("count", [-1, -16])
def test_a_vector_of_negative_length(count: int) -> None:
    refuse_on_ranks(
        lambda comm: (lambda: comm.shard_range(count), []),
        UsageError,
        "at least 0 elements",
        f"got {count}",
    )
    refuse_on_ranks(lambda comm: (lambda: comm.shard_zeros(count), []), UsageError, f"got {count}")
