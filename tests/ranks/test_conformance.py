"""The table of all operations and element types on the host; see tests/helpers/conformance.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from tests.helpers.arrays import EVERY_DTYPE, assert_same_bits, itemsize_of, numpy_dtype
from tests.helpers.conformance import OPERATIONS, Operation, cells_of, run_cell, sample
from tests.helpers.references import check_reduced, contributions, reduce_wide
from tests.helpers.selection import WORLD_SIZES
from tests.helpers.world import TUNINGS, ThreadWorld

Worlds = Callable[[int, str], ThreadWorld]

BY_NAME = {operation.name: operation for operation in OPERATIONS}
#: Ranks on several hosts: sums of hosts are added up, and what must not be summed in parts is not.
HOSTS = (0, 0, 1, 1, 1)


def run_cells(world: ThreadWorld, operation: Operation, label: str, share: int) -> None:
    cells = sample(cells_of(operation, label), share, world.size)

    def body(comm: cocoll.Communicator) -> None:
        for cell in cells:
            run_cell(comm, cell)

    world.run(body)


@pytest.mark.parametrize("label", EVERY_DTYPE)
@pytest.mark.parametrize("name", BY_NAME)
def test_a_sample(thread_worlds: Worlds, name: str, label: str) -> None:
    # One number of ranks of each: over all lines and dtypes every number comes often.
    turn = list(BY_NAME).index(name) + EVERY_DTYPE.index(label)
    world = thread_worlds(WORLD_SIZES[turn % len(WORLD_SIZES)], "small")
    run_cells(world, BY_NAME[name], label, 20)


@pytest.mark.long
@pytest.mark.parametrize("label", EVERY_DTYPE)
@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("size", WORLD_SIZES)
def test_all_of_it(thread_worlds: Worlds, size: int, name: str, label: str) -> None:
    run_cells(thread_worlds(size, "small"), BY_NAME[name], label, 1)


@pytest.mark.parametrize("label", ["bool", "uint16", "complex64", "float8_e4m3fn", "float8_e5m2"])
def test_torch_tensors(thread_worlds: Worlds, label: str) -> None:
    torch = pytest.importorskip("torch")

    def body(comm: cocoll.Communicator) -> None:
        parts = contributions(comm.world_size, 300, label, "sum")
        x = torch.zeros(300, dtype=getattr(torch, label))
        as_bytes = x.view(torch.uint8).numpy().view(numpy_dtype(label))
        as_bytes[...] = parts[comm.rank]
        made = cocoll.allgather(x, comm=comm).result()
        assert made.dtype is x.dtype
        found = made.view(torch.uint8).numpy().view(numpy_dtype(label))
        assert_same_bits(found, np.concatenate(parts))
        cocoll.allreduce(x, comm=comm)
        check_reduced(as_bytes, parts, "sum")

    thread_worlds(3, "small").run(body)


@pytest.mark.parametrize("label", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_unsigned_integers_stand_for_floats_where_the_call_says_so(
    thread_worlds: Worlds, label: str
) -> None:
    def body(comm: cocoll.Communicator) -> None:
        parts = contributions(comm.world_size, 300, label, "sum")
        carrier = f"uint{8 * itemsize_of(label)}"
        raw = parts[comm.rank].view(carrier)
        made = cocoll.reduce_scatter(raw, dtype=label, comm=comm).result()
        assert made.dtype == carrier
        blocks = [part[comm.rank * 100 :][:100] for part in parts]
        check_reduced(made.view(numpy_dtype(label)), blocks, "sum")
        check_reduced(
            cocoll.reduce_scatter(raw, comm=comm).result(), [b.view(carrier) for b in blocks], "sum"
        )
        doubled = raw.copy()
        cocoll.allreduce_fused(doubled, epilogues.scale(), factor=2.0, dtype=label, comm=comm)
        wanted = (reduce_wide(parts, "sum") * np.float32(2)).astype(numpy_dtype(label))
        assert_same_bits(doubled.view(numpy_dtype(label)), wanted)

    thread_worlds(3, "small").run(body)


@pytest.fixture(scope="module")
def host_world():
    world = ThreadWorld(len(HOSTS), TUNINGS["small"], hosts=HOSTS)
    yield world
    world.close()


@pytest.mark.parametrize(
    "share", [pytest.param(60, id="sample"), pytest.param(1, id="all", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("label", EVERY_DTYPE)
def test_over_several_hosts(host_world: ThreadWorld, label: str, share: int) -> None:
    run_cells(host_world, BY_NAME["allreduce"], label, share)
    run_cells(host_world, BY_NAME["reduce_scatter"], label, share)
    if share == 1:
        run_cells(host_world, BY_NAME["allgather"], label, share)
        run_cells(host_world, BY_NAME["broadcast"], label, share)
