"""What `cocoll topo --probe` measures between whom, and what follows from it. Pure.

Messages go between two hosts at a time for each NIC, so that the slowest port on the way is all
that limits them. A port is then as fast as the fastest messages that crossed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cocoll.topology.parts import Host, Nic, Port

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology

Key = TypeVar("Key")

__all__ = ["Sample", "apply_samples", "level", "schedule_pairs"]

# Ports that differ by less are taken to be equal: no measurement tells them apart, and equal hosts
# are planned and simulated once.
_RATE_TOLERANCE = 0.08
_LATENCY_TOLERANCE = 1.0
# A message that is slower than the fastest by more was held up elsewhere.
_HELD_UP = 0.85


class Sample(NamedTuple):
    """What was measured from one rank to another.

    Attributes
    ----------
    source_rank, destination_rank : int
        From whom to whom.
    bytes_per_second : int
        Of a stream of messages.
    latency_nanoseconds : int
        Of a small message, one way.
    """

    source_rank: int
    destination_rank: int
    bytes_per_second: int
    latency_nanoseconds: int


def schedule_pairs(topology: Topology, partners: int = 8) -> list[list[tuple[int, int]]]:
    """Say who measures with whom, and when.

    Parameters
    ----------
    topology : Topology
        Of the job.
    partners : int, default 8
        With how many others a host measures at most.

    Returns
    -------
    list of list of (int, int)
        Rounds of pairs of ranks on different hosts, one rank for each NIC. Pairs of one round
        share no port, nor a link.
    """
    first_rank: dict[tuple[int, int], int] = {}
    for rank, place in enumerate(topology.placements):
        first_rank.setdefault((place.host, place.nic), rank)
    nics: list[list[int]] = [[] for _ in topology.hosts]
    for host, nic in first_rank:
        nics[host].append(nic)
    rounds: list[list[tuple[int, int]]] = []
    busy: list[set[int]] = []
    for one, other in _meetings(len(topology.hosts), partners):
        for turn in range(max(len(nics[one]), len(nics[other]))):
            pair = (
                first_rank[one, nics[one][turn % len(nics[one])]],
                first_rank[other, nics[other][turn % len(nics[other])]],
            )
            ports = {*topology.path(*pair).ports, *topology.path(pair[1], pair[0]).ports}
            number = next((n for n, taken in enumerate(busy) if not taken & ports), len(busy))
            if number == len(busy):
                rounds.append([])
                busy.append(set())
            rounds[number].append(pair)
            busy[number] |= ports
    return rounds


def _meetings(hosts: int, partners: int) -> list[tuple[int, int]]:
    """Let hosts meet as the players of a round-robin tournament do: everyone once a round."""
    seats = hosts + hosts % 2
    met = []
    for turn in range(min(seats - 1, partners)):
        circle = [0, *((seat + turn) % (seats - 1) + 1 for seat in range(seats - 1))]
        for index in range(seats // 2):
            one, other = sorted((circle[index], circle[-1 - index]))
            if other < hosts:
                met.append((one, other))
    return met


def apply_samples(
    topology: Topology,
    samples: Sequence[Sample],
    memory_bytes_per_second: Mapping[int, int],
) -> Topology:
    """Put what was measured into a topology.

    Parameters
    ----------
    topology : Topology
        What was known before. Links between switches stay as they are.
    samples : sequence of Sample
        Messages between hosts, both ways.
    memory_bytes_per_second : mapping of int to int
        What the memory of each host carried, by its number.

    Returns
    -------
    Topology
        A NIC that no message crossed stays as it was.
    """
    leaving: dict[tuple[int, int], list[int]] = {}
    entering: dict[tuple[int, int], list[int]] = {}
    halves: dict[tuple[int, int], list[int]] = {}
    for sample in samples:
        source, destination = (
            topology.placements[rank] for rank in (sample.source_rank, sample.destination_rank)
        )
        start, end = (source.host, source.nic), (destination.host, destination.nic)
        leaving.setdefault(start, []).append(sample.bytes_per_second)
        entering.setdefault(end, []).append(sample.bytes_per_second)
        half = max(0, sample.latency_nanoseconds - _between(topology, sample)) // 2
        halves.setdefault(start, []).append(half)
        halves.setdefault(end, []).append(half)
    # A port has one bandwidth for both directions: the one that both reach.
    rates = {
        nic: min(_fastest(leaving[nic]), _fastest(entering[nic]))
        for nic in leaving
        if nic in entering
    }
    rates = level(rates, _RATE_TOLERANCE)
    latencies = level({nic: _middle(times) for nic, times in halves.items()}, _LATENCY_TOLERANCE)
    memory = level(memory_bytes_per_second, 2 * _RATE_TOLERANCE)
    shared: dict[Host, Host] = {}
    hosts = []
    for number, host in enumerate(topology.hosts):
        nics = tuple(
            _measured(nic, rates.get((number, index)), latencies.get((number, index)))
            for index, nic in enumerate(host.nics)
        )
        port = host.memory
        if number in memory:
            port = replace(port, bandwidth_bytes_per_second=memory[number])
        made = replace(host, nics=nics, memory=port)
        hosts.append(shared.setdefault(made, made))
    return replace(topology, hosts=tuple(hosts), source="measured by cocoll topo --probe")


def _middle(values: Sequence[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]


def _fastest(rates: Sequence[int]) -> int:
    """Give what a port carries: the usual rate of messages that nothing else has held up."""
    return _middle([rate for rate in rates if rate >= _HELD_UP * max(rates)])


def _between(topology: Topology, sample: Sample) -> int:
    """Give the latency of the links between the switches of two ranks."""
    ends = [
        topology.hosts[place.host].nics[place.nic].port.latency_nanoseconds
        for place in (topology.placements[rank] for rank in sample[:2])
    ]
    path = topology.path(sample.source_rank, sample.destination_rank)
    return path.latency_nanoseconds - sum(ends)


def _measured(nic: Nic, rate: int | None, latency_nanoseconds: int | None) -> Nic:
    if rate is None or latency_nanoseconds is None:
        return nic
    return replace(nic, port=Port(rate, latency_nanoseconds, nic.port.duplex))


def level(values: Mapping[Key, int], tolerance: float) -> dict[Key, int]:
    """Make values equal that differ by little.

    Parameters
    ----------
    values : mapping to int
        Above 0, or 0.
    tolerance : float
        By which part of the least of a group others may be larger.

    Returns
    -------
    dict
        The median of its group (the lower one of two) for each.
    """
    found: dict[Key, int] = {}
    group: list[Key] = []
    order = sorted(values, key=lambda key: values[key])
    for place, key in enumerate(order, start=1):
        group.append(key)
        if place == len(order) or values[order[place]] > values[group[0]] * (1 + tolerance):
            middle = values[group[(len(group) - 1) // 2]]
            found.update((member, middle) for member in group)
            group = []
    return {key: found[key] for key in values}
