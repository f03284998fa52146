"""Arrays of one call that share memory in a way that no algorithm can honour."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import BufferOverlapError
from cocoll.testing import run_ranks
from tests.helpers.misuse import refuse_on_ranks

COUNTS = [4, 1000, 70_001]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("function", [cocoll.allreduce, cocoll.broadcast])
@pytest.mark.parametrize("shift", [1, -1])
def test_input_and_output_shifted(function, count: int, symmetric: bool, shift: int) -> None:
    def misuse(comm):
        base = comm.empty(count + 1) if symmetric else np.empty(count + 1, np.float32)
        base[:] = comm.rank + 1
        x, out = (base[1:], base[:-1])[::shift]
        return lambda: function(x, out=out, comm=comm), [base]

    refuse_on_ranks(
        misuse, BufferOverlapError, "out and the input", "partial overlap on rank {rank}", "copy"
    )


def test_input_and_output_reversed() -> None:
    def misuse(comm):
        base = np.arange(8, dtype=np.float32)
        return lambda: cocoll.allreduce(base, out=base[::-1], comm=comm), [base]

    refuse_on_ranks(misuse, BufferOverlapError, "partial overlap")


def test_input_and_output_transposed() -> None:
    def misuse(comm):
        base = np.arange(9, dtype=np.float32).reshape(3, 3)
        return lambda: cocoll.allreduce(base, out=base.T, comm=comm), [base]

    refuse_on_ranks(misuse, BufferOverlapError, "partial overlap")


def test_a_block_that_is_another_rank_s() -> None:
    def misuse(comm):
        base = np.arange(8, dtype=np.float32)
        other = base[4:] if comm.rank == 0 else base[:4]
        return lambda: cocoll.reduce_scatter(base, out=other, comm=comm), [base]

    refuse_on_ranks(misuse, BufferOverlapError, "this rank's shard of the other", "rank {rank}")


def test_a_gathered_block_that_is_another_rank_s() -> None:
    def misuse(comm):
        base = np.arange(8, dtype=np.float32)
        other = base[4:] if comm.rank == 0 else base[:4]
        return lambda: cocoll.allgather(other, out=base, comm=comm), [base]

    refuse_on_ranks(misuse, BufferOverlapError, "partial overlap on rank {rank}")


def test_this_rank_s_own_block_is_allowed() -> None:
    def body(comm):
        base = np.arange(8, dtype=np.float32) * (comm.rank + 1)
        mine = slice(4 * comm.rank, 4 * comm.rank + 4)
        cocoll.reduce_scatter(base, out=base[mine], comm=comm).wait()
        np.testing.assert_array_equal(base[mine], np.arange(8, dtype=np.float32)[mine] * 3)
        cocoll.allgather(base[mine], out=base, comm=comm).wait()
        np.testing.assert_array_equal(base, np.arange(8, dtype=np.float32) * 3)

    run_ranks(2, body)


def fused(comm, x, **arrays):
    return lambda: cocoll.allreduce_fused(
        x, epilogues.sgd(lr=0.1, momentum=0.5), comm=comm, **arrays
    )


def test_parameters_that_overlap_the_gradient() -> None:
    def misuse(comm):
        base = np.ones(41, np.float32)
        return fused(comm, base[:-1], param=base[1:]), [base]

    refuse_on_ranks(misuse, BufferOverlapError, "param overlaps x on rank {rank}", "copy")


def test_two_updated_arrays_that_are_one() -> None:
    def misuse(comm):
        x = np.ones(40, np.float32)
        start, stop = comm.shard_range(40)
        base = np.ones(stop - start + 4, np.float32)
        arrays = {"momentum_buffer": base[:-4], "master": base[4:]}
        return fused(comm, x, param=np.ones(40, np.float32), **arrays), [x, base]

    refuse_on_ranks(misuse, BufferOverlapError, "master overlaps momentum_buffer on rank {rank}")


def test_an_updated_array_given_twice() -> None:
    def misuse(comm):
        x = np.ones(40, np.float32)
        start, stop = comm.shard_range(40)
        twice = np.ones(stop - start, np.float32)
        arrays = {"momentum_buffer": twice, "master": twice}
        return fused(comm, x, param=np.ones(40, np.float32), **arrays), [x, twice]

    refuse_on_ranks(misuse, BufferOverlapError, "master overlaps momentum_buffer")


@epilogues.epilogue
def add_bias(x, bias):
    return x + bias


@pytest.mark.parametrize("count", COUNTS)
def test_an_output_that_overlaps_what_is_read(count: int) -> None:
    def misuse(comm):
        x, base = np.ones(count, np.float32), np.ones(count + 1, np.float32)
        call = cocoll.allreduce_fused
        return lambda: call(x, add_bias, bias=base[:-1], out=base[1:], comm=comm), [x, base]

    refuse_on_ranks(misuse, BufferOverlapError, "out", "bias", "rank {rank}")


@pytest.mark.parametrize("count", COUNTS)
def test_an_in_place_output_that_overlaps_what_is_read(count: int) -> None:
    def misuse(comm):
        base = np.ones(count + 1, np.float32)
        call = cocoll.allreduce_fused
        return lambda: call(base[1:], add_bias, bias=base[:-1], comm=comm), [base]

    refuse_on_ranks(misuse, BufferOverlapError, "bias", "rank {rank}")


def test_an_output_that_is_an_updated_array() -> None:
    @epilogues.epilogue(sharded=("state",))
    def both(g, param, state):
        return {"out": 2.0 * g, "param": param - g, "state": state + g}

    def misuse(comm):
        start, stop = comm.shard_range(40)
        x, param = np.ones(40, np.float32), np.ones(40, np.float32)
        state = np.ones(stop - start, np.float32)
        call = cocoll.allreduce_fused
        return (
            lambda: call(x, both, param=param, state=state, out=param, comm=comm),
            [x, param, state],
        )

    refuse_on_ranks(misuse, BufferOverlapError, "out", "param", "rank {rank}")
