"""Asynchronous calls: streams, works, several in flight, several communicators."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

import cocoll
from cocoll import epilogues
from cocoll.errors import ClosedError, CollectiveMismatchError, CommTimeoutError, UsageError
from tests.helpers.arrays import assert_same_bits, hold, symmetric_pool
from tests.helpers.cases import case
from tests.helpers.references import check_reduced, contributions, reduce_in_rank_order

Comm = cocoll.Communicator


def raises(kind: type[BaseException], call: Any) -> BaseException:
    """Give what a call raises, which must be of a kind."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"wanted {kind.__name__}, and nothing was raised")


@case(count=(4, 200, 5_000), kind=("ordinary", "symmetric", "strided"))
def several_in_flight(comm: Comm, count: int, kind: str) -> None:
    symmetric_pool(comm)
    with cocoll.Stream() as stream:
        held, parts, works = [], [], []
        for turn in range(8):
            parts.append(contributions(comm.world_size, count, "float32", "sum", turn))
            held.append(hold(comm, kind, parts[turn][comm.rank]))
            works.append(cocoll.allreduce(held[turn].array, comm=comm, stream=stream))
        for turn in (7, 0, 3):
            works[turn].wait()
            assert works[turn].done()
            assert works[turn].exception() is None
            assert works[turn].result() is None
        stream.synchronize()
        for turn in range(8):
            assert works[turn].done()
            check_reduced(held[turn].view, parts[turn], "sum", f"number {turn}")
            held[turn].check_around()


@case(call=("allreduce", "reduce_scatter", "allgather", "broadcast", "fused", "barrier"))
def every_call_on_a_stream(comm: Comm, call: str) -> None:
    size, rank = comm.world_size, comm.rank
    with cocoll.Stream() as stream:
        for count in (2, 300, 4_000):
            parts = contributions(size, count * size, "float32", "sum", count)
            x = np.array(parts[rank])
            out = np.zeros_like(x)
            if call == "allreduce":
                work = cocoll.allreduce(x, out=out, comm=comm, stream=stream)
                assert work.result() is out
                check_reduced(out, parts, "sum")
            elif call == "reduce_scatter":
                made = cocoll.reduce_scatter(x, comm=comm, stream=stream).result()
                check_reduced(made, [part[rank * count :][:count] for part in parts], "sum")
            elif call == "allgather":
                made = cocoll.allgather(x, comm=comm, stream=stream).result()
                assert_same_bits(made, np.concatenate(parts))
            elif call == "broadcast":
                cocoll.broadcast(x, size - 1, comm=comm, stream=stream).wait()
                assert_same_bits(x, parts[size - 1])
            elif call == "fused":
                scale = epilogues.scale(2.0)
                cocoll.allreduce_fused(x, scale, out=out, comm=comm, stream=stream).wait()
                assert_same_bits(out, reduce_in_rank_order(parts, "sum") * np.float32(2))
            else:
                work = cocoll.barrier(comm=comm, stream=stream)
                work.wait()
                assert work.done()


