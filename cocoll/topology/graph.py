"""The graph of a job: hosts, their ports, the switches between them, and where each rank is.

Planners and the simulator ask it two things: what a message from one rank to another crosses
(`Topology.path`), and what bytes cross that a rank reads or writes in mapped memory
(`Topology.memory_path`). Both answers are directed ports, which is what saturates.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as FilePath
from typing import NamedTuple

from cocoll.errors import RankError, TopologyError
from cocoll.topology.checking import (
    check_links,
    check_placements,
    check_reach,
    switches_of,
    without_dead_ends,
)
from cocoll.topology.parts import Device, Duplex, Host, Link, Nic, Placement, Port
from cocoll.topology.ports import PortTable, PortUse
from cocoll.topology.switches import SwitchGraph

__all__ = [
    "Device",
    "Duplex",
    "Host",
    "Link",
    "Nic",
    "Path",
    "Placement",
    "Port",
    "PortUse",
    "Topology",
]


class Path(NamedTuple):
    """What bytes cross from one place to another.

    Attributes
    ----------
    ports : tuple of int
        Directed ports, numbers of `Topology.ports`.
    latency_nanoseconds : int
        Of all of them together.
    """

    ports: tuple[int, ...]
    latency_nanoseconds: int


@dataclass(frozen=True)
class Topology:
    """Where the ranks of a job are, and what joins them. Immutable, checked when it is made.

    Two are equal where all but `source` is. Ports are numbered host by host (each NIC out and in,
    the memory of the processors, each GPU's memory, out and in), the links last.

    Parameters
    ----------
    name : str
        For people.
    hosts : sequence of Host
        Equal ones may be one object.
    placements : sequence of Placement
        Of each rank, in rank order.
    links : sequence of Link
        Between switches.
    source : str
        Where it comes from, for people: ``"preset dgx2:16"``, ``"file cluster.json"``.

    Raises
    ------
    TopologyError
        A rank is placed on a host, NIC or GPU that is not there, a host has no rank, a link leads
        nowhere, or two ranks of different hosts cannot reach each other.
    """

    name: str
    hosts: tuple[Host, ...]
    placements: tuple[Placement, ...]
    links: tuple[Link, ...] = ()
    source: str = field(default="given", compare=False)

    def __post_init__(self) -> None:
        for name in ("hosts", "placements", "links"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_placements(self)
        check_links(self)
        check_reach(self)

    def __hash__(self) -> int:
        return hash(self.digest())

    # --- Ranks and hosts. ---

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.placements)

    @cached_property
    def hosts_by_rank(self) -> tuple[int, ...]:
        """The host of every rank; one object, however often it is asked for."""
        return tuple([placement.host for placement in self.placements])

    def host_of(self, rank: int) -> int:
        """Give the host of a rank."""
        self._check_rank(rank)
        return self.placements[rank].host

    def members(self, host: int) -> tuple[int, ...]:
        """Give the ranks of a host, in rank order."""
        if not 0 <= host < len(self.hosts):
            raise TopologyError(f"wanted a host in [0, {len(self.hosts)}); got {host}")
        return self._members[host]

    @cached_property
    def _members(self) -> list[tuple[int, ...]]:
        members: list[list[int]] = [[] for _ in self.hosts]
        for rank, placement in enumerate(self.placements):
            members[placement.host].append(rank)
        return [tuple(ranks) for ranks in members]

    @cached_property
    def host_names(self) -> tuple[str, ...]:
        """What to call each host: its name, with its number where several have that name."""
        times: dict[str, int] = {}
        for host in self.hosts:
            times[host.name] = times.get(host.name, 0) + 1
        return tuple(
            host.name if times[host.name] == 1 else f"{host.name}{number}"
            for number, host in enumerate(self.hosts)
        )

    def equal_hosts(self) -> tuple[int, ...]:
        """Give the class of every host, numbered from 0 in order of appearance.

        Hosts of one class have equal ports, equally many ranks with equal NICs and GPUs by local
        index, and NICs on the same switches. Names do not matter, except those of switches.

        Returns
        -------
        tuple of int
            Of each host.
        """
        return self._classes

    @cached_property
    def _classes(self) -> tuple[int, ...]:
        nameless: dict[int, object] = {}
        classes: dict[object, int] = {}
        found = []
        for host, ranks in zip(self.hosts, self._members, strict=True):
            if id(host) not in nameless:
                nameless[id(host)] = _nameless(host)
            places = tuple([(self.placements[r].nic, self.placements[r].device) for r in ranks])
            found.append(classes.setdefault((nameless[id(host)], places), len(classes)))
        return tuple(found)

    # --- Ports and paths. ---

    @cached_property
    def ports(self) -> PortTable:
        """All directed ports, a sequence of `PortUse`; each is made when it is looked at."""
        return PortTable(self.hosts, self.host_names, self.links)

    @cached_property
    def bandwidths_bytes_per_second(self) -> tuple[int, ...]:
        """The bandwidth of every port, in order."""
        return self.ports.bandwidths_bytes_per_second()

    @cached_property
    def switches(self) -> SwitchGraph:
        """The switches and the links between them."""
        return SwitchGraph(self.links, self.ports.of_link)

    def path(self, source_rank: int, destination_rank: int) -> Path:
        """Give what a message crosses.

        Parameters
        ----------
        source_rank, destination_rank : int
            From whom to whom.

        Returns
        -------
        Path
            The NIC of the source, the links between the switches, the NIC of the destination. On
            one host: what the destination's reads of the source's memory cross.

        Raises
        ------
        RankError
            There is no such rank.
        """
        self._check_rank(source_rank)
        self._check_rank(destination_rank)
        source, destination = self.placements[source_rank], self.placements[destination_rank]
        if source.host == destination.host:
            return self.memory_path(destination_rank, source_rank)
        ports = self.ports
        leaving = self.hosts[source.host].nics[source.nic]
        arriving = self.hosts[destination.host].nics[destination.nic]
        out = ports.first[source.host] + ports.of_host[source.host].nic_out[source.nic]
        into = (
            ports.first[destination.host] + ports.of_host[destination.host].nic_in[destination.nic]
        )
        latency_nanoseconds = leaving.port.latency_nanoseconds + arriving.port.latency_nanoseconds
        if leaving.switch == arriving.switch:
            return Path((out, into), latency_nanoseconds)
        route = self.switches.route(leaving.switch, arriving.switch)
        return Path((out, *route.ports, into), latency_nanoseconds + route.latency_nanoseconds)

    def memory_path(self, reader_rank: int, owner_rank: int, *, write: bool = False) -> Path:
        """Give what bytes cross that a rank reads, or writes, in a rank's mapped memory.

        Parameters
        ----------
        reader_rank : int
            Who reads or writes.
        owner_rank : int
            Whose memory; a rank of the same host.
        write : bool, default False
            Whether bytes go the other way.

        Returns
        -------
        Path
            The memory of the host's processors; between ranks on GPUs the GPU's own memory, or the
            ports of both GPUs.

        Raises
        ------
        RankError
            There is no such rank.
        TopologyError
            The ranks are on different hosts.
        """
        self._check_rank(reader_rank)
        self._check_rank(owner_rank)
        reader, owner = self.placements[reader_rank], self.placements[owner_rank]
        if reader.host != owner.host:
            raise TopologyError(
                f"ranks {reader_rank} and {owner_rank} are on hosts {self.host_names[reader.host]} "
                f"and {self.host_names[owner.host]}, which map no memory of each other"
            )
        host, ports = self.hosts[reader.host], self.ports.of_host[reader.host]
        first = self.ports.first[reader.host]
        if reader.device is None or owner.device is None:
            return Path((first + ports.memory,), host.memory.latency_nanoseconds)
        if reader.device == owner.device:
            return Path((first + ports.device_memory[owner.device],), 0)
        start, end = owner.device, reader.device
        if write:
            start, end = end, start
        ends = host.devices[start].port, host.devices[end].port
        return Path(
            (first + ports.device_out[start], first + ports.device_in[end]),
            ends[0].latency_nanoseconds + ends[1].latency_nanoseconds,
        )

    # --- Other forms. ---

    def subset(self, ranks: Iterable[int]) -> Topology:
        """Give the topology of some of the ranks, as a communicator of them sees it.

        Parameters
        ----------
        ranks : iterable of int
            Different ranks; the first becomes rank 0.

        Returns
        -------
        Topology
            Hosts without any of them are left out, and so are links that lead nowhere then. The
            others keep their order.

        Raises
        ------
        RankError
            There is no such rank, a rank is named twice, or none is named.
        """
        chosen = list(ranks)
        for rank in chosen:
            self._check_rank(rank)
        if not chosen or len(set(chosen)) != len(chosen):
            raise RankError(f"wanted different ranks, at least one; got {chosen}")
        kept = sorted({self.placements[rank].host for rank in chosen})
        number = {host: new for new, host in enumerate(kept)}
        placements = []
        for rank in chosen:
            old = self.placements[rank]
            placements.append(Placement(number[old.host], old.nic, old.device))
        hosts = tuple([self.hosts[host] for host in kept])
        links = without_dead_ends(self.links, switches_of(hosts))
        return Topology(self.name, hosts, tuple(placements), links, self.source)

    def to_json(self) -> str:
        """Write it as JSON that `from_json`, ``COCOLL_TOPOLOGY`` and ``cocoll topo`` read."""
        from cocoll.topology.writing import write_topology

        return write_topology(self)

    @classmethod
    def from_json(cls, text: str, where: str | FilePath = "topology") -> Topology:
        """Read it from JSON; docs/topology.md describes the form.

        Parameters
        ----------
        text : str
            The JSON.
        where : str or Path, default "topology"
            What messages call it: the name of the file.

        Returns
        -------
        Topology
            With ``"file WHERE"`` as its source.

        Raises
        ------
        TopologyError
            It is no JSON, or no topology; the message names the line and the field.
        """
        from cocoll.topology.json_form import read_topology

        return read_topology(text, str(where))

    def digest(self) -> str:
        """Give 32 hexadecimal digits that are equal where planners cannot tell two apart.

        Names do not matter: those of hosts, NICs, GPUs, switches, the topology's own, its source.
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        switches: dict[str, int] = {}
        nameless: dict[int, str] = {}
        state = hashlib.blake2b(digest_size=16)
        for host in self.hosts:
            if id(host) not in nameless:
                attached = [switches.setdefault(nic.switch, len(switches)) for nic in host.nics]
                nameless[id(host)] = repr((_nameless(host, switches=False), attached))
            state.update(f"{nameless[id(host)]}\n".encode())
        for link in self.links:
            ends = [switches.setdefault(end, len(switches)) for end in (link.one, link.other)]
            state.update(f"{ends} {link.port}\n".encode())
        places = array("q")
        for placement in self.placements:
            device = -1 if placement.device is None else placement.device
            places.extend((placement.host, placement.nic, device))
        state.update(places.tobytes())
        return state.hexdigest()

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < len(self.placements):
            raise RankError(f"wanted a rank in [0, {len(self.placements)}); got {rank}")


def _nameless(host: Host, *, switches: bool = True) -> object:
    return (
        host.memory,
        tuple((nic.port, nic.switch if switches else "", nic.numa_node) for nic in host.nics),
        tuple((gpu.memory_bytes_per_second, gpu.port, gpu.numa_node) for gpu in host.devices),
        host.numa_nodes,
    )
