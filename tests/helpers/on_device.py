"""Calls on a GPU beside the same calls on the host: both must give the same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

import cocoll
from cocoll.array import numpy_dtype
from cocoll.cuda.binding import DeviceStream
from cocoll.device.array import DeviceArray
from cocoll.dtypes import DType

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit

__all__ = [
    "MEMORIES",
    "TUNING",
    "Watch",
    "fill",
    "gpu_stream",
    "make_array",
    "put",
    "same_bits",
]

#: Limits so low that a few thousand elements go through every way.
TUNING = cocoll.Tuning(
    gpu_ll_bytes=256,
    gpu_one_shot_bytes=1024,
    gpu_window_bytes=1 << 16,
    gpu_segment_bytes=1 << 20,
)

MEMORIES = ("symmetric", "ordinary")


def make_array(
    comm: cocoll.Communicator, shape: tuple[int, ...], dtype: str, memory: str
) -> DeviceArray:
    """Make an array on the rank's GPU."""
    if memory == "symmetric":
        made = comm.empty(shape, dtype, device="cuda")
        assert isinstance(made, DeviceArray)
        return made
    return comm._open_side(None).zeros(shape, DType.parse(dtype))


def put(comm: cocoll.Communicator, values: np.ndarray[Any, Any], memory: str) -> DeviceArray:
    """Copy an array to the rank's GPU."""
    made = make_array(comm, values.shape, str(values.dtype), memory)
    made.set(values)
    return made


def fill(rank: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Give values of both signs, different on every rank."""
    random = np.random.default_rng(1000 * seed + rank)
    if np.issubdtype(numpy_dtype(DType.parse(dtype)), np.integer):
        low = 0 if dtype.startswith("u") else -50
        return random.integers(low, 50, shape).astype(dtype)
    return random.standard_normal(shape).astype(np.float32).astype(numpy_dtype(DType.parse(dtype)))


def same_bits(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    """Compare two arrays bit by bit."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


@contextmanager
def gpu_stream(comm: cocoll.Communicator) -> Iterator[int]:
    """Lend a stream of the rank's GPU."""
    stream = DeviceStream(comm._open_side(None).device)
    yield stream.handle
    stream.synchronize()


class Watch:
    """What the emulated device has noticed.

    Parameters
    ----------
    toolkit : Toolkit
        Of the emulated device.
    """

    def __init__(self, toolkit: Toolkit) -> None:
        self._library = ctypes.CDLL(toolkit.driver_path)
        self._library.emulated_faults.restype = ctypes.c_char_p
        self._library.emulated_nccl_take_sent_bytes.restype = ctypes.c_uint64

    def faults(self) -> str:
        """Give what went wrong without an error."""
        text: bytes = self._library.emulated_faults()
        return text.decode()

    def forget_faults(self) -> None:
        """Forget what a test has planted."""
        self._library.emulated_forget_faults()

    def take_sent_bytes(self, sender: int, receiver: int) -> int:
        """Give what one rank has sent to another over NCCL since the last time."""
        return int(self._library.emulated_nccl_take_sent_bytes(sender, receiver))

    def allocations(self) -> int:
        """Give how many pieces of memory and communicators of NCCL there are."""
        return int(
            self._library.emulated_allocation_count()
            + self._library.emulated_nccl_communicator_count()
        )
