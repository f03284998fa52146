"""Streams and graphs: bound operations captured and replayed, and what may not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import ClosedError, PlanNotReadyError, UsageError
from cocoll.testing import run_ranks
from tests.helpers.on_device import (
    MEMORIES,
    TUNING,
    fill,
    gpu_stream,
    put,
    same_bits,
)

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit
    from cocoll.testing.graphs import Graphs


def test_two_streams_of_one_capture_are_one_sequence(toolkit: Toolkit, graphs: Graphs) -> None:
    """A fork that the framework has made: operations on both sides keep the order of the calls."""
    replays = 20

    def body(comm: cocoll.Communicator) -> None:
        with gpu_stream(comm) as stream, gpu_stream(comm) as other:
            x = put(comm, np.full(3000, comm.rank + 1, np.int64), "ordinary")
            y = put(comm, np.full(20, comm.rank + 1, np.int64), "ordinary")
            ways = [
                comm.bind(cocoll.allreduce, array, op, stream=where)
                for array, op, where in (
                    (x, "sum", stream),
                    (y, "sum", other),
                    (x, "max", other),
                    (y, "max", stream),
                )
            ]
            with graphs.capture(stream) as graph:
                graph.fork(other)
                for number in (0, 1, 2, 3, 1, 0):
                    ways[number]()
                graph.join(other)
            for _ in range(replays):
                graph.launch(stream)
            comm._open_side(None).device.synchronize(stream)
            # The first sum is 3 on both ranks; each of the others gives twice as much.
            for array in (x, y):
                same_bits(array.get(stream), np.full(array.shape, 3 << (2 * replays - 1), np.int64))

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_captured_step_is_replayed(memory: str, toolkit: Toolkit, graphs: Graphs) -> None:
    replays = 200

    def body(comm: cocoll.Communicator) -> None:
        count = 20001
        adam = epilogues.adam()
        start, stop = comm.shard_range(count)
        gradient = fill(comm.rank, (count,), "float32")
        host = {"param": fill(9, (count,), "float32")}
        host |= {name: np.zeros(stop - start, np.float32) for name in ("m", "v")}
        with gpu_stream(comm) as stream:
            x = put(comm, gradient, memory)
            gpu = {name: put(comm, array, "ordinary") for name, array in host.items()}
            gpu["param"] = put(comm, host["param"], memory)
            small = put(comm, np.ones(10, np.float32), memory)
            step = comm.bind(cocoll.allreduce_fused, x, adam, stream=stream, **gpu)
            mean = comm.bind(cocoll.allreduce, small, "avg", stream=stream)
            with graphs.capture(stream) as graph:
                captured = step(lr=1e-3, step=1)
                mean()
            with pytest.raises(UsageError, match="captured"):
                captured.wait()
            for _ in range(replays):
                graph.launch(stream)
                cocoll.allreduce_fused(gradient, adam, lr=1e-3, step=1, **host)
            # Operations of the host's own go on behind it.
            step(lr=1e-3, step=2).wait()
            cocoll.allreduce_fused(gradient, adam, lr=1e-3, step=2, **host)
            for name, array in gpu.items():
                same_bits(array.get(stream), host[name])
            same_bits(small.get(stream), np.ones(10, np.float32))

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_what_is_not_bound_is_not_captured(toolkit: Toolkit, graphs: Graphs) -> None:
    def body(comm: cocoll.Communicator) -> None:
        with gpu_stream(comm) as stream:
            x = put(comm, np.ones(100, np.float32), "symmetric")
            cocoll.allreduce(x, stream=stream).wait()
            refused = pytest.raises(PlanNotReadyError, match=r"comm\.bind")
            with graphs.capture(stream), refused:
                cocoll.allreduce(x, stream=stream)
            cocoll.allreduce(x, stream=stream).wait()

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_streams_of_every_kind(toolkit: Toolkit) -> None:
    class Torch:
        def __init__(self, handle: int) -> None:
            self.cuda_stream = handle

    class Protocol:
        def __init__(self, handle: int) -> None:
            self.handle = handle

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, self.handle

    def body(comm: cocoll.Communicator) -> None:
        with gpu_stream(comm) as stream:
            x = put(comm, np.ones(100, np.float32), "ordinary")
            for given in (stream, Torch(stream), Protocol(stream)):
                cocoll.allreduce(x, "avg", stream=given).wait()
                cocoll.barrier(stream=given).wait()
            for wrong in ("stream", True, 1.5):
                with pytest.raises(UsageError, match="stream"):
                    cocoll.allreduce(x, stream=wrong)
            same_bits(x.get(), np.ones(100, np.float32))

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_bound_operations(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.ones(100, np.float32), "ordinary")
        scaled = comm.bind(cocoll.allreduce_fused, x, epilogues.scale())
        with pytest.raises(UsageError, match="has not been given"):
            scaled()
        with pytest.raises(UsageError, match="no scalar 'speed'"):
            scaled(speed=1.0)
        scaled(factor=0.25)
        scaled().wait()
        same_bits(x.get(), np.full(100, 0.25, np.float32))
        scaled.close()
        with pytest.raises(ClosedError, match="bind it again"):
            scaled()

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_work(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.ones(3000, np.float32), "symmetric")
        works = [cocoll.allreduce(x, "avg") for _ in range(100)]
        works[-1].wait(30.0)
        # Older ones than there are events.
        assert all(work.done() for work in works)
        assert all(work.exception() is None for work in works)
        out = put(comm, np.zeros(3000, np.float32), "symmetric")
        assert cocoll.allreduce(x, out=out).result() is out

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)
