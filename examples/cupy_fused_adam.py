#!/usr/bin/env python3
"""Fused Adam on CuPy's arrays: ``mpirun -n N python examples/cupy_fused_adam.py``, a GPU a rank.

Each rank has a gradient of its own. One call sums the gradients, takes the step and hands the new
parameters to all; the optimizer's state lies in shards. The same steps are taken with an ordinary
all-reduce and Adam over the whole tensor, and the parameters are compared.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

import cocoll
from cocoll import epilogues

_LR, _STEPS = 1e-3, 20


def main() -> int:
    """Train both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24)
    count = parser.parse_args().elements
    try:
        import cupy
    except ImportError:
        print("this example needs CuPy: pip install 'cocoll[cuda13]'", file=sys.stderr)
        return 1

    with cocoll.init() as comm:
        cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
        # Symmetric memory, as arrays of CuPy: calls on them need no copy through a window.
        gradient = cupy.asarray(comm.empty(count, device="cuda"))
        param = cupy.asarray(comm.empty(count, device="cuda"))
        m, v = (cupy.asarray(comm.shard_zeros(count, device="cuda")) for _ in range(2))
        param[:] = 0
        step = comm.bind(
            cocoll.allreduce_fused, gradient, epilogues.adam(), param=param, m=m, v=v, op="avg"
        )

        plain = _PlainAdam(cupy, comm, count)
        random = cupy.random.default_rng(comm.rank)
        seconds = {"fused": 0.0, "plain": 0.0}
        for number in range(1, _STEPS + 1):
            gradient[:] = random.standard_normal(count, dtype="float32")
            seconds["fused"] += _time(cupy, functools.partial(step, lr=_LR, step=number))
            seconds["plain"] += _time(cupy, functools.partial(plain.step, gradient, number))
        difference = float(cupy.abs(param - plain.param).max())
        if comm.rank == 0:
            print(f"{comm.world_size} ranks, {count} parameters, {step.algorithm}")
            for name, total in seconds.items():
                print(f"  {name}: {total / _STEPS * 1e3:.3f} ms a step")
            print(f"  largest difference of the parameters: {difference:.1e}")
        return 0 if difference < 1e-5 else 1


class _PlainAdam:
    """All-reduce into a tensor of its own, then Adam over the whole of it."""

    def __init__(self, cupy: Any, comm: cocoll.Communicator, count: int) -> None:
        self._cupy = cupy
        self._comm = comm
        self._summed = cupy.empty(count, "float32")
        self.param, self._m, self._v = (cupy.zeros(count, "float32") for _ in range(3))

    def step(self, gradient: Any, number: int) -> None:
        """Take one step."""
        cocoll.allreduce(gradient, "avg", out=self._summed, comm=self._comm)
        self._m[:] = 0.9 * self._m + 0.1 * self._summed
        self._v[:] = 0.999 * self._v + 0.001 * self._summed * self._summed
        root = self._cupy.sqrt(self._v / (1 - 0.999**number))
        self.param[:] -= _LR / (1 - 0.9**number) * self._m / (root + 1e-8)


def _time(cupy: Any, call: Callable[[], Any]) -> float:
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3


if __name__ == "__main__":
    sys.exit(main())
