"""The soak itself, for a moment; and that it would notice."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.helpers import exercises
from tests.soak import soak


def test_a_short_soak(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--seconds", "1", "--ranks", "2", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 ranks, 1 s, seed 3"
    assert lines[-1] == "soak: ok"
    assert sum("flat" in line for line in lines) == 2


def test_a_wrong_result_is_noticed() -> None:
    with pytest.raises(AssertionError, match="allreduce: wanted"):
        exercises.check([1.0, 2.0], np.array([1.0, 3.0]), "allreduce")


def test_what_grows_is_noticed() -> None:
    before = soak.Use(100 << 20, 8 << 20, 20, 2)
    assert soak.judge(before, before) == []
    for name, value in (("resident_bytes", 200 << 20), ("shared_bytes", 9 << 20),
                        ("files", 21), ("threads", 3)):  # fmt: skip
        assert len(soak.judge(before, dataclasses.replace(before, **{name: value}))) == 1
