"""Grid kernels on an emulated device, as g++ compiles the very same sources; and planted bugs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.native import building
from tests.native.building import BUILDS, MEMORY_STATUS, NATIVE, RACE_STATUS, ROOT, Build
from tests.native.planting import Plant, parameters

# As in checks.h.
WRONG_RESULT = 3

FLAGS, GRID, LOW_LATENCY, PACK = (
    f"cocoll/kernels/{name}.h" for name in ("flags", "grid", "low_latency", "pack")
)


def build_grids(build: Build, directory: Path, root: Path = ROOT) -> Path:
    kernels = building.export_grids(directory, root=root)
    return building.build_program(NATIVE / "grids.cpp", kernels, build, root=root)


@pytest.fixture(
    scope="module",
    params=["plain", "thread", pytest.param("address", marks=pytest.mark.long)],
)
def grids(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    build = BUILDS[request.param]
    return build, build_grids(build, tmp_path_factory.mktemp("grids"))


def run(built: tuple[Build, Path], *words: object) -> subprocess.CompletedProcess[str]:
    build, program = built
    return build.run([program, *map(str, words)], timeout_seconds=900)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_operations_of_every_kind(grids: tuple[Build, Path], world_size: int) -> None:
    done = run(grids, world_size, 60, 1, 1)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", [2, 3])
def test_blocks_of_several_threads(grids: tuple[Build, Path], seed: int) -> None:
    done = run(grids, 3, 30, seed, 3)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("world_size", "threads"), [(2, 1), (3, 3)])
@pytest.mark.parametrize("way", ["two_shot", "one_shot", "low_latency"])
@pytest.mark.parametrize("trouble", ["silent", "mismatched", "elsewhere"])
def test_a_rank_that_does_not_do_as_the_others(
    grids: tuple[Build, Path], world_size: int, threads: int, trouble: str, way: str
) -> None:
    done = run(grids, world_size, 20, 4, threads, trouble, way)
    assert done.returncode == 0, done.stderr


# Compiled quickly: what is looked for shows in any build.
QUICK = {
    "plain": ("-O0",),
    "thread": ("-O0", "-g1", "-fsanitize=thread"),
    "address": ("-O0", "-g1", "-fsanitize=address"),
}


@dataclass(frozen=True)
class Hunt:
    """A plant, the build that shows it, and how that may end."""

    plant: Plant
    build: str
    statuses: tuple[int, ...]
    threads: int = 1
    mode: tuple[str, ...] = ()


HUNTS = (
    Hunt(
        Plant("relaxed flag", FLAGS, "__ATOMIC_RELEASE);\n}", "__ATOMIC_RELAXED);\n}"),
        *("thread", (RACE_STATUS,)),
    ),
    Hunt(
        Plant(
            "relaxed poll",
            FLAGS,
            "return __atomic_load_n(word, __ATOMIC_ACQUIRE);",
            "return __atomic_load_n(word, __ATOMIC_RELAXED);",
        ),
        *("thread", (RACE_STATUS,)),
    ),
    Hunt(
        Plant(
            "no meeting at the end",
            GRID,
            "if (!one_shot && !low_latency && !alone) meet(call, place);",
            "",
        ),
        *("thread", (RACE_STATUS,)),
    ),
    Hunt(
        Plant(
            "flags raised before the block's threads have met",
            FLAGS,
            "if (is_poisoned(call, place)) {",
            "if (acquire_load(call.poisoned) != 0) {",
        ),
        *("thread", (RACE_STATUS,)),
        threads=3,
    ),
    Hunt(
        Plant(
            "one half of the staging",
            GRID,
            "++call.counters[block].staged",
            "call.counters[block].staged += 2u",
        ),
        *("thread", (RACE_STATUS,)),
    ),
    Hunt(
        Plant(
            "halves counted by each block for itself",
            GRID,
            "block < call.block_limit; block += place.blocks",
            "block == place.block; ++block",
        ),
        *("thread", (RACE_STATUS, WRONG_RESULT)),
    ),
    Hunt(
        Plant(
            "an epoch that stands still",
            FLAGS,
            "if (place.thread == 0) *counter = epoch;",
            "static_cast<void>(counter);",
        ),
        *("thread", (RACE_STATUS,)),
    ),
    Hunt(
        Plant(
            "an element too many",
            GRID,
            "smaller<int64_t>(kElements, call.end - index)",
            "smaller<int64_t>(kElements, call.end - index + 1)",
        ),
        *("address", (WRONG_RESULT, MEMORY_STATUS)),
    ),
    Hunt(
        Plant(
            "zeros over the result",
            GRID,
            "    if ((call.flags & COCOLL_GRID_ZERO_SOURCES) != 0) {\n"
            "      zero_part<typename R::Source, Pass::kElements>(call, part);\n"
            "    }\n"
            "    pass.finish(call, part, state);\n",
            "    pass.finish(call, part, state);\n"
            "    if ((call.flags & COCOLL_GRID_ZERO_SOURCES) != 0) {\n"
            "      zero_part<typename R::Source, Pass::kElements>(call, part);\n"
            "    }\n",
        ),
        *("plain", (WRONG_RESULT,)),
    ),
    Hunt(
        Plant(
            "a shard read from its beginning",
            PACK,
            "const T* place = static_cast<const T*>(array.data) + (part.index - array.origin);",
            "const T* place = static_cast<const T*>(array.data) + part.index;",
        ),
        *("address", (WRONG_RESULT, MEMORY_STATUS)),
    ),
    Hunt(
        Plant(
            "an epoch pushed before its data",
            LOW_LATENCY,
            "__atomic_store_n(place + i, words[i], __ATOMIC_RELAXED);",
            "{\n"
            "    uint32_t* halves = reinterpret_cast<uint32_t*>(place + i);\n"
            "    __atomic_store_n(halves, static_cast<uint32_t>(words[i]), __ATOMIC_RELAXED);\n"
            "    for (volatile int turn = 0; turn < 100; turn = turn + 1) continue;\n"
            "    __atomic_store_n(halves + 1, static_cast<uint32_t>(words[i] >> 32),\n"
            "                     __ATOMIC_RELAXED);\n"
            "  }",
        ),
        *("plain", (WRONG_RESULT,)),
    ),
    Hunt(
        Plant(
            "two plain stores for a word",
            LOW_LATENCY,
            "__atomic_store_n(place + i, words[i], __ATOMIC_RELAXED);",
            "__builtin_memcpy(place + i, &words[i], 4),\n"
            "    __builtin_memcpy(reinterpret_cast<uint32_t*>(place + i) + 1,\n"
            "                     reinterpret_cast<const uint32_t*>(&words[i]) + 1, 4);",
        ),
        *("thread", (RACE_STATUS,)),
    ),
    Hunt(
        Plant(
            "one half for what is pushed",
            LOW_LATENCY,
            "(epoch & 1u) != 0 ? call.world_size * call.staging_bytes : 0",
            "0",
        ),
        *("plain", (WRONG_RESULT,)),
        mode=("hasty", "low_latency"),
    ),
    Hunt(
        Plant(
            "epochs of pushes counted by each block for itself",
            LOW_LATENCY,
            "block < call.block_limit; block += place.blocks",
            "block == place.block; ++block",
        ),
        *("plain", (WRONG_RESULT,)),
        mode=("hasty", "low_latency"),
    ),
    Hunt(
        Plant(
            "an epoch counted before all threads have read it",
            GRID,
            "if (place.any(poisoned)) {",
            "if (poisoned) {",
        ),
        *("thread", (RACE_STATUS,)),
        threads=3,
    ),
    Hunt(
        Plant(
            "an epoch that is that of cleared memory",
            LOW_LATENCY,
            "return epoch == ~uint32_t{0} ? 2u : epoch + 1u;",
            "return epoch + 1u;",
        ),
        *("plain", (WRONG_RESULT,)),
    ),
    Hunt(
        Plant(
            "nothing pushed for no elements",
            GRID,
            "packs == 0 && (call.flags & COCOLL_GRID_LOW_LATENCY) != 0 ? 1 : packs",
            "packs",
        ),
        *("plain", (WRONG_RESULT,)),
        mode=("hasty", "low_latency"),
    ),
    Hunt(
        Plant(
            "a header that nobody looks at",
            LOW_LATENCY,
            "(headers[i][0] == pushing.header) & ",
            "",
        ),
        *("plain", (WRONG_RESULT,)),
        mode=("mismatched", "low_latency"),
    ),
    Hunt(
        Plant(
            "a peer that has gone elsewhere is waited for",
            LOW_LATENCY,
            "epochs_ahead(flag, call.counters[0].epoch) <= 0",
            "epochs_ahead(flag, call.counters[0].epoch) < 1000",
        ),
        *("plain", (WRONG_RESULT,)),
        mode=("elsewhere", "low_latency"),
    ),
)


SHORT = ("relaxed flag", "an epoch pushed before its data")


@pytest.mark.parametrize("hunt", parameters(HUNTS, SHORT))
def test_is_caught(hunt: Hunt, tmp_path: Path) -> None:
    build = replace(BUILDS[hunt.build], options=QUICK[hunt.build])
    root = hunt.plant.plant(tmp_path / "planted")
    built = build, build_grids(build, tmp_path, root)
    for seed in range(10):
        done = run(built, 3, 100, seed, hunt.threads, *hunt.mode)
        if done.returncode != 0:
            break
    assert done.returncode in hunt.statuses, f"status {done.returncode}\n{done.stderr[-3000:]}"
