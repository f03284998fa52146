"""Conversions of floats of 16 and 8 bits: every bit pattern, every tie, every ISA level."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.helpers.kernel_runner import bits

HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
EVERY_PATTERN = np.arange(65536, dtype=np.uint16)


def call(
    library: ctypes.CDLL, name: str, values: np.ndarray[Any, Any], dtype: Any
) -> np.ndarray[Any, Any]:
    result = np.empty(values.size, dtype)
    function = getattr(library, name)
    function(ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(result.ctypes.data), values.size)
    return result


def interesting_floats(half: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Every half as a float, all ties between neighbours, and the floats beside the ties."""
    with np.errstate(all="ignore"):
        halves = EVERY_PATTERN[:32768].view(half).astype(np.float32)
        finite = np.sort(halves[np.isfinite(halves)])
        ties = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
        largest = finite[-1].astype(np.float64)
        past = np.float32(largest + (largest - finite[-2]) / 2)
        ties = np.append(ties, past)
        beside = [np.nextafter(ties, np.float32(-np.inf)), np.nextafter(ties, np.float32(np.inf))]
    magnitudes = np.concatenate([finite, ties, *beside, [np.float32(np.inf)]])
    return np.concatenate([magnitudes, -magnitudes]).astype(np.float32)


@pytest.mark.parametrize("name", HALVES)
def test_widening_every_pattern(probe: ctypes.CDLL, name: str) -> None:
    patterns = EVERY_PATTERN
    with np.errstate(all="ignore"):
        expected = patterns.view(HALVES[name]).astype(np.float32)
    for form in ("widen", "widen_one_by_one"):
        widened = call(probe, f"{form}_{name}", patterns, np.float32)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(bits(widened)[numbers], bits(expected)[numbers])
        assert np.isnan(widened[~numbers]).all()
        np.testing.assert_array_equal(np.signbit(widened), (patterns >> 15) == 1)


@pytest.mark.parametrize("name", HALVES)
def test_widening_keeps_the_payload_of_a_quiet_nan(probe: ctypes.CDLL, name: str) -> None:
    quiet, shift = (np.uint16(0x7E55), 13) if name == "float16" else (np.uint16(0x7FD5), 16)
    widened = call(probe, f"widen_{name}", np.full(9, quiet), np.float32)
    mantissa_mask = 0x3FF if name == "float16" else 0x7F
    assert set(bits(widened) & 0x7FFFFF) == {(int(quiet) & mantissa_mask) << shift}


@pytest.mark.parametrize("name", HALVES)
def test_narrowing_rounds_to_nearest_even(probe: ctypes.CDLL, name: str) -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate(
        [
            interesting_floats(HALVES[name]),
            rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32),
        ]
    )
    with np.errstate(all="ignore"):
        expected = values.astype(HALVES[name])
    numbers = ~np.isnan(values)
    for form in ("narrow", "narrow_one_by_one"):
        narrowed = call(probe, f"{form}_{name}", values, np.uint16)
        np.testing.assert_array_equal(narrowed[numbers], bits(expected)[numbers])
        assert np.isnan(narrowed.view(HALVES[name])[~numbers].astype(np.float32)).all()


@pytest.mark.parametrize("name", HALVES)
def test_narrowing_a_nan_keeps_sign_and_payload_and_is_quiet(probe: ctypes.CDLL, name: str) -> None:
    patterns = np.array([0x7F800001, 0xFFC12345, 0x7FFFFFFF, 0xFF801000], np.uint32)
    expected = {
        "float16": [0x7E00, 0xFE09, 0x7FFF, 0xFE00],
        "bfloat16": [0x7FC0, 0xFFC1, 0x7FFF, 0xFFC0],
    }[name]
    for form in ("narrow", "narrow_one_by_one"):
        repeated = np.tile(patterns, 5).view(np.float32)
        narrowed = call(probe, f"{form}_{name}", repeated, np.uint16)
        np.testing.assert_array_equal(narrowed, np.tile(expected, 5))


@pytest.mark.parametrize("name", HALVES)
def test_round_trip_of_every_pattern(probe: ctypes.CDLL, name: str) -> None:
    back = call(
        probe,
        f"narrow_{name}",
        call(probe, f"widen_{name}", EVERY_PATTERN, np.float32),
        np.uint16,
    )
    quiet_bit = 0x200 if name == "float16" else 0x40
    with np.errstate(all="ignore"):
        is_nan = np.isnan(EVERY_PATTERN.view(HALVES[name]).astype(np.float32))
    np.testing.assert_array_equal(back, np.where(is_nan, EVERY_PATTERN | quiet_bit, EVERY_PATTERN))


def nearest_half(value: float, finite: np.ndarray[Any, Any]) -> int:
    """Give the bits of the nearest half by exact arithmetic, ties to even."""
    place = int(np.searchsorted(finite, abs(value)))
    # Past the largest, the neighbour is where the next number would be if there were one.
    step = Fraction(float(finite[-1])) - Fraction(float(finite[-2]))
    candidates = []
    for index in (place - 1, place):
        if 0 <= index <= len(finite):
            number = (
                Fraction(float(finite[index]))
                if index < len(finite)
                else Fraction(float(finite[-1])) + step
            )
            candidates.append((abs(Fraction(abs(value)) - number), index % 2, index))
    chosen = min(candidates)[2]
    return chosen | (0x8000 if np.signbit(value) else 0)


