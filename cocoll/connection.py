"""Connecting a communicator: shared memory in every host, a wire between hosts, agreed facts."""

from __future__ import annotations

import json
import resource
import secrets
from typing import TYPE_CHECKING, Any

from cocoll.bootstrap import DerivedBootstrap
from cocoll.errors import TopologyError, UnsupportedError
from cocoll.kernels.build import KernelLoader
from cocoll.topology.gather import assemble, local_facts
from cocoll.topology.host import available_cpus, last_level_cache_bytes, memory_bytes
from cocoll.topology.loading import load_topology
from cocoll.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cocoll.bootstrap import Bootstrap
    from cocoll.communicator import Communicator
    from cocoll.topology.graph import Topology
    from cocoll.wire import Carrier

__all__ = ["agree_all", "check_topology", "connect", "number_hosts"]

# How often the ranks exchange what opening a wire needs.
_WIRE_EXCHANGES = 2


def connect(
    comm: Communicator,
    bootstrap: Bootstrap,
    *,
    crowded: bool,
    topology: Topology | None = None,
) -> None:
    """Make the memory of a communicator and map that of its neighbours. Collective.

    Parameters
    ----------
    comm : Communicator
        With its settings, tuning and launcher.
    bootstrap : Bootstrap
        How the ranks meet.
    crowded : bool
        Whether the ranks are known to outnumber the processors.
    topology : Topology, optional
        What is known of the ranks already: of a communicator that this one is made from. Default:
        COCOLL_TOPOLOGY's, else what the ranks find.

    Raises
    ------
    TopologyError
        What COCOLL_TOPOLOGY names is not the same on all ranks, or not what they find.
    UnsupportedError
        The ranks are on several hosts and nothing carries messages between them.
    OSError
        There is not enough memory on some rank; raised on all.
    """
    rank, world_size = bootstrap.rank, bootstrap.world_size
    comm._kernels = KernelLoader.from_settings(comm.settings)
    facts = {
        "token": secrets.randbits(63),
        "tuning": [getattr(comm._tuning, name) for name in Tuning.__slots__],
        "isa": comm._kernels.isa,
        "cpus": available_cpus().ids,
        "quota": available_cpus().quota,
    }
    everyone = [json.loads(data) for data in bootstrap.allgather(json.dumps(facts).encode())]
    comm._tuning = Tuning(*everyone[0]["tuning"])
    comm._kernels.restrict([entry["isa"] for entry in everyone])
    reserved = _reservation_bytes(world_size)
    ticket, error = b"", ""
    try:
        ticket = comm._open(
            rank,
            world_size,
            # What is small enough for a line may still be too much for it: several results.
            small_bytes=max(comm._tuning.inline_bytes, comm._tuning.one_shot_bytes),
            staging_bytes=comm._tuning.staging_bytes,
            inline_bytes=comm._tuning.inline_bytes,
            one_shot_bytes=comm._tuning.one_shot_bytes,
            streaming_bytes=last_level_cache_bytes() // 2,
            timeout_seconds=comm.settings.timeout_seconds,
            reserved_bytes=reserved,
            token=everyone[0]["token"],
            program_limit=comm._tuning.programs,
            launcher_pid=comm._launcher_pid,
        )
    except OSError as failure:
        error = f"{failure}"
    tickets = agree_all(bootstrap, ticket, error)
    hosts = _map_neighbours(comm, bootstrap, tickets)
    neighbours = [peer for peer in range(world_size) if hosts[peer] == hosts[rank]]
    cpus = len(set().union(*(everyone[peer]["cpus"] for peer in neighbours)))
    quota = min(everyone[peer]["quota"] for peer in neighbours)
    comm._crowded = crowded or len(neighbours) > min(cpus, quota)
    comm._set_waiting(comm._crowded)
    comm._topology = topology or _find_topology(comm, bootstrap, hosts)
    if max(hosts) > 0:
        comm.hosts = hosts
        _open_wire(comm, bootstrap, hosts)
    elif isinstance(bootstrap, DerivedBootstrap) and bootstrap.make_carrier() is not None:
        # What the others of the parent exchange, whose communicators may span hosts.
        for _ in range(_WIRE_EXCHANGES):
            bootstrap.barrier()
    _map_commons(comm, bootstrap, neighbours[0], reserved)


def _map_neighbours(
    comm: Communicator, bootstrap: Bootstrap, tickets: Sequence[bytes]
) -> tuple[int, ...]:
    """Map whose memory can be mapped: that is what makes a host."""
    rank = bootstrap.rank
    may_share = getattr(bootstrap, "shares_host", lambda _peer: True)
    mapped = [
        peer == rank or (may_share(peer) and comm._attach(peer, ticket) == 0)
        for peer, ticket in enumerate(tickets)
    ]
    everyone = [json.loads(data) for data in bootstrap.allgather(json.dumps(mapped).encode())]
    return number_hosts(everyone)


def number_hosts(mapped: Sequence[Sequence[bool]]) -> tuple[int, ...]:
    """Give the host of every rank, numbered in the order of their first ranks.

    Parameters
    ----------
    mapped : sequence of sequences of bool
        ``mapped[a][b]``: whether rank a could map the memory of rank b.

    Returns
    -------
    tuple of int
        Equal numbers for ranks that map each other.

    Raises
    ------
    UnsupportedError
        A maps B and B does not map A, or A and B map C and not each other.
    """
    numbers: dict[tuple[bool, ...], int] = {}
    hosts = tuple(numbers.setdefault(tuple(row), len(numbers)) for row in mapped)
    for rank, row in enumerate(mapped):
        for peer, maps in enumerate(row):
            if maps != (hosts[peer] == hosts[rank]):
                raise UnsupportedError(
                    f"ranks of one host must all map each other's memory: rank {rank} "
                    f"{'maps' if maps else 'does not map'} the memory of rank {peer}, which maps "
                    f"others than it. Run all ranks of a host under one user, with one view of "
                    f"/proc"
                )
    return hosts


