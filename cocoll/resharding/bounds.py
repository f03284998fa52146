"""Times that no schedule beats, each with the ports that prove it.

A cut of the ranks proves a bound: bytes that only ranks inside have and that somebody outside needs
must leave at least once, whatever the trees, relays and stripes, and the ports that lead out carry
no more than their bandwidth. `lower_bound` looks at cuts that matter: each host, each GPU and each
side of a link on the way in; on the way out the sets of hosts or GPUs that Hall's condition names.

References
----------
P. Hall, "On representatives of subsets", Journal of the London Mathematical Society 10, 1935: bytes
can be divided among their senders in time T if and only if no set of senders has to send more than
it can; W. Dinkelbach, "On nonlinear fractional programming", Management Science 13(7), 1967: the
worst set is found by a few flows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from cocoll.resharding.senders import divide_among_senders
from cocoll.resharding.sources import Demand, Source, demands_of, sources_of

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem

__all__ = ["Bound", "Latencies", "lower_bound", "lower_bounds", "nics_of"]

_NANOSECONDS = 10**9


class Bound(NamedTuple):
    """A time that no schedule beats, and why.

    Attributes
    ----------
    nanoseconds : int
        Rounded down.
    reason : str
        Which bytes must cross which ports.
    """

    nanoseconds: int
    reason: str


def lower_bound(problem: Problem) -> Bound:
    """Give the largest of the bounds that cuts prove.

    Parameters
    ----------
    problem : Problem
        What is to be done.

    Returns
    -------
    Bound
        Of 0 ns where nothing moves.
    """
    found = lower_bounds(problem)
    return max(found, key=lambda bound: bound.nanoseconds, default=Bound(0, "nothing moves"))


def lower_bounds(problem: Problem) -> list[Bound]:
    """Give the bound of each kind of cut that applies.

    Parameters
    ----------
    problem : Problem
        What is to be done.

    Returns
    -------
    list of Bound
        The largest of each kind: into a host, out of hosts, into a GPU, out of GPUs, through links,
        in a host's memory, and the latency of the farthest needer.
    """
    if not problem.moving:
        return []
    hosts = problem.hosts
    sources = sources_of(problem)
    of_hosts = demands_of(sources, hosts)
    found = []
    latency = Latencies(problem)
    names = problem.topology.host_names
    if any(demand.needers - demand.holders for demand in of_hosts):
        found.append(
            _receivers(
                of_hosts,
                lambda host: _rate(problem, nics_of(problem, [host], out=False)),
                latency.between_hosts,
                lambda host: f"what host {names[host]} lacks, through its NICs",
            )
        )
        found.append(
            _senders(
                of_hosts,
                lambda places: _rate(problem, nics_of(problem, places, out=True)),
                latency.between_hosts,
                lambda places: (
                    "what only hosts "
                    f"{', '.join(names[host] for host in places)} have, out of their NICs"
                ),
            )
        )
        found += _links(problem, of_hosts, latency.between_hosts)
    if all(problem.topology.placements[rank].device is not None for rank in problem.participants):
        of_ranks = demands_of(sources, range(problem.topology.world_size))
        found.append(
            _receivers(
                of_ranks,
                lambda rank: _rate(problem, _doors(problem, [rank], out=False)),
                latency.least,
                lambda rank: f"what rank {rank} lacks, through its GPU's port and its NIC",
            )
        )
        found.append(
            _senders(
                of_ranks,
                lambda ranks: _rate(problem, _doors(problem, ranks, out=True)),
                latency.least,
                lambda ranks: f"what only {_some_ranks(ranks)} have, out of their GPUs' ports",
            )
        )
    else:
        found += _memories(problem, sources, latency)
    found.append(_farthest(problem, sources))
    return [bound for bound in found if bound.nanoseconds > 0]


def _some_ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}, ..." if len(ranks) > 8 else f"ranks {shown}"


def _receivers(
    demands: Sequence[Demand],
    rate_of: Callable[[int], int],
    latency: int,
    describe: Callable[[int], str],
) -> Bound:
    lacks: defaultdict[int, int] = defaultdict(int)
    for demand in demands:
        for place in demand.needers - demand.holders:
            lacks[place] += demand.nbytes
    worst = Bound(0, "")
    for place in sorted(lacks):
        rate = rate_of(place)
        time = lacks[place] * _NANOSECONDS // rate + latency if rate else 0
        if time > worst.nanoseconds:
            worst = Bound(time, f"{lacks[place]} bytes: {describe(place)}")
    return worst


def _senders(
    demands: Sequence[Demand],
    rate_of: Callable[[Sequence[int]], int],
    latency: int,
    describe: Callable[[Sequence[int]], str],
) -> Bound:
    leaving: dict[frozenset[int], list[Demand]] = {}
    for demand in demands:
        if not demand.needers <= demand.holders:
            leaving.setdefault(demand.holders, []).append(demand)
    candidates: dict[frozenset[int], None] = dict.fromkeys(leaving)
    rates = {place: rate_of([place]) for place in sorted(frozenset().union(*leaving))}
    if len(candidates) > 1 and all(rates.values()):
        sizes = [
            (tuple(sorted(holders)), sum([demand.nbytes for demand in equal]))
            for holders, equal in leaving.items()
        ]
        candidates[frozenset(divide_among_senders(sizes, rates).worst)] = None
    worst = Bound(0, "")
    for inside in candidates:
        rate = rate_of(sorted(inside))
        nbytes = sum(
            [
                demand.nbytes
                for holders, equal in leaving.items()
                if holders <= inside
                for demand in equal
                if not demand.needers <= inside
            ]
        )
        time = nbytes * _NANOSECONDS // rate + latency if rate and nbytes else 0
        if time > worst.nanoseconds:
            worst = Bound(time, f"{nbytes} bytes: {describe(sorted(inside))}")
    return worst


def _links(problem: Problem, demands: Sequence[Demand], latency: int) -> list[Bound]:
    """Bound by the links that separate hosts from hosts."""
    topology = problem.topology
    if not topology.links:
        return []
    of_host = {host: {nic.switch for nic in topology.hosts[host].nics} for host in problem.members}
    worst = Bound(0, "")
    for cut in topology.switches.cuts(sorted(set().union(*of_host.values()))):
        sides = {host: {switch in cut.inside for switch in of_host[host]} for host in of_host}
        if any(len(side) != 1 for side in sides.values()):
            continue
        for inside in (True, False):
            here = frozenset([host for host, side in sides.items() if side == {inside}])
            nbytes = sum(d.nbytes for d in demands if d.holders <= here and not d.needers <= here)
            ports = []
            for number in cut.links:
                forward = (topology.links[number].one in cut.inside) == inside
                ports.append(topology.ports.of_link[number][0 if forward else 1])
            time = nbytes * _NANOSECONDS // _rate(problem, ports) + latency if nbytes else 0
            if time > worst.nanoseconds:
                names = ", ".join(topology.ports[port].name for port in ports)
                worst = Bound(time, f"{nbytes} bytes: what must cross {names}")
    return [worst]


def _memories(problem: Problem, sources: Iterable[Source], latency: Latencies) -> list[Bound]:
    """Bound by the memory of processors: what does not come through a NIC is read and written."""
    topology = problem.topology
    needed: defaultdict[int, int] = defaultdict(int)
    for source in sources:
        having = frozenset(source.holders)
        for rank in source.needers:
            if rank not in having:
                needed[problem.hosts[rank]] += source.nbytes
    worst = Bound(0, "")
    for host in sorted(needed):
        if any(topology.placements[rank].device is not None for rank in problem.members[host]):
            continue
        rate = Fraction(topology.hosts[host].memory.bandwidth_bytes_per_second, 2)
        rate += _rate(problem, nics_of(problem, [host], out=False))
        time = int(needed[host] * _NANOSECONDS / rate) + latency.least
        if time > worst.nanoseconds:
            name = topology.host_names[host]
            worst = Bound(time, f"{needed[host]} bytes: what ranks of {name} need, in its memory")
    return [worst]


class _Door(NamedTuple):
    """The first needer of a host, and how bytes come to it."""

    rank: int
    host: int
    latency_nanoseconds: int
    rate: int


def _farthest(problem: Problem, sources: Iterable[Source]) -> Bound:
    """Bound by one needer alone: its bytes cross both NICs of a message and come by its ports."""
    hosts = problem.hosts
    worst = Bound(0, "")
    sent: dict[int, tuple[frozenset[int], int]] = {}
    doors: dict[int, list[_Door]] = {}
    slowest: dict[int, tuple[int, int]] = {}
    for holders, needers, _, nbytes in sources:
        if id(holders) not in sent:
            latencies = [_nic_latency(problem, rank) for rank in holders]
            sent[id(holders)] = frozenset([hosts[rank] for rank in holders]), min(latencies)
        if id(needers) not in doors:
            first: dict[int, int] = {}
            for rank in needers:
                first.setdefault(hosts[rank], rank)
            found = doors[id(needers)] = [
                _Door(
                    rank,
                    host,
                    _nic_latency(problem, rank),
                    _rate(problem, _doors(problem, [rank], out=False)),
                )
                for host, rank in first.items()
            ]
            slowest[id(needers)] = (
                max(door.latency_nanoseconds for door in found),
                min(door.rate for door in found),
            )
        having, leaving = sent[id(holders)]
        latency, rate = slowest[id(needers)]
        if leaving + latency + nbytes * _NANOSECONDS // rate <= worst.nanoseconds:
            continue
        for door in doors[id(needers)]:
            if door.host in having:
                continue
            time = leaving + door.latency_nanoseconds + nbytes * _NANOSECONDS // door.rate
            if time > worst.nanoseconds:
                reason = f"{nbytes} bytes and the latency of the way to rank {door.rank}"
                worst = Bound(time, reason)
    return worst


def _nic_latency(problem: Problem, rank: int) -> int:
    placement = problem.topology.placements[rank]
    nics = problem.topology.hosts[placement.host].nics
    return nics[placement.nic].port.latency_nanoseconds if nics else 0


class Latencies:
    """The least latency of any message, so that it is surely paid once.

    Parameters
    ----------
    problem : Problem
        Whose participants send messages.

    Attributes
    ----------
    between_hosts, least : int
        Nanoseconds of a message to another host, and of one to any rank.
    """

    def __init__(self, problem: Problem) -> None:
        topology = problem.topology
        nics = [
            nic.port.latency_nanoseconds
            for host in problem.members
            for nic in topology.hosts[host].nics
        ]
        self.between_hosts = 2 * min(nics, default=0)
        of_devices = [topology.placements[rank].device for rank in problem.participants]
        inside = []
        if None in of_devices:
            inside = [topology.hosts[host].memory.latency_nanoseconds for host in problem.members]
        inside += [
            2 * device.port.latency_nanoseconds
            for host in problem.members
            for device in topology.hosts[host].devices
        ]
        if problem.shared_devices:
            inside.append(0)
        self.least = min(self.between_hosts, *inside) if nics else min(inside)


def nics_of(problem: Problem, hosts: Iterable[int], *, out: bool) -> list[int]:
    """Give the ports of the NICs that participants on some hosts have.

    Parameters
    ----------
    problem : Problem
        The ports.
    hosts : iterable of int
        Which hosts.
    out : bool
        Those by which messages leave, or those by which they come.
    """
    return [
        port
        for host in hosts
        for rail in problem.rails[host]
        if (port := problem.nic_out(rail[0]) if out else problem.nic_in(rail[0])) is not None
    ]


def _doors(problem: Problem, ranks: Iterable[int], *, out: bool) -> list[int]:
    """Give all ports by which bytes leave, or come to, some ranks."""
    topology = problem.topology
    found: dict[int, None] = {}
    alone = len(problem.members) == 1
    for rank in ranks:
        nic = problem.nic_out(rank) if out else problem.nic_in(rank)
        if nic is not None and not alone:
            found[nic] = None
        placement = topology.placements[rank]
        ports = topology.ports.of_host[placement.host]
        first = topology.ports.first[placement.host]
        if placement.device is None:
            found[first + ports.memory] = None
        else:
            devices = ports.device_out if out else ports.device_in
            found[first + devices[placement.device]] = None
            if (placement.host, placement.device) in problem.shared_devices:
                found[first + ports.device_memory[placement.device]] = None
    return list(found)


def _rate(problem: Problem, ports: Iterable[int]) -> int:
    return sum(problem.rates[port] for port in ports)
