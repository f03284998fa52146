"""Ranks on several hosts: who stands for whom, and in which order hosts are passed.

Every block of the vector has an owner. On every other host one rank, its *delegate*, handles the
block for that host: it adds up what its host has of the block before that goes to the owner, and
gives its host what comes back. So a host sends and receives every byte once, whatever the number of
its ranks, and all of its ranks share that work, each on its own NIC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cocoll.errors import UsageError

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology

__all__ = ["Hierarchy", "make_hierarchy"]


@dataclass(frozen=True)
class Hierarchy:
    """Which rank is on which host, and the order in which hosts are passed.

    Parameters
    ----------
    hosts : tuple of int
        The host of every rank: 0, 1, ... in any order of ranks.
    order : tuple of int, optional
        The hosts in the order of chains: such that neighbours there are near each other. Default:
        by number.
    nics : tuple of int, optional
        For every rank, the number of the NIC that its messages go through. Default: each rank's
        place on its host.

    Raises
    ------
    UsageError
        A host has no rank, or `order` is no permutation of the hosts.
    """

    hosts: tuple[int, ...]
    order: tuple[int, ...] = ()
    nics: tuple[int, ...] = ()
    _members: tuple[tuple[int, ...], ...] = field(default=(), compare=False, repr=False)
    _delegates: dict[tuple[int, int], int] = field(
        default_factory=dict, compare=False, repr=False, hash=False
    )

    def __post_init__(self) -> None:
        """Refuse what is no partition of the ranks."""
        members: list[list[int]] = [[] for _ in range(max(self.hosts) + 1)]
        for rank, host in enumerate(self.hosts):
            members[host].append(rank)
        if not all(members):
            raise UsageError(f"wanted hosts numbered from 0 without gaps; got {self.hosts}")
        order = self.order or tuple(range(len(members)))
        if sorted(order) != list(range(len(members))):
            raise UsageError(f"wanted an order of {len(members)} hosts; got {order}")
        object.__setattr__(self, "_members", tuple(map(tuple, members)))
        object.__setattr__(self, "order", order)
        if not self.nics:
            places = [0] * len(self.hosts)
            for ranks in members:
                for place, rank in enumerate(ranks):
                    places[rank] = place
            object.__setattr__(self, "nics", tuple(places))

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)

    @property
    def host_count(self) -> int:
        """How many hosts there are."""
        return len(self._members)

    def members(self, host: int) -> tuple[int, ...]:
        """Give the ranks of a host, ascending."""
        return self._members[host]

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """Give the other ranks of a rank's host, from the next one on."""
        members = self._members[self.hosts[rank]]
        place = members.index(rank)
        return members[place + 1 :] + members[:place]

    def delegate(self, host: int, owner: int) -> int:
        """Give the rank of a host that handles the block of an owner.

        The owner itself on its own host. Elsewhere a rank on the NIC of the same number, where
        there is one, and of those one after the other, so that messages stay on their NICs and the
        ranks of a host share the work.
        """
        if self.hosts[owner] == host:
            return owner
        found = self._delegates.get((host, owner))
        if found is None:
            members = self._members[host]
            same = [rank for rank in members if self.nics[rank] == self.nics[owner]] or members
            home = self._members[self.hosts[owner]]
            # How many owners before this one on its host have the same ranks to choose from.
            before = [rank for rank in home if self.nics[rank] == self.nics[owner]] or home
            place = before.index(owner) if len(same) < len(members) else home.index(owner)
            found = same[place % len(same)]
            self._delegates[host, owner] = found
        return found

    def delegated(self, rank: int) -> tuple[int, ...]:
        """Give the owners on other hosts whose blocks a rank handles for its host.

        In the order of their hosts from the next one on, so that no two ranks turn to the same peer
        at once.
        """
        home = self.hosts[rank]
        return tuple(
            owner
            for host in self.hosts_after(home)
            for owner in self._members[host]
            if self.delegate(home, owner) == rank
        )

    def samples(self) -> tuple[int, ...]:
        """Give the ranks of one host of every shape: the others need no other memory."""
        shapes: dict[tuple[int, ...], int] = {}
        for host, members in enumerate(self._members):
            shapes.setdefault(tuple(self.nics[rank] for rank in members), host)
        if len(shapes) > 1:
            return tuple(range(self.world_size))
        return tuple(rank for host in shapes.values() for rank in self._members[host])

    def hosts_after(self, host: int) -> tuple[int, ...]:
        """Give the other hosts in their order, from the one after `host` on."""
        place = self.order.index(host)
        return self.order[place + 1 :] + self.order[:place]

    def delegates(self, owner: int) -> tuple[int, ...]:
        """Give who handles the block of an owner on the other hosts, from the next host on."""
        return tuple(self.delegate(host, owner) for host in self.hosts_after(self.hosts[owner]))


def make_hierarchy(topology: Topology) -> Hierarchy:
    """Give the hosts of a topology in an order that crosses links between switches least.

    Parameters
    ----------
    topology : Topology
        Of the communicator.

    Returns
    -------
    Hierarchy
        Hosts of one switch are next to each other.
    """
    switches: dict[str, int] = {}
    for host in topology.hosts:
        switches.setdefault(host.nics[0].switch if host.nics else "", len(switches))
    order = sorted(
        range(len(topology.hosts)),
        key=lambda host: (
            switches[topology.hosts[host].nics[0].switch if topology.hosts[host].nics else ""],
            host,
        ),
    )
    nics = tuple([placement.nic for placement in topology.placements])
    return Hierarchy(topology.hosts_by_rank, tuple(order), nics)
