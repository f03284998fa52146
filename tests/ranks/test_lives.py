"""What calls leave behind: memory, files, mappings, threads; huge vectors; the end."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll.kernels.isa import cpu_levels
from cocoll.testing import run_processes, run_ranks
from tests.helpers import lives
from tests.helpers.cases.public import check_r09

GROWTH_BYTES = 8 << 20
# A virtual machine may be stopped for minutes: that is no failure of a rank.
LIMIT_SECONDS = 900.0


def values(outcomes: list[Any]) -> list[Any]:
    """Give what the ranks returned; raise what one raised."""
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        assert outcome.exit_code == 0
    return [outcome.value for outcome in outcomes]


def check_growth(seen: list[Any]) -> None:
    for early, late in seen:
        assert late["resident_bytes"] - early["resident_bytes"] < GROWTH_BYTES, (early, late)
        for name in ("files", "threads"):
            assert late[name] == early[name], (name, early, late)
        # The C library may map or unmap an arena of its own.
        assert abs(late["mappings"] - early["mappings"]) <= 8, (early, late)


def run(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    return values(run_processes(size, function, *args, limit_seconds=LIMIT_SECONDS))


@pytest.mark.parametrize(
    ("calls", "first"), [(500, 300), pytest.param(3_000, 500, marks=pytest.mark.long)]
)
def test_r16_many_lengths(calls: int, first: int) -> None:
    seen = run(2, lives.call_with_many_lengths, calls, first)
    check_growth(seen)
    for early, late in seen:
        assert late["programs"] <= 256
        assert early["programs"] <= 256


@pytest.mark.parametrize(
    ("times", "first"), [(40, 15), pytest.param(300, 50, marks=pytest.mark.long)]
)
def test_r16_communicators(times: int, first: int) -> None:
    check_growth(run(2, lives.make_and_close_communicators, times, first))


def test_r16_dropped_works() -> None:
    check_growth(run(2, lives.drop_works, 5_000, 1_000))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_r14_arrays_live_until_exit(size: int) -> None:
    assert run(size, lives.keep_arrays_until_exit) == [float(sum(range(size)))] * size


@pytest.mark.parametrize("isa", cpu_levels())
@pytest.mark.parametrize("label", ["float16", "bfloat16"])
def test_r09_every_isa_level(isa: str, label: str) -> None:
    found = run_ranks(2, lambda comm: check_r09(comm, label), isa=isa)
    for left, right in zip(*found, strict=True):
        np.testing.assert_array_equal(left.view(np.uint16), right.view(np.uint16))


@pytest.mark.long
def test_r10_beyond_32_bits() -> None:
    needed = 9 << 30
    if lives.available_bytes() < needed + (1 << 30):
        pytest.skip(f"needs {needed >> 30} GiB of memory, and less is available")
    assert run(2, lives.sum_markers) == [True, True]


def test_a_shard_is_forgotten_before_its_memory_goes() -> None:
    # Another thread may be given the address as soon as it is unmapped.
    def body(comm: cocoll.Communicator) -> None:
        shard = comm.shard_zeros(100)
        memory = shard.base
        while isinstance(memory, np.ndarray | memoryview):
            memory = memory.obj if isinstance(memory, memoryview) else memory.base
        address = shard.ctypes.data
        seen = []
        watch = weakref.ref(memory, lambda _: seen.append(address in comm.shard_counts))
        assert address in comm.shard_counts
        del shard, memory
        assert watch() is None
        assert seen == [False]

    run_ranks(1, body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inline_bytes", 65),
        ("inline_bytes", -1),
        ("one_shot_bytes", -1),
        ("chunk_bytes", 0),
        ("slots", 0),
        ("staging_bytes", -5),
        ("programs", 0),
        ("slots", 1.5),
        ("chunk_bytes", True),
        ("gpu_ll_bytes", -16),
        ("gpu_ll_bytes", 24),
        ("gpu_one_shot_bytes", 0),
        ("gpu_window_bytes", 65600),
    ],
)
def test_tunings_that_make_no_sense(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"Tuning.{field} .*{value}"):
        cocoll.Tuning(**{field: value})


@pytest.mark.parametrize(
    "tuning",
    [
        cocoll.Tuning(one_shot_bytes=0),
        cocoll.Tuning(inline_bytes=0, one_shot_bytes=0, chunk_bytes=1, slots=1),
        cocoll.Tuning(chunk_bytes=1, slots=7, programs=1),
        cocoll.Tuning(one_shot_bytes=1 << 20, chunk_bytes=1 << 24),
    ],
    ids=str,
)
def test_tunings_that_do(tuning: cocoll.Tuning) -> None:
    @cocoll.epilogue
    def two_results(x, other):
        return {"out": x + 1.0, "other": x - 1.0}

    def body(comm: cocoll.Communicator) -> None:
        for count in (1, 3, 16, 100, 5_000, 20_001):
            x = np.ones(count, np.float32)
            cocoll.allreduce(x, comm=comm)
            assert (x == 3).all()
            y, other = np.ones(count, np.float32), np.zeros(count, np.float32)
            cocoll.allreduce_fused(y, two_results, other=other, comm=comm)
            assert (y == 4).all()
            assert (other == 2).all()
            cocoll.broadcast(x, 2, comm=comm)

    run_ranks(3, body, tuning=tuning)
