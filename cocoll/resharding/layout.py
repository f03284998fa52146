"""Where the elements of a tensor are: a shape, a mesh and a spec, checked against each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias

from cocoll.errors import ReshardError
from cocoll.resharding.sharding_spec import ShardingSpec

if TYPE_CHECKING:
    from cocoll.resharding.mesh import Mesh

__all__ = ["Box", "Layout", "box_elements"]

#: A range of elements on each dim.
Box: TypeAlias = "tuple[tuple[int, int], ...]"


def box_elements(box: Box) -> int:
    """Give how many elements a box holds."""
    return math.prod([stop - start for start, stop in box])


class Layout:
    """A tensor spread over a mesh.

    Parameters
    ----------
    shape : sequence of int
        Of the whole tensor.
    mesh : Mesh
        The ranks.
    spec : str or ShardingSpec
        How it is cut.
    allow_uneven : bool, default True
        Whether pieces of one dim may differ in length where no lengths are given.
    name : str, default ""
        What messages call it: ``"src"``.

    Attributes
    ----------
    pieces : tuple of tuple of (int, int)
        For each dim the range of each piece, in order.

    Raises
    ------
    ReshardError
        The spec does not fit the mesh or the shape; the message names dim, axis and sizes.
    """

    def __init__(
        self,
        shape: Sequence[int],
        mesh: Mesh,
        spec: str | ShardingSpec,
        *,
        allow_uneven: bool = True,
        name: str = "",
    ) -> None:
        self.shape = tuple(shape)
        self.mesh = mesh
        self.spec = ShardingSpec.parse(spec)
        self._where = f"{name + ': ' if name else ''}spec {self.spec}"
        if any(length < 0 for length in self.shape):
            raise ReshardError(f"wanted a shape of lengths of at least 0; got {self.shape}")
        if self.spec.ndim != len(self.shape):
            raise ReshardError(
                f"{self._where}: wanted a spec for the {len(self.shape)} dims of shape "
                f"{self.shape}; it has {self.spec.ndim}"
            )
        for axis in self.spec.partial:
            self._check_axis("partial sums", axis)
        self.pieces = tuple(self._cut(dim, allow_uneven) for dim in range(len(self.shape)))
        self._ranks = mesh.ranks_of_tiles(self.spec.dims)

    def _check_axis(self, what: str, axis: int) -> None:
        if axis >= self.mesh.ndim:
            raise ReshardError(
                f"{self._where}, {what}: there is no mesh axis {axis}; the {self.mesh} has "
                f"{self.mesh.ndim}"
            )

    def _cut(self, dim: int, allow_uneven: bool) -> tuple[tuple[int, int], ...]:
        axes, length = self.spec.dims[dim], self.shape[dim]
        for axis in axes:
            self._check_axis(f"dim {dim}", axis)
        sizes = [self.mesh.shape[axis] for axis in axes]
        count = math.prod(sizes)
        given = dict(self.spec.lengths).get(dim)
        if given is not None:
            if len(given) != count or sum(given) != length:
                raise ReshardError(
                    f"{self._where}, dim {dim} of length {length}: wanted {count} lengths (mesh "
                    f"axes {axes} of sizes {sizes}) that add up to {length}; got {given}, which "
                    f"add up to {sum(given)}"
                )
            ends = list(accumulate(given, initial=0))
            return tuple(pairwise(ends))
        if not allow_uneven and length % count:
            raise ReshardError(
                f"{self._where}, dim {dim}: length {length} does not divide by {count} (mesh axes "
                f"{axes} of sizes {sizes}), and uneven shards are not allowed here"
            )
        ranges = [(0, length)]
        for size in sizes:
            ranges = [part for start, stop in ranges for part in _chunks(start, stop, size)]
        return tuple(ranges)

    @property
    def tiles(self) -> tuple[int, ...]:
        """How many pieces each dim has."""
        return tuple([len(pieces) for pieces in self.pieces])

    @cached_property
    def _axis_sizes(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each dim its axes with their sizes, the minor one first."""
        shape = self.mesh.shape
        return tuple(
            tuple((axis, shape[axis]) for axis in reversed(axes)) for axes in self.spec.dims
        )

    def ranks_of(self, tile: tuple[int, ...]) -> tuple[int, ...]:
        """Give the ranks that have a tile, or a summand of it, in the mesh's order.

        Parameters
        ----------
        tile : tuple of int
            For each dim the number of the piece.
        """
        found = self._ranks.get(tile)
        if found is None:
            fixed: dict[int, int] = {}
            for piece, axes in zip(tile, self._axis_sizes, strict=True):
                left = piece
                for axis, size in axes:
                    left, fixed[axis] = divmod(left, size)
            found = self._ranks[tile] = self.mesh.ranks_at(fixed)
        return found

    def tile_of(self, rank: int) -> tuple[int, ...]:
        """Give the tile of a rank of the mesh.

        Returns
        -------
        tuple of int
            For each dim the number of the piece.
        """
        at = self.mesh.coordinates(rank)
        found = []
        for axes in self.spec.dims:
            piece = 0
            for axis in axes:
                piece = piece * self.mesh.shape[axis] + at[axis]
            found.append(piece)
        return tuple(found)

    def box_of(self, rank: int) -> Box:
        """Give the elements that a rank of the mesh has."""
        tile = self.tile_of(rank)
        return tuple([ranges[piece] for ranges, piece in zip(self.pieces, tile, strict=True)])

    def shape_of(self, rank: int) -> tuple[int, ...]:
        """Give the shape of a rank's shard."""
        return tuple([stop - start for start, stop in self.box_of(rank)])

    def summands(self, ranks: Sequence[int]) -> list[tuple[int, ...]]:
        """Divide the ranks of a tile into complete sets, whose values add up to the tile.

        Parameters
        ----------
        ranks : sequence of int
            What `ranks_of` gave.

        Returns
        -------
        list of tuple of int
            One for each replica; single ranks where the spec has no partial sums.
        """
        sets: dict[tuple[int, ...], list[int]] = {}
        for rank in ranks:
            at = self.mesh.coordinates(rank)
            key = tuple([index for axis, index in enumerate(at) if axis not in self.spec.partial])
            sets.setdefault(key, []).append(rank)
        return [tuple(members) for members in sets.values()]


def _chunks(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    step = -(-(stop - start) // count)
    ends = [min(stop, start + step * number) for number in range(count + 1)]
    return list(pairwise(ends))
