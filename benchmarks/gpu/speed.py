"""Steps that time: host time of a launch, bandwidth of the fused kernel, unfused forms of it."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

import cocoll
from benchmarks.gpu.setting import Setting, make, time_calls
from cocoll import epilogues
from cocoll.testing.graphs import Graphs

__all__ = ["measure_fused", "measure_launches", "measure_small"]

_BETAS, _EPS, _LR = (0.9, 0.999), 1e-8, 1e-3


def measure_launches(setting: Setting) -> dict[str, Any]:
    """Give the host's microseconds for one launch of a bound operation; at most 3 are wanted."""
    batches, calls = 50, 200

    def body(comm: cocoll.Communicator) -> float:
        x = make(comm, (1024,), "float32", "symmetric")
        step = comm.bind(cocoll.allreduce_fused, x, epilogues.scale(), factor=0.5)
        step().wait()
        best = float("inf")
        for _ in range(batches):
            start = time.perf_counter()
            for _ in range(calls):
                work = step()
            best = min(best, (time.perf_counter() - start) / calls)
            work.wait()
        return best

    seconds = setting.run(1, body)[0]
    return {"host_microseconds": seconds * 1e6, "wanted_microseconds": 3.0}


def measure_small(setting: Setting) -> dict[str, Any]:
    """Give the microseconds of a small all-reduce of two ranks, by both ways that it may go.

    Replayed from a graph of many, so that the host's launches do not count.
    """
    of_a_graph, replays = setting.of(50, 5), setting.of(40, 2)
    sizes = (64, 1024, 8192)
    graphs = Graphs(setting.toolkit())

    def body(comm: cocoll.Communicator) -> dict[str, float]:
        found = {}
        for nbytes in sizes:
            x = make(comm, (nbytes // 4,), "float32", "ordinary")
            stream = x.stream
            call = comm.bind(cocoll.allreduce, x, "avg", stream=stream.handle)
            with graphs.capture(stream.handle) as graph:
                for _ in range(of_a_graph):
                    call()

            def replay(graph: Any = graph, handle: int = stream.handle) -> None:
                graph.launch(handle)

            samples = [time_calls(replay, stream.synchronize, replays) for _ in range(5)]
            found[f"{call.algorithm} {nbytes}"] = min(samples) / of_a_graph * 1e6
        return found

    microseconds: dict[str, float] = {}
    for low_latency_bytes in (max(sizes), 0):
        both = setting.run(2, body, gpu_ll_bytes=low_latency_bytes)
        microseconds |= {way: max(theirs[way] for theirs in both) for way in both[0]}
    return {"microseconds_by_way_and_bytes": microseconds}


def measure_fused(setting: Setting) -> dict[str, Any]:
    """Time fused Adam of two ranks on one GPU, beside a copy and the unfused forms.

    Two ranks as threads, each with gradients and parameters of its own: the bytes that must move
    are each rank's gradient read, and parameters (written to both), m and v read and written once.
    The unfused form of DDP: each rank sums all gradients into a copy of its own, then updates the
    whole tensor. The sharded form: reduce-scatter, Adam on the shard, all-gather.
    """
    count = setting.of(1 << 26, 1 << 14)
    repetitions = setting.of(20, 2)
    ranks = 2
    meeting = threading.Barrier(ranks)
    adam = epilogues.adam(betas=_BETAS, eps=_EPS)

    def body(comm: cocoll.Communicator) -> dict[str, float]:
        alone = comm.split(comm.rank)
        if alone is None:
            raise AssertionError("a color gives a communicator")
        x, param = (make(comm, (count,), "float32", "symmetric") for _ in range(2))
        zeros = np.zeros(count, np.float32)
        x.set(zeros + 0.5)
        param.set(zeros)
        m, v = (comm.shard_zeros(count, device="cuda") for _ in range(2))
        fused = comm.bind(cocoll.allreduce_fused, x, adam, param=param, m=m, v=v)
        # The same arrays in a communicator of one: nothing travels, and Adam is a kernel alone.
        summed = make(comm, (count,), "float32", "symmetric")
        whole = [alone.shard_zeros(count, device="cuda") for _ in range(3)]
        allreduce = comm.bind(cocoll.allreduce, x, out=summed)
        update = alone.bind(
            cocoll.allreduce_fused, summed, adam, param=whole[0], m=whole[1], v=whole[2]
        )
        shard = comm.shard_zeros(count, device="cuda")
        mine = comm.shard_zeros(count, device="cuda")
        scatter = comm.bind(cocoll.reduce_scatter, x, out=shard, layout="shard")
        update_shard = alone.bind(cocoll.allreduce_fused, shard, adam, param=mine, m=m, v=v)
        gather = comm.bind(cocoll.allgather, mine, out=param, layout="shard")
        scalars = {"lr": _LR, "step": 1.0}
        device, stream = x._device, x.stream

        def unfused() -> None:
            allreduce()
            update(**scalars)

        def sharded() -> None:
            scatter()
            update_shard(**scalars)
            gather()

        forms = {
            "copy": lambda: device.copy(summed._address, x._address, x.nbytes, stream.handle),
            "fused": lambda: fused(**scalars),
            "unfused": unfused,
            "sharded": sharded,
        }
        seconds = {}
        for name, form in forms.items():
            samples = []
            for _ in range(5):
                meeting.wait()
                samples.append(time_calls(form, stream.synchronize, repetitions))
            seconds[name] = float(np.median(samples))
        alone.close()
        return seconds

    found = setting.run(ranks, body)
    slowest = {name: max(theirs[name] for theirs in found) for name in found[0]}
    # Both ranks copy at the same time: each copy reads and writes.
    copy_bandwidth = ranks * 2 * 4 * count / slowest["copy"]
    must_move = 4 * count * (ranks + ranks + 1 + 4)
    return {
        "elements": count,
        "seconds": slowest,
        "copy_bytes_per_second": copy_bandwidth,
        "fused_fraction_of_copy": must_move / slowest["fused"] / copy_bandwidth,
        "ratio_to_unfused": slowest["unfused"] / slowest["fused"],
        "ratio_to_sharded": slowest["sharded"] / slowest["fused"],
        "wanted": {
            "fused_fraction_of_copy": 0.85,
            "ratio_to_unfused": 1.8,
            "ratio_to_sharded": 1.2,
        },
    }
