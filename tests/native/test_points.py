"""Messages between two ranks, with ranks as threads: plain, and under two sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native import building
from tests.native.building import BUILDS, NATIVE, Build

SCENARIOS = ("groups", "one_by_one", "mismatch")
FAILURES = ("timeout", "leaving", "aborting")
WORLDS = ((3, "one"), (4, "several"), (2, "one"), (8, "one"), (8, "several"), (2, "several"))


# What threads race for is the point here; memory is looked at in the long run.
pytestmark = pytest.mark.parametrize(
    "build",
    [pytest.param(name, marks=pytest.mark.long if name == "address" else ()) for name in BUILDS],
    indirect=True,
)


@pytest.fixture
def program(build: Build) -> Path:
    kernels = building.plans_directory() / "kernels.cc"
    return building.build_program(NATIVE / "points.cpp", kernels, build)


def run(build: Build, program: Path, *words: str | int) -> None:
    done = build.run([program, *map(str, words)], timeout_seconds=900)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("hosts", ["one", "several"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_messages(build: Build, program: Path, hosts: str, scenario: str) -> None:
    run(build, program, 3, hosts, "usual", scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_wait_sleeps(build: Build, program: Path, scenario: str) -> None:
    # A sleep lasts ten minutes unless it is ended: one lost wake-up and the program hangs.
    run(build, program, 3, "one", "asleep", scenario)


@pytest.mark.parametrize("scenario", FAILURES)
def test_failures(build: Build, program: Path, scenario: str) -> None:
    run(build, program, 3, "one", "usual", scenario)


@pytest.mark.long
@pytest.mark.parametrize("waiting", ["usual", "awake"])
@pytest.mark.parametrize(("world_size", "hosts"), WORLDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_messages_at_length(
    build: Build, program: Path, scenario: str, world_size: int, hosts: str, waiting: str
) -> None:
    run(build, program, world_size, hosts, waiting, scenario)
