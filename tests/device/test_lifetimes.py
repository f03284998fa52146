"""What is dropped, closed or lost while operations are queued on the emulated device."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.cuda.binding import DeviceStream
from cocoll.errors import (
    AbortedError,
    ClosedError,
    CocollError,
    CommTimeoutError,
    ForkedProcessError,
)
from cocoll.testing import run_ranks
from tests.helpers.on_device import MEMORIES, TUNING, fill, make_array, put, same_bits

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit
    from cocoll.testing.graphs import Graphs

LATE_SECONDS = 0.3


def ones(count: int) -> np.ndarray[Any, Any]:
    return np.ones(count, np.float32)


def test_a_late_rank_does_not_pass_those_that_have_given_up(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> type[BaseException] | None:
        x = put(comm, ones(5000), "symmetric")
        step = comm.bind(cocoll.allreduce, x)
        step().wait()
        gone.wait()
        if comm.rank == 0:
            # The second is queued, and must not look like an answer to the first.
            step()
            error = step().exception()
        else:
            # When rank 0 has given up, and before it leaves its memory to the process.
            time.sleep(2.0)
            try:
                error = step().exception()
            except CocollError as raised:
                error = raised
        return type(error)

    gone = threading.Barrier(2)
    found = run_ranks(2, body, toolkit=toolkit, tuning=TUNING, timeout_seconds=1.0)
    assert found[0] in (CommTimeoutError, AbortedError)
    assert found[1] in (CommTimeoutError, AbortedError, ClosedError)


@pytest.mark.parametrize("memory", MEMORIES)
def test_arrays_that_are_dropped_at_once(memory: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        count = 20001
        for _ in range(3):
            param = put(comm, fill(9, (count,), "float32"), memory)
            x = put(comm, ones(count), memory)
            m, v = (comm.shard_zeros(count, device="cuda") for _ in range(2))
            step = comm.bind(cocoll.allreduce_fused, x, epilogues.adam(), param=param, m=m, v=v)
            if comm.rank == 1:
                time.sleep(LATE_SECONDS)
            step(lr=1e-3, step=1)
            cocoll.reduce_scatter(x, layout="shard")
            cocoll.allreduce(x, stream=DeviceStream(x._device))
            step.close()
            del x, m, v, step
            assert np.isfinite(param.get()).all()

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_closing_waits_for_replays(toolkit: Toolkit, graphs: Graphs) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, ones(5000), "symmetric")
        stream = x.stream
        mean = comm.bind(cocoll.allreduce, x, "avg")
        mean().wait()
        with graphs.capture(stream.handle) as graph:
            mean()
        if comm.rank == 1:
            time.sleep(LATE_SECONDS)
        for _ in range(20):
            graph.launch(stream.handle)
        comm.close()
        same_bits(x.get(), ones(5000))

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_a_failure_outlives_the_communicator(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> type[BaseException] | None:
        x = put(comm, ones(5000), "symmetric")
        cocoll.allreduce(x).wait()
        if comm.rank == 1:
            return None
        work = cocoll.allreduce(x)
        comm.close()
        with pytest.raises(CommTimeoutError):
            work.wait()
        return type(work.exception())

    found = run_ranks(2, body, toolkit=toolkit, tuning=TUNING, timeout_seconds=1.0)
    assert found == [CommTimeoutError, None]


def test_each_work_ends_by_itself(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, ones(100), "ordinary")
        if comm.rank == 0:
            works = [cocoll.allreduce(x, "avg") for _ in range(200)]
            works[0].wait(30.0)
            first.wait()
            assert not works[-1].done()
            rest.wait()
        else:
            cocoll.allreduce(x, "avg").wait()
            # The others have not come: the first one's end must not hang on them.
            first.wait()
            rest.wait()
            works = [cocoll.allreduce(x, "avg") for _ in range(199)]
        for work in works:
            work.wait(30.0)

    first, rest = threading.Barrier(2), threading.Barrier(2)
    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_a_failure_on_the_host_ends_kernels(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> float:
        x = put(comm, ones(100), "ordinary")
        cocoll.allreduce(x).wait()
        if comm.rank == 1:
            with pytest.raises(CommTimeoutError):
                cocoll.allreduce(ones(4))
            return 0.0
        time.sleep(1.0)
        start = time.monotonic()
        with pytest.raises(AbortedError):
            cocoll.allreduce(x).wait()
        return time.monotonic() - start

    waited = run_ranks(2, body, toolkit=toolkit, tuning=TUNING, timeout_seconds=3.0)
    # Not its own three seconds from then on.
    assert waited[0] < 2.9


def test_a_forked_child(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> int:
        x = put(comm, ones(100), "symmetric")
        step = comm.bind(cocoll.allreduce, x, "avg")
        step().wait()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                step()
            except ForkedProcessError:
                # What it drops belongs to its parent.
                del x, step
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        step().wait()
        return os.waitstatus_to_exitcode(status)

    assert run_ranks(1, body, toolkit=toolkit, tuning=TUNING) == [0]


def test_derived_communicators_have_memory_of_their_own(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        child = comm.duplicate()
        y = make_array(child, (3000,), "float32", "symmetric")
        y.set(ones(3000))
        cocoll.allreduce(y, "avg", comm=child).wait()
        same_bits(y.get(), ones(3000))
        child.close()

    run_ranks(3, body, toolkit=toolkit, tuning=TUNING)
