"""What the suite ``training`` makes of the seconds that ranks report."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from benchmarks.suites import training


def found(cocoll_equal: bool = True) -> dict[str, Any]:
    def way(name: str, setting: str, *seconds: float, dropped: bool = False) -> dict[str, Any]:
        return {
            "implementation": name, "setting": setting, "seconds": list(seconds),
            "state_bytes": 7, "dropped": dropped,
        }  # fmt: skip

    return {
        "micro_batch": 4,
        "ways": [
            way("forward_backward", "", 1.0, 1.0, 9.0),
            way("cocoll", "overlap=True", 1.25, 1.2, 1.3),
            way("cocoll", "overlap=False", 1.5, 1.5, 1.4),
            way("ddp", "bucket_cap_mb=1", 2.0, 2.0, 2.5),
            # Lucky while it was tried, and left out all the same.
            way("ddp", "bucket_cap_mb=4", 1.1, dropped=True),
        ],
        "results_equal": {
            "overlap=True": cocoll_equal,
            "overlap=False": True,
            "bucket_cap_mb=1": True,
            "bucket_cap_mb=4": True,
        },
    }


def test_ratios() -> None:
    mine, theirs = training.make_records(found(), 2)
    assert (mine.case, mine.implementation) == ("micro_batch_4", "cocoll")
    assert (theirs.implementation, theirs.setting) == ("ddp", "bucket_cap_mb=1")
    assert mine.median_seconds == 1.25
    assert mine.ratio_to_fastest_peer == pytest.approx(2.0 / 1.25)
    assert mine.outside_seconds == pytest.approx(0.25)
    assert mine.outside_ratio == pytest.approx(4.0)
    assert theirs.outside_fraction == pytest.approx(0.5)
    assert theirs.ratio_to_fastest_peer is None
    assert not training.make_records(found(cocoll_equal=False), 2)[0].results_equal


def test_options() -> None:
    blank = {"sizes": None, "dtypes": None, "peers": None, "plot": None, "cases": None}
    pytest.importorskip("torch")
    assert training.check_options(argparse.Namespace(**blank)) is None
    wrong = training.check_options(argparse.Namespace(**{**blank, "cases": ["3"]}))
    assert wrong is not None
    assert "'3'" in wrong
    wrong = training.check_options(argparse.Namespace(**{**blank, "sizes": [4]}))
    assert wrong is not None
    assert wrong.startswith("--sizes")
