"""A topology from its JSON form, which docs/topology.md describes."""

from __future__ import annotations

from typing import NamedTuple

from cocoll.errors import TopologyError
from cocoll.topology.assumptions import ASSUMED_MEMORY
from cocoll.topology.graph import Topology
from cocoll.topology.parts import Device, Duplex, Host, Link, Nic, Placement, Port
from cocoll.topology.reading import Node, read_located

__all__ = ["VERSION", "read_topology"]

#: Of the form; a file without a version is of this one.
VERSION = 1

_TOP = ("version", "name", "source", "comment", "hosts", "links")
_HOST = ("name", "count", "numa_nodes", "memory", "nics", "devices", "ranks")
_PORT = ("bandwidth_bytes_per_second", "latency_seconds", "duplex")
_MEMORY = ("bandwidth_bytes_per_second", "latency_seconds")
_NIC = ("name", *_PORT, "switch", "numa_node")
_DEVICE = ("name", "memory_bytes_per_second", *_PORT, "numa_node")
_LINK = ("one", "other", *_PORT)
_RANK = ("rank", "nic", "device")

# Beyond any machine that is built: a slip of a finger must not fill the memory.
_MOST = 2**22


class _Seat(NamedTuple):
    """One rank of a host, as the file has it; `rank` is None where it is numbered on."""

    rank: int | None
    nic: int
    device: int | None
    node: Node


def read_topology(text: str, where: str) -> Topology:
    """Read a topology from JSON.

    Parameters
    ----------
    text : str
        The JSON.
    where : str
        What messages call it: the name of the file.

    Returns
    -------
    Topology
        Hosts with a count are one object.

    Raises
    ------
    TopologyError
        It is no JSON or no topology; the message names the line and the field.
    """
    top = read_located(text, where)
    fields = top.fields(_TOP, required=("hosts",))
    if "version" in fields:
        fields["version"].choice(VERSION)
    for name in ("name", "source", "comment"):
        if name in fields:
            fields[name].text()
    if not fields["hosts"].items():
        raise fields["hosts"].error("at least one host", "an empty list")
    hosts: list[Host] = []
    # Which entry of the file each host comes from, and the seats of each host.
    entries: list[int] = []
    seats: list[list[_Seat]] = []
    ranks = 0
    for number, node in enumerate(fields["hosts"].items()):
        host, count, of_host = _read_host(node, len(hosts))
        ranks += count * len(of_host)
        if ranks > _MOST:
            raise node.problem(f"wanted at most {_MOST} ranks in all; got {ranks}")
        hosts += [host] * count
        entries += [number] * count
        seats += [of_host] * count
    links = [_read_link(link) for link in fields["links"].items()] if "links" in fields else []
    placements = _place(seats, fields["hosts"])
    source = f"file {where}"
    if "source" in fields:
        source += f" ({fields['source'].text()})"
    try:
        return Topology(
            name=fields["name"].text() if "name" in fields else where,
            hosts=tuple(hosts),
            placements=placements,
            links=tuple(links),
            source=source,
        )
    except TopologyError as error:
        raise _located(error, fields, entries) from None


def _read_host(node: Node, number: int) -> tuple[Host, int, list[_Seat]]:
    fields = node.fields(_HOST, required=("ranks",))
    count = fields["count"].number(1, _MOST) if "count" in fields else 1
    numa_nodes = fields["numa_nodes"].number(1, 4096) if "numa_nodes" in fields else 1
    nics = (
        [_read_nic(nic, numa_nodes) for nic in fields["nics"].items()] if "nics" in fields else []
    )
    names = [nic.name for nic in nics]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise fields["nics"].items()[index].value["name"].error("another name than the others'")
    devices = fields["devices"].items() if "devices" in fields else []
    host = Host(
        name=fields["name"].text() if "name" in fields else ("h" if count > 1 else f"h{number}"),
        memory=_read_port(fields["memory"], _MEMORY) if "memory" in fields else ASSUMED_MEMORY,
        nics=tuple(nics),
        devices=tuple([_read_device(device, numa_nodes) for device in devices]),
        numa_nodes=numa_nodes,
    )
    return host, count, _read_ranks(fields["ranks"], host, count)


