"""What every collective must do with every element type: one table, generated.

A cell is one call: operation x dtype x op x size class x layout x in place or not. What it must
give follows from what the ranks bring, in the bits of rank order, which are compared with float64
in turn; or it is forbidden, and must raise the documented error on all ranks with nothing moved.
Another operation is another line of `OPERATIONS`.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import cocoll
from cocoll.dtypes import DType
from cocoll.errors import DTypeError
from tests.helpers.arrays import Held, assert_same_bits, hold, itemsize_of, symmetric_pool
from tests.helpers.misuse import refuse
from tests.helpers.references import OPS, check_reduced, contributions

__all__ = [
    "OPERATIONS",
    "SIZES",
    "Cell",
    "Operation",
    "cells_of",
    "forbidden",
    "run_cell",
    "sample",
    "sources_and_wanted",
]

Values = np.ndarray[Any, Any]
#: From what all ranks bring, the rank and the root: the parts whose reduction, or of which the only
#: one, a rank must have at the end; None where it gets nothing.
Gives = Callable[[list[Values], int, int], list[Values] | None]


def _block(values: Values, rank: int, world_size: int) -> Values:
    length = values.size // world_size
    return values[rank * length : (rank + 1) * length]


def _all_parts(parts: list[Values], _: int, __: int) -> list[Values]:
    return parts


def _blocks_of_parts(parts: list[Values], rank: int, _: int) -> list[Values]:
    return [_block(part, rank, len(parts)) for part in parts]


def _joined(parts: list[Values], _: int, __: int) -> list[Values]:
    return [np.concatenate([part.reshape(-1) for part in parts])]


def _of_root(parts: list[Values], _: int, root: int) -> list[Values]:
    return [parts[root]]


@dataclass(frozen=True)
class Operation:
    """A line of the table.

    Attributes
    ----------
    name : str
        The public function's.
    gives : callable
        What a rank must have at the end.
    source, result : {"whole", "block"}
        How much a rank brings and gets: the vector, or a rank's part of it.
    reduces : bool
        Whether it takes an op.
    rooted : bool
        Whether it takes a root.
    in_place : bool
        Whether the result may take the source's place.
    """

    name: str
    gives: Gives
    source: str = "whole"
    result: str = "whole"
    reduces: bool = False
    rooted: bool = False
    in_place: bool = False


OPERATIONS = (
    Operation("allreduce", _all_parts, reduces=True, in_place=True),
    Operation("reduce_scatter", _blocks_of_parts, result="block", reduces=True),
    Operation("allgather", _joined, source="block"),
    Operation("broadcast", _of_root, rooted=True, in_place=True),
)

#: Bytes of the whole vector on one rank: nothing, an element, the arrival line, one shot, two
#: shots, several chunks of them and a ragged last one, with the tuning "small" of tests.
SIZES = {"none": 0, "one": 1, "inline": 48, "one_shot": 900, "two_shot": 3_000, "chunks": 16_500}
#: "scalar" has no dimension.
LAYOUTS = ("ordinary", "strided", "unaligned", "symmetric", "scalar")


@dataclass(frozen=True)
class Cell:
    """One call; `str` gives a name that tells it from the others."""

    operation: Operation
    label: str
    op: str
    size: str
    layout: str
    in_place: bool

    def __str__(self) -> str:
        """Give its name."""
        place = "in_place" if self.in_place else "out"
        return "-".join((self.operation.name, self.label, self.op, self.size, self.layout, place))

    def length(self, world_size: int) -> int:
        """Give how many elements the whole vector has: whole blocks of them."""
        count = -(-SIZES[self.size] // itemsize_of(self.label))
        if self.operation.source == self.operation.result == "whole":
            return count
        return -(-count // world_size) * world_size


def cells_of(
    operation: Operation, label: str, layouts: tuple[str, ...] = LAYOUTS
) -> Iterator[Cell]:
    """Give all cells of an operation and a dtype."""
    ops = OPS if operation.reduces else ("",)
    places = (True, False) if operation.in_place else (False,)
    for op, size, layout, in_place in itertools.product(ops, SIZES, layouts, places):
        if layout != "scalar" or (size == "one" and operation.source == operation.result):
            yield Cell(operation, label, op, size, layout, in_place)


def sample(cells: Iterable[Cell], share: int, salt: object) -> list[Cell]:
    """Choose one cell in `share`, four at least: the same ones in every run."""
    everything = list(cells)
    drawn = sorted(everything, key=lambda cell: zlib.crc32(f"{salt} {cell}".encode()))
    return drawn[: max(4, len(everything) // share)]


def forbidden(cell: Cell) -> tuple[type[cocoll.errors.CocollError], str] | None:
    """Give what a forbidden cell raises and says, None for one that must work."""
    dtype = DType.parse(cell.label)
    if dtype.is_complex and cell.op in ("min", "max"):
        return DTypeError, "a dtype with an order"
    if dtype is DType.BOOL and cell.op == "avg":
        return DTypeError, "op='avg' needs numbers"
    return None


def sources_and_wanted(
    cell: Cell, world_size: int, rank: int, root: int
) -> tuple[list[Values], list[Values] | None]:
    """Give what all ranks bring to a cell, and what a rank must have at the end."""
    length = cell.length(world_size)
    shape: int | tuple[int, ...] = length
    if cell.operation.source == "block":
        shape = length // world_size
    if cell.layout == "scalar":
        shape = ()
    parts = contributions(world_size, shape, cell.label, cell.op or "sum", length)
    return parts, cell.operation.gives(parts, rank, root)


def run_cell(comm: cocoll.Communicator, cell: Cell) -> Values | None:
    """Make the call of a cell on every rank and check all that it may have touched."""
    root = comm.world_size - 1 if cell.operation.rooted else 0
    parts, wanted = sources_and_wanted(cell, comm.world_size, comm.rank, root)
    kind = "ordinary" if cell.layout == "scalar" else cell.layout
    symmetric_pool(comm)
    source = hold(comm, kind, parts[comm.rank])
    result: Held | None = None
    if not cell.in_place:
        like = parts[comm.rank] if wanted is None else wanted[0]
        result = hold(comm, kind, np.zeros_like(like))
    keywords: dict[str, Any] = {"comm": comm, "out": None if result is None else result.array}
    if cell.operation.reduces:
        keywords["op"] = cell.op
    if cell.operation.rooted:
        keywords["root"] = root
    function = getattr(cocoll, cell.operation.name)
    refusal = forbidden(cell)
    if refusal is not None:
        held = [source.view] if result is None else [source.view, result.view]
        refuse(lambda: function(source.array, **keywords), *refusal, arrays=held)
        return None
    function(source.array, **keywords).wait()
    found = source if result is None else result
    message = f"{cell}, rank {comm.rank} of {comm.world_size}"
    if wanted is not None and cell.operation.reduces:
        check_reduced(found.view, wanted, cell.op, message)
    elif wanted is not None:
        assert_same_bits(found.view, wanted[0], message)
    if result is not None:
        assert_same_bits(source.view, parts[comm.rank], f"the input, {message}")
        result.check_around()
    source.check_around()
    return None
