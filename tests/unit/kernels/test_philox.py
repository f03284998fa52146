"""Philox4x32-10: the published test vectors, and tiles at any alignment."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.helpers.philox import philox4x32_10, words

# From the file kat_vectors of the Random123 distribution: counter, key, result.
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def kernel_words(
    library: ctypes.CDLL, first: int, count: int, seed: int, tensor: int, step: int
) -> np.ndarray[Any, Any]:
    result = np.empty(count, np.uint32)
    library.philox_words(
        ctypes.c_void_p(result.ctypes.data),
        ctypes.c_int64(first),
        count,
        ctypes.c_uint64(seed),
        ctypes.c_uint32(tensor),
        ctypes.c_uint64(step),
    )
    return result


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(
    probe: ctypes.CDLL, counter: list[int], key: list[int], expected: list[int]
) -> None:
    arrays = [np.array(counter, np.uint32), np.array(key, np.uint32), np.zeros(4, np.uint32)]
    probe.philox_block(*(ctypes.c_void_p(array.ctypes.data) for array in arrays))
    assert arrays[2].tolist() == expected
    assert philox4x32_10(counter, key) == expected


@pytest.mark.parametrize("first", [0, 1, 2, 3, 510, 2**32 * 4 - 3, 2**34 - 1, 2**60 + 5])
@pytest.mark.parametrize("count", [1, 2, 5, 63, 64, 512])
def test_a_tile_at_any_alignment(probe: ctypes.CDLL, first: int, count: int) -> None:
    seed, tensor, step = 2**40 + 17, 3, 2**33 + 1
    found = kernel_words(probe, first, count, seed, tensor, step)
    np.testing.assert_array_equal(found, words(first, count, seed, tensor, step))


def test_words_depend_on_seed_tensor_and_step(probe: ctypes.CDLL) -> None:
    base = kernel_words(probe, 0, 64, 1, 0, 0)
    for seed, tensor, step in [(2, 0, 0), (1, 1, 0), (1, 0, 1), (1 + 2**32, 0, 0)]:
        assert (kernel_words(probe, 0, 64, seed, tensor, step) != base).sum() > 60
