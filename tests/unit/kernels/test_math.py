"""The elementary functions: accuracy, special values, and one set of bits everywhere."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from tests.helpers.kernel_runner import bits

FUNCTIONS = ("exp", "tanh", "erf", "log")
DTYPES = ("float32", "float64")
# The largest error found by these tests, in units in the last place, with some room.
ULP_LIMITS = {
    ("exp", "float32"): 1.0,
    ("exp", "float64"): 1.0,
    ("tanh", "float32"): 2.8,
    ("tanh", "float64"): 3.0,
    ("erf", "float32"): 1.2,
    ("erf", "float64"): 1.6,
    ("log", "float32"): 0.9,
    ("log", "float64"): 1.0,
}


def call(library: ctypes.CDLL, name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result = np.empty_like(values)
    getattr(library, f"{name}_{values.dtype.name}")(
        ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(result.ctypes.data), values.size
    )
    return result


def power(
    library: ctypes.CDLL, base: np.ndarray[Any, Any], exponent: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    result = np.empty_like(base)
    getattr(library, f"power_{base.dtype.name}")(
        *(ctypes.c_void_p(array.ctypes.data) for array in (base, exponent, result)), base.size
    )
    return result


def inputs(name: str, dtype: str) -> np.ndarray[Any, Any]:
    """Bit patterns of every exponent, and more where the function is not yet constant."""
    rng = np.random.default_rng(3)
    if dtype == "float32":
        spread = np.arange(0, 2**32, 30_011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    else:
        spread = rng.integers(0, 2**64, 60_000, dtype=np.uint64).view(np.float64)
    largest = {"exp": 750.0, "tanh": 25.0, "erf": 7.0, "log": 1e4}[name]
    dense = rng.uniform(-largest, largest, 120_000) * rng.uniform(0, 1, 120_000) ** 2
    if name == "log":
        dense = np.concatenate([np.abs(dense), 1.0 + rng.normal(size=60_000) * 1e-3])
    return np.concatenate([spread, dense.astype(dtype)])


def reference(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give the function's values in a wider type."""
    if name == "erf":
        # The C library's error function is within one unit in the last place of a double.
        return np.array([math.erf(value) for value in values.tolist()])
    wider = np.float64 if values.dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        return np.asarray(getattr(np, name)(values.astype(wider)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(probe: ctypes.CDLL, name: str, dtype: str) -> None:
    if np.finfo(np.longdouble).nmant <= 52 and dtype == "float64" and name != "erf":
        pytest.skip("no type wider than a double to compare with")
    values = inputs(name, dtype)
    expected = reference(name, values)
    found = call(probe, name, values)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    with np.errstate(all="ignore"):
        rounded = expected.astype(dtype)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(rounded))
    finite = np.isfinite(rounded)
    spacing = np.spacing(np.abs(rounded[finite])).astype(expected.dtype)
    errors = np.abs(found[finite].astype(expected.dtype) - expected[finite]) / spacing
    worst = int(np.argmax(errors))
    assert errors[worst] <= ULP_LIMITS[name, dtype], values[finite][worst]


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(probe: ctypes.CDLL, dtype: str) -> None:
    inf, nan = np.inf, np.nan
    values = np.array([0.0, -0.0, inf, -inf, nan], dtype)
    expected = {
        "exp": [1.0, 1.0, inf, 0.0, nan],
        "tanh": [0.0, -0.0, 1.0, -1.0, nan],
        "erf": [0.0, -0.0, 1.0, -1.0, nan],
        "log": [-inf, -inf, inf, nan, nan],
    }
    for name, wanted in expected.items():
        found = call(probe, name, values)
        np.testing.assert_array_equal(found, np.array(wanted, dtype))
        numbers = ~np.isnan(found)
        np.testing.assert_array_equal(
            np.signbit(found)[numbers], np.signbit(np.array(wanted))[numbers]
        )
    assert call(probe, "log", np.array([1.0, -1.0], dtype))[0] == 0.0
    assert np.isnan(call(probe, "log", np.array([1.0, -1.0], dtype))[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormal_results_and_arguments(probe: ctypes.CDLL, dtype: str) -> None:
    tiny = float(np.finfo(dtype).tiny)
    smallest = float(np.finfo(dtype).smallest_subnormal)
    arguments = np.log(np.array([tiny / 3, tiny / 1000, smallest * 1.6])).astype(dtype)
    arguments = np.append(arguments, arguments[2] - 3).astype(dtype)
    found = call(probe, "exp", arguments)
    expected = np.exp(arguments.astype(np.float64)).astype(dtype)
    assert np.max(np.abs(found - expected)) <= smallest
    assert found[3] == 0.0
    values = np.array([tiny / 4, smallest, -smallest], dtype)
    np.testing.assert_array_equal(call(probe, "tanh", values), values)
    logarithms = call(probe, "log", values[:2])
    np.testing.assert_allclose(logarithms, np.log(values[:2].astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_set_of_bits_in_vectors_tails_and_levels(
    probes: dict[str, ctypes.CDLL], name: str, dtype: str
) -> None:
    values = np.ascontiguousarray(inputs(name, dtype)[::37])
    expected = None
    for library in probes.values():
        whole = bits(call(library, name, values))
        # Single elements run in the scalar tail of the loop.
        singles = np.concatenate(
            [bits(call(library, name, values[i : i + 1].copy())) for i in range(500)]
        )
        np.testing.assert_array_equal(singles, whole[:500])
        if expected is not None:
            np.testing.assert_array_equal(whole, expected)
        expected = whole


def test_power_of_special_values(probe: ctypes.CDLL) -> None:
    inf, nan = np.inf, np.nan
    bases = np.array([0, -0.0, 1, -1, inf, -inf, nan, 2, -2, 0.5, -0.5, 1e300, -1e300, 5e-324])
    exponents = np.array(
        [0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, inf, -inf, nan, 1e18, -1e18, 2.0**53 - 1]
    )
    base, exponent = (np.ravel(grid).copy() for grid in np.meshgrid(bases, exponents))
    with np.errstate(all="ignore"):
        expected = np.power(base, exponent)
    found = power(probe, base, exponent)
    np.testing.assert_allclose(found, expected, rtol=1e-15, atol=0)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(expected)[numbers])


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 0.6), ("float64", 12.0)])
def test_accuracy_of_power(probe: ctypes.CDLL, dtype: str, limit: float) -> None:
    wider = np.float64 if dtype == "float32" else np.longdouble
    if np.finfo(wider).nmant <= 52 and dtype == "float64":
        pytest.skip("no type wider than a double to compare with")
    rng = np.random.default_rng(4)
    base = np.abs(rng.normal(size=80_000) * 10.0 ** rng.uniform(-3, 3, 80_000)).astype(dtype)
    exponent = (rng.normal(size=80_000) * 10.0 ** rng.uniform(-2, 2, 80_000)).astype(dtype)
    with np.errstate(all="ignore"):
        expected = np.power(base.astype(wider), exponent.astype(wider))
        rounded = expected.astype(dtype)
    finite = np.isfinite(rounded)
    spacing = np.spacing(np.abs(rounded[finite])).astype(wider)
    found = power(probe, base, exponent)[finite].astype(wider)
    assert np.max(np.abs(found - expected[finite]) / spacing) <= limit
