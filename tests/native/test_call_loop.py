"""The program that benchmarks compare a bound call with."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.native import building
from tests.native.call_loop import build_command


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_prints_one_object(ranks: int) -> None:
    done = run(build_command(ranks, 50))
    assert done.returncode == 0, done.stderr
    timing = json.loads(done.stdout)
    assert (timing["ranks"], timing["calls"], timing["bytes"]) == (ranks, 50, 8)
    assert 0 < timing["q1_nanoseconds"] <= timing["median_nanoseconds"]
    assert timing["median_nanoseconds"] <= timing["q3_nanoseconds"]
    assert timing["pinned"] is (ranks <= len(os.sched_getaffinity(0)))


def test_runs_without_a_catalogue() -> None:
    command = build_command(2, 10)
    kernel = command.index("--kernel") if "--kernel" in command else len(command)
    done = run(command[:kernel])
    assert done.returncode == 0, done.stderr


def test_says_what_is_missing(tmp_path: Path) -> None:
    library = Path(build_command(2, 10)[0])
    done = run(build_command(2, 10, kernel=(library, "sum_float32")))
    assert done.returncode != 0
    assert str(library) in done.stderr
    command = build_command(1, 10)
    command[command.index("--plan-prefix") + 1] = str(tmp_path / "none")
    done = run(command)
    assert done.returncode != 0
    assert "no plan" in done.stderr


def test_is_compiled_as_the_extension_is() -> None:
    options = building.core_options()
    assert "-ffp-contract=off" in options
    assert "-O3" in options