def _find_topology(
    comm: Communicator, bootstrap: Bootstrap, hosts: tuple[int, ...]
) -> Topology | None:
    """Give what COCOLL_TOPOLOGY says, checked, else what the ranks of several hosts see."""
    spec, error, given = comm.settings.topology, "", None
    if spec is not None:
        try:
            given = load_topology(spec)
        except TopologyError as failure:
            error = f"{failure}"
    facts = {
        "error": error,
        "digest": "" if given is None else given.digest(),
        "seen": local_facts() if max(hosts) > 0 and given is None else None,
    }
    everyone = [json.loads(data) for data in bootstrap.allgather(json.dumps(facts).encode())]
    for rank, theirs in enumerate(everyone):
        if theirs["error"]:
            raise TopologyError(f"rank {rank}: {theirs['error']}")
        if theirs["digest"] != everyone[0]["digest"]:
            raise TopologyError(
                f"COCOLL_TOPOLOGY must name one topology on all ranks: rank 0 and rank {rank} have "
                f"different ones (or only one of them has any). Give all ranks the same file"
            )
    if given is not None:
        return check_topology(given, hosts)
    if max(hosts) == 0:
        return None
    return assemble([theirs["seen"] for theirs in everyone], hosts)


def check_topology(given: Topology, hosts: Sequence[int]) -> Topology:
    """Give the part of a topology that a job has, whose hosts must be those that were found.

    Parameters
    ----------
    given : Topology
        What a file or a preset says.
    hosts : sequence of int
        The host of every rank of the job, as found.

    Returns
    -------
    Topology
        Of the job's ranks.

    Raises
    ------
    TopologyError
        The job has ranks that `given` does not know, or other ranks share hosts.
    """
    world_size = len(hosts)
    if given.world_size < world_size:
        raise TopologyError(
            f"COCOLL_TOPOLOGY ({given.source}) knows {given.world_size} ranks, and the job has "
            f"{world_size}. Give a topology of the whole job, or start fewer ranks"
        )
    said = given.hosts_by_rank
    for rank in range(world_size):
        for peer in range(rank):
            if (said[rank] == said[peer]) != (hosts[rank] == hosts[peer]):
                verb = "share a host" if said[rank] == said[peer] else "are on different hosts"
                raise TopologyError(
                    f"COCOLL_TOPOLOGY ({given.source}) says that ranks {peer} and {rank} {verb}, "
                    f"and they do not: what matters is whose memory they map. Mend it, or let the "
                    f"ranks find out; `cocoll plan` is for machines that one does not have"
                )
    return given if given.world_size == world_size else given.subset(range(world_size))


def _open_wire(comm: Communicator, bootstrap: Bootstrap, hosts: tuple[int, ...]) -> None:
    """Open what carries messages between the hosts."""
    make: Any = getattr(bootstrap, "make_carrier", None)
    carrier: Carrier | None = None
    number, error = 0, ""
    try:
        carrier = None if make is None else make()
        if carrier is None:
            error = (
                f"the ranks are on {max(hosts) + 1} hosts, and {type(bootstrap).__name__} has "
                f"nothing that carries messages between them: start them under MPI, with mpi4py "
                f"(cocoll[mpi])"
            )
        else:
            number = carrier.next_number
    except UnsupportedError as failure:
        error = f"{failure}"
    number = max(int(data) for data in _agree_supported(bootstrap, f"{number}".encode(), error))
    if carrier is None:
        raise UnsupportedError(error)
    try:
        end = carrier.open(comm.rank, number, persistent=comm.settings.mpi_persistent)
    except UnsupportedError as failure:
        error = f"{failure}"
    _agree_supported(bootstrap, b"", error)
    comm._carrier = carrier
    comm._connect_hosts(hosts, end)


def _map_commons(comm: Communicator, bootstrap: Bootstrap, leader: int, reserved: int) -> None:
    """Map the memory of which every host has one copy; the host's first rank makes it."""
    commons, error = b"", ""
    try:
        commons = comm._create_commons(reserved) if comm.rank == leader else b""
    except OSError as failure:
        error = f"{failure}"
    commons = agree_all(bootstrap, commons, error)[leader]
    try:
        if comm.rank != leader:
            comm._attach_commons(commons)
    except OSError as failure:
        error = f"{failure}"
    agree_all(bootstrap, b"", error)


def agree_all(bootstrap: Bootstrap, data: bytes, error: str) -> list[bytes]:
    """Give every rank's bytes to every rank; every rank raises if one has an error to tell."""
    everyone = bootstrap.allgather(json.dumps(error).encode() + b"\n" + data)
    parts = [entry.split(b"\n", 1) for entry in everyone]
    for rank, (text, _) in enumerate(parts):
        message = json.loads(text)
        if message:
            raise OSError(f"rank {rank}: {message}")
    return [payload for _, payload in parts]


def _agree_supported(bootstrap: Bootstrap, data: bytes, error: str) -> list[bytes]:
    try:
        return agree_all(bootstrap, data, error)
    except OSError as failure:
        raise UnsupportedError(f"{failure}") from None


def _reservation_bytes(world_size: int) -> int:
    # Address space, not memory: what one rank's segment can ever grow to.
    reserved = memory_bytes()
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    space = (1 << 46) if limit == resource.RLIM_INFINITY else limit // 4
    return max(64 << 20, min(reserved, space // (world_size + 1)))