def _read_port(node: Node, wanted: tuple[str, ...]) -> Port:
    fields = node.fields(wanted, required=("bandwidth_bytes_per_second",))
    duplex: Duplex = "full"
    if "duplex" in fields:
        duplex = fields["duplex"].choice("full", "half")
    return Port(
        fields["bandwidth_bytes_per_second"].rate(),
        fields["latency_seconds"].time() if "latency_seconds" in fields else 0,
        duplex,
    )


def _read_numa_node(fields: dict[str, Node], numa_nodes: int) -> int:
    return fields["numa_node"].number(0, numa_nodes - 1) if "numa_node" in fields else 0


def _read_nic(node: Node, numa_nodes: int) -> Nic:
    fields = node.fields(_NIC, required=("name", "bandwidth_bytes_per_second"))
    return Nic(
        name=fields["name"].text(),
        port=_read_port(node, _NIC),
        switch=fields["switch"].text() if "switch" in fields else "network",
        numa_node=_read_numa_node(fields, numa_nodes),
    )


def _read_device(node: Node, numa_nodes: int) -> Device:
    fields = node.fields(
        _DEVICE, required=("name", "memory_bytes_per_second", "bandwidth_bytes_per_second")
    )
    return Device(
        name=fields["name"].text(),
        memory_bytes_per_second=fields["memory_bytes_per_second"].rate(),
        port=_read_port(node, _DEVICE),
        numa_node=_read_numa_node(fields, numa_nodes),
    )


def _read_link(node: Node) -> Link:
    fields = node.fields(_LINK, required=("one", "other", "bandwidth_bytes_per_second"))
    one, other = fields["one"].text(), fields["other"].text()
    if one == other:
        raise fields["other"].error(f"another switch than {one}")
    return Link(one, other, _read_port(node, _LINK))


def _read_ranks(node: Node, host: Host, count: int) -> list[_Seat]:
    if type(node.value) is int:
        given = [node] * node.number(1, _MOST)
    else:
        given = node.items()
        if not given:
            raise node.error("at least one rank", "an empty list")
    seats = []
    for index, item in enumerate(given):
        fields = item.fields(_RANK) if isinstance(item.value, dict) else {}
        numbered = fields.get("rank")
        if item is not node and not isinstance(item.value, dict):
            numbered = item
        rank = None if numbered is None else numbered.number(0, _MOST)
        if numbered is not None and count > 1:
            raise numbered.problem("ranks of hosts with a count are numbered on: leave it out")
        nic, device = _read_seat_nic(fields, host, index), _read_gpu(fields, host, index)
        seats.append(_Seat(rank, nic, device, item))
    return seats


def _read_seat_nic(fields: dict[str, Node], host: Host, index: int) -> int:
    if "nic" not in fields:
        return index % max(1, len(host.nics))
    node, names = fields["nic"], [nic.name for nic in host.nics]
    if not names:
        raise node.error("no NIC, for the host has none")
    return names.index(node.choice(*names))


def _read_gpu(fields: dict[str, Node], host: Host, index: int) -> int | None:
    count = len(host.devices)
    if "device" not in fields:
        return index % count if count else None
    node = fields["device"]
    if node.value is None:
        return None
    if not count:
        raise node.error("null, for the host has no device")
    return node.number(0, count - 1)


def _place(seats: list[list[_Seat]], hosts: Node) -> tuple[Placement, ...]:
    """Give ranks without a number the next one, and see that each stands once."""
    placed: dict[int, Placement] = {}
    following = 0
    for host, of_host in enumerate(seats):
        for seat in of_host:
            rank = following if seat.rank is None else seat.rank
            if rank in placed:
                raise seat.node.problem(f"rank {rank} stands on another host or place already")
            placed[rank] = Placement(host, seat.nic, seat.device)
            following = max(following, rank + 1)
    missing = next((rank for rank in range(following) if rank not in placed), None)
    if missing is not None:
        raise hosts.problem(
            f"wanted a place for each rank in [0, {following}); rank {missing} has none"
        )
    return tuple([placed[rank] for rank in range(following)])


def _located(error: TopologyError, fields: dict[str, Node], entries: list[int]) -> TopologyError:
    """Say the line and the field of what is wrong with the topology as a whole."""
    name, _, index = error.fields.get("field", "hosts").partition("[")
    node = fields["hosts"] if name not in fields else fields[name]
    if index:
        number = int(index.rstrip("]"))
        node = node.items()[entries[number] if name == "hosts" else number]
    located = node.problem(error.message)
    return TopologyError(located.message, **{**error.fields, **located.fields})
