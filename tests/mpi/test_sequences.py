"""Random sequences of calls of all kinds; every rank draws the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.sequences import run_sequence, sequences


@pytest.mark.parametrize("tuning", ["small", "one_slot"])
def test_sequences(worlds, tuning: str) -> None:
    @given(steps=sequences(most=12), seed=st.integers(0, 1 << 20))
    @settings(max_examples=25)
    def check(steps, seed) -> None:
        worlds(tuning).run(run_sequence, steps, seed)

    check()
