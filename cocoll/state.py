"""State in shards that outlives a world size: how a vector is cut, and how to cut it anew."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cocoll.errors import BufferMismatchError, DTypeError, RankError, UsageError
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS
from cocoll.plan.ranges import block_elements, block_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ShardLayout", "reshard_state"]


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """How a vector is cut into one shard a rank; plain numbers, to be kept beside the shards.

    Shards are contiguous, in rank order, of ceil(count / world_size) elements rounded up to the
    alignment; the last ones may be short or empty.

    Attributes
    ----------
    count : int
        The length of the vector.
    world_size : int
        How many shards.
    alignment : int, default 16
        What the length of a shard is a multiple of, in elements.

    Raises
    ------
    UsageError
        A number is too small to be one.
    """

    count: int
    world_size: int
    alignment: int = SHARD_ALIGNMENT_ELEMENTS

    def __post_init__(self) -> None:
        """Refuse numbers that describe nothing."""
        for name, least in (("count", 0), ("world_size", 1), ("alignment", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(
                    f"a ShardLayout wants an int of at least {least} for {name}; got {value!r}"
                )

    def find_range(self, rank: int) -> tuple[int, int]:
        """Give the first and one-past-last element of a rank's shard.

        Parameters
        ----------
        rank : int
            Whose.

        Returns
        -------
        tuple of int
            Start and stop; equal where the shard is empty.

        Raises
        ------
        RankError
            There is no such rank in this layout.
        """
        rank = operator.index(rank)
        if not 0 <= rank < self.world_size:
            raise RankError(f"wanted a rank in [0, {self.world_size}); got {rank}")
        length = block_elements(self.count, self.world_size, self.alignment)
        return block_range(rank, self.count, length)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of all shards, in rank order."""
        return tuple(self.find_range(rank) for rank in range(self.world_size))

    def find_parts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Give the shards that hold a range of the vector.

        Parameters
        ----------
        start, stop : int
            First and one-past-last element.

        Returns
        -------
        list of tuple of int
            Rank, start and stop of each part, in order, none empty; elements of the vector.
        """
        if start >= stop:
            return []
        length = block_elements(self.count, self.world_size, self.alignment)
        parts = []
        for rank in range(start // length, -(-stop // length)):
            first, last = block_range(rank, self.count, length)
            parts.append((rank, max(first, start), min(last, stop)))
        return parts


def reshard_state(
    shards: Sequence[Any] | Callable[[int], Any],
    layout_from: ShardLayout,
    layout_to: ShardLayout,
    *,
    rank: int,
) -> NDArray[Any]:
    """Give a rank's shard of a vector that was saved in the shards of another world. Local.

    Parameters
    ----------
    shards : sequence of array_like, or callable
        The shards of all ranks that saved, in rank order; or a function from such a rank to its
        shard, which is called only for the ranks whose shards are needed, once each and in order.
    layout_from : ShardLayout
        How the vector was cut when it was saved: `Communicator.shard_layout` gave it.
    layout_to : ShardLayout
        How it is to be cut now; of the same count.
    rank : int
        Whose shard, in `layout_to`.

    Returns
    -------
    numpy.ndarray
        A new array of the saved dtype, which the caller owns. Where the new shard is empty the
        first saved one is read for its dtype.

    Raises
    ------
    BufferMismatchError
        The layouts are of vectors of different lengths, or a shard is not as long as its layout
        says.
    DTypeError
        Shards have different dtypes.
    RankError
        `rank` is not one of `layout_to`.
    """
    import numpy as np

    if layout_from.count != layout_to.count:
        raise BufferMismatchError(
            f"wanted two layouts of one vector; got {layout_from.count} saved elements and "
            f"{layout_to.count} wanted ones on rank {rank}"
        )
    if not callable(shards) and len(shards) != layout_from.world_size:
        raise BufferMismatchError(
            f"wanted the shards of all {layout_from.world_size} ranks that saved; got {len(shards)}"
        )
    start, stop = layout_to.find_range(rank)
    read: np.ndarray[Any, Any] | None = None
    out: np.ndarray[Any, Any] | None = None
    for owner, first, last in layout_from.find_parts(start, stop) or [(0, 0, 0)]:
        read = np.asarray(shards(owner) if callable(shards) else shards[owner])
        begin, end = layout_from.find_range(owner)
        if read.ndim != 1 or len(read) != end - begin:
            raise BufferMismatchError(
                f"the shard of rank {owner} has {end - begin} elements by its layout "
                f"({layout_from}); got shape {read.shape}"
            )
        if out is None:
            out = np.empty(stop - start, read.dtype)
        if read.dtype != out.dtype:
            raise DTypeError(
                f"wanted shards of one dtype; got {out.dtype} and, of rank {owner}, {read.dtype}"
            )
        out[first - start : last - start] = read[first - begin : last - begin]
    assert out is not None
    return out
