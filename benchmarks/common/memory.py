"""Memory for the ranks: 2 MiB aligned private buffers, and shared ones held by the driver."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import native

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import DTypeLike, NDArray

__all__ = ["HUGE_PAGE_BYTES", "SharedMemory", "address_of", "private_array"]

HUGE_PAGE_BYTES = 2 << 20


def private_array(elements: int, dtype: DTypeLike) -> NDArray[Any]:
    """Make a zeroed array of this process alone, on 2 MiB pages where the kernel gives them.

    Parameters
    ----------
    elements : int
        Its length, at least 1.
    dtype : DTypeLike
        The NumPy type (bfloat16 travels as uint16).

    Returns
    -------
    ndarray
        Aligned to 2 MiB and touched; the memory goes with its last view.
    """
    item_type = np.dtype(dtype)
    size_bytes = elements * item_type.itemsize
    region = mmap.mmap(-1, size_bytes + HUGE_PAGE_BYTES)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    offset = -start % HUGE_PAGE_BYTES
    native.load().bench_use_huge_pages(start + offset, size_bytes, 0)
    array = np.frombuffer(region, dtype=item_type, count=elements, offset=offset)
    array[:] = 0
    return array


def address_of(array: NDArray[Any]) -> int:
    """Give the address of an array's first element."""
    return int(array.ctypes.data)


class SharedMemory:
    """A file without a name, mapped by all ranks of one job.

    The driver holds it (``memfd``); ranks open it through ``/proc``, so nothing is left behind
    whoever is killed.
    """

    def __init__(self, path: str | Path, size_bytes: int) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size < size_bytes:
                os.ftruncate(descriptor, size_bytes)
            self._region = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        self.size_bytes = size_bytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._region))
