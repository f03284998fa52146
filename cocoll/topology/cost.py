"""What moving bytes costs on a topology, and what no algorithm can beat. Whole nanoseconds.

The cost of a message is its latency plus its bytes over the bandwidth of the slowest port that it
crosses (alpha-beta, [1]_). Lower bounds come from ports: whatever the algorithm, certain bytes must
leave and enter a host, a GPU, or one side of the network, and the ports there carry no more than
their bandwidth.

References
----------
.. [1] R. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel
   Computing 20(3), 1994.
.. [2] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
   workstations", Journal of Parallel and Distributed Computing 69(2), 2009, section 3: an element
   reduced over n places and given to all moves at least 2 (n - 1) times.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, TypeAlias

from cocoll.topology.demands import Work, describe_work, spread_both

if TYPE_CHECKING:
    from cocoll.topology.graph import Path, Topology

__all__ = [
    "CollectiveKind",
    "lower_bound_nanoseconds",
    "memory_nanoseconds",
    "message_nanoseconds",
    "port_bytes_bound",
    "transfer_nanoseconds",
]

CollectiveKind: TypeAlias = Literal["broadcast", "allgather", "reduce_scatter", "allreduce"]

_NANOSECONDS = 10**9
_NIC_KINDS = ("nic", "nic_out", "nic_in")


def transfer_nanoseconds(nbytes: int, bandwidth_bytes_per_second: int) -> int:
    """Give how long bytes take at a rate, rounded up to whole nanoseconds."""
    return -(-nbytes * _NANOSECONDS // bandwidth_bytes_per_second)


def message_nanoseconds(
    topology: Topology, source_rank: int, destination_rank: int, nbytes: int
) -> int:
    """Give how long one message takes that shares its ports with no other.

    Parameters
    ----------
    topology : Topology
        Where the ranks are.
    source_rank, destination_rank : int
        From whom to whom.
    nbytes : int
        Its size.

    Returns
    -------
    int
        In nanoseconds.
    """
    return _path_nanoseconds(topology, topology.path(source_rank, destination_rank), nbytes)


def memory_nanoseconds(
    topology: Topology, reader_rank: int, owner_rank: int, nbytes: int, *, write: bool = False
) -> int:
    """Give how long a rank takes to read, or write, mapped memory that nobody else uses meanwhile.

    Parameters
    ----------
    topology : Topology
        Where the ranks are.
    reader_rank, owner_rank : int
        Who reads or writes, and whose memory.
    nbytes : int
        How much.
    write : bool, default False
        Whether it writes.

    Returns
    -------
    int
        In nanoseconds.
    """
    path = topology.memory_path(reader_rank, owner_rank, write=write)
    return _path_nanoseconds(topology, path, nbytes)


def _path_nanoseconds(topology: Topology, path: Path, nbytes: int) -> int:
    rates = topology.bandwidths_bytes_per_second
    return path.latency_nanoseconds + transfer_nanoseconds(
        nbytes, min(rates[port] for port in path.ports)
    )


def port_bytes_bound(
    kind: CollectiveKind,
    topology: Topology,
    nbytes: int,
    root: int = 0,
    *,
    replicated: bool = False,
) -> tuple[int, ...]:
    """Give the bytes on each port where the busiest one is as idle as it can be.

    No algorithm ends before the busiest of these ports has carried what stands here. A plan that
    reaches it may still distribute what is not the busiest otherwise (a chain loads all hosts but
    its last equally; here all but the root share).

    Parameters
    ----------
    kind : {"broadcast", "allgather", "reduce_scatter", "allreduce"}
        What is to be done.
    topology : Topology
        Where.
    nbytes : int
        The size of the whole vector: of what is broadcast or reduced, of what allgather gives.
        Block r of reduce_scatter and allgather is the r-th of world_size blocks of equal length,
        rounded up, so that the last ones may be short.
    root : int, default 0
        Of a broadcast.
    replicated : bool, default False
        Whether the ranks of a host have one copy of the result between them.

    Returns
    -------
    tuple of int
        Of each directed port, rounded down. The memory of GPUs counts nothing: peers reach it
        through the ports between GPUs. Where some NICs are half duplex and others are not, the
        bound is weaker than it could be.

    Raises
    ------
    UsageError
        There is no such collective, or `nbytes` is negative.
    RankError
        There is no such root.
    """
    of_kinds, of_links, work = _bounds(kind, topology, nbytes, root, replicated=replicated)
    found: list[int] = []
    for number in work.kind_of_host:
        found += of_kinds[number]
    return (*found, *of_links)


def lower_bound_nanoseconds(
    kind: CollectiveKind,
    topology: Topology,
    nbytes: int,
    root: int = 0,
    *,
    replicated: bool = False,
) -> int:
    """Give a time that no algorithm beats: the busiest port's, and the latency of one message.

    Parameters
    ----------
    kind : {"broadcast", "allgather", "reduce_scatter", "allreduce"}
        What is to be done.
    topology : Topology
        Where.
    nbytes : int
        The size of the whole vector, as in `port_bytes_bound`.
    root : int, default 0
        Of a broadcast.
    replicated : bool, default False
        Whether the ranks of a host have one copy of the result between them.

    Returns
    -------
    int
        In nanoseconds, rounded down.

    Raises
    ------
    UsageError, RankError
        As in `port_bytes_bound`.
    """
    of_kinds, of_links, work = _bounds(kind, topology, nbytes, root, replicated=replicated)
    rates = [use.bandwidth_bytes_per_second for use in topology.ports[topology.ports.first[-1] :]]
    wire = max(map(_nanoseconds, of_links, rates), default=0)
    inside = 0
    for number, found in enumerate(of_kinds):
        rows = topology.ports.of_host[work.kinds[number].host].rows
        for carried, (_, port_kind, rate) in zip(found, rows, strict=True):
            if port_kind in _NIC_KINDS:
                wire = max(wire, _nanoseconds(carried, rate))
            else:
                inside = max(inside, _nanoseconds(carried, rate))
    if nbytes and work.several_hosts:
        wire += _least_latency_nanoseconds(work)
    return max(wire, inside)


def _nanoseconds(nbytes: int, rate: int) -> int:
    return nbytes * _NANOSECONDS // rate


def _least_latency_nanoseconds(work: Work) -> int:
    """Give the latency of the fastest message between two hosts."""
    topology = work.topology
    # Where a message starts or ends, and on how many hosts there is such a NIC; two say enough.
    kinds: dict[tuple[str, int], dict[int, int]] = {}
    for number, kind in enumerate(work.kinds):
        for seat in [topology.placements[rank] for rank in topology.members(kind.host)]:
            nic = topology.hosts[kind.host].nics[seat.nic]
            hosts = kinds.setdefault((nic.switch, nic.port.latency_nanoseconds), {})
            if len(hosts) < 2:
                hosts[number] = kind.place.times
    return min(
        one[1] + other[1] + topology.switches.route(one[0], other[0]).latency_nanoseconds
        for one, here in kinds.items()
        for other, there in kinds.items()
        if sum({**here, **there}.values()) > 1
    )


# ---- the four places where bytes must pass ----

# What each NIC of a kind of host carries out and in, by its outgoing direction.
_Wires: TypeAlias = dict[int, tuple[Fraction, Fraction]]


def _bounds(
    kind: CollectiveKind, topology: Topology, nbytes: int, root: int, *, replicated: bool
) -> tuple[list[list[int]], list[int], Work]:
    """Give the bytes on the ports of each kind of host, and on those of the links."""
    work = describe_work(kind, topology, nbytes, root)
    found = [[0] * len(topology.ports.of_host[kind.host].rows) for kind in work.kinds]
    wires = _add_network(work, found)
    _add_devices(work, found, wires)
    for number in range(len(work.kinds)):
        _add_memory(work, number, found[number], replicated=replicated)
    return found, _bound_links(work), work


def _add_network(work: Work, found: list[list[int]]) -> list[_Wires]:
    """Fill in the NICs; give what they carry, exactly."""
    wires: list[_Wires] = [{} for _ in work.kinds]
    hosts = work.hosts
    if not work.several_hosts:
        return wires
    out, into = spread_both(hosts, work.demand(hosts))
    all_half = all(host.half for host in hosts)
    for number, host in enumerate(hosts):
        for door in host.doors:
            share = Fraction(door.bytes_per_second, host.capacity_bytes_per_second)
            carried = out[number] * share, into[number] * share
            wires[number][door.out] = carried
            _put(found[number], door.out, door.into, carried, all_half)
    return wires


def _bound_links(work: Work) -> list[int]:
    topology = work.topology
    first = topology.ports.first[-1]
    found = [0] * (len(topology.ports) - first)
    for switches, inside, outside, links in work.cuts():
        demand = work.demand([inside, outside])
        ports = [topology.links[number].port for number in links]
        total = sum(port.bandwidth_bytes_per_second for port in ports)
        all_half = all(port.duplex == "half" for port in ports)
        for number, port in zip(links, ports, strict=True):
            share = Fraction(port.bandwidth_bytes_per_second, total)
            out, into = topology.ports.of_link[number]
            if topology.links[number].one not in switches:
                out, into = into, out
            carried = demand.out[0] * share, demand.into[0] * share
            _put(found, out - first, into - first, carried, all_half)
    return found


def _add_devices(work: Work, found: list[list[int]], wires: list[_Wires]) -> None:
    """Fill in the ports between GPUs: what NICs do not carry crosses these."""
    # A rank on a processor reaches a GPU by the memory of its host, which is no door of a GPU.
    if any(kind.processors for kind in work.kinds):
        return
    devices = [
        (number, door, place)
        for number, kind in enumerate(work.kinds)
        for door, place in kind.devices
    ]
    places = [place for _, _, place in devices]
    out, into = spread_both(places, work.demand(places))
    all_half = all(place.half for place in places)
    sharers = Counter(
        (number, nic.out) for number, own, place in devices for nic in place.doors if nic != own
    )
    for index, (number, own, place) in enumerate(devices):
        share = Fraction(own.bytes_per_second, place.capacity_bytes_per_second)
        nics = [nic.out for nic in place.doors if nic != own]
        carried = []
        for way, needed in enumerate((out[index], into[index])):
            by_wire = sum(wires[number][nic][way] / sharers[number, nic] for nic in nics)
            carried.append(max(Fraction(0), min(needed - by_wire, needed * share)))
        _put(found[number], own.out, own.into, (carried[0], carried[1]), all_half)


def _add_memory(work: Work, number: int, found: list[int], *, replicated: bool) -> None:
    """Fill in the memory of processors: inputs are read and results written, by them or a NIC."""
    kind = work.kinds[number]
    accessed = work.accessed_bytes(kind, replicated=replicated)
    rate = work.topology.hosts[kind.host].memory.bandwidth_bytes_per_second
    ends = {end for door in kind.place.doors for end in (door.out, door.into)}
    limit = accessed * rate // (rate + 2 * kind.place.capacity_bytes_per_second)
    memory = work.topology.ports.of_host[kind.host].memory
    found[memory] = max(0, min(accessed - sum(found[end] for end in ends), limit))


def _put(
    found: list[int], out: int, into: int, carried: tuple[Fraction, Fraction], all_half: bool
) -> None:
    """Raise what stands at two directions; one that is both carries both, if all are such."""
    if out != into:
        found[out] = max(found[out], int(carried[0]))
        found[into] = max(found[into], int(carried[1]))
    else:
        both = sum(carried) if all_half else max(carried)
        found[out] = max(found[out], int(both))
