"""Steps with other libraries, where they are installed: arrays of theirs, and their own forms."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

import cocoll
from benchmarks.gpu.setting import Setting, bits_of, fill, make
from cocoll import epilogues

__all__ = ["check_cupy", "check_torch"]


def _absent(setting: Setting, name: str) -> str | None:
    if setting.emulated:
        return "the emulated device has no memory that it could use"
    if importlib.util.find_spec(name) is None:
        return "not installed"
    return None


def check_cupy(setting: Setting) -> dict[str, Any]:
    """Reduce CuPy's arrays on CuPy's current stream, and time its unfused Adam."""
    reason = _absent(setting, "cupy")
    if reason:
        return {"absent": reason}
    import cupy

    def body(comm: cocoll.Communicator) -> None:
        with cupy.cuda.Stream(non_blocking=True):
            values = fill(comm.rank, 100_003, "float32")
            symmetric = cupy.asarray(make(comm, values.shape, "float32", "symmetric"))
            for array in (symmetric, cupy.empty(values.shape, "float32")):
                array.set(values)
                wanted = values.copy()
                cocoll.allreduce(wanted)
                cocoll.allreduce(array)
                if bits_of(array.get()) != bits_of(wanted):
                    raise AssertionError("an all-reduce of CuPy's arrays is wrong")

    setting.run(2, body)
    return {"version": cupy.__version__, "seconds_of_adam": _time_adam(cupy)}


def _time_adam(cupy: Any) -> float:
    count = 1 << 26
    kernel = cupy.ElementwiseKernel(
        "float32 g, float32 lr",
        "float32 p, float32 m, float32 v",
        "m = 0.9f * m + 0.1f * g; v = 0.999f * v + 0.001f * g * g;"
        "p -= lr * m / (sqrtf(v) + 1e-8f);",
        "adam_alone",
    )
    g, p, m, v = (cupy.zeros(count, "float32") for _ in range(4))
    kernel(g, 1e-3, p, m, v)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(20):
        kernel(g, 1e-3, p, m, v)
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / 20 * 1e-3


def check_torch(setting: Setting) -> dict[str, Any]:
    """Reduce torch's tensors on torch's current stream."""
    reason = _absent(setting, "torch")
    if reason:
        return {"absent": reason}
    import torch

    if not torch.cuda.is_available():
        return {"absent": "built without CUDA"}

    def body(comm: cocoll.Communicator) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            values = fill(comm.rank, 100_003, "float32")
            memory = make(comm, values.shape, "float32", "symmetric")
            for tensor in (
                torch.as_tensor(memory, device="cuda"),
                torch.empty(values.shape, device="cuda"),
            ):
                tensor.copy_(torch.from_numpy(values))
                wanted = values.copy()
                cocoll.allreduce_fused(wanted, epilogues.relu())
                cocoll.allreduce_fused(tensor, epilogues.relu())
                if bits_of(np.asarray(tensor.cpu())) != bits_of(wanted):
                    raise AssertionError("an all-reduce of torch's tensors is wrong")

    setting.run(2, body)
    return {"version": torch.__version__}
