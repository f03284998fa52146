"""Runs kernels on NumPy arrays through the C interface that executors use."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from cocoll.dtypes import DType
from cocoll.kernels.build import Kernel

STREAMING = 1
ZERO_SOURCES = 2
MAX_DIMS = 8

NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT64: np.dtype(np.float64),
    DType.INT32: np.dtype(np.int32),
    DType.INT64: np.dtype(np.int64),
    DType.UINT8: np.dtype(np.uint8),
}


class Layout(ctypes.Structure):
    """``cocoll_layout``."""

    _fields_ = (
        ("ndim", ctypes.c_int32),
        ("itemsize_bytes", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_DIMS),
        ("stride_bytes", ctypes.c_int64 * MAX_DIMS),
    )


class Array(ctypes.Structure):
    """``cocoll_array``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("layout", ctypes.POINTER(Layout)),
        ("index", ctypes.c_int64),
    )


class Arguments(ctypes.Structure):
    """``cocoll_reduce_args``."""

    _fields_ = (
        ("first", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("source_count", ctypes.c_int32),
        ("destination_count", ctypes.c_int32),
        ("world_size", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("sources", ctypes.POINTER(Array)),
        ("destinations", ctypes.POINTER(Array)),
        ("operands", ctypes.POINTER(Array)),
        ("scalars", ctypes.POINTER(ctypes.c_double)),
        ("sums", ctypes.c_void_p),
    )


def place(array: np.ndarray[Any, Any], index: int = 0) -> Array:
    """Describe an array for a range that starts at its C-order element `index`."""
    if array.flags.c_contiguous and array.ctypes.data % array.itemsize == 0:
        return Array(array.ctypes.data + index * array.itemsize, None, 0)
    layout = Layout(array.ndim, array.itemsize)
    for dim in range(array.ndim):
        layout.shape[dim] = array.shape[dim]
        layout.stride_bytes[dim] = array.strides[dim]
    return Array(array.ctypes.data, ctypes.pointer(layout), index)


def prepare(kernel: Kernel, scalars: Sequence[float]) -> ctypes.Array[ctypes.c_double]:
    """Give what the kernel reads, as its library derives it."""
    given = (ctypes.c_double * max(1, len(scalars)))(*scalars)
    if kernel.prepare_address == 0:
        return given
    derived = (ctypes.c_double * max(1, kernel.derived_count))()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(kernel.prepare_address)(given, derived)
    return derived


def run(
    kernel: Kernel,
    sources: Sequence[np.ndarray[Any, Any]],
    destinations: Sequence[Sequence[np.ndarray[Any, Any]]],
    operands: Sequence[np.ndarray[Any, Any]] = (),
    scalars: Sequence[float] = (),
    *,
    world_size: int | None = None,
    flags: int = 0,
    first: int = 0,
    begin: int = 0,
    count: int | None = None,
) -> None:
    """Run a kernel over elements [begin, begin + count) of all arrays."""
    if count is None:
        count = sources[0].size - begin
    flat = [destination for result in destinations for destination in result]
    derived = prepare(kernel, scalars)

    def table(arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
        return (Array * max(1, len(arrays)))(*(place(array, begin) for array in arrays))

    arguments = Arguments(
        first=first + begin,
        count=count,
        source_count=len(sources),
        destination_count=len(destinations[0]) if destinations else 0,
        world_size=len(sources) if world_size is None else world_size,
        flags=flags,
        sources=table(sources),
        destinations=table(flat),
        operands=table(operands),
        scalars=derived,
    )
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(kernel.reduce_address)(ctypes.addressof(arguments))


def scalar_values(traced: Any, given: Mapping[str, float]) -> list[float]:
    """Give the scalars of an epilogue in the kernel's order."""
    return [
        float(given.get(scalar.name, 0.0 if scalar.default is None else scalar.default))
        for scalar in traced.scalars
    ]


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give an array's bits, for exact comparison."""
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
    return np.ascontiguousarray(array).view(unsigned[array.itemsize])


def random_values(
    rng: np.random.Generator, dtype: DType, count: int, *, spread: float = 2.0
) -> np.ndarray[Any, Any]:
    """Give values of mixed magnitudes that fit the dtype."""
    if dtype.is_floating:
        magnitudes = 10.0 ** rng.uniform(-spread, spread / 2, count)
        return (rng.normal(size=count) * magnitudes).astype(NUMPY_DTYPES[dtype])
    limits = np.iinfo(NUMPY_DTYPES[dtype])
    return rng.integers(limits.min, limits.max, count, dtype=limits.dtype, endpoint=True)
