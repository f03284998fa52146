"""The table of all operations and element types on the emulated device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import cocoll
from cocoll.dtypes import DType
from cocoll.testing import run_ranks
from tests.helpers.arrays import EVERY_DTYPE, assert_same_bits
from tests.helpers.conformance import (
    OPERATIONS,
    Cell,
    cells_of,
    forbidden,
    sample,
    sources_and_wanted,
)
from tests.helpers.misuse import refuse
from tests.helpers.on_device import TUNING, make_array, put
from tests.helpers.references import OPS, check_reduced

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit

COPYING = [operation for operation in OPERATIONS if not operation.reduces]
REDUCING = [operation for operation in OPERATIONS if operation.reduces]
#: A kernel takes seconds to compile: these each time, all others in the long run.
USUAL = {
    ("avg", "uint64"),
    ("prod", "complex64"),
    ("sum", "float8_e4m3fn"),
    # Refused before there is a kernel.
    ("max", "complex128"),
    ("avg", "bool"),
}
PAIRS = [
    pytest.param(op, label, marks=() if (op, label) in USUAL else pytest.mark.long)
    for op in OPS
    for label in EVERY_DTYPE
]


def run_cell(comm: cocoll.Communicator, cell: Cell) -> None:
    root = comm.world_size - 1 if cell.operation.rooted else 0
    parts, wanted = sources_and_wanted(cell, comm.world_size, comm.rank, root)
    source = put(comm, parts[comm.rank], cell.layout)
    result = None
    if not cell.in_place:
        like = parts[comm.rank] if wanted is None else wanted[0]
        result = make_array(comm, like.shape, cell.label, cell.layout)
    keywords: dict[str, object] = {"comm": comm, "out": result}
    if cell.operation.reduces:
        keywords["op"] = cell.op
    if cell.operation.rooted:
        keywords["root"] = root
    function = getattr(cocoll, cell.operation.name)
    refusal = forbidden(cell)
    if refusal is not None:
        refuse(lambda: function(source, **keywords), *refusal)
        assert_same_bits(source.get(), parts[comm.rank], str(cell))
        return
    function(source, **keywords).wait()
    found = (source if result is None else result).get()
    if wanted is not None and cell.operation.reduces:
        check_reduced(found, wanted, cell.op, str(cell))
    elif wanted is not None:
        assert_same_bits(found, wanted[0], str(cell))
    if result is not None:
        assert_same_bits(source.get(), parts[comm.rank], f"the input, {cell}")


def run_cells(
    world_size: int, cells: list[Cell], toolkit: Toolkit, tuning: cocoll.Tuning = TUNING
) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for cell in cells:
            run_cell(comm, cell)

    run_ranks(world_size, body, toolkit=toolkit, tuning=tuning)


@pytest.mark.parametrize(("op", "label"), PAIRS)
def test_reductions(op: str, label: str, toolkit: Toolkit) -> None:
    for operation in REDUCING:
        cells = [c for c in cells_of(operation, label, ("ordinary", "symmetric")) if c.op == op]
        for world_size, share in ((2, 2), (3, 4)):
            run_cells(world_size, sample(cells, share, world_size), toolkit)


# Only bytes cross the wire: what NCCL has no name for is reduced by cocoll's kernels.
@pytest.mark.parametrize(
    ("op", "label"),
    [
        pytest.param(
            op, label, marks=() if (op, label) == ("prod", "complex64") else pytest.mark.long
        )
        for op, label in (
            ("prod", "complex64"),
            ("sum", "bool"),
            ("avg", "int16"),
            ("sum", "float8_e5m2"),
            ("sum", "complex128"),
        )
    ],
)
def test_reductions_over_nccl(
    op: str, label: str, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_DEVICES", "4")
    monkeypatch.setenv("COCOLL_EMULATED_PEER_ACCESS", "0")
    for operation in REDUCING:
        cells = [c for c in cells_of(operation, label, ("ordinary", "symmetric")) if c.op == op]
        over_nccl = replace(TUNING, gpu_native_bytes=1)
        run_cells(3, sample(cells, 2, label), toolkit, over_nccl)


@pytest.mark.parametrize("label", EVERY_DTYPE)
def test_copies(label: str, toolkit: Toolkit) -> None:
    cells = [
        cell
        for operation in COPYING
        for cell in cells_of(operation, label, ("ordinary", "symmetric"))
    ]
    run_cells(3, sample(cells, 6, label), toolkit)


@pytest.mark.long
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("label", EVERY_DTYPE)
def test_all_copies(label: str, world_size: int, toolkit: Toolkit) -> None:
    cells = [
        cell
        for operation in COPYING
        for cell in cells_of(operation, label, ("ordinary", "symmetric"))
    ]
    run_cells(world_size, cells, toolkit)


@pytest.mark.parametrize(
    ("label", "carrier"),
    [
        ("float8_e4m3fn", np.uint8),
        ("float8_e5m2", np.uint8),
        ("bfloat16", np.uint16),
    ],
)
def test_unsigned_integers_that_stand_for_floats(
    label: str, carrier: type[np.generic], toolkit: Toolkit
) -> None:
    def body(comm: cocoll.Communicator) -> None:
        values = np.arange(64, dtype=carrier)
        x = put(comm, values, "ordinary")
        made = cocoll.allgather(x, comm=comm, dtype=label).result()
        assert made.dtype == label
        assert made.get().tobytes() == values.tobytes() * 2
        named = make_array(comm, (64,), label, "ordinary")
        assert named.__cuda_array_interface__["typestr"] == np.dtype(carrier).str
        assert DType.parse(named.dtype).carrier == DType.parse(np.dtype(carrier).name)

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)
