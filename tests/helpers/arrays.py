"""Arrays of every kind that a caller may bring, each with what lies around it."""

from __future__ import annotations

import array as array_module
import ctypes
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import cocoll
from cocoll.dtypes import DType

__all__ = [
    "DLPACK_KINDS",
    "DTYPES",
    "EVERY_DTYPE",
    "FLOATS",
    "KINDS",
    "PLAIN_KINDS",
    "Held",
    "OnlyDLPack",
    "SymmetricPool",
    "assert_same_bits",
    "hold",
    "itemsize_of",
    "numpy_dtype",
    "symmetric_pool",
]

#: What most is computed in: every test of values runs on these.
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8")
FLOATS = DTYPES[:4]
#: All that there are.
EVERY_DTYPE = tuple(dtype.label for dtype in DType)
_GUARD_BYTE = 0xA5


def numpy_dtype(label: str) -> np.dtype[Any]:
    """Give NumPy's dtype of a label; that of ml_dtypes where NumPy has none."""
    return np.dtype(getattr(ml_dtypes, label, label))


def itemsize_of(label: str) -> int:
    """Give the bytes of one element."""
    return numpy_dtype(label).itemsize


def assert_same_bits(got: Any, wanted: Any, message: str = "") -> None:
    """Compare shape and bits."""
    left, right = np.ascontiguousarray(got), np.ascontiguousarray(wanted)
    assert left.shape == right.shape, f"{message}: shape {left.shape}, wanted {right.shape}"
    assert left.dtype == right.dtype, f"{message}: dtype {left.dtype}, wanted {right.dtype}"
    if left.tobytes() != right.tobytes():
        sides = (
            np.frombuffer(side.tobytes(), np.uint8).reshape(-1, side.itemsize)
            for side in (left, right)
        )
        differ = np.flatnonzero(np.not_equal(*sides).any(axis=1))
        first = int(differ[0])
        raise AssertionError(
            f"{message}: {differ.size} of {left.size} elements differ, the first at {first}: got "
            f"{left.reshape(-1)[first]!r}, wanted {right.reshape(-1)[first]!r}"
        )


@dataclass(frozen=True)
class Held:
    """An array as a caller gives it.

    Attributes
    ----------
    array : object
        What is passed to cocoll.
    view : numpy.ndarray
        The same elements, for reading and writing.
    check_around : callable
        Asserts that nothing beside them was written.
    """

    array: Any
    view: np.ndarray[Any, Any]
    check_around: Callable[[], None]


def _guarded(memory: np.ndarray[Any, Any], keep: np.ndarray[Any, Any]) -> Callable[[], None]:
    """Fill with the guard what `keep` (bool, one a byte) does not name; give the check."""
    outside = ~keep
    memory[outside] = _GUARD_BYTE

    def check() -> None:
        assert (memory[outside] == _GUARD_BYTE).all(), "something was written beside the array"

    return check


def _carve(
    memory: np.ndarray[Any, Any], offset_bytes: int, shape: tuple[int, ...], label: str
) -> Held:
    """Give a C-contiguous array inside of `memory`, and guard the rest."""
    dtype = numpy_dtype(label)
    size_bytes = int(np.prod(shape)) * dtype.itemsize
    keep = np.zeros(memory.size, bool)
    keep[offset_bytes : offset_bytes + size_bytes] = True
    check = _guarded(memory, keep)
    view = memory[offset_bytes : offset_bytes + size_bytes].view(dtype).reshape(shape)
    return Held(view, view, check)


def _from_spread(
    shape: tuple[int, ...],
    label: str,
    pick: Callable[[np.ndarray[Any, Any]], Any],
    base_shape: tuple[int, ...],
) -> Held:
    """Give the part of a larger array that `pick` chooses."""
    base = np.zeros(base_shape, numpy_dtype(label))
    view = pick(base)
    assert view.shape == shape
    marks = np.zeros(base_shape, bool)
    pick(marks)[...] = True
    keep = np.repeat(marks.reshape(-1), base.itemsize)
    check = _guarded(base.reshape(-1).view(np.uint8), keep)
    return Held(view, view, check)


def _ordinary(shape: tuple[int, ...], label: str) -> Held:
    size_bytes = int(np.prod(shape)) * itemsize_of(label)
    return _carve(np.zeros(size_bytes + 128, np.uint8), 64, shape, label)


def _unaligned(shape: tuple[int, ...], label: str) -> Held:
    size_bytes = int(np.prod(shape)) * itemsize_of(label)
    memory = np.zeros(size_bytes + 192, np.uint8)
    odd = 65 - memory.ctypes.data % 2
    return _carve(memory, odd, shape, label)


def _strided(shape: tuple[int, ...], label: str) -> Held:
    base_shape = (*shape[:-1], 2 * shape[-1] + 1)
    return _from_spread(shape, label, lambda base: base[..., 1::2], base_shape)


def _reversed(shape: tuple[int, ...], label: str) -> Held:
    base_shape = (shape[0] + 2, *shape[1:])
    turn = (slice(None, None, -1),) * len(shape)
    return _from_spread(shape, label, lambda base: base[1:-1][turn], base_shape)


def _transposed(shape: tuple[int, ...], label: str) -> Held:
    base_shape = (*shape[::-1][:-1], shape[0] + 3)
    return _from_spread(shape, label, lambda base: base[..., : shape[0]].T, base_shape)


def _outer(shape: tuple[int, ...], label: str) -> Held:
    """Rows with a gap between them."""
    base_shape = (2 * shape[0], *shape[1:])
    return _from_spread(shape, label, lambda base: base[::2], base_shape)


