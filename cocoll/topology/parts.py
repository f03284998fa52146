"""What a topology is made of: ports, NICs, GPUs, hosts, links, and where ranks are placed.

Everything here is plain immutable data, checked when it is made. Rates are bytes per second and
latencies nanoseconds, both whole numbers, so that costs are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from cocoll.errors import TopologyError

__all__ = ["Device", "Duplex", "Host", "Link", "Nic", "Placement", "Port"]

Duplex: TypeAlias = Literal["full", "half"]


def _check_number(what: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TopologyError(f"{what}: wanted a whole number of at least {least}; got {value!r}")


def _check_name(what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise TopologyError(f"{what}: wanted a name; got {value!r}")


@dataclass(frozen=True, slots=True)
class Port:
    """Something that saturates: bytes cross it at no more than its bandwidth.

    Attributes
    ----------
    bandwidth_bytes_per_second : int
        Of each direction where the port is full duplex, of both together where it is half.
    latency_nanoseconds : int
        What crossing it adds to the time of a message. A message crosses the NICs of both ends, so
        each NIC has half of what a ping-pong shows for one way.
    duplex : {"full", "half"}
        Whether the two directions have a bandwidth each, or share one.
    """

    bandwidth_bytes_per_second: int
    latency_nanoseconds: int = 0
    duplex: Duplex = "full"

    def __post_init__(self) -> None:
        _check_number("bandwidth_bytes_per_second", self.bandwidth_bytes_per_second, 1)
        _check_number("latency_nanoseconds", self.latency_nanoseconds, 0)
        if self.duplex not in ("full", "half"):
            raise TopologyError(f'duplex: wanted "full" or "half"; got {self.duplex!r}')


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface of a host.

    Attributes
    ----------
    name : str
        As the host calls it.
    port : Port
        What it carries, out and in.
    switch : str
        What it is plugged into. NICs on one switch reach each other at full rate; a switch stands
        for a whole network wherever that never saturates itself.
    numa_node : int
        The NUMA node of the host that it hangs on.
    """

    name: str
    port: Port
    switch: str = "network"
    numa_node: int = 0

    def __post_init__(self) -> None:
        _check_name("name of a NIC", self.name)
        _check_name(f"switch of NIC {self.name}", self.switch)
        _check_number(f"numa_node of NIC {self.name}", self.numa_node, 0)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of a host.

    Attributes
    ----------
    name : str
        As people call it.
    memory_bytes_per_second : int
        What its own memory reads and writes together.
    port : Port
        What joins it to the other GPUs of its host (NVLink, else PCIe). All GPUs of a host reach
        each other at full rate.
    numa_node : int
        The NUMA node of the host that it hangs on.
    """

    name: str
    memory_bytes_per_second: int
    port: Port
    numa_node: int = 0

    def __post_init__(self) -> None:
        _check_name("name of a device", self.name)
        _check_number(f"memory_bytes_per_second of {self.name}", self.memory_bytes_per_second, 1)
        _check_number(f"numa_node of {self.name}", self.numa_node, 0)


@dataclass(frozen=True, slots=True)
class Host:
    """Ranks that map each other's memory live on one host.

    A host is what shares memory: one machine, or a rack of machines whose GPUs form one NVLink
    domain. Equal hosts may be one object, however often it stands in `Topology.hosts`.

    Attributes
    ----------
    name : str
        For people. Where several hosts have one name, they are told apart by their numbers.
    memory : Port
        The memory of its processors; always half duplex, for reads and writes share it.
    nics : tuple of Nic
        May be empty where there is one host.
    devices : tuple of Device
        Its GPUs.
    numa_nodes : int
        How many NUMA nodes it has.
    """

    name: str
    memory: Port
    nics: tuple[Nic, ...] = ()
    devices: tuple[Device, ...] = ()
    numa_nodes: int = 1

    def __post_init__(self) -> None:
        _check_name("name of a host", self.name)
        _check_number(f"numa_nodes of host {self.name}", self.numa_nodes, 1)
        object.__setattr__(self, "nics", tuple(self.nics))
        object.__setattr__(self, "devices", tuple(self.devices))
        if self.memory.duplex != "half":
            object.__setattr__(self, "memory", replace(self.memory, duplex="half"))
        parts: list[Nic | Device] = [*self.nics, *self.devices]
        for part in parts:
            if part.numa_node >= self.numa_nodes:
                raise TopologyError(
                    f"{part.name} of host {self.name}: wanted a numa_node below {self.numa_nodes}; "
                    f"got {part.numa_node}"
                )
        names = [nic.name for nic in self.nics]
        for name in names:
            if names.count(name) > 1:
                raise TopologyError(f"host {self.name}: two NICs are called {name}")


@dataclass(frozen=True, slots=True)
class Link:
    """What joins two switches.

    Attributes
    ----------
    one, other : str
        The switches.
    port : Port
        What it carries, each way where it is full duplex.
    """

    one: str
    other: str
    port: Port

    def __post_init__(self) -> None:
        _check_name("one end of a link", self.one)
        _check_name("the other end of a link", self.other)
        if self.one == self.other:
            raise TopologyError(f"wanted a link between two switches; got both ends at {self.one}")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a rank is.

    Attributes
    ----------
    host : int
        Its host, an index of `Topology.hosts`.
    nic : int
        The NIC of that host that carries its messages; 0 where the host has none.
    device : int or None
        Its GPU, None for a rank that computes on processors.
    """

    host: int
    nic: int = 0
    device: int | None = None
