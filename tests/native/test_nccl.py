"""The emulated NCCL, and what the emulated device captures over several streams."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.native import building
from tests.native.building import BUILDS, NATIVE, Build


@dataclass(frozen=True)
class Nccl:
    """The emulated device, and the program that uses its NCCL."""

    build: Build
    library: Path
    program: Path

    def run(
        self, world_size: int, ranks: str, mode: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        settings = {"COCOLL_EMULATED_DEVICES": "8", **environment}
        build = replace(self.build, environment=(*self.build.environment, *settings.items()))
        return build.run([self.program, self.library, str(world_size), "1", ranks, mode])


def make_nccl(build: Build) -> Nccl:
    options = (*build.options, "-Wall", "-Wextra", "-Werror")
    program = building.build_plain(NATIVE / "nccl.cpp", options)
    return Nccl(build, building.build_emulated_device(build), program)


ADDRESS = pytest.param("address", marks=pytest.mark.long)


THREAD = pytest.param("thread", marks=pytest.mark.long)


@pytest.fixture(scope="module", params=["plain", THREAD, ADDRESS])
def nccl(request: pytest.FixtureRequest) -> Nccl:
    return make_nccl(BUILDS[request.param])


@pytest.fixture(scope="module", params=["plain", ADDRESS])
def nccl_of_processes(request: pytest.FixtureRequest) -> Nccl:
    return make_nccl(BUILDS[request.param])


MODES = ("messages", "collectives", "order", "graph", "late", "misuse")
MODES_OF_SEVERAL = ("split", "disagreement")


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_one_rank(nccl: Nccl, mode: str) -> None:
    done = nccl.run(1, "threads", mode)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", [*MODES, *MODES_OF_SEVERAL])
def test_threads(nccl: Nccl, mode: str) -> None:
    for world_size in (2, 5 if mode == "split" else 3):
        done = nccl.run(world_size, "threads", mode, COCOLL_EMULATED_SEED=str(world_size))
        assert done.returncode == 0, done.stderr


# What differs between threads and processes each time, and all of it in the long run.
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(mode, marks=() if mode in ("messages", "late") else pytest.mark.long)
        for mode in (*MODES, *MODES_OF_SEVERAL)
    ],
)
def test_processes(nccl_of_processes: Nccl, mode: str) -> None:
    for world_size in (2, 4):
        done = nccl_of_processes.run(world_size, "processes", mode)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("access", ["0", "1"])
@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_memory_of_several_gpus(nccl_of_processes: Nccl, ranks: str, access: str) -> None:
    for devices in ("1", "2"):
        settings = {"COCOLL_EMULATED_PEER_ACCESS": access, "COCOLL_EMULATED_DEVICES": devices}
        # A communicator is made too.
        shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "COCOLL_EMULATED_NCCL_VERSION": "23007"}
        done = nccl_of_processes.run(2, ranks, "memory", **settings, **shared)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_ranks_that_share_a_gpu(nccl: Nccl, ranks: str) -> None:
    allowed = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "COCOLL_EMULATED_DEVICES": "1"}
    refused = nccl.run(2, ranks, "refusal", **allowed)
    assert refused.returncode == 0, refused.stderr
    assert "shared" not in refused.stdout
    shared = nccl.run(2, ranks, "refusal", COCOLL_EMULATED_NCCL_VERSION="23000", **allowed)
    assert shared.returncode == 0, shared.stderr
    if ranks == "threads":  # a process that a test ends does not write out what it has printed
        assert shared.stdout.count("shared") == 2
        assert "version 23000" in shared.stdout


def test_a_version_that_is_too_old(nccl: Nccl) -> None:
    done = nccl.run(1, "threads", "order", COCOLL_EMULATED_NCCL_VERSION="21704")
    assert done.returncode == 65
    assert "21704" in done.stderr
