"""What carries a planned resharding out, on the host or on GPUs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from cocoll._core import BoundOperation
    from cocoll.array import ArrayDescription
    from cocoll.cuda.binding import BoundDeviceOperation
    from cocoll.dtypes import DType
    from cocoll.epilogues.traced import Traced
    from cocoll.plan.ir import Plan
    from cocoll.resharding.layout import Layout
    from cocoll.resharding.parts import Part
    from cocoll.resharding.planner import MulticastPlan

__all__ = ["Entry", "Freight", "Mover"]

#: Where the array of a part lies: address, shape, strides in bytes, bytes of an element.
Entry: TypeAlias = "tuple[int, tuple[int, ...], tuple[int, ...], int]"


class Freight(NamedTuple):
    """What is to be moved.

    Attributes
    ----------
    planned : MulticastPlan
        Tasks and schedule.
    layouts : sequence of pair of Layout
        Of each tensor, where it is and where it must be.
    dtypes, result_dtypes : sequence of DType
        Of each tensor, before and after.
    traced : Traced or None
        The epilogue.
    """

    planned: MulticastPlan
    layouts: Sequence[tuple[Layout, Layout]]
    dtypes: Sequence[DType]
    result_dtypes: Sequence[DType]
    traced: Traced | None

    @property
    def itemsizes_bytes(self) -> list[int]:
        """Of each tensor before."""
        return [dtype.itemsize_bytes for dtype in self.dtypes]

    @property
    def result_itemsizes_bytes(self) -> list[int] | None:
        """Of each tensor after, None where nothing changes."""
        if self.traced is None:
            return None
        return [dtype.itemsize_bytes for dtype in self.result_dtypes]

    def digest(self, limits: object) -> int:
        """Give what ranks that planned the same have in common: 64 bits, not zero.

        Parameters
        ----------
        limits : object
            What their plans may use, whose repr is the same on all of them.
        """
        found = hashlib.sha256(repr((limits, [dtype.label for dtype in self.dtypes])).encode())
        for task in self.planned.tasks:
            found.update(repr(task).encode())
        for group in self.planned.schedule.groups:
            found.update(repr(group).encode())
        if self.traced is not None:
            found.update(self.traced.digest.encode())
        return int.from_bytes(found.digest()[:8], "little") | 1


class Mover(Protocol):
    """Moves the arrays of one rank; made by all ranks together.

    Attributes
    ----------
    plan : Plan
        What this rank does.
    parts : tuple of Part
        What the plan's parts are, by number.
    """

    plan: Plan
    parts: tuple[Part, ...]

    def describe(self, value: Any, name: str, dtype: DType) -> ArrayDescription:
        """Look at one of the caller's arrays, and refuse one that cannot be used."""

    def make_output(self, like: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """Make an array for a result, of the kind that `like` is of where that is given."""

    def make_memory(self, nbytes: int) -> tuple[int, object]:
        """Give the address of some memory, and what keeps it."""

    def check_call(self, stream: Any, like: Any) -> None:
        """Refuse a call that is not bound where that cannot be; arguments as in `bind`."""

    def bind(
        self, entries: Sequence[Entry], kept: Any, output: Any, stream: Any, like: Any
    ) -> BoundOperation | BoundDeviceOperation:
        """Bind the plan to arrays, one for each part.

        Parameters
        ----------
        entries : sequence of Entry
            Where they lie.
        kept : object
            What must live as long.
        output : object
            What calls give.
        stream : object
            As in the call.
        like : object
            One of the caller's arrays, or None.
        """
