"""Whether a result is right: against float64, element by element, before anything is timed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import native
from benchmarks.common.memory import address_of
from benchmarks.common.runner import ADAM

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "bfloat16_to_float32",
    "check_adam",
    "check_block_sum",
    "check_copy",
    "check_sum",
    "digest",
    "fill_quantized",
    "fill_random",
    "float32_to_bfloat16",
]

_BLOCK_ELEMENTS = 1 << 18
_SEED_STRIDE = 1_000_003  # keeps the seeds of (seed, rank) pairs apart


def fill_random(array: NDArray[np.float32], seed: int, rank: int, first: int = 0) -> None:
    """Fill with floats in [-1, 1): element i depends on (seed, rank, first + i) alone."""
    native.load().bench_fill_random(
        address_of(array), first, array.size, seed * _SEED_STRIDE + rank
    )


def fill_quantized(array: NDArray[Any], seed: int, rank: int, first: int = 0) -> None:
    """Fill float32, or bfloat16 as uint16, with multiples of 1/32 in [-1, 1]."""
    library = native.load()
    fill = (
        library.bench_fill_quantized_bfloat16
        if array.dtype == np.uint16
        else library.bench_fill_quantized
    )
    fill(address_of(array), first, array.size, seed * _SEED_STRIDE + rank)


def bfloat16_to_float32(array: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen bfloat16 bit patterns."""
    return (array.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bfloat16 bit patterns, to nearest, ties to even; finite values only."""
    bits = array.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16)


def digest(array: NDArray[Any]) -> str:
    """Give a digest of an array's bytes: equal on two ranks if the bits are."""
    return hashlib.blake2b(array.view(np.uint8).data, digest_size=16).hexdigest()


def check_sum(result: NDArray[np.float32], seed: int, world_size: int, rank: int) -> str | None:
    """Compare an all-reduced sum of ``fill_random(seed, rank)`` inputs with float64.

    Each rank checks its own part: that all ranks hold the same bits is shown by the digests.

    Returns
    -------
    str or None
        What is wrong, or None: within (world_size - 1) * eps * sum|x| everywhere.
    """

    def compare(first: int, block: NDArray[np.float32]) -> str | None:
        return check_block_sum(block, seed, world_size, first)

    return _check_part(result, world_size, rank, compare)


def check_block_sum(
    block: NDArray[np.float32], seed: int, world_size: int, first: int
) -> str | None:
    """Compare a block of such a sum, from element `first` on, with float64.

    Returns
    -------
    str or None
        What is wrong, or None.
    """
    eps = float(np.finfo(np.float32).eps)
    total = np.zeros(block.size)
    magnitude = np.zeros(block.size)
    source = np.empty(block.size, np.float32)
    for peer in range(world_size):
        fill_random(source, seed, peer, first)
        total += source
        magnitude += np.abs(source)
    error = np.abs(block.astype(np.float64) - total)
    bad = ~(error <= (world_size - 1) * eps * magnitude)  # also true for NaN
    return _describe(bad, first, block, total)


def check_copy(block: NDArray[np.float32], seed: int, rank: int, first: int) -> str | None:
    """Compare with what `rank` has filled in, from element `first` on; all bits count.

    Returns
    -------
    str or None
        What is wrong, or None.
    """
    expected = np.empty(block.size, np.float32)
    fill_random(expected, seed, rank, first)
    bad = block.view(np.uint32) != expected.view(np.uint32)
    return _describe(bad, first, block, expected.astype(np.float64))


def check_adam(
    param: NDArray[Any],
    first_param: Callable[[int, int], NDArray[np.float32]],
    seeds: list[int],
    world_size: int,
    rank: int,
    *,
    averages: bool,
) -> str | None:
    """Compare parameters after ``len(seeds)`` Adam steps with float64.

    Parameters
    ----------
    param : ndarray
        The outcome; float32, or bfloat16 as uint16.
    first_param : callable
        Gives elements [first, first + count) of the parameters before the first step.
    seeds : list of int
        Step k's gradient on each rank was ``fill_quantized(seeds[k], rank)``.
    world_size, rank : int
        Of the job; each rank checks its own part.
    averages : bool
        Whether gradients were averaged instead of summed.

    Returns
    -------
    str or None
        What is wrong, or None: within 4 units in the last place a step everywhere.
    """
    eps = 2.0**-7 if param.dtype == np.uint16 else float(np.finfo(np.float32).eps)

    def compare(first: int, block: NDArray[Any]) -> str | None:
        expected = first_param(first, block.size).astype(np.float64)
        scale = np.abs(expected)
        m = np.zeros(block.size)
        v = np.zeros(block.size)
        source = np.empty(block.size, np.float32)
        for step, seed in enumerate(seeds, start=1):
            gradient = np.zeros(block.size)
            for peer in range(world_size):
                fill_quantized(source, seed, peer, first)
                gradient += source
            if averages:
                gradient /= world_size
            m = ADAM["beta1"] * m + (1 - ADAM["beta1"]) * gradient
            v = ADAM["beta2"] * v + (1 - ADAM["beta2"]) * gradient**2
            m_hat = m / (1 - ADAM["beta1"] ** step)
            v_hat = v / (1 - ADAM["beta2"] ** step)
            expected -= ADAM["lr"] * m_hat / (np.sqrt(v_hat) + ADAM["eps"])
            scale = np.maximum(scale, np.abs(expected))
        actual = bfloat16_to_float32(block) if block.dtype == np.uint16 else block
        error = np.abs(actual.astype(np.float64) - expected)
        bound = 4 * len(seeds) * eps * np.maximum(scale, ADAM["lr"])
        return _describe(~(error <= bound), first, actual, expected)

    return _check_part(param, world_size, rank, compare)


def _check_part(
    result: NDArray[Any],
    world_size: int,
    rank: int,
    compare: Callable[[int, NDArray[Any]], str | None],
) -> str | None:
    start = result.size * rank // world_size
    stop = result.size * (rank + 1) // world_size
    for first in range(start, stop, _BLOCK_ELEMENTS):
        wrong = compare(first, result[first : min(first + _BLOCK_ELEMENTS, stop)])
        if wrong is not None:
            return wrong
    return None


def _describe(
    bad: NDArray[np.bool_], first: int, actual: NDArray[Any], expected: NDArray[np.float64]
) -> str | None:
    if not bad.any():
        return None
    where = int(np.flatnonzero(bad)[0])
    return (
        f"element {first + where}: wanted {expected[where]!r}, got {actual[where]!r}; "
        f"{int(bad.sum())} of {bad.size} in this block are wrong"
    )
