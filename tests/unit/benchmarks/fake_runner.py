"""Implementations for tests of the driver: ranks that share a file instead of a library."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.cases import Entry, Group
from benchmarks.common.memory import SharedMemory
from benchmarks.common.runner import ADAM, FusedBuffers, Runner

_CAPACITY_ELEMENTS = 1 << 16


class FakeRunner(Runner):
    """Sums through shared memory, in rank order; ``FAKE_FAULT`` plants one kind of fault."""

    def __init__(self) -> None:
        self.fault = os.environ.get("FAKE_FAULT", "")

    def open(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        slots = self.world_size * _CAPACITY_ELEMENTS * 4
        counters = 4096
        self._memory = SharedMemory(os.environ["FAKE_MEMORY"], slots + counters)
        whole = self._memory.view()
        self._slots = whole[:slots].view(np.float32).reshape(self.world_size, -1)
        self._ticks = whole[slots : slots + 8 * self.world_size].view(np.int64)
        if self.fault == "no_report" and self.rank == 1:
            raise RuntimeError("this rank does not report")

    def versions(self) -> dict[str, str]:
        return {"fake": "1"}

    def prepare(self, group: Group) -> list[Entry]:
        n = group.elements
        self.input = np.zeros(n, np.float32)
        self.output = np.zeros(n, np.float32)
        self.param = np.zeros(n, np.float32)
        self.m, self.v = np.zeros(n, np.float32), np.zeros(n, np.float32)
        self.steps = 0
        if group.operation == "allreduce_fused":
            return [Entry("step", "fake", "peer")]
        return [Entry("in_place", "fake", "peer"), Entry("out_of_place", "fake", "peer")]

    def inputs(self, form: str) -> list[NDArray[Any]]:
        return [self.input]

    def result(self, form: str) -> NDArray[Any]:
        return self.input if form == "in_place" else self.output

    def fused_buffers(self, form: str) -> FusedBuffers:
        return FusedBuffers(self.input, self.param)

    def reset(self, form: str, param: NDArray[np.float32]) -> None:
        self.param[:] = param
        self.m[:] = 0
        self.v[:] = 0
        self.steps = 0

    def call(self, form: str) -> Callable[[], object]:
        return {"in_place": self._in_place, "out_of_place": self._out_of_place, "step": self._step}[
            form
        ]

    def release(self) -> None:
        self.released = True

    def close(self) -> None:
        self.closed = True

    def _in_place(self) -> None:
        self.input[:] = self._sum()

    def _out_of_place(self) -> None:
        self.output[:] = self._sum()

    def _step(self) -> None:
        gradient = self._sum()
        self.steps += 1
        beta1, beta2 = ADAM["beta1"], ADAM["beta2"]
        self.m[:] = beta1 * self.m + (1 - beta1) * gradient
        self.v[:] = beta2 * self.v + (1 - beta2) * gradient**2
        m_hat = self.m / (1 - beta1**self.steps)
        v_hat = self.v / (1 - beta2**self.steps)
        lr = ADAM["lr"] * (1.01 if self.fault == "wrong_rate" else 1.0)
        self.param -= lr * m_hat / (np.sqrt(v_hat) + ADAM["eps"])

    def _sum(self) -> NDArray[np.float32]:
        n = self.input.size
        if self.fault == "dies" and self.rank == 1:
            os._exit(3)
        if self.fault == "raises" and self.rank == 1:
            raise ValueError("planted")
        self._slots[self.rank, :n] = self.input
        self._meet()
        total = np.zeros(n, np.float32)
        for peer in range(self.world_size):
            total += self._slots[peer, :n]
        self._meet()
        if self.fault == "wrong_sum":
            total[n // 2] += 1
        if self.fault == "other_bits" and self.rank == 1:
            total[0] = np.nextafter(total[0], np.float32(np.inf))
        return total

    def _meet(self) -> None:
        self._ticks[self.rank] += 1
        mine = self._ticks[self.rank]
        while int(self._ticks.min()) < mine:
            os.sched_yield()
            if os.getppid() == 1:
                os._exit(4)
