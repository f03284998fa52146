"""The GPU executor on the emulated device, and planted bugs that must not get past it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.native import building
from tests.native.building import BUILDS, NATIVE, RACE_STATUS, ROOT, Build
from tests.native.planting import Plant, parameters

# As in checks.h.
WRONG_RESULT = 3

EXECUTOR, SEGMENT = "cocoll/cuda/executor.h", "cocoll/cuda/segment.h"


@dataclass(frozen=True)
class Device:
    """An emulated device, kernels for it, and the program that uses both."""

    build: Build
    driver: Path
    kernels: Path
    program: Path

    def run(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        build = replace(self.build, environment=(*self.build.environment, *environment.items()))
        command = [self.program, self.driver, self.kernels, *map(str, words)]
        return build.run(command, timeout_seconds=900)


def make_device(
    build: Build, directory: Path, root: Path = ROOT, kernel_root: Path = ROOT
) -> Device:
    options = (*build.options, "-Wall", "-Wextra", "-Werror")
    return Device(
        build,
        building.build_emulated_device(BUILDS[build.name]),
        building.build_grid_kernels(build, directory, root=kernel_root),
        building.build_plain(NATIVE / "gpu.cpp", options, root=root),
    )


ADDRESS = pytest.param("address", marks=pytest.mark.long)


@pytest.fixture(scope="module", params=["plain", "thread", ADDRESS])
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Device:
    return make_device(BUILDS[request.param], tmp_path_factory.mktemp("gpu"))


# ThreadSanitizer sees one process only: for ranks as processes it says little.
@pytest.fixture(
    scope="module", params=["plain", ADDRESS, pytest.param("thread", marks=pytest.mark.long)]
)
def device_of_processes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Device:
    return make_device(BUILDS[request.param], tmp_path_factory.mktemp("gpu"))


def check_several_streams(device: Device, world_size: int, ranks: str) -> None:
    for seed in range(3):
        done = device.run(world_size, seed, ranks, "eager", COCOLL_EMULATED_SEED=str(seed))
        assert done.returncode == 0, f"seed {seed}: {done.stderr}"


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_several_streams_of_threads(device: Device, world_size: int) -> None:
    check_several_streams(device, world_size, "threads")


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_several_streams_of_processes(device_of_processes: Device, world_size: int) -> None:
    check_several_streams(device_of_processes, world_size, "processes")


MODES = ("graph", "silent", "mismatched")


@pytest.mark.parametrize("mode", MODES)
def test_graphs_and_trouble_of_threads(device: Device, mode: str) -> None:
    done = device.run(3, 1, "threads", mode)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_graphs_and_trouble_of_processes(device_of_processes: Device, mode: str) -> None:
    done = device_of_processes.run(2, 1, "processes", mode)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"COCOLL_EMULATED_DEVICES": "0"}, "no CUDA-capable device"),
        ({"COCOLL_EMULATED_DRIVER_VERSION": "11040"}, "11040"),
    ],
    ids=["no_gpu", "old_driver"],
)
def test_what_cannot_be_used(device: Device, environment: dict[str, str], words: str) -> None:
    done = device.run(1, 1, "threads", "eager", **environment)
    assert done.returncode == 64
    assert words in done.stderr


def test_a_library_that_is_no_driver(device: Device) -> None:
    command = [device.program, device.kernels, device.kernels, "1", "1", "threads", "eager"]
    done = device.build.run(command)
    assert done.returncode == 64
    assert "cuInit" in done.stderr
    command[1] = device.kernels.with_name("none.so")
    done = device.build.run(command)
    assert done.returncode == 64
    assert "none.so" in done.stderr


@dataclass(frozen=True)
class Hunt:
    """A plant, what is run over it, and how that may end."""

    plant: Plant
    build: str
    ranks: str
    mode: str
    statuses: tuple[int, ...]


# Compiled quickly: what is looked for shows in any build.
QUICK = {"plain": ("-O0",), "thread": ("-O0", "-g1", "-fsanitize=thread")}

HUNTS = (
    Hunt(
        Plant(
            "no event between streams",
            EXECUTOR,
            "if (last != nullptr) result =",
            "if (last != nullptr && stream == nullptr) result =",
        ),
        *("thread", "threads", "eager", (RACE_STATUS, WRONG_RESULT)),
    ),
    Hunt(
        Plant(
            "control memory that is not cleared",
            SEGMENT,
            "return driver->memset_async(base, 0, bytes, stream);",
            "return stream != nullptr ? kSuccess : kNotReady;",
        ),
        *("plain", "threads", "eager", (WRONG_RESULT,)),
    ),
    Hunt(
        Plant(
            "a process that opens its own handle",
            SEGMENT,
            "ticket.process == host::process_token()",
            "ticket.process == 0",
        ),
        *("plain", "threads", "eager", (WRONG_RESULT, 139, -11)),
    ),
    Hunt(
        Plant(
            "memory freed under a peer's mapping",
            SEGMENT,
            "driver_->ipc_close_mem_handle(base_)",
            "static_cast<void>(base_)",
        ),
        *("plain", "processes", "eager", (WRONG_RESULT,)),
    ),
    Hunt(
        Plant(
            "events in a capture",
            EXECUTOR,
            "if (capturing != kCaptureNone) return capture_all(sequence, stream, capture);",
            "if (capturing != kCaptureNone && stream == nullptr) return kSuccess;",
        ),
        *("plain", "threads", "graph", (WRONG_RESULT,)),
    ),
    Hunt(
        Plant(
            "an epoch passed by the host",
            "cocoll/kernels/flags.h",
            "const uint32_t epoch = *counter + 1u;",
            "const uint32_t epoch = call.signature * 2u + (*counter & 1u);",
        ),
        *("thread", "threads", "graph", (WRONG_RESULT, RACE_STATUS)),
    ),
    Hunt(
        Plant(
            "an epoch of words passed by the host",
            "cocoll/kernels/low_latency.h",
            "epoch_after(call.counters[place.block].pushed)",
            "call.signature / 2u + (place.block < 0 ? 2u : 1u)",
        ),
        *("plain", "threads", "graph", (WRONG_RESULT,)),
    ),
)


SHORT = ("no event between streams",)


@pytest.mark.parametrize("hunt", parameters(HUNTS, SHORT))
def test_is_caught(hunt: Hunt, tmp_path: Path) -> None:
    build = replace(BUILDS[hunt.build], options=QUICK[hunt.build])
    root = hunt.plant.plant(tmp_path / "planted")
    # What a plant does not touch is compiled once for all of them.
    roots = (ROOT, root) if "/kernels/" in hunt.plant.path else (root, ROOT)
    device = make_device(build, tmp_path, *roots)
    for seed in range(10):
        done = device.run(3, seed, hunt.ranks, hunt.mode, COCOLL_EMULATED_SEED=str(seed))
        if done.returncode != 0:
            break
    assert done.returncode in hunt.statuses, f"status {done.returncode}\n{done.stderr[-3000:]}"
