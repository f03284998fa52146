"""Roles that follow from a symmetry: equal hosts, moved around together with their ranks."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cocoll.errors import SimulationError
from cocoll.simulation.roles import Roles, WeightedPath, path_of

if TYPE_CHECKING:
    from cocoll.topology.graph import Path, Topology

__all__ = ["HostSymmetry", "Move"]


class Move(enum.Enum):
    """How a symmetry moves hosts, or the ranks within each host.

    ``ROTATE`` adds a number, modulo how many there are; ``EXCHANGE`` flips bits of the index, for a
    power of two; ``KEEP`` leaves them where they are.
    """

    KEEP = "keep"
    ROTATE = "rotate"
    EXCHANGE = "exchange"

    def apply(self, index: int, by: int, size: int) -> int:
        """Give where an index goes."""
        if self is Move.ROTATE:
            return (index + by) % size
        return index ^ by if self is Move.EXCHANGE else index

    def to_first(self, index: int, size: int) -> int:
        """Give by how much to move so that an index comes to lie at 0."""
        if self is Move.ROTATE:
            return -index % size
        return index if self is Move.EXCHANGE else 0

    def amounts(self, size: int) -> range:
        """Give all amounts that can be moved by."""
        return range(1 if self is Move.KEEP else size)

    def generators(self, size: int) -> list[int]:
        """Give amounts that make all others by repetition."""
        if self is Move.EXCHANGE:
            return [1 << bit for bit in range(size.bit_length() - 1)]
        return [1] if self is Move.ROTATE and size > 1 else []


class HostSymmetry(Roles):
    """Ranks have equal roles that lie at equal places of equal hosts.

    A planner whose plans do not change but for the names of ranks when all hosts are moved declares
    this. That the topology allows it is checked: all hosts are equal, so they may be moved at will
    (:meth:`Topology.equal_hosts`), and where ranks within hosts are moved, every path that is used
    is held against those it is moved to. That the plans allow it is taken from the planner, and
    checked where it shows: against the plans of :meth:`witnesses`, and wherever a message, its size
    or its partner do not fit.

    Parameters
    ----------
    topology : Topology
        Where the ranks are.
    hosts : Move, default Move.ROTATE
        What may be done to the hosts.
    ranks : Move, default Move.KEEP
        What may be done to the ranks of every host at once.

    Raises
    ------
    SimulationError
        The hosts are not equal, or their number is no power of two where that is needed.
    """

    def __init__(
        self, topology: Topology, *, hosts: Move = Move.ROTATE, ranks: Move = Move.KEEP
    ) -> None:
        host_count = len(topology.hosts)
        members = [topology.members(host) for host in range(host_count)]
        size = len(members[0])
        if hosts is not Move.KEEP and len(set(topology.equal_hosts())) > 1:
            raise SimulationError(f"the hosts of the topology {topology.name!r} are not all equal")
        if ranks is not Move.KEEP and any(len(ranks_of) != size for ranks_of in members):
            raise SimulationError(f"hosts of {topology.name!r} differ in how many ranks they have")
        for what, move, length in (("hosts", hosts, host_count), ("ranks a host", ranks, size)):
            if move is Move.EXCHANGE and length & (length - 1):
                raise SimulationError(
                    f"wanted a power of two to exchange {what} of {topology.name!r}; got {length}"
                )
        self._members = members
        self._hosts, self._ranks = hosts, ranks
        self._host_count, self._rank_count = host_count, size
        self._place = [(0, 0)] * topology.world_size
        for host, ranks_of in enumerate(members):
            for index, rank in enumerate(ranks_of):
                self._place[rank] = (host, index)
        self._size = len(hosts.amounts(host_count)) * len(ranks.amounts(size))
        self._used: dict[tuple[str, int, int], WeightedPath] = {}
        # For each way of moving ranks, where it moves a port of the first host, and back.
        self._moved: dict[tuple[int, int], int] = {}
        self._moved_back: dict[tuple[int, int], int] = {}
        super().__init__(
            topology,
            sorted(
                members[host][index]
                for host in range(1 if hosts is not Move.KEEP else host_count)
                for index in range(1 if ranks is not Move.KEEP else len(members[host]))
            ),
        )

    def representative(self, rank: int) -> int:
        """Give the rank of the class on the first host, or at the first place."""
        return self._image(rank, *self._home(rank))

    def class_size(self, rank: int) -> int:
        """Give how many ranks have the role of `rank`: as many as there are ways to move."""
        del rank
        return self._size

    def counterpart(self, rank: int, other: int) -> int:
        """Give where `other` comes to lie when `rank` is moved onto its representative."""
        return self._image(other, *self._home(rank))

    def witnesses(self) -> tuple[int, ...]:
        """Give ranks of each class: on a neighbour of the first host, half-way, and on the last."""
        hosts = self._hosts.amounts(self._host_count)
        index = self._ranks.amounts(self._rank_count)[-1]
        moved = {
            self._image(rank, hosts[by], index)
            for rank in self.representatives
            for by in {min(1, hosts[-1]), hosts[-1] // 2, hosts[-1]}
        }
        return tuple(sorted(moved - set(self.representatives)))

    def weigh(self, use: str, rank: int, other: int) -> WeightedPath:
        """Give the path of a representative's bytes with its weights.

        Raises
        ------
        SimulationError
            Moving ranks within hosts is no symmetry of the topology.
        """
        host, index = self._place[other]
        home = self._place[rank][0]
        if host != home and self._hosts is not Move.KEEP:
            # Equal hosts are on equal switches, so the way to any other is like that to the next.
            other = self._members[(home + 1) % self._host_count][index]
        key = (use, rank, other)
        weighted = self._used.get(key)
        if weighted is None:
            weighted = self._used[key] = self._weigh(use, rank, other)
        return weighted

    def _weigh(self, use: str, rank: int, other: int) -> WeightedPath:
        topology = self.topology
        path = path_of(topology, use, rank, other)
        ports, weights = [], []
        for position, port in enumerate(path.ports):
            host = topology.ports[port].host
            shared = host is None or self._hosts is Move.KEEP
            home = 0 if host is None else self._hosts.to_first(host, self._host_count)
            images = []
            for amount in self._ranks.amounts(self._rank_count):
                moved = path_of(
                    topology, use, self._image(rank, home, amount), self._image(other, home, amount)
                )
                self._check_alike(path, moved, rank, other)
                images.append(moved.ports[position])
            self._check_moves(images, rank, other)
            orbit = len(set(images)) * (1 if shared else self._host_count)
            weight, rest = divmod(self._size, orbit)
            if rest:
                self._refuse(rank, other, f"{self._size} flows do not share {orbit} ports equally")
            ports.append(min(images))
            weights.append(weight)
        return WeightedPath(tuple(ports), tuple(weights), path.latency_nanoseconds)

    def spread(self, port_bytes: Mapping[int, int]) -> tuple[int, ...]:
        """Give the bytes on every port: what its class's first has."""
        spread = [0] * len(self.topology.ports)
        done: set[int] = set()
        for (use, rank, other), weighted in self._used.items():
            missing = [
                (position, port_bytes[port])
                for position, port in enumerate(weighted.ports)
                if port not in done and port_bytes.get(port)
            ]
            done.update(weighted.ports[position] for position, _ in missing)
            if not missing:
                continue
            for host in self._hosts.amounts(self._host_count):
                for amount in self._ranks.amounts(self._rank_count):
                    ends = (self._image(rank, host, amount), self._image(other, host, amount))
                    ports = path_of(self.topology, use, *ends).ports
                    for position, moved_bytes in missing:
                        spread[ports[position]] = moved_bytes
        return tuple(spread)

    def _home(self, rank: int) -> tuple[int, int]:
        """Give how to move a rank onto its representative."""
        host, index = self._place[rank]
        return (
            self._hosts.to_first(host, self._host_count),
            self._ranks.to_first(index, self._rank_count),
        )

    def _image(self, rank: int, hosts_by: int, ranks_by: int) -> int:
        host, index = self._place[rank]
        host = self._hosts.apply(host, hosts_by, self._host_count)
        return self._members[host][self._ranks.apply(index, ranks_by, self._rank_count)]

    def _check_alike(self, path: Path, moved: Path, rank: int, other: int) -> None:
        """Refuse to move a path to one of other ports, rates or latency."""
        if path.latency_nanoseconds != moved.latency_nanoseconds or [
            self._describe(port) for port in path.ports
        ] != [self._describe(port) for port in moved.ports]:
            self._refuse(rank, other, "their ports or latencies are not those of their images")

    def _describe(self, number: int) -> tuple[str, int]:
        port = self.topology.ports[number]
        return port.kind, port.bandwidth_bytes_per_second

    def _check_moves(self, images: list[int], rank: int, other: int) -> None:
        """Refuse where two paths would have one port moved to two, or two to one."""
        for by in self._ranks.generators(self._rank_count):
            for amount, port in enumerate(images):
                moved = images[self._ranks.apply(amount, by, self._rank_count)]
                if (
                    self._moved.setdefault((by, port), moved) != moved
                    or self._moved_back.setdefault((by, moved), port) != port
                ):
                    self._refuse(rank, other, "one port would have to move to two places")

    def _refuse(self, rank: int, other: int, reason: str) -> None:
        raise SimulationError(
            f"the ranks of a host of {self.topology.name!r} do not have equal roles: between ranks "
            f"{rank} and {other}: {reason}"
        )
