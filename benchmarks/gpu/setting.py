"""What every step of the check works on: a GPU or the emulated one, and ranks on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import cocoll
from cocoll.array import numpy_dtype
from cocoll.cuda.toolkit import Toolkit
from cocoll.dtypes import DType
from cocoll.testing import run_ranks

if TYPE_CHECKING:
    from cocoll.device.array import DeviceArray

__all__ = ["Setting", "bits_of", "fill", "make", "put", "time_calls"]

#: A rank that waits longer than this on the GPU has lost its peer.
_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Setting:
    """The device of a run.

    Attributes
    ----------
    emulated : bool
        Whether there is no GPU: sizes are small then, and times say nothing.
    """

    emulated: bool

    def toolkit(self) -> Toolkit:
        """Give the libraries below."""
        if not self.emulated:
            return Toolkit()
        # Needs a C++ compiler, which a machine with a GPU may not have.
        from cocoll.testing.emulation import emulate_device

        return emulate_device(Path(os.environ["COCOLL_CACHE_DIR"]))

    def run(
        self, ranks: int, body: Callable[[cocoll.Communicator], Any], **tuning: int
    ) -> list[Any]:
        """Run ranks as threads of this process, each on a stream of its own."""
        return run_ranks(
            ranks,
            body,
            toolkit=self.toolkit(),
            tuning=cocoll.Tuning(**tuning),
            timeout_seconds=_TIMEOUT_SECONDS,
        )

    def of(self, on_gpu: int, emulated: int) -> int:
        """Give a size or a number of repetitions."""
        return emulated if self.emulated else on_gpu


def make(comm: cocoll.Communicator, shape: tuple[int, ...], dtype: str, memory: str) -> DeviceArray:
    """Make an array on the rank's GPU, symmetric or ordinary."""
    if memory == "symmetric":
        made: DeviceArray = comm.empty(shape, dtype, device="cuda")
        return made
    return comm._open_side(None).zeros(shape, DType.parse(dtype))


def put(comm: cocoll.Communicator, values: np.ndarray[Any, Any], memory: str) -> DeviceArray:
    """Copy an array to the rank's GPU."""
    label = {"uint16": "bfloat16"}.get(str(values.dtype), str(values.dtype))
    made = make(comm, values.shape, label, memory)
    made.set(values)
    return made


def fill(rank: int, count: int, dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Give values that differ from rank to rank."""
    random = np.random.default_rng([seed, rank])
    kind = numpy_dtype(DType.parse(dtype))
    if dtype == "bfloat16" and kind == np.uint16:
        # Without ml_dtypes: the upper halves of float32.
        wide = random.standard_normal(count).astype(np.float32)
        return (wide.view(np.uint32) >> 16).astype(np.uint16)
    if np.issubdtype(kind, np.integer):
        return random.integers(0, 50, count).astype(kind)
    return random.standard_normal(count).astype(np.float32).astype(kind)


def bits_of(array: np.ndarray[Any, Any]) -> bytes:
    """Give an array's elements as bytes."""
    return array.tobytes()


def time_calls(call: Callable[[], Any], finish: Callable[[], None], repetitions: int) -> float:
    """Give the seconds of one call, of many that were queued and then waited for."""
    call()
    finish()
    start = time.perf_counter()
    for _ in range(repetitions):
        call()
    finish()
    return (time.perf_counter() - start) / repetitions
