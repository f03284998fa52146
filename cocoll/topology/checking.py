"""What a topology must fulfil: every rank stands somewhere, and all hosts reach each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cocoll.errors import TopologyError

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology
    from cocoll.topology.parts import Host, Link

__all__ = ["check_links", "check_placements", "check_reach", "switches_of", "without_dead_ends"]


def check_placements(topology: Topology) -> None:
    """Raise where a rank is placed on something that is not there, or a host has no rank.

    Raises
    ------
    TopologyError
        Its `field` says which host, as in the JSON form.
    """
    if not topology.hosts or not topology.placements:
        raise TopologyError("wanted at least one host and one rank", field="hosts")
    limits = [(max(1, len(host.nics)), len(host.devices)) for host in topology.hosts]
    used = bytearray(len(limits))
    for rank, place in enumerate(topology.placements):
        if not 0 <= place.host < len(limits):
            raise TopologyError(
                f"rank {rank}: wanted a host in [0, {len(limits)}); got {place.host}", field="hosts"
            )
        nics, devices = limits[place.host]
        if not 0 <= place.nic < nics:
            raise _misplaced(topology, rank, f"a NIC in [0, {nics})", place.nic)
        if place.device is not None and not 0 <= place.device < devices:
            raise _misplaced(topology, rank, f"a device in [0, {devices})", place.device)
        used[place.host] = 1
    if not all(used):
        host = used.index(0)
        raise TopologyError(
            f"host {topology.host_names[host]} has no rank: leave it out", field=f"hosts[{host}]"
        )


def _misplaced(topology: Topology, rank: int, wanted: str, got: int) -> TopologyError:
    host = topology.placements[rank].host
    return TopologyError(
        f"rank {rank} on host {topology.host_names[host]}: wanted {wanted}; got {got}",
        field=f"hosts[{host}]",
    )


def check_links(topology: Topology) -> None:
    """Raise where a link ends at a switch that no NIC is plugged into and nothing leads on from.

    Raises
    ------
    TopologyError
        Its `field` says which link.
    """
    kept = set(without_dead_ends(topology.links, switches_of(topology.hosts)))
    for number, link in enumerate(topology.links):
        if link not in kept:
            raise TopologyError(
                f"the link between {link.one} and {link.other} leads nowhere: no NIC is plugged in "
                f"beyond it. Are both names right?",
                field=f"links[{number}]",
            )


def check_reach(topology: Topology) -> None:
    """Raise where two ranks of different hosts have no way to each other.

    Raises
    ------
    TopologyError
        It names two such hosts; their numbers are in `hosts`.
    """
    if len(topology.hosts) == 1:
        return
    names = topology.host_names
    for number, host in enumerate(topology.hosts):
        if not host.nics:
            pair = sorted((number, 0 if number else 1))
            raise TopologyError(
                f"hosts {names[pair[0]]} and {names[pair[1]]} cannot reach each other: "
                f"{names[number]} has no NIC",
                field=f"hosts[{number}]",
                hosts=tuple(pair),
            )
    places = dict.fromkeys((place.host, place.nic) for place in topology.placements)
    used = [(host, topology.hosts[host].nics[nic].switch) for host, nic in places]
    reached = topology.switches.component(used[0][1])
    lost = [place for place in used if place[1] not in reached]
    if not lost:
        return
    # Every host has a rank, so that some pair of a lost and a found one is on two hosts.
    found = [place for place in used if place[1] in reached]
    (one, start), (other, end) = next(
        sorted((near, far)) for far in lost for near in found if near[0] != far[0]
    )
    raise TopologyError(
        f"hosts {names[one]} and {names[other]} cannot reach each other: no link leads from switch "
        f"{start} to switch {end}",
        field="links",
        hosts=(one, other),
    )


def switches_of(hosts: Sequence[Host]) -> set[str]:
    """Give the switches that NICs are plugged into."""
    distinct = {id(host): host for host in hosts}
    return {nic.switch for host in distinct.values() for nic in host.nics}


def without_dead_ends(links: Sequence[Link], plugged: set[str]) -> tuple[Link, ...]:
    """Leave out links that lead nowhere.

    Parameters
    ----------
    links : sequence of Link
        Between switches.
    plugged : set of str
        The switches that NICs are plugged into.

    Returns
    -------
    tuple of Link
        Those at both ends of which there is a NIC, or another link that is kept.
    """
    kept = list(links)
    while True:
        beside: dict[str, set[str]] = {}
        for link in kept:
            beside.setdefault(link.one, set()).add(link.other)
            beside.setdefault(link.other, set()).add(link.one)
        dead = {end for end, others in beside.items() if end not in plugged and len(others) == 1}
        if not dead:
            return tuple(kept)
        kept = [link for link in kept if link.one not in dead and link.other not in dead]
