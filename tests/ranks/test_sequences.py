"""Random sequences of calls of all kinds on one communicator of thread ranks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrays import DTYPES
from tests.helpers.cases.reductions import PLACES, check_allreduce
from tests.helpers.references import OPS
from tests.helpers.sequences import counts, run_sequence, sequences


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("tuning", ["small", "one_slot"])
def test_sequences(thread_worlds, size: int, tuning: str) -> None:
    @given(steps=sequences(most=12), seed=st.integers(0, 1 << 20))
    @settings(max_examples=40 if size < 5 else 15)
    def check(steps, seed) -> None:
        thread_worlds(size, tuning).run(run_sequence, steps, seed)

    check()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_lengths(thread_worlds, size: int) -> None:
    @given(
        count=counts(),
        label=st.sampled_from(DTYPES),
        op=st.sampled_from(OPS),
        how=st.sampled_from(PLACES),
        in_place=st.booleans(),
    )
    @settings(max_examples=100)
    def check(count, label, op, how, in_place) -> None:
        world = thread_worlds(size, "small")
        world.run(check_allreduce, label, op, count, how, in_place=in_place)

    check()


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("tuning", ["small", "one_slot", "one_shot", "two_shot", "default"])
def test_many_sequences(thread_worlds, size: int, tuning: str) -> None:
    @given(steps=sequences(most=40), seed=st.integers(0, 1 << 20))
    @settings(max_examples=300)
    def check(steps, seed) -> None:
        thread_worlds(size, tuning).run(run_sequence, steps, seed)

    check()
