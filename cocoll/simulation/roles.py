"""Which ranks have equal roles, so that a simulation may run one of each class.

Ranks have equal roles when nothing tells them apart: not what their plans do, not whom they do it
with, not the ports they use. Such ranks are at the same place at every moment, so one of them, the
*representative*, stands for its class. Two questions remain, and :class:`Roles` answers them. With
whom does a representative meet, where its peer stands for nobody? With the peer's representative;
the peer's partner there is the :meth:`~Roles.counterpart`. And who else crosses a port? The rest of
the class, some of it: a port is crossed by as many of its flows as there are flows in the class
times ports on the way of each, divided among the ports of equal roles (the weights of a path).

:class:`SeparateRoles` says that every rank stands for itself, :class:`HostSymmetry` that equal
hosts, and ranks within them, can be exchanged; :mod:`cocoll.simulation.refinement` finds classes
out.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cocoll.errors import SimulationError

if TYPE_CHECKING:
    from cocoll.topology.graph import Path, Topology

__all__ = ["Roles", "SeparateRoles", "WeightedPath", "path_of"]


class WeightedPath(NamedTuple):
    """The ports that bytes cross, and how many flows like theirs cross each.

    Attributes
    ----------
    ports : tuple of int
        One of each class of ports.
    weights : tuple of int
        For each, how many flows of this class it carries.
    latency_nanoseconds : int
        Before bytes move.
    """

    ports: tuple[int, ...]
    weights: tuple[int, ...]
    latency_nanoseconds: int


def path_of(topology: Topology, use: str, rank: int, other: int) -> Path:
    """Give what the bytes cross that a rank moves.

    Parameters
    ----------
    topology : Topology
        Where the ranks are.
    use : {"send", "read", "write"}
        Whether `rank` sends a message to `other`, reads its memory or writes to it.
    rank, other : int
        The ranks; equal for a rank's own memory.

    Returns
    -------
    Path
        Within a host messages move through memory.

    Raises
    ------
    SimulationError
        Memory of another host is read or written.
    """
    if use == "send":
        return topology.path(rank, other)
    if topology.host_of(rank) != topology.host_of(other):
        raise SimulationError(
            f"rank {rank} would {use} memory of rank {other}, which is on another host of the "
            f"topology {topology.name!r}: between hosts there are messages only"
        )
    return topology.memory_path(rank, other, write=use == "write")


class Roles(abc.ABC):
    """Classes of ranks with equal roles.

    Parameters
    ----------
    topology : Topology
        Where the ranks are.
    representatives : sequence of int
        One rank of each class, ascending.
    """

    def __init__(self, topology: Topology, representatives: Sequence[int]) -> None:
        self.topology = topology
        self.representatives = tuple(representatives)

    @abc.abstractmethod
    def representative(self, rank: int) -> int:
        """Give the rank that stands for `rank`."""

    @abc.abstractmethod
    def class_size(self, rank: int) -> int:
        """Give how many ranks have the role of `rank`."""

    @abc.abstractmethod
    def counterpart(self, rank: int, other: int) -> int:
        """Give who is to the representative of `rank` what `other` is to `rank`."""

    @abc.abstractmethod
    def weigh(self, use: str, rank: int, other: int) -> WeightedPath:
        """Give the path of a representative's bytes (see :func:`path_of`) with its weights."""

    @abc.abstractmethod
    def spread(self, port_bytes: Mapping[int, int]) -> tuple[int, ...]:
        """Give the bytes on every port, from those on the ports that paths named."""

    def witnesses(self) -> tuple[int, ...]:
        """Give ranks whose plans are held against their representatives' before a simulation.

        What follows from the plans of all ranks needs none.
        """
        return ()


class SeparateRoles(Roles):
    """Every rank stands for itself.

    Parameters
    ----------
    topology : Topology
        Where the ranks are.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, range(topology.world_size))

    def representative(self, rank: int) -> int:
        """Give the rank itself."""
        return rank

    def class_size(self, rank: int) -> int:
        """Give 1."""
        del rank
        return 1

    def counterpart(self, rank: int, other: int) -> int:
        """Give `other`."""
        del rank
        return other

    def weigh(self, use: str, rank: int, other: int) -> WeightedPath:
        """Give the path as it is: every flow crosses for itself."""
        path = path_of(self.topology, use, rank, other)
        return WeightedPath(path.ports, (1,) * len(path.ports), path.latency_nanoseconds)

    def spread(self, port_bytes: Mapping[int, int]) -> tuple[int, ...]:
        """Give the bytes port by port."""
        return tuple(port_bytes.get(port, 0) for port in range(len(self.topology.ports)))
