"""Philox4x32-10 in plain Python integers: what kernels are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MASK = 0xFFFFFFFF


def philox4x32_10(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Give the four words of a counter under a key."""
    x = list(counter)
    low, high = key
    for _ in range(10):
        first, second = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [
            (second >> 32) ^ x[1] ^ low,
            second & MASK,
            (first >> 32) ^ x[3] ^ high,
            first & MASK,
        ]
        low, high = (low + 0x9E3779B9) & MASK, (high + 0xBB67AE85) & MASK
    return x


def words(first: int, count: int, seed: int, tensor: int, step: int) -> np.ndarray[Any, Any]:
    """Give the words of elements [first, first + count)."""
    key = (seed & MASK, ((seed >> 32) + (tensor << 21)) & MASK)
    drawn: list[int] = []
    for group in range(first // 4, (first + count + 3) // 4):
        counter = (group & MASK, group >> 32, step & MASK, step >> 32)
        drawn += philox4x32_10(counter, key)
    return np.array(drawn[first % 4 : first % 4 + count], np.uint32)


def keeps(
    first: int, count: int, *, p: float, seed: int = 0, tensor: int = 0, step: int = 0
) -> np.ndarray[Any, Any]:
    """Give which elements a dropout keeps: those whose uniform number is at least p."""
    uniform = (words(first, count, seed, tensor, step) >> 8) * 2.0**-24
    return np.asarray(uniform >= p)
