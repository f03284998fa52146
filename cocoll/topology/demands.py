"""What must leave and enter a place in a collective, and how places can best share the rest.

A place is a host, a GPU or one side of the network. Equal places are described once, with their
number: thousands of hosts are a few kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, get_args

from cocoll.errors import RankError, UsageError

if TYPE_CHECKING:
    from cocoll.topology.cost import CollectiveKind
    from cocoll.topology.graph import Topology

__all__ = ["Demand", "Door", "HostKind", "Place", "Work", "describe_work", "spread", "spread_both"]


class Door(NamedTuple):
    """A port through which bytes enter and leave a place.

    Attributes
    ----------
    out, into : int
        Its directions, counted from the host's first port; equal where it is half duplex.
    bytes_per_second : int
        Of each direction, or of both together.
    """

    out: int
    into: int
    bytes_per_second: int


@dataclass(slots=True)
class Place:
    """Some ranks with memory in common, and how many such places there are.

    Attributes
    ----------
    times : int
        How many equal ones.
    ranks : int
        In each.
    block_bytes : int
        Of their blocks of the vector together.
    has_root : bool
        Whether the root is one of them.
    doors : list of Door
        By which bytes enter and leave.
    """

    times: int = 1
    ranks: int = 0
    block_bytes: int = 0
    has_root: bool = False
    doors: list[Door] = field(default_factory=list)

    @property
    def capacity_bytes_per_second(self) -> int:
        """What enters, or leaves, at most."""
        return sum(door.bytes_per_second for door in self.doors)

    @property
    def half(self) -> bool:
        """Whether what enters and what leaves share their bandwidth."""
        return all(door.out == door.into for door in self.doors)

    @property
    def full(self) -> bool:
        """Whether they share nothing."""
        return all(door.out != door.into for door in self.doors)

    def add(self, other: Place, times: int = 1) -> None:
        """Take in the ranks of other places; doors are left as they are."""
        self.ranks += other.ranks * times
        self.block_bytes += other.block_bytes * times
        self.has_root |= other.has_root


@dataclass(slots=True)
class HostKind:
    """Hosts that bytes cannot tell apart.

    Attributes
    ----------
    host : int
        One of them.
    place : Place
        What they are; their doors are the NICs that carry messages.
    switches : set of str
        What these are plugged into.
    processors : int
        How many of a host's ranks compute on processors.
    devices : list of (Door, Place)
        Of each GPU with a rank: its port to the others, and the place that it is, with that port
        and the NICs of its ranks as doors.
    """

    host: int
    place: Place
    switches: set[str] = field(default_factory=set)
    processors: int = 0
    devices: list[tuple[Door, Place]] = field(default_factory=list)


class Demand(NamedTuple):
    """What each of some places must at least send and receive.

    Attributes
    ----------
    out, into : list of int
        Of each place, in bytes.
    total : int
        What all of them together must send, and so receive.
    """

    out: list[int]
    into: list[int]
    total: int


class Work:
    """One collective on one topology.

    Parameters
    ----------
    kind : str
        Which.
    topology : Topology
        Where.
    nbytes : int
        The size of the whole vector.
    root : int
        Of a broadcast.
    """

    def __init__(self, kind: CollectiveKind, topology: Topology, nbytes: int, root: int) -> None:
        self.kind = kind
        self.topology = topology
        self.nbytes = nbytes
        self.root = root
        self.kinds: list[HostKind] = []
        #: The index in `kinds` of every host.
        self.kind_of_host: list[int] = []
        known: dict[object, int] = {}
        for host, equal in enumerate(topology.equal_hosts()):
            ranks = topology.members(host)
            place = root - ranks[0] if topology.hosts_by_rank[root] == host else None
            key = (equal, tuple(map(self._block_bytes, ranks)), place)
            if key not in known:
                known[key] = len(self.kinds)
                self.kinds.append(self._describe(host))
            else:
                self._count(self.kinds[known[key]])
            self.kind_of_host.append(known[key])

    @property
    def several_hosts(self) -> bool:
        """Whether there is a network to cross."""
        return len(self.topology.hosts) > 1

    @property
    def hosts(self) -> list[Place]:
        """What the hosts are, in the order of `kinds`."""
        return [kind.place for kind in self.kinds]

    def _block_bytes(self, rank: int) -> int:
        length = -(-self.nbytes // self.topology.world_size)
        return max(0, min(length, self.nbytes - rank * length))

    def _count(self, kind: HostKind) -> None:
        for place in (kind.place, *(device for _, device in kind.devices)):
            place.times += 1

    def _describe(self, number: int) -> HostKind:
        host, ports = self.topology.hosts[number], self.topology.ports.of_host[number]
        kind = HostKind(number, Place())
        devices = {}
        for gpu, device in enumerate(host.devices):
            rate = device.port.bandwidth_bytes_per_second
            door = Door(ports.device_out[gpu], ports.device_in[gpu], rate)
            devices[gpu] = (door, Place(doors=[door]))
        for rank in self.topology.members(number):
            seat = self.topology.placements[rank]
            one = Place(ranks=1, block_bytes=self._block_bytes(rank), has_root=rank == self.root)
            places = [kind.place]
            if seat.device is None:
                kind.processors += 1
            else:
                places.append(devices[seat.device][1])
            for place in places:
                place.add(one)
                if self.several_hosts:
                    nic = host.nics[seat.nic]
                    rate = nic.port.bandwidth_bytes_per_second
                    door = Door(ports.nic_out[seat.nic], ports.nic_in[seat.nic], rate)
                    kind.switches.add(nic.switch)
                    if door not in place.doors:
                        place.doors.append(door)
        kind.devices = [device for device in devices.values() if device[1].ranks]
        return kind

    def demand(self, places: Sequence[Place]) -> Demand:
        """Give what each of the places must send and receive, if together they are all ranks.

        A place must give out what others lack and only it has, and take in what it lacks.
        """
        count, size = sum(place.times for place in places), self.nbytes
        blocks = [place.block_bytes for place in places]
        others = [size - block for block in blocks]
        if count < 2:
            return Demand([0] * len(places), [0] * len(places), 0)
        if self.kind == "broadcast":
            out = [size if place.has_root else 0 for place in places]
            return Demand(out, [size - leaving for leaving in out], (count - 1) * size)
        if self.kind == "allgather":
            return Demand(blocks, others, (count - 1) * size)
        if self.kind == "reduce_scatter":
            return Demand(others, blocks, (count - 1) * size)
        every = [size] * len(places)
        return Demand(every, every, 2 * (count - 1) * size)

    def accessed_bytes(self, kind: HostKind, *, replicated: bool) -> int:
        """Give what a host's processors read and write at least, where the call is in place."""
        ranks, size = kind.processors, self.nbytes
        if not ranks or self.topology.world_size == 1:
            return 0
        results = size if replicated else ranks * size
        if self.kind == "allreduce":
            return ranks * size + results
        if self.kind == "reduce_scatter":
            return ranks * size + (0 if kind.devices else kind.place.block_bytes)
        return results

    def cuts(self) -> Iterator[tuple[frozenset[str], Place, Place, tuple[int, ...]]]:
        """Give the cuts of the network that leave each host on one side.

        Yields
        ------
        tuple
            The switches inside, both sides as places, and the links between them.
        """
        used = sorted(set().union(*(kind.switches for kind in self.kinds)))
        for cut in self.topology.switches.cuts(used) if self.topology.links else ():
            inside, outside = Place(), Place()
            for kind in self.kinds:
                if kind.switches <= cut.inside:
                    inside.add(kind.place, kind.place.times)
                elif kind.switches.isdisjoint(cut.inside):
                    outside.add(kind.place, kind.place.times)
                else:
                    break
            else:
                if inside.ranks and outside.ranks:
                    yield cut.inside, inside, outside, cut.links


