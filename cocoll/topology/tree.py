"""A topology as a tree that people read; equal hosts are shown once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from cocoll.topology.units import (
    format_bits_per_second,
    format_bytes_per_second,
    format_nanoseconds,
)

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology
    from cocoll.topology.parts import Host, Nic, Port

__all__ = ["format_topology"]

_Branch: TypeAlias = "tuple[str, list[_Branch]]"

_MOST_NAMES = 6


def format_topology(topology: Topology) -> str:
    """Draw a topology.

    Parameters
    ----------
    topology : Topology
        Whatever its size.

    Returns
    -------
    str
        Lines without an end: hosts (equal ones together), NUMA nodes with their NICs and GPUs,
        and ranks; then the links between switches.
    """
    hosts, ranks = _counted(len(topology.hosts), "host"), _counted(topology.world_size, "rank")
    lines = [f"{topology.name}: {hosts}, {ranks} ({topology.source})"]
    classes: dict[int, list[int]] = {}
    for number, equal in enumerate(topology.equal_hosts()):
        classes.setdefault(equal, []).append(number)
    for numbers in classes.values():
        lines += _draw(_host_branch(topology, numbers))
    for link in topology.links:
        lines.append(f"link {link.one} - {link.other}: {_network_port(link.port)}")
    return "\n".join(lines)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _draw(branch: _Branch, indent: str = "") -> list[str]:
    text, inner = branch
    lines = [text]
    for number, below in enumerate(inner):
        last = number + 1 == len(inner)
        drawn = _draw(below)
        lines.append(f"{indent}{'└── ' if last else '├── '}{drawn[0]}")
        lines += [f"{indent}{'    ' if last else '│   '}{line}" for line in drawn[1:]]
    return lines


def _host_branch(topology: Topology, numbers: Sequence[int]) -> _Branch:
    names = [topology.host_names[number] for number in numbers]
    title = _listed(names, contiguous=len(numbers) == numbers[-1] - numbers[0] + 1)
    if len(numbers) > 1:
        title += f" ({len(numbers)} equal hosts)"
    host = topology.hosts[numbers[0]]
    inner: list[_Branch] = [(f"memory: {_memory_port(host.memory)}", [])]
    nodes = [_node_parts(topology, numbers, node) for node in range(host.numa_nodes)]
    if len(nodes) == 1:
        inner += nodes[0]
    else:
        inner += [(f"NUMA node {number}", parts) for number, parts in enumerate(nodes) if parts]
    bare = [rank for rank in topology.members(numbers[0]) if _seat(topology, rank) is None]
    if bare:
        inner.append((_ranks(topology, numbers, bare), []))
    return title, inner


def _listed(names: Sequence[str], *, contiguous: bool) -> str:
    if len(names) < 3:
        return ", ".join(names)
    if contiguous:
        return f"{names[0]} .. {names[-1]}"
    shown = names if len(names) <= _MOST_NAMES else [*names[: _MOST_NAMES - 1], "...", names[-1]]
    return ", ".join(shown)


def _seat(topology: Topology, rank: int) -> int | None:
    """Give the NUMA node under which a rank is shown: its GPU's, or that of its NIC."""
    place = topology.placements[rank]
    host = topology.hosts[place.host]
    if place.device is not None:
        return host.devices[place.device].numa_node
    return host.nics[place.nic].numa_node if host.nics else None


def _node_parts(topology: Topology, numbers: Sequence[int], node: int) -> list[_Branch]:
    host, members = topology.hosts[numbers[0]], topology.members(numbers[0])
    places = {rank: topology.placements[rank] for rank in members}
    parts: list[_Branch] = []
    for index, nic in enumerate(host.nics):
        if nic.numa_node == node:
            plain = [r for r, seat in places.items() if seat.nic == index and seat.device is None]
            inner: list[_Branch] = [(_ranks(topology, numbers, plain), [])] if plain else []
            parts.append((f"NIC {nic.name}: {_nic(nic)}", inner))
    for index, device in enumerate(host.devices):
        if device.numa_node == node:
            on_it = [rank for rank, seat in places.items() if seat.device == index]
            inner = [(_ranks(topology, numbers, on_it, _nic_names(host, topology, on_it)), [])]
            port = device.port
            both = " both ways together" if port.duplex == "half" else " each way"
            rate = format_bytes_per_second(port.bandwidth_bytes_per_second)
            memory = format_bytes_per_second(device.memory_bytes_per_second)
            text = f"GPU {index}: {device.name}, memory {memory}, to other GPUs {rate}{both}"
            parts.append((text, inner if on_it else []))
    return parts


def _nic_names(host: Host, topology: Topology, ranks: Sequence[int]) -> str:
    if not host.nics:
        return ""
    used = dict.fromkeys(host.nics[topology.placements[rank].nic].name for rank in ranks)
    return f" over {', '.join(used)}"


def _ranks(
    topology: Topology, numbers: Sequence[int], ranks: Sequence[int], suffix: str = ""
) -> str:
    shown = _ranges(ranks)
    if len(numbers) > 1:
        # By position in the host: the ranks of the second host show how it goes on.
        members = topology.members(numbers[0])
        following = topology.members(numbers[1])
        more = [following[members.index(rank)] for rank in ranks]
        shown += f"; {_ranges(more)}; ..." if len(numbers) > 2 else f"; {_ranges(more)}"
        return f"ranks {shown}{suffix}"
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{suffix}"


def _ranges(ranks: Sequence[int]) -> str:
    """Write neighbouring ranks as a range."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in parts]
    if len(texts) > _MOST_NAMES:
        texts = [*texts[: _MOST_NAMES - 1], "...", texts[-1]]
    return ", ".join(texts)


def _memory_port(port: Port) -> str:
    return f"{format_bytes_per_second(port.bandwidth_bytes_per_second)}, read and write together"


def _network_port(port: Port) -> str:
    both = " both ways together" if port.duplex == "half" else ""
    rate = format_bits_per_second(port.bandwidth_bytes_per_second)
    return f"{rate}{both}, {format_nanoseconds(port.latency_nanoseconds)}"


def _nic(nic: Nic) -> str:
    return f"{_network_port(nic.port)}, switch {nic.switch}"
