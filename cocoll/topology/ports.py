"""The ports of a topology, one for each direction, numbered without an object for each.

Equal hosts have equal ports, so the ports of a host are described once for each distinct host and
found by arithmetic: 8,192 hosts of 41 ports cost one table of 41 and 8,192 offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, overload

if TYPE_CHECKING:
    from cocoll.topology.parts import Host, Link, Port

__all__ = ["HostPorts", "PortTable", "PortUse"]


class PortUse(NamedTuple):
    """One direction of something that saturates, or both where they share a bandwidth.

    Attributes
    ----------
    name : str
        For people: the host, the part and the direction.
    kind : str
        ``"nic_out"``, ``"nic_in"``, ``"memory"``, ``"device_memory"``, ``"device_out"``,
        ``"device_in"`` or ``"link"``; ``"nic"`` and ``"device"`` where the two directions of one
        share their bandwidth.
    bandwidth_bytes_per_second : int
        What crosses it at most.
    host : int or None
        Whose it is; None for a link between switches.
    """

    name: str
    kind: str
    bandwidth_bytes_per_second: int
    host: int | None


class HostPorts(NamedTuple):
    """The ports of one host, as offsets from its first.

    Attributes
    ----------
    rows : tuple of (str, str, int)
        Name, kind and bandwidth in bytes per second of each port.
    nic_out, nic_in : tuple of int
        For each NIC; one offset stands in both where the NIC is half duplex.
    memory : int
        Of the processors' memory.
    device_memory, device_out, device_in : tuple of int
        For each GPU.
    """

    rows: tuple[tuple[str, str, int], ...]
    nic_out: tuple[int, ...]
    nic_in: tuple[int, ...]
    memory: int
    device_memory: tuple[int, ...]
    device_out: tuple[int, ...]
    device_in: tuple[int, ...]

    @classmethod
    def describe(cls, host: Host) -> HostPorts:
        """Lay out the ports of a host: NICs, the processors' memory, GPUs."""
        rows: list[tuple[str, str, int]] = []
        nics = [_add_both_ways(rows, nic.name, "nic", nic.port) for nic in host.nics]
        memory = len(rows)
        rows.append(("memory", "memory", host.memory.bandwidth_bytes_per_second))
        device_memory, devices = [], []
        for number, device in enumerate(host.devices):
            device_memory.append(len(rows))
            rows.append((f"gpu{number} memory", "device_memory", device.memory_bytes_per_second))
            devices.append(_add_both_ways(rows, f"gpu{number}", "device", device.port))
        return cls(
            rows=tuple(rows),
            nic_out=tuple(out for out, _ in nics),
            nic_in=tuple(into for _, into in nics),
            memory=memory,
            device_memory=tuple(device_memory),
            device_out=tuple(out for out, _ in devices),
            device_in=tuple(into for _, into in devices),
        )


def _add_both_ways(
    rows: list[tuple[str, str, int]], name: str, kind: str, port: Port
) -> tuple[int, int]:
    first = len(rows)
    if port.duplex == "half":
        rows.append((name, kind, port.bandwidth_bytes_per_second))
        return first, first
    rows.append((f"{name} out", f"{kind}_out", port.bandwidth_bytes_per_second))
    rows.append((f"{name} in", f"{kind}_in", port.bandwidth_bytes_per_second))
    return first, first + 1


class PortTable(Sequence[PortUse]):
    """All ports in order: those of host 0, of host 1, ..., then those of the links.

    Parameters
    ----------
    hosts : sequence of Host
        In the topology's order; an object may stand there many times.
    names : sequence of str
        What to call each.
    links : sequence of Link
        In the topology's order.
    """

    def __init__(self, hosts: Sequence[Host], names: Sequence[str], links: Sequence[Link]) -> None:
        described: dict[int, HostPorts] = {}
        for host in hosts:
            if id(host) not in described:
                described[id(host)] = HostPorts.describe(host)
        self.of_host: list[HostPorts] = [described[id(host)] for host in hosts]
        counts = (len(ports.rows) for ports in self.of_host)
        #: The number of each host's first port; the last entry is that of the first link.
        self.first: list[int] = list(accumulate(counts, initial=0))
        self._names = names
        self._links: list[tuple[str, str, int]] = []
        #: The two directions of each link: from `one` to `other`, and back.
        self.of_link: list[tuple[int, int]] = []
        for link in links:
            start = self.first[-1] + len(self._links)
            rate = link.port.bandwidth_bytes_per_second
            if link.port.duplex == "half":
                self._links.append((f"{link.one} - {link.other}", "link", rate))
                self.of_link.append((start, start))
            else:
                self._links.append((f"{link.one} > {link.other}", "link", rate))
                self._links.append((f"{link.other} > {link.one}", "link", rate))
                self.of_link.append((start, start + 1))

    def __len__(self) -> int:
        return self.first[-1] + len(self._links)

    @overload
    def __getitem__(self, index: int) -> PortUse: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PortUse, ...]: ...
    def __getitem__(self, index: int | slice) -> PortUse | tuple[PortUse, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"wanted a port in [0, {len(self)}); got {index}")
        if number >= self.first[-1]:
            return PortUse(*self._links[number - self.first[-1]], None)
        host = bisect_right(self.first, number) - 1
        return self._use(host, number - self.first[host])

    def __iter__(self) -> Iterator[PortUse]:
        for host, ports in enumerate(self.of_host):
            for offset in range(len(ports.rows)):
                yield self._use(host, offset)
        for row in self._links:
            yield PortUse(*row, None)

    def bandwidths_bytes_per_second(self) -> tuple[int, ...]:
        """Give the bandwidth of every port, in order, faster than one by one."""
        rates: list[int] = []
        of_distinct: dict[int, list[int]] = {}
        for ports in self.of_host:
            if id(ports) not in of_distinct:
                of_distinct[id(ports)] = [rate for _, _, rate in ports.rows]
            rates += of_distinct[id(ports)]
        return (*rates, *(rate for _, _, rate in self._links))

    def _use(self, host: int, offset: int) -> PortUse:
        name, kind, rate = self.of_host[host].rows[offset]
        return PortUse(f"{self._names[host]} {name}", kind, rate, host)