@pytest.mark.parametrize("name", HALVES)
def test_narrowing_a_double_rounds_once(probe: ctypes.CDLL, name: str) -> None:
    # A double just beside a tie rounds through float32 to the tie, and then the wrong way.
    rng = np.random.default_rng(2)
    ties = interesting_floats(HALVES[name])
    ties = ties[np.isfinite(ties) & (ties != 0)].astype(np.float64)
    ties = rng.choice(ties, 400)
    values = np.concatenate(
        [np.nextafter(ties, -np.inf), np.nextafter(ties, np.inf), ties, [0.0, -0.0]]
    )
    narrowed = call(probe, f"narrow_double_{name}", values, np.uint16)
    with np.errstate(all="ignore"):
        magnitudes = EVERY_PATTERN[:32768].view(HALVES[name]).astype(np.float64)
    finite = magnitudes[np.isfinite(magnitudes)]
    expected = [nearest_half(float(value), finite) for value in values]
    np.testing.assert_array_equal(narrowed, expected)


@pytest.mark.parametrize("name", HALVES)
def test_narrowing_extreme_doubles(probe: ctypes.CDLL, name: str) -> None:
    values = np.array([np.inf, -np.inf, 1e300, -1e300, 5e-324, -5e-324, np.nan] * 3)
    narrowed = call(probe, f"narrow_double_{name}", values, np.uint16).view(HALVES[name])
    with np.errstate(all="ignore"):
        as_floats = narrowed.astype(np.float64)
    np.testing.assert_array_equal(
        as_floats, np.array([np.inf, -np.inf, np.inf, -np.inf, 0.0, -0.0, np.nan] * 3)
    )
    np.testing.assert_array_equal(np.signbit(as_floats[:6]), [0, 1, 0, 1, 0, 1])


# ---- 8 bits ------------------------------------------------------------------------------------

EIGHTS = {
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
EVERY_BYTE = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("name", EIGHTS)
def test_widening_every_byte(probe: ctypes.CDLL, name: str) -> None:
    patterns = np.tile(EVERY_BYTE, 3)
    expected = patterns.view(EIGHTS[name]).astype(np.float32)
    for form in ("widen", "widen_one_by_one"):
        widened = call(probe, f"{form}_{name}", patterns, np.float32)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(bits(widened)[numbers], bits(expected)[numbers])
        assert np.isnan(widened[~numbers]).all()
        np.testing.assert_array_equal(np.signbit(widened), (patterns >> 7) == 1)


def floats_around_bytes(name: str) -> np.ndarray[Any, Any]:
    """Give every byte's value, all ties between neighbours, what is beside them, and the rest."""
    values = EVERY_BYTE[:128].view(EIGHTS[name]).astype(np.float64)
    finite = np.sort(values[np.isfinite(values)])
    ties = (finite[:-1] + finite[1:]) / 2
    ties = np.append(ties, finite[-1] + (finite[-1] - finite[-2]) / 2)
    found = np.concatenate([finite, ties, [2 * finite[-1], 2.0**-30, 1e30]]).astype(np.float32)
    beside = [np.nextafter(found, np.float32(-np.inf)), np.nextafter(found, np.float32(np.inf))]
    magnitudes = np.concatenate([found, *beside, np.array([np.inf, np.nan], np.float32)])
    return np.concatenate([magnitudes, -magnitudes]).astype(np.float32)


@pytest.mark.parametrize("name", EIGHTS)
def test_narrowing_to_bytes(probe: ctypes.CDLL, name: str) -> None:
    rng = np.random.default_rng(3)
    patterns = rng.integers(0, 2**32, 100_000, dtype=np.uint64).astype(np.uint32)
    near = rng.integers(0x38000000, 0x48000000, 100_000, dtype=np.uint64).astype(np.uint32)
    values = np.concatenate(
        [floats_around_bytes(name), patterns.view(np.float32), near.view(np.float32)]
    )
    with np.errstate(all="ignore"):
        expected = bits(values.astype(EIGHTS[name]))
    # ml_dtypes loses the sign of some NaN.
    expected = np.where(np.isnan(values), expected & 0x7F | (bits(values) >> 24 & 0x80), expected)
    for form in ("narrow", "narrow_one_by_one"):
        narrowed = call(probe, f"{form}_{name}", values, np.uint8)
        np.testing.assert_array_equal(narrowed, expected)


@pytest.mark.parametrize("name", EIGHTS)
def test_narrowing_a_double_to_a_byte_rounds_once(probe: ctypes.CDLL, name: str) -> None:
    floats = floats_around_bytes(name)
    wide = floats[np.isfinite(floats)].astype(np.float64)
    values = np.concatenate([wide, np.nextafter(wide, -np.inf), np.nextafter(wide, np.inf)])
    narrowed = call(probe, f"narrow_double_{name}", values, np.uint8)
    magnitudes = EVERY_BYTE[:128].view(EIGHTS[name]).astype(np.float64)
    finite = magnitudes[np.isfinite(magnitudes)]
    past = 0x7F if name == "float8_e4m3fn" else 0x7C
    for value, found in zip(values, narrowed, strict=True):
        # Counted past the largest, what is no number is the one after it.
        nearest = min(nearest_half(abs(float(value)), finite), past)
        assert found == nearest | (0x80 if np.signbit(value) else 0), value
