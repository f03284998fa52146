"""Communicators, streams and bound operations that have been closed."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import ClosedError
from cocoll.testing import run_ranks
from tests.helpers.misuse import check_usable, refuse, refuse_on_ranks

USES = {
    "allreduce": lambda comm, x: cocoll.allreduce(x, comm=comm),
    "allgather": lambda comm, x: cocoll.allgather(x, comm=comm),
    "reduce_scatter": lambda comm, x: cocoll.reduce_scatter(x, comm=comm),
    "broadcast": lambda comm, x: cocoll.broadcast(x, comm=comm),
    "barrier": lambda comm, _: cocoll.barrier(comm=comm),
    "comm.barrier": lambda comm, _: comm.barrier(),
    "allreduce_fused": lambda comm, x: cocoll.allreduce_fused(x, epilogues.relu(), comm=comm),
    "reduce_scatter_fused": lambda comm, x: cocoll.reduce_scatter_fused(
        x, epilogues.relu(), comm=comm
    ),
    "bind": lambda comm, x: comm.bind(cocoll.allreduce, x),
    "empty": lambda comm, _: comm.empty(4),
    "duplicate": lambda comm, _: comm.duplicate(),
    "split": lambda comm, _: comm.split(0),
    "stream": lambda comm, x: cocoll.allreduce(x, comm=comm, stream=cocoll.Stream()),
}


@pytest.mark.parametrize("name", sorted(USES))
def test_a_closed_communicator(name: str) -> None:
    def body(comm):
        child = comm.duplicate()
        child.close()
        child.close()
        assert child.closed
        assert "closed" in repr(child)
        x = np.ones(40, np.float32)
        error = refuse(
            lambda: USES[name](child, x),
            ClosedError,
            f"communicator of rank {comm.rank} is closed",
            "cocoll.init()",
            arrays=[x],
        )
        assert isinstance(error, ValueError)
        check_usable(comm)

    run_ranks(2, body)


def test_a_bound_operation_of_a_closed_communicator() -> None:
    def body(comm):
        x = np.ones(40, np.float32)
        child = comm.duplicate()
        bound = child.bind(cocoll.allreduce, x)
        child.close()
        refuse(bound, ClosedError, "is closed", arrays=[x])
        check_usable(comm)

    run_ranks(2, body)


def test_arrays_outlive_their_communicator() -> None:
    def body(comm):
        child = comm.duplicate()
        mine, shared = child.empty(4), child.empty(4, replicated=True)
        shard = child.shard_zeros(40)
        mine[:] = comm.rank + 1
        cocoll.broadcast(mine, out=shared, comm=child)
        child.close()
        del child
        gc.collect()
        assert mine.tolist() == [comm.rank + 1.0] * 4
        assert shared.tolist() == [1.0] * 4
        assert not shard.any()
        # Memory of another communicator is ordinary memory.
        cocoll.allreduce(mine, comm=comm)
        assert mine.tolist() == [3.0] * 4

    run_ranks(2, body)


@pytest.mark.parametrize("fused", [False, True])
def test_a_closed_bound_operation(fused: bool) -> None:
    def misuse(comm):
        x, param = np.ones(40, np.float32), np.ones(40, np.float32)
        if fused:
            bound = comm.bind(cocoll.allreduce_fused, x, epilogues.sgd(lr=0.5), param=param)
        else:
            bound = comm.bind(cocoll.allreduce, x)
        bound()
        bound.close()
        bound.close()
        return bound, [x, param]

    refuse_on_ranks(misuse, ClosedError, "bound operation is closed", "bind it again")


@pytest.mark.parametrize("bound", [False, True])
def test_a_closed_stream(bound: bool) -> None:
    def misuse(comm):
        x = np.ones(40, np.float32)
        stream = cocoll.Stream()
        if bound:
            operation = comm.bind(cocoll.allreduce, x, stream=stream)
            call = operation
        else:
            call = lambda: cocoll.allreduce(x, comm=comm, stream=stream)  # noqa: E731
        call().wait()
        stream.close()
        stream.close()
        return call, [x]

    refuse_on_ranks(misuse, ClosedError, "the stream is closed", "cocoll.Stream()")


def test_a_block_closes_what_it_opened() -> None:
    def body(comm):
        with comm.duplicate() as child, cocoll.Stream() as stream:
            x = np.ones(40, np.float32)
            work = cocoll.allreduce(x, comm=child, stream=stream)
        assert work.done()
        assert x.tolist() == [2.0] * 40
        assert child.closed
        check_usable(comm)

    run_ranks(2, body)
