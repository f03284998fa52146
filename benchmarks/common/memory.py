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
    native.load().bench_use_huge_pages(start + offset, size_bytes)
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

    Parameters
    ----------
    path : str or Path
        The file.
    size_bytes : int
        How much of it to map; the file grows to it, in steps of 2 MiB.

    Attributes
    ----------
    address, size_bytes : int
        Where it is, and its length rounded up.
    is_huge : bool
        Whether the kernel gave it 2 MiB pages.

    Raises
    ------
    OSError
        The file cannot be opened or mapped.
    """

    def __init__(self, path: str | Path, size_bytes: int) -> None:
        self._library = native.load()
        self.size_bytes = -(-size_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        is_huge = ctypes.c_int32()
        descriptor = os.open(path, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size < self.size_bytes:
                os.ftruncate(descriptor, self.size_bytes)
            address = self._library.bench_map_shared(
                descriptor, self.size_bytes, ctypes.byref(is_huge)
            )
        finally:
            os.close(descriptor)
        if not address:
            raise OSError(f"cannot map {self.size_bytes} bytes of {path}")
        self.address = int(address)
        self.is_huge = bool(is_huge.value)

    def view(self) -> NDArray[np.uint8]:
        """Give its bytes as an array, valid until :meth:`close`."""
        memory = (ctypes.c_uint8 * self.size_bytes).from_address(self.address)
        view: NDArray[np.uint8] = np.ctypeslib.as_array(memory)
        return view

    def close(self) -> None:
        """Unmap it; no view may be used afterwards."""
        if self.address:
            self._library.bench_unmap(self.address, self.size_bytes)
            self.address = 0
