"""The headers of the host executor, with ranks as threads: plain, and under two sanitizers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.native import building
from tests.native.building import BUILDS, NATIVE, Build

PROGRAMS = ("collectives", "failures", "memory", "streams")
MEMORY_SCENARIOS = (
    "segment_limit",
    "growth_during_operations",
    "references",
    "streaming_copies",
    "strided_copies",
    "signatures",
    "damaged_plans",
)
STREAM_SCENARIOS = ("one_order", "two_communicators", "closed_stream")
FAILURE_SCENARIOS = (
    "mismatch",
    "not_prepared",
    "timeout_at_arrival",
    "timeout_in_lanes",
    "abort_while_waiting",
    "leave_without_coming",
    "leave_when_done",
    "interruption",
)
WORLD_SIZES = (1, 2, 3, 4, 5, 8)
# Of the calls of each world size one in so many is made: the sanitizers slow everything down.
EVERY = {"plain": 3, "thread": 8, "address": 4}
# Failures and streams need no many ranks to go wrong.
FEW_RANKS = {"plain": (2, 5), "thread": (2, 3), "address": (2, 3)}

Programs = dict[tuple[str, str], Future[Path]]


@pytest.fixture(scope="session")
def plans() -> Path:
    """Packed plans of all ranks, as the planners make them now."""
    return building.plans_directory()


@pytest.fixture(scope="session")
def programs(plans: Path) -> Iterator[Programs]:
    """Every program in every build; what has not changed is not compiled again."""

    def make(program: str, name: str) -> Path:
        return building.build_program(NATIVE / f"{program}.cpp", plans / "kernels.cc", BUILDS[name])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield {
            (program, name): pool.submit(make, program, name)
            for program in PROGRAMS
            for name in BUILDS
        }


def run(build: Build, program: Future[Path], *words: str | Path | int) -> str:
    done = build.run([program.result(), *map(str, words)], timeout_seconds=900)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_collectives(build: Build, programs: Programs, plans: Path, world_size: int) -> None:
    run(
        build,
        programs["collectives", build.name],
        *("--plans", plans, "--world-size", world_size, "--every", EVERY[build.name]),
    )


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_several_hosts(build: Build, programs: Programs, plans: Path, world_size: int) -> None:
    run(
        build,
        programs["collectives", build.name],
        *("--plans", plans, "--world-size", world_size, "--every", EVERY[build.name]),
        "--several-hosts",
    )


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_every_wait_sleeps(build: Build, programs: Programs, plans: Path, world_size: int) -> None:
    # A sleep lasts ten minutes unless it is ended: one lost wake-up and the program hangs.
    run(
        build,
        programs["collectives", build.name],
        *("--plans", plans, "--world-size", world_size, "--every", 4 * EVERY[build.name]),
        *("--waiting", "asleep", "--seed", 2),
    )


def test_counters_wrap_around(build: Build, programs: Programs, plans: Path) -> None:
    # Staged calls signal every chunk: the counters pass 2**32 in the first of them.
    run(
        build,
        programs["collectives", build.name],
        *("--plans", plans, "--world-size", 3, "--every", 2 * EVERY[build.name], "--seed", 3),
        *("--first-flag-count", 2**32 - 7, "--first-sequence", 2**32 - 5),
    )


@pytest.mark.parametrize("scenario", MEMORY_SCENARIOS)
def test_memory(build: Build, programs: Programs, plans: Path, scenario: str) -> None:
    run(build, programs["memory", build.name], plans, scenario)


# The longest one: each time under one sanitizer.
@pytest.mark.parametrize(
    "build",
    [pytest.param(name, marks=() if name == "address" else pytest.mark.long) for name in BUILDS],
    indirect=True,
)
def test_segment_growth(build: Build, programs: Programs, plans: Path) -> None:
    run(build, programs["memory", build.name], plans, "segment_growth")


@pytest.mark.parametrize("scenario", STREAM_SCENARIOS)
def test_streams(build: Build, programs: Programs, plans: Path, scenario: str) -> None:
    for world_size in FEW_RANKS[build.name]:
        run(build, programs["streams", build.name], plans, world_size, scenario)


def test_gate(build: Build, programs: Programs, plans: Path) -> None:
    run(build, programs["streams", build.name], plans, 1, "gate")


@pytest.mark.parametrize("scenario", FAILURE_SCENARIOS)
def test_failures(build: Build, programs: Programs, plans: Path, scenario: str) -> None:
    for world_size in FEW_RANKS[build.name]:
        run(build, programs["failures", build.name], plans, world_size, scenario)


def test_killed_process(build: Build, programs: Programs, plans: Path) -> None:
    run(build, programs["failures", build.name], plans, 2, "killed_process")


@pytest.mark.long
@pytest.mark.parametrize("waiting", ["usual", "awake", "asleep"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_collectives_at_length(
    build: Build, programs: Programs, plans: Path, world_size: int, waiting: str
) -> None:
    for seed in range(3):
        run(
            build,
            programs["collectives", build.name],
            *("--plans", plans, "--world-size", world_size, "--rounds", 2, "--seed", seed),
            *("--waiting", waiting, "--first-flag-count", 2**32 - 100 * (seed + 1)),
        )


@pytest.mark.long
@pytest.mark.parametrize("waiting", ["usual", "awake"])
@pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
def test_several_hosts_at_length(
    build: Build, programs: Programs, plans: Path, world_size: int, waiting: str
) -> None:
    for seed in range(3):
        run(
            build,
            programs["collectives", build.name],
            *("--plans", plans, "--world-size", world_size, "--rounds", 2, "--seed", seed),
            *("--waiting", waiting, "--several-hosts"),
        )


@pytest.mark.long
@pytest.mark.parametrize("scenario", FAILURE_SCENARIOS)
def test_failures_at_length(build: Build, programs: Programs, plans: Path, scenario: str) -> None:
    for world_size in WORLD_SIZES[1:]:
        for _ in range(5):
            run(build, programs["failures", build.name], plans, world_size, scenario)


@pytest.mark.long
@pytest.mark.parametrize("scenario", STREAM_SCENARIOS)
def test_streams_at_length(build: Build, programs: Programs, plans: Path, scenario: str) -> None:
    for world_size in WORLD_SIZES:
        for _ in range(5):
            run(build, programs["streams", build.name], plans, world_size, scenario)
