"""Finds out which ranks have equal roles, from the plans of all ranks and nothing else.

Colour refinement: ranks and ports start with a colour for what they are (a plan's outline, a
port's bandwidth), and as long as that tells more apart, each takes a new colour made of its own and
those around it. A rank sees, for every peer in the order in which its plan names them, the peer's
colour, which of the peer's peers it is, and the colours of the ports between them; a port sees the
colours of all ranks that cross it, and how. What is left when nothing changes any more is the
coarsest partition in which equal ranks have equal surroundings, and so are at the same place at
every moment.

References
----------
C. Berkholz, P. Bonsma, M. Grohe: Tight lower and upper bounds for the complexity of canonical
colour refinement, Theory of Computing Systems 60, 2017 (colour refinement, equitable partitions).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from cocoll.errors import SimulationError
from cocoll.simulation.outline import USES, outline_plan
from cocoll.simulation.roles import Roles, WeightedPath, path_of

if TYPE_CHECKING:
    from cocoll.plan.ir import Plan
    from cocoll.topology.graph import Topology

__all__ = ["RefinedRoles", "refine_roles"]

# How a rank is tied to one of its peers: the peer, the rank's number among the peer's peers, and
# the ports on the ways that it uses to or from it.
_Tie = tuple[int, int, tuple[tuple[int, ...], ...]]


class RefinedRoles(Roles):
    """Classes of ranks and ports, as found by :func:`refine_roles`.

    Parameters
    ----------
    topology : Topology
        Where the ranks are.
    rank_colours, port_colours : sequence of int
        The class of each rank and each port.
    peers : sequence of tuple of int
        The ranks that each rank's plan names, in the order in which it does.
    """

    def __init__(
        self,
        topology: Topology,
        rank_colours: Sequence[int],
        port_colours: Sequence[int],
        peers: Sequence[tuple[int, ...]],
    ) -> None:
        first: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        for rank, colour in enumerate(rank_colours):
            first.setdefault(colour, rank)
            self._sizes[colour] = self._sizes.get(colour, 0) + 1
        super().__init__(topology, sorted(first.values()))
        self._rank_colours = rank_colours
        self._port_colours = port_colours
        self._first = first
        self._first_port: dict[int, int] = {}
        self._port_sizes: dict[int, int] = {}
        for port, colour in enumerate(port_colours):
            self._first_port.setdefault(colour, port)
            self._port_sizes[colour] = self._port_sizes.get(colour, 0) + 1
        self._peers = peers
        self._numbers: dict[int, dict[int, int]] = {}

    def representative(self, rank: int) -> int:
        """Give the lowest rank of the class."""
        return self._first[self._rank_colours[rank]]

    def class_size(self, rank: int) -> int:
        """Give how many ranks are in the class of `rank`."""
        return self._sizes[self._rank_colours[rank]]

    def counterpart(self, rank: int, other: int) -> int:
        """Give the peer that the representative names where `rank` names `other`.

        Raises
        ------
        SimulationError
            The plan of `rank` does not name `other`.
        """
        numbers = self._numbers.get(rank)
        if numbers is None:
            numbers = self._numbers[rank] = {
                peer: number for number, peer in enumerate(self._peers[rank])
            }
        if other not in numbers:
            raise SimulationError(
                f"rank {other} has a step with rank {rank}, whose plan never names rank {other}"
            )
        return self._peers[self.representative(rank)][numbers[other]]

    def weigh(self, use: str, rank: int, other: int) -> WeightedPath:
        """Give the path of a representative's bytes with its weights.

        Raises
        ------
        SimulationError
            The classes are not those of these plans.
        """
        path = path_of(self.topology, use, rank, other)
        size = self.class_size(rank)
        colours = [self._port_colours[port] for port in path.ports]
        ports, weights = [], []
        for colour in dict.fromkeys(colours):
            weight, rest = divmod(size * colours.count(colour), self._port_sizes[colour])
            if rest:
                raise SimulationError(
                    f"{size} flows like that from rank {rank} to rank {other} do not share "
                    f"{self._port_sizes[colour]} ports equally: these are the classes of other "
                    "plans or of another topology"
                )
            ports.append(self._first_port[colour])
            weights.append(weight)
        return WeightedPath(tuple(ports), tuple(weights), path.latency_nanoseconds)

    def spread(self, port_bytes: Mapping[int, int]) -> tuple[int, ...]:
        """Give the bytes on every port: what the first of its class has."""
        return tuple(port_bytes.get(self._first_port[colour], 0) for colour in self._port_colours)


def refine_roles(plans: Sequence[Plan], topology: Topology, count: int) -> RefinedRoles:
    """Find the classes of ranks that have equal roles.

    Parameters
    ----------
    plans : sequence of Plan
        Of all ranks, in rank order.
    topology : Topology
        Where they run.
    count : int
        Elements of the vector.

    Returns
    -------
    RefinedRoles
        The coarsest classes that are certainly equal; every rank alone where a chain of neighbours
        leads to something that is there only once (the root of a chain, one slow NIC in a ring).

    Notes
    -----
    Time grows with ranks, times peers of each, times rounds, of which a ring of n ranks needs up to
    n / 2.
    """
    outlines = [outline_plan(plan, count) for plan in plans]
    ports = topology.ports
    numbers = [{peer: index for index, peer in enumerate(one.peers)} for one in outlines]
    ties: list[list[_Tie]] = []
    latencies: list[list[list[int]]] = []
    # For each port, the ranks that cross it: by whose tie, in what use, where on the way.
    crossings: dict[int, list[tuple[int, tuple[int, int, int]]]] = {}
    for rank, outline in enumerate(outlines):
        own: list[_Tie] = []
        latencies.append([])
        for number, peer in enumerate(outline.peers):
            ways = []
            for index, use in enumerate(USES):
                if (use, number) in outline.uses:
                    path = path_of(topology, use, rank, peer)
                    ways.append(path)
                    for position, port in enumerate(path.ports):
                        crossings.setdefault(port, []).append((rank, (number, index, position)))
            if ("signal", number) in outline.uses:
                # A store into the peer's memory, too small to load a port.
                path = path_of(topology, "write", rank, peer)
                ways.append(path._replace(ports=()))
            own.append((peer, numbers[peer].get(rank, -1), tuple(way.ports for way in ways)))
            latencies[-1].append([way.latency_nanoseconds for way in ways])
        ties.append(own)
    rank_colours = _number(
        (outline.shape, topology.placements[rank].device is None, repr(latencies[rank]))
        for rank, outline in enumerate(outlines)
    )
    port_colours = _number((port.bandwidth_bytes_per_second, port.kind) for port in ports)
    while True:
        new_ranks = _number(
            (
                rank_colours[rank],
                tuple(
                    (
                        rank_colours[peer],
                        number,
                        tuple(tuple(port_colours[port] for port in way) for way in ways),
                    )
                    for peer, number, ways in own
                ),
            )
            for rank, own in enumerate(ties)
        )
        new_ports = _number(
            (
                port_colours[port],
                tuple(sorted((rank_colours[rank], how) for rank, how in crossings.get(port, ()))),
            )
            for port in range(len(ports))
        )
        # Each new colour contains the old one, so as many colours are the same classes.
        stable = max(new_ranks, default=0) == max(rank_colours, default=0) and max(
            new_ports, default=0
        ) == max(port_colours, default=0)
        rank_colours, port_colours = new_ranks, new_ports
        if stable:
            return RefinedRoles(
                topology, rank_colours, port_colours, [outline.peers for outline in outlines]
            )


def _number(things: Iterable[Hashable]) -> list[int]:
    """Give equal things equal numbers, in the order of their first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(thing, len(numbers)) for thing in things]
