"""Tests of the tests: mistakes in the executor and in planners that these tests must catch."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.native import building
from tests.native.building import BUILDS, MEMORY_STATUS, NATIVE, RACE_STATUS, ROOT, Build
from tests.native.disassembly import (
    disassemble,
    streaming_functions,
    unfenced_exits,
    unfenced_stores,
)
from tests.native.planting import HasPlant, Plant, parameters
from tests.native.test_gpu import HUNTS as GPU_HUNTS
from tests.native.test_grids import HUNTS as GRID_HUNTS

# As in checks.h.
WRONG_RESULT = 3
HUNG = 75

# Compiled quickly: what is looked for shows in any build.
QUICK = Build("quick", ("-O0",))
THREAD = replace(BUILDS["thread"], options=("-O0", "-g1", "-fsanitize=thread"))
ADDRESS = replace(BUILDS["address"], options=("-O0", "-g1", "-fsanitize=address"))

INTERPRETER = "cocoll/host/interpreter.h"


@dataclass(frozen=True)
class Hunt:
    """A plant, what is run over it, and the ways in which that may fail."""

    plant: Plant
    build: Build
    case: str
    statuses: tuple[int, ...]
    world_size: int = 3
    waiting: str = "awake"
    watchdog_seconds: int = 600

    def command(self, program: Path, plans: Path) -> list[str]:
        """Give the command that must not succeed."""
        return [
            *(str(program), "--plans", str(plans), "--case", self.case),
            *("--world-size", str(self.world_size), "--waiting", self.waiting),
            *("--watchdog-seconds", str(self.watchdog_seconds), "--rounds", "2"),
        ]


# `awake` ranks never sleep: no futex orders what the flags fail to order.
HUNTS = (
    Hunt(
        Plant(
            "relaxed signal",
            "cocoll/host/wait.h",
            "word->exchange(value, std::memory_order_seq_cst);",
            "word->store(value, std::memory_order_relaxed);",
        ),
        *(THREAD, "two_shot", (RACE_STATUS,)),
    ),
    Hunt(
        Plant(
            "relaxed poll of a signal",
            "cocoll/host/endpoint.h",
            "own()->flags()[peer * kFlagCount + flag].count.load(std::memory_order_seq_cst);",
            "own()->flags()[peer * kFlagCount + flag].count.load(std::memory_order_relaxed);",
        ),
        *(THREAD, "two_shot", (RACE_STATUS,)),
    ),
    Hunt(
        Plant(
            "relaxed arrival",
            INTERPRETER,
            "own.sequence.exchange(sequence_, std::memory_order_seq_cst);",
            "own.sequence.store(sequence_, std::memory_order_relaxed);",
        ),
        *(THREAD, "one_shot", (RACE_STATUS,)),
    ),
    Hunt(
        Plant(
            "relaxed poll of an arrival",
            INTERPRETER,
            "line(awaited_neighbour()).sequence.load(std::memory_order_seq_cst) == sequence_",
            "line(awaited_neighbour()).sequence.load(std::memory_order_relaxed) == sequence_",
        ),
        *(THREAD, "one_shot", (RACE_STATUS,)),
    ),
    Hunt(
        Plant(
            "no wait for arrivals",
            INTERPRETER,
            "const Status status = await_arrivals();",
            "const Status status = Status::kDone;",
        ),
        *(THREAD, "one_shot", (RACE_STATUS, WRONG_RESULT)),
    ),
    Hunt(
        Plant(
            "one copy of the small staging",
            INTERPRETER,
            "endpoint_.regions.small[parity_]",
            "endpoint_.regions.small[0]",
        ),
        *(THREAD, "one_shot", (RACE_STATUS, WRONG_RESULT)),
    ),
    Hunt(
        Plant(
            "one arrival line",
            INTERPRETER,
            "parity_ = static_cast<int32_t>(sequence_ & 1);",
            "parity_ = 0;",
        ),
        *(THREAD, "inline", (RACE_STATUS, WRONG_RESULT, HUNG)),
        watchdog_seconds=4,
    ),
    Hunt(
        Plant(
            "a signal wakes no sleeper",
            "cocoll/host/wait.h",
            "if (reader->sleepers.load(std::memory_order_seq_cst) != 0) ring(reader);",
            "static_cast<void>(reader);",
        ),
        *(QUICK, "two_shot", (HUNG,)),
        waiting="asleep",
        watchdog_seconds=4,
    ),
    Hunt(
        Plant(
            "an arrival wakes no sleeper",
            INTERPRETER,
            "if (peer != endpoint_.rank && control->sleepers.load(std::memory_order_seq_cst) != 0)",
            "if (control == nullptr)",
        ),
        *(QUICK, "inline", (HUNG,)),
        waiting="asleep",
        watchdog_seconds=4,
    ),
    Hunt(
        Plant(
            "chunk not clipped to its block",
            INTERPRETER,
            "return {start, std::min(chunk_elements, stop - start)};",
            "return {start, chunk_elements};",
        ),
        *(ADDRESS, "two_shot", (MEMORY_STATUS, WRONG_RESULT)),
    ),
    Hunt(
        Plant(
            "block not clipped to the vector",
            INTERPRETER,
            "stop = std::min(first + block_elements_, call_->count);",
            "stop = first + block_elements_;",
        ),
        *(ADDRESS, "allgather_shard_disjoint", (MEMORY_STATUS, WRONG_RESULT)),
    ),
    Hunt(
        Plant(
            "no barrier at the end of a two-shot",
            "cocoll/algorithms/exchange.py",
            "return (Loop(tuple(steps)),) if steps else ()",
            "return ()",
        ),
        *(THREAD, "two_shot", (RACE_STATUS, WRONG_RESULT)),
    ),
    Hunt(
        Plant(
            "slots filled again before they are empty",
            "cocoll/algorithms/two_shot.py",
            "restaged = stage((After(2, slots),))",
            "restaged = stage(())",
        ),
        *(THREAD, "two_shot", (RACE_STATUS, WRONG_RESULT)),
    ),
)


SHORT = (
    "no wait for arrivals",
    "an arrival wakes no sleeper",
    "block not clipped to the vector",
)
OTHERS = (*GRID_HUNTS, *GPU_HUNTS)


@pytest.mark.parametrize("hunt", [*HUNTS, *OTHERS], ids=lambda hunt: hunt.plant.name)
def test_every_plant_has_its_place(hunt: HasPlant) -> None:
    assert hunt.plant.changed()


def skip_without(build: Build) -> None:
    if build.lacks:
        pytest.skip(build.lacks)


@pytest.mark.parametrize("hunt", parameters(HUNTS, SHORT))
def test_planted_bug_is_caught(hunt: Hunt, tmp_path: Path) -> None:
    skip_without(hunt.build)
    root = hunt.plant.plant(tmp_path / "root")
    plans = building.plans_directory()
    kernels = plans / "kernels.cc"
    if hunt.plant.path.endswith(".py"):
        plans = building.export_plans(root / "plans", root=root)
    program = building.build_program(
        NATIVE / "collectives.cpp", kernels, hunt.build, root=root, kernel_root=ROOT
    )
    done = hunt.build.run(hunt.command(program, plans), timeout_seconds=900)
    assert done.returncode in hunt.statuses, (
        f"status {done.returncode}\n{done.stdout}{done.stderr[-4000:]}"
    )
    if done.returncode == RACE_STATUS:
        assert "data race" in done.stderr


@pytest.mark.parametrize(
    "hunt",
    parameters(
        list({(hunt.build, hunt.case): hunt for hunt in HUNTS if hunt.build != QUICK}.values()),
        SHORT,
    ),
)
def test_nothing_is_caught_without_plants(hunt: Hunt) -> None:
    skip_without(hunt.build)
    plans = building.plans_directory()
    program = building.build_program(NATIVE / "collectives.cpp", plans / "kernels.cc", hunt.build)
    unhurried = replace(hunt, watchdog_seconds=600)
    done = hunt.build.run(unhurried.command(program, plans), timeout_seconds=900)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stderr[-4000:]}"


# ---- fences that follow streaming stores: read in the machine code ----

NO_FENCE_AFTER_COPY = Plant("no fence", "cocoll/host/copy.h", "  _mm_sfence();\n", "")
NO_FENCE_IN_KERNEL = Plant(
    "no fence",
    "cocoll/kernels/reduce.h",
    "if ((args->flags & COCOLL_REDUCE_STREAMING) != 0) stream_fence();",
    "static_cast<void>(args);",
)

needs_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="only x86-64 has stores that pass others"
)


def exits_of_copy(root: Path) -> list[int]:
    library = building.build_library(NATIVE / "streaming.cpp", building.core_options(), root=root)
    function = disassemble(library)["native_copy_streaming"]
    assert any(instruction.streams for instruction in function.instructions)
    return unfenced_exits(function)


def stores_of_kernels(root: Path, isa: str) -> dict[str, list[int]]:
    kernels = building.plans_directory() / "kernels.cc"
    library = building.build_library(kernels, building.kernel_options(isa), root=root)
    functions = disassemble(library)
    streaming = streaming_functions(functions)
    found = {
        name: unfenced_stores(function, streaming)
        for name, function in functions.items()
        if name.startswith("cocoll_sum_float32") and name in streaming
    }
    assert len(found) == 2, "both kernels stream"
    return found


@needs_x86
def test_streaming_copy_ends_with_a_fence() -> None:
    assert exits_of_copy(ROOT) == []


@needs_x86
def test_missing_fence_after_copy_is_caught(tmp_path: Path) -> None:
    assert exits_of_copy(NO_FENCE_AFTER_COPY.plant(tmp_path / "root"))


@needs_x86
@pytest.mark.parametrize(
    "isa",
    [pytest.param("v2", marks=pytest.mark.long), "v3", pytest.param("v4", marks=pytest.mark.long)],
)
def test_streaming_kernels_end_with_a_fence(isa: str) -> None:
    assert not any(stores_of_kernels(ROOT, isa).values())


@needs_x86
def test_missing_fence_in_kernels_is_caught(tmp_path: Path) -> None:
    root = NO_FENCE_IN_KERNEL.plant(tmp_path / "root")
    assert all(stores_of_kernels(root, "v3").values())
