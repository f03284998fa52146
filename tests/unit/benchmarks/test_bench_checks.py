"""The checks that stand before every timing must notice what is wrong."""

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.common import checks
from benchmarks.common.runner import ADAM

_N = 4096 + 37


def _summed(world_size: int) -> NDArray[np.float32]:
    total = np.zeros(_N, np.float32)
    source = np.empty(_N, np.float32)
    for rank in range(world_size):
        checks.fill_random(source, 1, rank)
        total += source
    return total


def test_inputs_depend_on_position_seed_and_rank_alone() -> None:
    whole, part = np.empty(_N, np.float32), np.empty(100, np.float32)
    checks.fill_random(whole, 1, 2)
    checks.fill_random(part, 1, 2, first=1000)
    assert np.array_equal(part, whole[1000:1100])
    assert np.abs(whole).max() <= 1.0
    other = np.empty(_N, np.float32)
    for seed, rank in ((2, 2), (1, 3)):
        checks.fill_random(other, seed, rank)
        assert not np.array_equal(other, whole)


def test_quantized_inputs_are_exact_in_bfloat16() -> None:
    wide, half = np.empty(_N, np.float32), np.empty(_N, np.uint16)
    checks.fill_quantized(wide, 3, 1)
    checks.fill_quantized(half, 3, 1)
    assert np.array_equal(checks.bfloat16_to_float32(half), wide)
    assert np.array_equal(checks.float32_to_bfloat16(wide), half)
    assert np.array_equal(wide * 32, np.round(wide * 32))
    assert len(np.unique(wide)) == 65


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_right_sum_passes(world_size: int) -> None:
    result = _summed(world_size)
    for rank in range(world_size):
        assert checks.check_sum(result, 1, world_size, rank) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.123])
def test_one_wrong_element_is_found_by_one_rank(value: float) -> None:
    result = _summed(3)
    result[2 * _N // 3 + 5] = value
    found = [checks.check_sum(result, 1, 3, rank) for rank in range(3)]
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert f"element {2 * _N // 3 + 5}" in found[2]


def test_a_sum_that_misses_a_rank_is_found() -> None:
    assert checks.check_sum(_summed(2), 1, 3, 0) is not None


def _first_param(first: int, count: int) -> NDArray[np.float32]:
    block = np.empty(count, np.float32)
    checks.fill_random(block, 900, 0, first)
    return block


def _adam(
    seeds: list[int], world_size: int, *, divisor: float = 1.0, bias: bool = True
) -> NDArray[np.float32]:
    param = _first_param(0, _N)
    m, v = np.zeros(_N, np.float32), np.zeros(_N, np.float32)
    source = np.empty(_N, np.float32)
    for step, seed in enumerate(seeds, start=1):
        gradient = np.zeros(_N, np.float32)
        for rank in range(world_size):
            checks.fill_quantized(source, seed, rank)
            gradient += source
        gradient /= np.float32(divisor)
        m = (ADAM["beta1"] * m + (1 - ADAM["beta1"]) * gradient).astype(np.float32)
        v = (ADAM["beta2"] * v + (1 - ADAM["beta2"]) * gradient**2).astype(np.float32)
        m_hat = m / (1 - ADAM["beta1"] ** step) if bias else m
        v_hat = v / (1 - ADAM["beta2"] ** step) if bias else v
        param = (param - ADAM["lr"] * m_hat / (np.sqrt(v_hat) + ADAM["eps"])).astype(np.float32)
    return param


def _verdicts(param: NDArray[np.float32], world_size: int, *, averages: bool = False) -> list[str]:
    found = [
        checks.check_adam(param, _first_param, [901, 902], world_size, rank, averages=averages)
        for rank in range(world_size)
    ]
    return [verdict for verdict in found if verdict is not None]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_right_step_passes(world_size: int) -> None:
    assert not _verdicts(_adam([901, 902], world_size), world_size)
    assert not _verdicts(
        _adam([901, 902], world_size, divisor=world_size), world_size, averages=True
    )


def test_wrong_steps_are_found() -> None:
    assert _verdicts(_adam([901], 2), 2)  # a step is missing
    assert _verdicts(_adam([902, 901], 2), 2)  # the steps' order
    assert _verdicts(_adam([901, 902], 2, bias=False), 2)  # no bias correction
    param = _adam([901, 902], 2)
    param[-1] = np.nan
    assert _verdicts(param, 2)


def test_digest_tells_one_bit() -> None:
    array = np.zeros(100, np.float32)
    before = checks.digest(array)
    array[50] = -0.0
    assert checks.digest(array) != before