def describe_work(kind: CollectiveKind, topology: Topology, nbytes: int, root: int) -> Work:
    """Check what is asked for and describe it.

    Raises
    ------
    UsageError
        There is no such collective, or `nbytes` is negative.
    RankError
        There is no such root.
    """
    from cocoll.topology.cost import CollectiveKind

    known = get_args(CollectiveKind)
    if kind not in known:
        raise UsageError(f"wanted a collective out of {', '.join(known)}; got {kind!r}")
    if nbytes < 0:
        raise UsageError(f"wanted at least 0 bytes; got {nbytes}")
    if not 0 <= root < topology.world_size:
        raise RankError(f"wanted a root in [0, {topology.world_size}); got {root}")
    return Work(kind, topology, nbytes, root)


def spread_both(places: Sequence[Place], demand: Demand) -> tuple[list[Fraction], list[Fraction]]:
    """Give what each place sends and receives where the busiest is as idle as it can be.

    Parameters
    ----------
    places : sequence of Place
        All of them.
    demand : Demand
        What they must.

    Returns
    -------
    tuple of lists of Fraction
        Out and in. Where all places are half duplex, the first has both together and the second
        nothing; where only some are, what is above the least of each place is left out.
    """
    rates = [place.capacity_bytes_per_second for place in places]
    times = [place.times for place in places]
    if all(place.full for place in places):
        return (
            spread(demand.out, rates, times, demand.total),
            spread(demand.into, rates, times, demand.total),
        )
    if all(place.half for place in places):
        both = [out + into for out, into in zip(demand.out, demand.into, strict=True)]
        return spread(both, rates, times, 2 * demand.total), [Fraction(0)] * len(places)
    return [Fraction(out) for out in demand.out], [Fraction(into) for into in demand.into]


def spread(
    least: Sequence[int], rates: Sequence[int], times: Sequence[int], total: int
) -> list[Fraction]:
    """Share a total so that the longest time, bytes over rate, is as short as it can be.

    Parameters
    ----------
    least : sequence of int
        What each must take.
    rates : sequence of int
        How fast each is.
    times : sequence of int
        How many there are of each.
    total : int
        What all must take together.

    Returns
    -------
    list of Fraction
        What each takes: the same time for all, but for those whose least takes longer. The sum is
        `total`, or that of `least` where it is more.
    """
    missing = total - sum(each * count for each, count in zip(least, times, strict=True))
    if missing <= 0:
        return [Fraction(each) for each in least]
    # Those that are ready first fill up first, until the time of the next ones is reached.
    order = sorted(range(len(least)), key=lambda index: Fraction(least[index], rates[index]))
    taken, speed = 0, 0
    level = Fraction(0)
    for index, following in zip(order, [*order[1:], None], strict=True):
        taken += least[index] * times[index]
        speed += rates[index] * times[index]
        level = Fraction(missing + taken, speed)
        if following is None or level <= Fraction(least[following], rates[following]):
            break
    return [max(Fraction(each), rate * level) for each, rate in zip(least, rates, strict=True)]