@case(count=(3, 700))
def two_streams_keep_the_order_of_calls(comm: Comm, count: int) -> None:
    # Each call continues with what the one before has left, on whichever stream that was.
    parts = contributions(comm.world_size, count, "int64", "sum")
    x = np.array(parts[comm.rank])
    wanted = reduce_in_rank_order(parts, "sum")
    with cocoll.Stream() as first, cocoll.Stream() as second:
        works = []
        for turn in range(10):
            stream = (first, second)[(turn + turn // 3) % 2]
            works.append(cocoll.allreduce(x, comm=comm, stream=stream))
            if turn > 0:
                wanted = wanted * comm.world_size
        # A call without a stream takes its place in the same order.
        cocoll.allreduce(x, "max", comm=comm)
        assert all(work.done() for work in works)
        assert_same_bits(x, wanted)


@case(count=(5, 2_000))
def two_communicators_do_not_wait_for_each_other(comm: Comm, count: int) -> None:
    with comm.duplicate() as other, cocoll.Stream() as first, cocoll.Stream() as second:
        parts = contributions(comm.world_size, count, "float32", "sum")
        for _ in range(5):
            a, b = np.array(parts[comm.rank]), np.array(parts[comm.rank])
            # Ranks issue in opposite orders: legal, as the communicators are two sequences.
            pairs = [(a, comm, first), (b, other, second)]
            for x, where, stream in pairs[:: 1 if comm.rank % 2 else -1]:
                cocoll.allreduce(x, comm=where, stream=stream)
            first.synchronize()
            second.synchronize()
            check_reduced(a, parts, "sum")
            check_reduced(b, parts, "sum")


@case(count=(10, 3_000))
def a_wait_may_be_shorter_than_the_operation(comm: Comm, count: int) -> None:
    parts = contributions(comm.world_size, count, "float32", "sum")
    x = np.array(parts[comm.rank])
    with comm.duplicate() as gate, cocoll.Stream() as stream:
        if comm.rank == 0:
            work = cocoll.allreduce(x, comm=comm, stream=stream)
            if comm.world_size > 1:
                error = raises(CommTimeoutError, lambda: work.wait(0.1))
                assert "still runs" in str(error)
                raises(CommTimeoutError, lambda: work.result(0.01))
                assert not work.done()
            gate.barrier()
        else:
            gate.barrier()
            work = cocoll.allreduce(x, comm=comm, stream=stream)
        work.wait(60)
        assert work.done()
        check_reduced(x, parts, "sum")


@case(count=(3, 400))
def a_failure_is_kept_for_whoever_asks(comm: Comm, count: int) -> None:
    if comm.world_size == 1:
        return
    x = np.ones(count + (comm.rank == 1), np.float32)
    before = np.array(x)
    parts = contributions(comm.world_size, count, "float32", "sum")
    y = np.array(parts[comm.rank])
    with cocoll.Stream() as stream:
        failed = cocoll.allreduce(x, comm=comm, stream=stream)
        following = cocoll.allreduce(y, comm=comm, stream=stream)
        error = failed.exception()
        assert isinstance(error, CollectiveMismatchError)
        assert failed.done()
        assert raises(CollectiveMismatchError, failed.wait) is error
        assert raises(CollectiveMismatchError, failed.result) is error
        assert sorted(error.requests) == list(range(comm.world_size))
        assert_same_bits(x, before)
        # Nothing has moved, so what was queued behind it is right.
        following.wait()
        check_reduced(y, parts, "sum")


@case(count=(20, 1_500))
def works_and_arrays_may_be_dropped(comm: Comm, count: int) -> None:
    parts = contributions(comm.world_size, count, "float32", "sum")
    outs = [np.zeros(count, np.float32) for _ in range(150)]
    with cocoll.Stream() as stream:
        for out in outs:
            cocoll.allreduce(np.array(parts[comm.rank]), out=out, comm=comm, stream=stream)
        gc.collect()
        noise = [np.full(count, np.nan, np.float32) for _ in range(50)]
        stream.synchronize()
        del noise
    for out in outs:
        check_reduced(out, parts, "sum")


@case(count=(100,))
def closing_a_stream_finishes_it(comm: Comm, count: int) -> None:
    parts = contributions(comm.world_size, count, "float32", "sum")
    stream = cocoll.Stream()
    xs = [np.array(parts[comm.rank]) for _ in range(20)]
    works = [cocoll.allreduce(x, comm=comm, stream=stream) for x in xs]
    stream.close()
    stream.close()
    assert all(work.done() for work in works)
    for x in xs:
        check_reduced(x, parts, "sum")
    raises(ClosedError, lambda: cocoll.allreduce(xs[0], comm=comm, stream=stream))
    # The refused call is no operation: the ranks still agree.
    x = np.array(parts[comm.rank])
    cocoll.allreduce(x, comm=comm)
    check_reduced(x, parts, "sum")
    raises(UsageError, lambda: cocoll.allreduce(xs[0], comm=comm, stream=7))


@case(count=(50, 900))
def bound_calls_on_a_stream(comm: Comm, count: int) -> None:
    # Several runs of one binding in flight, each with its own scalar.
    parts = contributions(comm.world_size, count, "float32", "sum")
    grad = np.array(parts[comm.rank])
    param = np.zeros(count, np.float32)
    rates = [0.5, 0.25, 2.0, 1.0, -3.0]
    with cocoll.Stream() as stream:
        step = comm.bind(cocoll.allreduce_fused, grad, epilogues.sgd(), param=param, stream=stream)
        works = [step(lr=rate) for rate in rates]
        del step
        gc.collect()
        works[-1].wait()
    wanted = np.zeros(count, np.float32)
    total = reduce_in_rank_order(parts, "sum")
    for rate in rates:
        wanted = wanted - np.float32(rate) * total
    assert_same_bits(param, wanted)


@case(count=(30,))
def unfinished_operations_when_the_communicator_closes(comm: Comm, count: int) -> None:
    # close() finishes what was issued on streams.
    parts = contributions(comm.world_size, count, "float32", "sum")
    xs = [np.array(parts[comm.rank]) for _ in range(30)]
    with cocoll.Stream() as stream:
        child = comm.duplicate()
        for x in xs:
            cocoll.allreduce(x, comm=child, stream=stream)
        child.close()
        for x in xs:
            check_reduced(x, parts, "sum")
        raises(ClosedError, lambda: cocoll.allreduce(xs[0], comm=child, stream=stream))
