"""Reduce, gather, scatter and all-to-all with arguments that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll.errors import (
    BufferMismatchError,
    BufferOverlapError,
    CollectiveMismatchError,
    DTypeError,
    RankError,
    UsageError,
)
from tests.helpers.misuse import refuse_on_ranks


@pytest.mark.parametrize("function", [cocoll.reduce, cocoll.gather, cocoll.scatter])
@pytest.mark.parametrize(("root", "kind"), [(2, RankError), (-1, RankError), ("0", UsageError)])
def test_no_such_root(function, root: object, kind: type) -> None:
    def misuse(comm):
        x, out = np.ones(4, np.float32), np.zeros(2, np.float32)
        return lambda: function(x, root=root, out=out, comm=comm), [x, out]

    refuse_on_ranks(misuse, kind, "root must be a rank in [0, 2)", "rank {rank}")


def test_a_vector_that_does_not_divide() -> None:
    def misuse(comm):
        x = np.ones(5, np.float32)
        return lambda: cocoll.alltoall(x, comm=comm), [x]

    refuse_on_ranks(misuse, BufferMismatchError, "must divide into 2 equal blocks", "got 5")


@pytest.mark.parametrize("same", [True, False])
def test_an_all_to_all_onto_itself(same: bool) -> None:
    def misuse(comm):
        memory = np.ones(6, np.float32)
        out = memory[:4] if same else memory[2:]
        return lambda: cocoll.alltoall(memory[:4], out=out, comm=comm), [memory]

    refuse_on_ranks(misuse, BufferOverlapError, "must be disjoint", "rank {rank}")


def test_out_of_another_dtype_or_length() -> None:
    def dtype(comm):
        x, out = np.ones(4, np.float32), np.zeros(4, np.int32)
        return lambda: cocoll.alltoall(x, out=out, comm=comm), [x, out]

    def length(comm):
        x, out = np.ones(4, np.float32), np.zeros(3, np.float32)
        return lambda: cocoll.alltoall(x, out=out, comm=comm), [x, out]

    refuse_on_ranks(dtype, DTypeError, "float32", "int32")
    refuse_on_ranks(length, BufferMismatchError, "out must have 4 elements", "got 3")


@pytest.mark.parametrize("function", [cocoll.reduce, cocoll.gather])
def test_different_roots(function) -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        return lambda: function(x, root=comm.rank, comm=comm), [x]

    refuse_on_ranks(misuse, CollectiveMismatchError, "root=0", "root=1", "nothing has moved")


def test_different_lengths() -> None:
    def misuse(comm):
        x = np.ones(4 + 2 * comm.rank, np.float32)
        return lambda: cocoll.alltoall(x, comm=comm), [x]

    refuse_on_ranks(misuse, CollectiveMismatchError, "count=4", "count=6")


def test_counts_that_do_not_fit() -> None:
    def negative(comm):
        x = np.ones(3, np.float32)
        return lambda: cocoll.allgather(x, counts=[4, -1], comm=comm), [x]

    def other(comm):
        x = np.ones(3, np.float32)
        return lambda: cocoll.gather(x, counts=[4, 4], comm=comm), [x]

    def both(comm):
        x = np.ones(3, np.float32)
        return lambda: cocoll.allgather(x, counts=[3, 3], layout="block", comm=comm), [x]

    refuse_on_ranks(negative, BufferMismatchError, "at least 0", "rank {rank}")
    refuse_on_ranks(other, BufferMismatchError, "must have 4", "(3,)", "rank {rank}")
    refuse_on_ranks(both, UsageError, "not both")


def test_what_is_wanted_is_not_what_is_sent() -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        wanted = [2, 2 + comm.rank]
        return lambda: cocoll.alltoallv(x, [2, 2], wanted, comm=comm), [x]

    refuse_on_ranks(misuse, CollectiveMismatchError, "rank 1 wants 3 from rank 1", "sends 2")
