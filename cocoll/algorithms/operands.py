"""What a reduction works on, as far as its plan depends on it: sizes and placements, no dtypes."""

from __future__ import annotations

from dataclasses import dataclass

from cocoll.errors import UsageError
from cocoll.plan.ir import Buffer, View

__all__ = ["OperandSpec", "ReduceSpec"]


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """An array of an epilogue.

    A replicated operand that the epilogue updates is an operand here (it is read) and also one of
    the results (it is stored to every rank's copy).

    Parameters
    ----------
    itemsize_bytes : int
        Bytes of one element.
    sharded : bool, default False
        Whether each rank has its own block only.
    updated : bool, default False
        Whether it is written in place on this rank.

    Raises
    ------
    UsageError
        The size is not positive, or a replicated operand is updated in place: the other ranks'
        copies would keep the old value.
    """

    itemsize_bytes: int
    sharded: bool = False
    updated: bool = False

    def __post_init__(self) -> None:
        """Refuse what no plan can honour."""
        if self.itemsize_bytes < 1:
            raise UsageError(f"wanted itemsize_bytes >= 1, got {self.itemsize_bytes}")
        if self.updated and not self.sharded:
            raise UsageError("a replicated operand is updated through a result, not in place")


@dataclass(frozen=True, slots=True)
class ReduceSpec:
    """The arrays of a reduction.

    Parameters
    ----------
    source_itemsize_bytes : int
        Bytes of one element of the arrays that are reduced.
    result_itemsizes_bytes : tuple of int
        The same of each result; empty where an epilogue only updates operands.
    operands : tuple of OperandSpec, default ()
        The epilogue's arrays, in its order.
    zero_source : bool, default False
        Whether the source holds zeros afterwards. Where a plan has ``mapped_sources``, whoever
        reads an element stores the zero; elsewhere no peer reads the source, and the executor
        clears this rank's own when its lanes have ended, but never scratch.

    Raises
    ------
    UsageError
        A size is not positive, or there is nothing to store.
    """

    source_itemsize_bytes: int
    result_itemsizes_bytes: tuple[int, ...]
    operands: tuple[OperandSpec, ...] = ()
    zero_source: bool = False

    def __post_init__(self) -> None:
        """Refuse what no plan can honour."""
        for itemsize in (self.source_itemsize_bytes, *self.result_itemsizes_bytes):
            if itemsize < 1:
                raise UsageError(f"wanted element sizes >= 1 byte, got {itemsize}")
        if not self.result_itemsizes_bytes and not self.updated:
            raise UsageError("wanted at least one result or updated operand, got none")

    @property
    def is_sharded(self) -> bool:
        """Whether any operand is: then each element must be reduced on one rank only."""
        return any(operand.sharded for operand in self.operands)

    @property
    def updated(self) -> tuple[int, ...]:
        """Which operands are written in place, by index."""
        return tuple(index for index, operand in enumerate(self.operands) if operand.updated)

    def operand_views(self, rank: int) -> tuple[View, ...]:
        """Give the operands of a rank; the sharded ones begin with its block."""
        return tuple(
            View(
                Buffer.OPERAND,
                rank,
                operand.itemsize_bytes,
                index=index,
                origin=rank if operand.sharded else 0,
            )
            for index, operand in enumerate(self.operands)
        )

    def source_view(self, rank: int) -> View:
        """Give the whole vector that a rank contributes."""
        return View(Buffer.SOURCE, rank, self.source_itemsize_bytes)

    def result_view(self, rank: int, index: int, origin: int = 0) -> View:
        """Give one result of a rank, whose array begins with block `origin`."""
        itemsize = self.result_itemsizes_bytes[index]
        return View(Buffer.RESULT, rank, itemsize, index=index, origin=origin)
