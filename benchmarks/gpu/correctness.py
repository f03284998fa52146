"""Steps that compare with float64 on the host, and with the bits of the host's executor."""

from __future__ import annotations

from typing import Any

import numpy as np

import cocoll
from benchmarks.gpu.setting import Setting, bits_of, fill, make, put
from cocoll import epilogues
from cocoll.testing import run_processes
from cocoll.testing.graphs import Graphs

__all__ = ["check_collectives", "check_epilogues", "check_graphs", "check_processes"]

_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8")
_EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_MEMORIES = ("symmetric", "ordinary")
# 1000 elements of a rank go with low latency or one-shot, by their size.
_SMALL = {"gpu_ll_bytes": 8 << 10, "gpu_one_shot_bytes": 16 << 10, "gpu_window_bytes": 1 << 20}


def _wide(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


def check_collectives(setting: Setting) -> dict[str, Any]:
    """Compare every collective with float64, and the bits of all ranks with each other."""
    counts = (1000, setting.of(1_000_003, 20_003))
    checked = 0
    for ranks in (2, 4):

        def body(comm: cocoll.Communicator, ranks: int = ranks) -> list[bytes]:
            found = []
            for dtype in _DTYPES:
                for memory in _MEMORIES:
                    for count in counts:
                        found += _check_one(comm, dtype, memory, count * ranks)
            return found

        results = setting.run(ranks, body, **_SMALL)
        if any(result != results[0] for result in results):
            raise AssertionError("the ranks have different bits")
        checked += len(results[0])
    return {"results": checked, "dtypes": list(_DTYPES), "ranks": [2, 4]}


def _check_one(comm: cocoll.Communicator, dtype: str, memory: str, count: int) -> list[bytes]:
    parts = [fill(rank, count, dtype) for rank in range(comm.world_size)]
    wide = [_wide(part) for part in parts]
    mine = parts[comm.rank]
    x = put(comm, mine, memory)
    cocoll.allreduce(x).wait()
    reduced = x.get()
    wanted = np.sum(wide, axis=0)
    slack = (comm.world_size - 1) * _EPSILON.get(dtype, 0.0) * np.sum(np.abs(wide), axis=0)
    slack += _EPSILON.get(dtype, 0.0) * np.abs(wanted)
    if dtype == "uint8":
        wanted %= 256
    if not (np.abs(_wide(reduced) - wanted) <= slack).all():
        raise AssertionError(f"allreduce of {count} {dtype} in {memory} memory is wrong")
    x.set(mine)
    block = cocoll.reduce_scatter(x).result()
    length = count // comm.world_size
    own = slice(comm.rank * length, (comm.rank + 1) * length)
    if bits_of(block.get()) != bits_of(reduced[own]):
        raise AssertionError(f"reduce_scatter of {count} {dtype} differs from allreduce")
    whole = make(comm, (count,), dtype, memory)
    cocoll.allgather(block, out=whole).wait()
    if bits_of(whole.get()) != bits_of(reduced):
        raise AssertionError(f"allgather of {count} {dtype} in {memory} memory is wrong")
    cocoll.broadcast(x, 1).wait()
    if bits_of(x.get()) != bits_of(parts[1]):
        raise AssertionError(f"broadcast of {count} {dtype} in {memory} memory is wrong")
    return [bits_of(reduced), bits_of(whole.get()), bits_of(x.get())]


def _optimizers() -> dict[str, tuple[Any, tuple[str, ...], dict[str, Any]]]:
    # The epilogue, its sharded arrays, its scalars.
    return {
        "adam": (epilogues.adam(), ("m", "v"), {"lr": 1e-2, "step": 1.0}),
        "adamw": (epilogues.adamw(), ("m", "v"), {"lr": 1e-2, "step": 1.0}),
        "sgd": (epilogues.sgd(momentum=0.9), ("momentum_buffer",), {"lr": 1e-2}),
    }


def check_epilogues(setting: Setting) -> dict[str, Any]:
    """Compare the catalogue's epilogues with the host's executor, bit by bit."""
    count = setting.of(500_009, 20_011)

    def body(comm: cocoll.Communicator) -> list[str]:
        done = []
        for memory in _MEMORIES:
            for name in ("relu", "gelu", "silu"):
                values = fill(comm.rank, count, "float32")
                x = put(comm, values, memory)
                epilogue = getattr(epilogues, name)()
                cocoll.allreduce_fused(values, epilogue)
                cocoll.allreduce_fused(x, epilogue).wait()
                if bits_of(x.get()) != bits_of(values):
                    raise AssertionError(f"{name} in {memory} memory differs from the host's")
                done.append(name)
            for name, (epilogue, sharded, scalars) in _optimizers().items():
                _check_optimizer(comm, count, memory, epilogue, sharded, scalars, name)
                done.append(name)
        return done

    names = setting.run(2, body, **_SMALL)[0]
    return {"epilogues": sorted(set(names)), "elements": count}


def _check_optimizer(
    comm: cocoll.Communicator,
    count: int,
    memory: str,
    epilogue: Any,
    sharded: tuple[str, ...],
    scalars: dict[str, Any],
    name: str,
) -> None:
    start, stop = comm.shard_range(count)
    host: dict[str, Any] = {"param": fill(9, count, "float32")}
    host |= {array: np.zeros(stop - start, np.float32) for array in sharded}
    gpu: dict[str, Any] = {
        array: put(comm, values, memory if array == "param" else "ordinary")
        for array, values in host.items()
    }
    for step in range(2):
        gradient = fill(comm.rank, count, "float32", step)
        x = put(comm, gradient, memory)
        cocoll.allreduce_fused(gradient, epilogue, **host, **scalars)
        cocoll.allreduce_fused(x, epilogue, **gpu, **scalars).wait()
    for array, values in host.items():
        if bits_of(gpu[array].get()) != bits_of(values):
            raise AssertionError(f"{array} of {name} in {memory} memory differs from the host's")


def _train(comm: cocoll.Communicator, steps: int) -> bytes:
    count = 100_003
    start, stop = comm.shard_range(count)
    param = put(comm, fill(9, count, "float32"), "symmetric")
    m, v = (put(comm, np.zeros(stop - start, np.float32), "ordinary") for _ in range(2))
    x = put(comm, fill(comm.rank, count, "float32"), "symmetric")
    for step in range(1, steps + 1):
        cocoll.allreduce_fused(
            x, epilogues.adam(), param=param, m=m, v=v, lr=1e-2, step=step
        ).wait()
    return bits_of(param.get())


def check_processes(setting: Setting) -> dict[str, Any]:
    """Run ranks as processes that map each other's memory over CUDA IPC: few steps.

    Processes take turns on a GPU, unless a server for several of them runs: a meeting may take
    milliseconds.
    """
    steps = 5
    wanted = setting.run(2, lambda comm: _train(comm, steps))
    outcomes = run_processes(
        2, _train, steps, toolkit=setting.toolkit(), timeout_seconds=60.0, limit_seconds=90.0
    )
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        if outcome.value != wanted[0]:
            raise AssertionError("ranks as processes differ from ranks as threads")
    return {"ranks": 2, "steps": steps, "seconds": max(outcome.seconds for outcome in outcomes)}


def check_graphs(setting: Setting) -> dict[str, Any]:
    """Capture a bound step of Adam and replay it, against the same steps one by one."""
    replays = setting.of(2000, 100)
    count = 50_021
    graphs = Graphs(setting.toolkit())

    def body(comm: cocoll.Communicator) -> None:
        start, stop = comm.shard_range(count)
        gradient = fill(comm.rank, count, "float32")
        results = []
        for captured in (True, False):
            param = put(comm, fill(9, count, "float32"), "symmetric")
            m, v = (put(comm, np.zeros(stop - start, np.float32), "ordinary") for _ in range(2))
            x = put(comm, gradient, "symmetric")
            step = comm.bind(cocoll.allreduce_fused, x, epilogues.adam(), param=param, m=m, v=v)
            stream = x.stream
            if captured:
                with graphs.capture(stream.handle) as graph:
                    step(lr=1e-3, step=1)
                for _ in range(replays):
                    graph.launch(stream.handle)
            else:
                for _ in range(replays):
                    step(lr=1e-3, step=1)
            stream.synchronize()
            results.append(bits_of(param.get()))
        if results[0] != results[1]:
            raise AssertionError("replayed steps differ from those that were launched")

    setting.run(2, body)
    return {"replays": replays}
