"""Every planner: verified over a grid, and run against exact sums in random interleavings."""

from __future__ import annotations

import random
import zlib

import pytest

from tests.helpers.plan_cases import (
    SPECS,
    WORLD_SIZES,
    case_counts,
    is_inline,
    make_cases,
    verify_operation,
)
from tests.helpers.plan_runner import Operation, run_operations

# What does not depend on the number of ranks is covered in full on few.
SPECS_ON_MANY_RANKS = {
    4: ("plain", "adam"),
    5: ("two_results", "zeroing"),
    8: ("adam",),
}

CASES = [
    pytest.param(world_size, operation, id=f"{world_size}-{name}")
    for world_size in WORLD_SIZES
    for name, operation in make_cases(
        world_size, specs=SPECS_ON_MANY_RANKS.get(world_size, tuple(SPECS))
    ).items()
]


def counts_to_verify(operation: Operation, world_size: int) -> tuple[int, ...]:
    """Give all counts where that is cheap, the telling ones where it is not."""
    counts = case_counts(operation, world_size)
    if world_size <= 2 or is_inline(operation):
        return counts
    if world_size == 3:
        return (0, counts[5], counts[9], counts[10])
    return (counts[5], counts[9]) if world_size == 4 else (counts[9],)


@pytest.mark.parametrize(("world_size", "operation"), CASES)
def test_verified(world_size: int, operation: Operation) -> None:
    verify_operation(operation, counts_to_verify(operation, world_size))


@pytest.mark.parametrize(("world_size", "operation"), CASES)
def test_computes_the_right_thing(world_size: int, operation: Operation) -> None:
    name = f"{world_size} {operation.plans[0]} {operation.aliasing}"
    seed = zlib.crc32(name.encode())
    counts = case_counts(operation, world_size)
    for count in random.Random(seed).sample(counts, 3 if world_size <= 2 else 1):
        run_operations([operation] * 3, count, seed + count)
