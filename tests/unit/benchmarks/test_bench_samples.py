"""Medians, quartiles, and the labels of the machine's state."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.samples import FAR, MIXED, NEAR, Sample, label_state, summarize


@pytest.mark.parametrize(
    ("one_way", "ranks", "expected"),
    [
        (45.0, 2, NEAR),
        (109.9, 2, NEAR),
        (110.0, 2, FAR),
        (220.0, 2, FAR),
        (45.0, 4, MIXED),
        (45.0, 1, MIXED),
        (None, 2, MIXED),
    ],
)
def test_label(one_way: float | None, ranks: int, expected: str) -> None:
    assert label_state(one_way, ranks) == expected


def test_label_limit_can_be_moved() -> None:
    assert label_state(150.0, 2, near_below_nanoseconds=200.0) == NEAR


def test_summary_takes_its_state_alone() -> None:
    samples = [Sample(1.0, 0.1, NEAR), Sample(3.0, 0.3, NEAR), Sample(50.0, None, FAR)]
    near = summarize(samples, NEAR)
    assert near is not None
    assert (near.median_seconds, near.rounds, near.rewrite_seconds) == (2.0, 2, 0.2)
    far = summarize(samples, FAR)
    assert far is not None
    assert (far.q1_seconds, far.q3_seconds, far.rewrite_seconds) == (50.0, 50.0, None)
    assert summarize(samples, MIXED) is None
    everything = summarize(samples)
    assert everything is not None
    assert everything.rounds == 3


@given(st.lists(st.floats(min_value=1e-9, max_value=10), min_size=2, max_size=40))
def test_quartiles_surround_the_median(seconds: list[float]) -> None:
    summary = summarize([Sample(s, None, NEAR) for s in seconds], NEAR)
    assert summary is not None
    assert summary.median_seconds == statistics.median(seconds)
    tolerance = 1e-12
    assert min(seconds) <= summary.q1_seconds + tolerance
    assert summary.q1_seconds <= summary.median_seconds + tolerance
    assert summary.median_seconds <= summary.q3_seconds + tolerance
    assert summary.q3_seconds <= max(seconds) + tolerance
