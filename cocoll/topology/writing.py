"""A topology to its JSON form, which docs/topology.md describes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cocoll.topology.json_form import VERSION

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology
    from cocoll.topology.parts import Host, Port

__all__ = ["write_topology"]

_WIDTH = 100


def write_topology(topology: Topology) -> str:
    """Write a topology as JSON; `read_topology` gives an equal one.

    Parameters
    ----------
    topology : Topology
        Whatever its size: equal neighbours are written once, with a count.

    Returns
    -------
    str
        Lines, the last one ended.
    """
    fields: dict[str, Any] = {"version": VERSION, "name": topology.name, "source": topology.source}
    fields["hosts"] = _hosts(topology)
    if topology.links:
        fields["links"] = [
            {"one": link.one, "other": link.other, **_port(link.port)} for link in topology.links
        ]
    return _laid_out(fields, 0) + "\n"


def _hosts(topology: Topology) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    last: tuple[Host, object] | None = None
    following = 0
    for number, host in enumerate(topology.hosts):
        ranks = topology.members(number)
        numbered_on = ranks == tuple(range(following, following + len(ranks)))
        following = max(following, ranks[-1] + 1)
        seats = _seats(topology, host, ranks, numbered_on)
        # Identity first: equal hosts of a preset are one object, and there are thousands.
        if numbered_on and last and (last[0] is host or last[0] == host) and last[1] == seats:
            written[-1]["count"] = written[-1].get("count", 1) + 1
            continue
        last = (host, seats) if numbered_on else None
        written.append({**_host(host), "ranks": seats})
    return [_with_count_second(entry) for entry in written]


def _with_count_second(entry: dict[str, Any]) -> dict[str, Any]:
    if "count" not in entry:
        return entry
    return {"name": entry["name"], "count": entry["count"], **entry}


def _seats(topology: Topology, host: Host, ranks: tuple[int, ...], numbered_on: bool) -> Any:
    seats = []
    for index, rank in enumerate(ranks):
        place = topology.placements[rank]
        seat: dict[str, Any] = {} if numbered_on else {"rank": rank}
        if place.nic != index % max(1, len(host.nics)):
            seat["nic"] = host.nics[place.nic].name
        if place.device != (index % len(host.devices) if host.devices else None):
            seat["device"] = place.device
        seats.append(seat)
    if any(seat.keys() - {"rank"} for seat in seats):
        return seats
    return len(ranks) if numbered_on else list(ranks)


def _host(host: Host) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": host.name}
    if host.numa_nodes != 1:
        fields["numa_nodes"] = host.numa_nodes
    memory = _port(host.memory)
    memory.pop("duplex")
    fields["memory"] = memory
    if host.nics:
        fields["nics"] = [
            {
                "name": nic.name,
                **_port(nic.port),
                "switch": nic.switch,
                **_numa_node(nic.numa_node),
            }
            for nic in host.nics
        ]
    if host.devices:
        fields["devices"] = [
            {
                "name": device.name,
                "memory_bytes_per_second": device.memory_bytes_per_second,
                **_port(device.port),
                **_numa_node(device.numa_node),
            }
            for device in host.devices
        ]
    return fields


def _port(port: Port) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "bandwidth_bytes_per_second": port.bandwidth_bytes_per_second,
        "latency_seconds": port.latency_nanoseconds / 10**9,
    }
    if port.duplex != "full":
        fields["duplex"] = port.duplex
    return fields


def _numa_node(number: int) -> dict[str, int]:
    return {"numa_node": number} if number else {}


def _laid_out(value: Any, indent: int) -> str:
    """Write on one line what fits there, and a line an item what does not."""
    line = json.dumps(value)
    if not isinstance(value, dict | list) or len(line) + indent <= _WIDTH:
        return line
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        items = [
            f"{inner}{json.dumps(name)}: {_laid_out(item, indent + 2)}"
            for name, item in value.items()
        ]
        return "{\n" + ",\n".join(items) + "\n" + " " * indent + "}"
    items = [inner + _laid_out(item, indent + 2) for item in value]
    return "[\n" + ",\n".join(items) + "\n" + " " * indent + "]"
