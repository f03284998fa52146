"""Ranks arranged in a grid: what a sharding spec is about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from cocoll.errors import ReshardError

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology

__all__ = ["Mesh"]

_RanksOfTiles: TypeAlias = "dict[tuple[int, ...], tuple[int, ...]]"


class Mesh:
    """Ranks in an n-dimensional grid. Immutable; equal where shape, ranks and names are.

    Parameters
    ----------
    ranks : array_like of int
        Ranks of the communicator, each at most once; a NumPy array, or nested sequences.
    axis_names : sequence of str, optional
        One for each axis; needed only for JAX's way of naming shardings.

    Attributes
    ----------
    shape : tuple of int
        The length of each axis.
    ranks : tuple of int
        In row-major order.
    axis_names : tuple of str or None
        As given.

    Raises
    ------
    ReshardError
        It holds no rank, rows of different lengths, something that is no rank, or a rank twice.

    Examples
    --------
    >>> mesh = Mesh([[0, 1, 2, 3], [4, 5, 6, 7]])
    >>> mesh.shape
    (2, 4)
    """

    __slots__ = ("_places", "_tiles", "axis_names", "ranks", "shape")

    def __init__(self, ranks: Any, axis_names: Sequence[str] | None = None) -> None:
        nested = ranks.tolist() if hasattr(ranks, "tolist") else ranks
        shape = _shape_of(nested)
        if math.prod(shape) == 0:
            raise ReshardError("a mesh: wanted at least one rank; got none")
        found = tuple(_flatten(nested, shape))
        places = {rank: place for place, rank in enumerate(found)}
        if len(places) < len(found):
            twice = next(rank for place, rank in enumerate(found) if places[rank] != place)
            raise ReshardError(
                f"a mesh: wanted each rank at most once; rank {twice} is there twice"
            )
        self.shape: tuple[int, ...] = shape
        self.ranks: tuple[int, ...] = found
        self.axis_names: tuple[str, ...] | None = None if axis_names is None else tuple(axis_names)
        self._places = places
        self._tiles: dict[tuple[tuple[int, ...], ...], _RanksOfTiles] = {}
        names = self.axis_names
        if names is not None and (len(names) != len(shape) or len(set(names)) != len(names)):
            raise ReshardError(
                f"a mesh of shape {shape}: wanted {len(shape)} different axis names; got {names}"
            )

    @classmethod
    def arange(cls, shape: Sequence[int], first_rank: int = 0) -> Mesh:
        """Give the mesh of consecutive ranks in row-major order.

        Parameters
        ----------
        shape : sequence of int
            The length of each axis.
        first_rank : int, default 0
            Where it starts.

        Returns
        -------
        Mesh
            Of ``prod(shape)`` ranks.
        """
        return cls(_nest(range(first_rank, first_rank + math.prod(shape)), tuple(shape)))

    @classmethod
    def on_hosts(
        cls, topology: Topology, hosts: int, ranks_per_host: int, first_host: int = 0
    ) -> Mesh:
        """Give the mesh of shape (hosts, ranks_per_host) of the first ranks of some hosts.

        Parameters
        ----------
        topology : Topology
            Where the ranks are.
        hosts : int
            How many.
        ranks_per_host : int
            Of each.
        first_host : int, default 0
            Where it starts.

        Returns
        -------
        Mesh
            Its axis 0 runs over hosts.

        Raises
        ------
        ReshardError
            There are not so many hosts, or not so many ranks on one of them.
        """
        if first_host + hosts > len(topology.hosts):
            raise ReshardError(
                f"wanted {hosts} hosts from number {first_host} on; {topology.name} has "
                f"{len(topology.hosts)}"
            )
        rows = []
        for host in range(first_host, first_host + hosts):
            members = topology.members(host)
            if len(members) < ranks_per_host:
                raise ReshardError(
                    f"wanted {ranks_per_host} ranks on host {topology.host_names[host]}; it has "
                    f"{len(members)}"
                )
            rows.append(members[:ranks_per_host])
        return cls(rows)

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    def __contains__(self, rank: object) -> bool:
        return rank in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self.ranks)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Give where a rank stands on each axis.

        Parameters
        ----------
        rank : int
            One of the mesh.

        Returns
        -------
        tuple of int
            As long as the mesh has axes.

        Raises
        ------
        ReshardError
            It is not in the mesh.
        """
        place = self._places.get(rank)
        if place is None:
            raise ReshardError(f"rank {rank} is not in the {self}")
        found = []
        for length in reversed(self.shape):
            place, index = divmod(place, length)
            found.append(index)
        return tuple(reversed(found))

    def ranks_at(self, fixed: dict[int, int]) -> tuple[int, ...]:
        """Give the ranks at some coordinates, in row-major order of the other axes.

        Parameters
        ----------
        fixed : dict of int to int
            Axes and where on them; other axes are run through.

        Returns
        -------
        tuple of int
            At least one.
        """
        places = [0]
        for axis, length in enumerate(self.shape):
            steps = (fixed[axis],) if axis in fixed else range(length)
            places = [place * length + step for place in places for step in steps]
        return tuple([self.ranks[place] for place in places])

    def ranks_of_tiles(self, dims: tuple[tuple[int, ...], ...]) -> _RanksOfTiles:
        """Give where the ranks of tiles are kept, for all layouts that cut dims by the same axes.

        Parameters
        ----------
        dims : tuple of tuple of int
            Of each dim the axes that cut it.

        Returns
        -------
        dict of tuple of int to tuple of int
            By tile; what is not there yet, whoever asks for it puts there.
        """
        return self._tiles.setdefault(dims, {})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        return (self.shape, self.ranks, self.axis_names) == (
            other.shape,
            other.ranks,
            other.axis_names,
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.ranks))

    def __repr__(self) -> str:
        return f"Mesh({_nest(self.ranks, self.shape)!r})"

    def __str__(self) -> str:
        return f"mesh of {'x'.join(map(str, self.shape)) or '1'} ranks"


def _shape_of(nested: Any) -> tuple[int, ...]:
    shape = []
    while isinstance(nested, Sequence) and not isinstance(nested, str | bytes):
        shape.append(len(nested))
        if not len(nested):
            break
        nested = nested[0]
    return tuple(shape)


def _flatten(nested: Any, shape: tuple[int, ...]) -> Iterator[int]:
    if not shape:
        try:
            rank = nested.__index__()
        except AttributeError:
            rank = -1
        if rank < 0 or isinstance(nested, bool):
            raise ReshardError(f"a mesh: wanted ranks, whole numbers from 0 on; got {nested!r}")
        yield rank
        return
    if not isinstance(nested, Sequence) or len(nested) != shape[0]:
        raise ReshardError(f"a mesh: wanted rows of {shape[0]} each; got {nested!r}")
    for row in nested:
        yield from _flatten(row, shape[1:])


def _nest(ranks: Iterable[int], shape: tuple[int, ...]) -> Any:
    flat: list[Any] = list(ranks)
    if not shape:
        return flat[0]
    for length in reversed(shape[1:]):
        flat = [flat[start : start + length] for start in range(0, len(flat), length)]
    return flat
