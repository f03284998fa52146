"""What a reduction must give: the bits of rank order, and float64 as a second opinion."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import numpy as np

from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS
from cocoll.plan.ranges import block_elements, block_range
from tests.helpers.arrays import assert_same_bits, numpy_dtype

__all__ = [
    "ANY_ORDER",
    "OPS",
    "check_reduced",
    "contribution",
    "contributions",
    "reduce_in_rank_order",
    "reduce_wide",
    "shard_of",
]

OPS = ("sum", "prod", "min", "max", "avg")

#: Set where sums may be taken in any order, by parts: what ranks bring is then such that all orders
#: give the same bits.
ANY_ORDER: ContextVar[bool] = ContextVar("ANY_ORDER", default=False)

_EPS = {
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
}
_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float16": 65504.0}
# Below the smallest normal number the spacing is absolute.
_SMALLEST = {"float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16, "float16": 2.0**-24}


def contribution(
    rank: int, shape: int | tuple[int, ...], label: str, op: str, seed: int = 0
) -> np.ndarray[Any, Any]:
    """Give what a rank brings: the same on whichever rank it is computed."""
    random = np.random.default_rng([seed, rank])
    if label == "bool":
        # Mostly what leaves both answers open.
        return np.asarray(random.random(shape) < (0.2 if op in ("sum", "max") else 0.8))
    if "int" in label:
        limits = np.iinfo(label)
        return random.integers(limits.min, limits.max, shape, label, endpoint=True)
    if label.startswith("complex"):
        part = "float32" if label == "complex64" else "float64"
        real, imaginary = (
            contribution(rank, shape, part, op, 2 * seed + which).astype(np.float64)
            for which in (0, 1)
        )
        return np.asarray(real + 1j * imaginary).astype(label)
    if ANY_ORDER.get():
        exact = random.integers(-15, 16, shape)
        if op == "prod":
            exact = random.choice([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0], shape)
        return np.asarray(exact).astype(numpy_dtype(label))
    if op == "prod":
        values = random.uniform(0.5, 1.5, shape) * random.choice([-1.0, 1.0], shape)
    else:
        values = random.standard_normal(shape) * 2.0 ** random.integers(-6, 7, shape)
    return np.asarray(values).astype(numpy_dtype(label))


def contributions(
    world_size: int, shape: int | tuple[int, ...], label: str, op: str, seed: int = 0
) -> list[np.ndarray[Any, Any]]:
    """Give what all ranks bring."""
    return [contribution(rank, shape, label, op, seed) for rank in range(world_size)]


def _accumulate_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if str(dtype) in _EPS and dtype.itemsize < 4 else dtype


def _multiply_complex(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # NumPy's own may keep more digits in between.
    product = np.empty_like(a)
    product.real = a.real * b.real - a.imag * b.imag
    product.imag = a.real * b.imag + a.imag * b.real
    return product


def reduce_wide(parts: list[np.ndarray[Any, Any]], op: str) -> np.ndarray[Any, Any]:
    """Reduce in rank order in the accumulate type, and do not round to the storage type."""
    dtype = parts[0].dtype
    wide = [part.astype(_accumulate_dtype(dtype)) for part in parts]
    function: Any = {
        "sum": np.add,
        "avg": np.add,
        "prod": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
    }[op]
    if op == "prod" and dtype.kind == "c":
        function = _multiply_complex
    if op == "avg" and dtype.kind in "iu":
        total = sum(part.astype(object) for part in parts)
        size = len(parts)
        quotients = [abs(int(v)) // size * (1 if v >= 0 else -1) for v in np.ravel(total)]
        return np.array(quotients, dtype).reshape(parts[0].shape)
    with np.errstate(all="ignore"):
        total = np.array(wide[0])
        for part in wide[1:]:
            total = np.asarray(function(total, part))
        if op == "avg" and dtype.kind == "c":
            size = total.real.dtype.type(len(parts))
            total.real, total.imag = total.real / size, total.imag / size
        elif op == "avg":
            total = np.asarray(total / total.dtype.type(len(parts)))
    return np.asarray(total)


def reduce_in_rank_order(parts: list[np.ndarray[Any, Any]], op: str) -> np.ndarray[Any, Any]:
    """Give the bits that every algorithm in rank order must give."""
    with np.errstate(all="ignore"):
        return reduce_wide(parts, op).astype(parts[0].dtype)


def check_reduced(got: Any, parts: list[np.ndarray[Any, Any]], op: str, message: str = "") -> None:
    """Assert the bits of rank order, and nearness to float64 where that says more."""
    wanted = reduce_in_rank_order(parts, op)
    assert_same_bits(got, wanted, message)
    if parts[0].dtype.kind == "c":
        if op != "prod":
            for name in ("real", "imag"):
                halves = [np.array(getattr(part, name)) for part in parts]
                _check_near(np.array(getattr(np.asarray(got), name)), halves, op, message)
    elif str(parts[0].dtype) in _EPS and op != "prod":
        _check_near(got, parts, op, message)


def _check_near(got: Any, parts: list[np.ndarray[Any, Any]], op: str, message: str) -> None:
    label = str(parts[0].dtype)
    exact = [part.astype(np.float64) for part in parts]
    scale = np.sum(np.abs(exact), axis=0) if parts[0].size else np.zeros(parts[0].shape)
    total = {"min": np.minimum, "max": np.maximum}.get(op, np.add).reduce(exact, axis=0)
    if op == "avg":
        total, scale = total / len(parts), scale / len(parts)
    accumulate = str(_accumulate_dtype(parts[0].dtype))
    bound = (len(parts) - 1 + (op == "avg")) * _EPS[accumulate] * scale + _EPS[label] * np.abs(
        total
    )
    bound = np.asarray(bound + _SMALLEST.get(label, 0.0))
    found = np.asarray(got).astype(np.float64)
    finite = np.isfinite(found)
    # Few bits of exponent are soon too few: then the sum is no number, or as good as none.
    assert (np.abs(total) + bound >= _LARGEST.get(label, np.inf))[~finite].all(), message
    error = np.abs(found - total)[finite]
    assert (error <= bound[finite]).all(), (
        f"{message}: off by {float((error - bound[finite]).max())} beyond the bound"
    )


def shard_of(values: np.ndarray[Any, Any], rank: int, world_size: int) -> np.ndarray[Any, Any]:
    """Give a rank's shard of a vector."""
    length = block_elements(values.size, world_size, SHARD_ALIGNMENT_ELEMENTS)
    start, stop = block_range(rank, values.size, length)
    return values[start:stop]
