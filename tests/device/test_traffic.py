"""What grid kernels move: every input once and every output once, and not a byte more."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.kernels.compiler import Compiler, find_compiler
from cocoll.testing import run_ranks
from cocoll.testing.emulation import EmulatedCompiler
from tests.helpers.on_device import TUNING, fill, make_array, put

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit

COUNTER = Path(__file__).with_name("count_bytes.h")
IMAGES: set[str] = set()


class CountingCompiler(EmulatedCompiler):
    """Builds kernels that count, and knows where they are."""

    def __init__(self, compiler: Compiler) -> None:
        super().__init__(compiler)
        self._options += ["-include", str(COUNTER)]

    def read(self, image: Path) -> bytes:
        IMAGES.add(str(image))
        return super().read(image)


@pytest.fixture
def counting(toolkit: Toolkit) -> Toolkit:
    compiler = find_compiler(os.environ)
    return replace(toolkit, find_compiler=functools.partial(CountingCompiler, compiler))


def take_counts() -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Give what was loaded and stored since the last time, by all ranks together."""
    total = np.zeros(2, np.uint64)
    for image in IMAGES:
        counts = (ctypes.c_uint64 * 2)()
        ctypes.CDLL(image).take_counts(counts)
        total += np.array(counts, np.uint64)
    return total


def traffic(
    counting: Toolkit,
    world_size: int,
    prepare: Callable[[cocoll.Communicator], Callable[[], object]],
    tuning: cocoll.Tuning = TUNING,
) -> tuple[int, int]:
    """Run a bound operation once on all ranks; give the bytes that kernels loaded and stored."""

    def body(comm: cocoll.Communicator) -> None:
        run = prepare(comm)
        cocoll.barrier()
        if comm.rank == 0:
            take_counts()
        cocoll.barrier()
        run().wait()  # type: ignore[attr-defined]

    run_ranks(world_size, body, toolkit=counting, tuning=tuning)
    loaded, stored = take_counts()
    return int(loaded), int(stored)


# Whole packs, ragged ends, and blocks of unequal length.
@pytest.mark.parametrize("count", [4096, 30011])
@pytest.mark.parametrize("world_size", [2, 4])
def test_fused_adam_in_symmetric_memory(world_size: int, count: int, counting: Toolkit) -> None:
    def prepare(comm: cocoll.Communicator) -> Callable[[], object]:
        start, stop = comm.shard_range(count)
        x = put(comm, fill(comm.rank, (count,), "float32"), "symmetric")
        arrays = {"param": put(comm, fill(9, (count,), "float32"), "symmetric")}
        for name in ("m", "v"):
            arrays[name] = put(comm, np.zeros(stop - start, np.float32), "ordinary")
        step = comm.bind(cocoll.allreduce_fused, x, epilogues.adam(), **arrays)
        assert step.algorithm == "two_shot"
        return lambda: step(lr=1e-3, step=1)

    # Read: the gradients of all ranks, one copy of the parameters, the moments. Written: the
    # parameters of all ranks, the moments.
    wanted = (4 * count * (world_size + 1 + 2), 4 * count * (world_size + 2))
    assert traffic(counting, world_size, prepare) == wanted


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_allreduce_in_symmetric_memory(dtype: str, counting: Toolkit) -> None:
    world_size, count = 3, 30011
    itemsize = np.dtype(dtype).itemsize

    def prepare(comm: cocoll.Communicator) -> Callable[[], object]:
        x = put(comm, fill(comm.rank, (count,), dtype), "symmetric")
        out = make_array(comm, (count,), dtype, "symmetric")
        return comm.bind(cocoll.allreduce, x, out=out)

    wanted = (world_size * count * itemsize, world_size * count * itemsize)
    assert traffic(counting, world_size, prepare) == wanted


def test_the_owner_reduces_once_over_a_wire(
    counting: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL moves the rest; the kernels read what came and what is here, and write the result."""
    monkeypatch.setenv("COCOLL_EMULATED_DEVICES", "4")
    monkeypatch.setenv("COCOLL_EMULATED_PEER_ACCESS", "0")
    world_size, count = 3, 30011

    def prepare(comm: cocoll.Communicator) -> Callable[[], object]:
        x = put(comm, fill(comm.rank, (count,), "float32"), "ordinary")
        run = comm.bind(cocoll.allreduce, x)
        assert run.algorithm == "wire_two_shot"
        return run

    tuning = replace(TUNING, gpu_native_bytes=0)
    wanted = (4 * count * world_size, 4 * count)
    assert traffic(counting, world_size, prepare, tuning) == wanted