def _bytearray(shape: tuple[int, ...], label: str) -> Held:
    memory = bytearray(int(np.prod(shape)) * itemsize_of(label))
    view = np.frombuffer(memory, numpy_dtype(label)).reshape(shape)
    return Held(memory, view, lambda: None)


def _memoryview(shape: tuple[int, ...], label: str) -> Held:
    held = _ordinary(shape, label)
    return Held(memoryview(held.view), held.view, held.check_around)


def _array(shape: tuple[int, ...], label: str) -> Held:
    code = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "uint8": "B"}[label]
    memory = array_module.array(code, bytes(int(np.prod(shape)) * itemsize_of(label)))
    return Held(memory, np.frombuffer(memory, numpy_dtype(label)).reshape(shape), lambda: None)


def _ctypes(shape: tuple[int, ...], label: str) -> Held:
    kind = {
        "float32": ctypes.c_float,
        "float64": ctypes.c_double,
        "int32": ctypes.c_int32,
        "int64": ctypes.c_int64,
        "uint8": ctypes.c_uint8,
    }[label]
    memory = (kind * int(np.prod(shape)))()
    return Held(memory, np.ctypeslib.as_array(memory).reshape(shape), lambda: None)


def _as_uint16(shape: tuple[int, ...], label: str) -> Held:
    held = _ordinary(shape, "bfloat16")
    return Held(held.view.view(np.uint16), held.view, held.check_around)


class OnlyDLPack:
    """An array that can be had through DLPack alone."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self._values = values

    def __dlpack__(self, **options: Any) -> Any:
        """Lend the memory."""
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Say that it lies in host memory."""
        return self._values.__dlpack_device__()


def _dlpack(shape: tuple[int, ...], label: str) -> Held:
    held = _ordinary(shape, label)
    return Held(OnlyDLPack(held.view), held.view, held.check_around)


def _dlpack_strided(shape: tuple[int, ...], label: str) -> Held:
    held = _strided(shape, label)
    return Held(OnlyDLPack(held.view), held.view, held.check_around)


def _torch(shape: tuple[int, ...], label: str) -> Held:
    import torch

    tensor = torch.zeros(shape, dtype=getattr(torch, label))
    flat = tensor.view(torch.int16).numpy() if label == "bfloat16" else tensor.numpy()
    return Held(tensor, flat.view(numpy_dtype(label)).reshape(shape), lambda: None)


def _torch_transposed(shape: tuple[int, ...], label: str) -> Held:
    import torch

    base = torch.zeros(shape[::-1], dtype=getattr(torch, label))
    flat = base.view(torch.int16).numpy() if label == "bfloat16" else base.numpy()
    return Held(
        base.permute(*range(base.ndim)[::-1]), flat.view(numpy_dtype(label)).T, lambda: None
    )


#: The kinds that need nothing but NumPy and take every dtype and every shape of one dim or more.
PLAIN_KINDS: dict[str, Callable[[tuple[int, ...], str], Held]] = {
    "ordinary": _ordinary,
    "unaligned": _unaligned,
    "strided": _strided,
    "reversed": _reversed,
    "transposed": _transposed,
    "rows": _outer,
    "memoryview": _memoryview,
}
#: Through DLPack, which has no bfloat16 of NumPy's.
DLPACK_KINDS = {"dlpack": _dlpack, "dlpack_strided": _dlpack_strided}
KINDS: dict[str, Callable[[tuple[int, ...], str], Held]] = {
    **PLAIN_KINDS,
    **DLPACK_KINDS,
    "bytearray": _bytearray,
    "array": _array,
    "ctypes": _ctypes,
    "uint16": _as_uint16,
    "torch": _torch,
    "torch_transposed": _torch_transposed,
}


class SymmetricPool:
    """A large symmetric block that cases carve arrays from, without an allocation each.

    Made collectively; `take` is local, and gives the same place on every rank that takes the same.
    """

    SIZE_BYTES = 8 << 20

    def __init__(self, comm: cocoll.Communicator) -> None:
        self._memory = comm.empty(self.SIZE_BYTES, "uint8")
        self._used_bytes = 0

    def reset(self) -> None:
        """Give all of it back."""
        self._used_bytes = 0

    def take(self, shape: tuple[int, ...], label: str, *, offset_bytes: int = 64) -> Held:
        """Carve an array, with a guard before and after it."""
        size_bytes = int(np.prod(shape)) * itemsize_of(label)
        start = self._used_bytes
        stop = start + -(-(size_bytes + offset_bytes + 64) // 64) * 64
        assert stop <= self.SIZE_BYTES, "the case needs a larger pool"
        self._used_bytes = stop
        return _carve(self._memory[start:stop], offset_bytes, shape, label)


_POOLS: weakref.WeakKeyDictionary[Any, SymmetricPool] = weakref.WeakKeyDictionary()
_POOLS_LOCK = threading.Lock()


def symmetric_pool(comm: cocoll.Communicator) -> SymmetricPool:
    """Give the communicator's pool, empty. Collective the first time."""
    with _POOLS_LOCK:
        pool = _POOLS.get(comm)
    if pool is None:
        pool = SymmetricPool(comm)
        with _POOLS_LOCK:
            _POOLS[comm] = pool
    pool.reset()
    return pool


def hold(comm: cocoll.Communicator, kind: str, values: np.ndarray[Any, Any]) -> Held:
    """Give an array of a kind that holds `values`; "symmetric" comes from the pool as it stands."""
    label = str(values.dtype)
    if kind == "symmetric":
        with _POOLS_LOCK:
            pool = _POOLS[comm]
        held = pool.take(values.shape, label)
    else:
        held = KINDS[kind](values.shape, label)
    held.view[...] = values
    return held
