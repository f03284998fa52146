"""How ranks find each other: rank, world_size, an allgather of bytes, a barrier.

A communicator needs no more to be made, and uses it for nothing else: once its memory is mapped,
it talks through that. Here are the ways: alone, MPI, threads of one process, processes of one host
over a Unix socket, torch.distributed, the store of torchrun, and any communicator that exists
already.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from cocoll import _core
from cocoll.errors import CommTimeoutError, PeerLostError, RankError, UnsupportedError, UsageError
from cocoll.wire import Carrier, MpiCarrier, ThreadCarrier

__all__ = [
    "Bootstrap",
    "DerivedBootstrap",
    "MpiBootstrap",
    "SelfBootstrap",
    "SocketBootstrap",
    "StoreBootstrap",
    "ThreadBootstrap",
    "TorchBootstrap",
    "choose_bootstrap",
    "find_launcher",
]

#: Variables that launchers set for each rank; any of them means more than one rank may exist.
LAUNCHER_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK")
_TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"

# A year: more than a year's milliseconds do not fit where torch keeps them.
_LONGEST_WAIT_SECONDS = 365 * 86400.0
# What sockaddr_un has room for, the closing zero aside.
_PATH_BYTES = 107


@runtime_checkable
class Bootstrap(Protocol):
    """What a communicator needs to be made."""

    rank: int
    world_size: int

    def allgather(self, data: bytes) -> list[bytes]:
        """Give every rank's bytes to every rank, in rank order."""

    def barrier(self) -> None:
        """Wait until every rank has called it."""


class SelfBootstrap:
    """A world of one."""

    rank = 0
    world_size = 1

    def allgather(self, data: bytes) -> list[bytes]:
        """Give the bytes back."""
        return [data]

    def barrier(self) -> None:
        """Return."""


class MpiBootstrap:
    """The ranks of an mpi4py communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        An intracommunicator. It is used while the cocoll communicator is made, not after.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.world_size: int = comm.Get_size()

    def allgather(self, data: bytes) -> list[bytes]:
        """Give every rank's bytes to every rank."""
        gathered: list[bytes] = self._comm.allgather(data)
        return gathered

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._comm.Barrier()

    def make_carrier(self) -> Carrier:
        """Give what carries messages between hosts; collective the first time."""
        return MpiCarrier(self._comm)


class TorchBootstrap:
    """The ranks of a torch.distributed process group.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        Default: the default group, which must have been initialised.
    """

    def __init__(self, group: Any = None) -> None:
        import torch.distributed as distributed

        self._distributed = distributed
        self._group = group
        self.rank: int = distributed.get_rank(group)
        self.world_size: int = distributed.get_world_size(group)

    def allgather(self, data: bytes) -> list[bytes]:
        """Give every rank's bytes to every rank."""
        gathered: list[Any] = [None] * self.world_size
        self._distributed.all_gather_object(gathered, data, group=self._group)
        return gathered

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._distributed.barrier(group=self._group)


class StoreBootstrap:
    """The ranks that torchrun has started, before they have a process group.

    They meet at the key-value store that torchrun keeps for them at ``MASTER_ADDR``, where
    ``init_process_group`` will meet too.

    Parameters
    ----------
    environ : mapping of str to str
        With the variables that torchrun sets.
    timeout_seconds : float, default 600
        How long each step waits for the others.

    Raises
    ------
    UsageError
        A variable is missing.
    UnsupportedError
        torch cannot be imported.
    """

    def __init__(self, environ: Mapping[str, str], *, timeout_seconds: float = 600.0) -> None:
        wanted = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in wanted if name not in environ]
        if missing:
            raise UsageError(f"torchrun started this process, and {', '.join(missing)} is not set")
        try:
            from torch.distributed import PrefixStore, TCPStore
        except ImportError as error:
            raise UnsupportedError(
                f"torchrun started this process, and torch cannot be imported ({error})"
            ) from error
        self.rank = int(environ["RANK"])
        self.world_size = int(environ["WORLD_SIZE"])
        agent_has_it = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._keeps_store = not agent_has_it and self.rank == 0
        self._store: Any = TCPStore(
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            self.world_size,
            self._keeps_store,
            timedelta(seconds=min(timeout_seconds, _LONGEST_WAIT_SECONDS)),
            # init_process_group may keep one at the same port, in the same process.
            multi_tenant=True,
        )
        # The store outlives ranks that are started again, and serves every communicator.
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        visit = self._store.add(f"cocoll/{attempt}/{self.rank}", 1)
        self._store = PrefixStore(f"cocoll/{attempt}/{visit}", self._store)
        self._exchanges = 0

    def allgather(self, data: bytes) -> list[bytes]:
        """Give every rank's bytes to every rank."""
        self._exchanges += 1
        self._store.set(f"{self._exchanges}/{self.rank}", data)
        everyone = range(self.world_size)
        gathered = [self._store.get(f"{self._exchanges}/{peer}") for peer in everyone]
        self._store.set(f"{self._exchanges}/read/{self.rank}", b"")
        if self._keeps_store:
            # The store goes with this object.
            self._store.wait([f"{self._exchanges}/read/{peer}" for peer in everyone])
        return gathered

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.allgather(b"")


class _ThreadGroup:
    def __init__(
        self, world_size: int, timeout_seconds: float, hosts: Sequence[int] | None, seed: int
    ) -> None:
        if hosts is not None and len(hosts) != world_size:
            raise UsageError(f"wanted the host of each of {world_size} ranks; got {len(hosts)}")
        self.hosts = None if hosts is None else tuple(hosts)
        self.network = None if hosts is None else _core.ThreadNetwork(world_size, seed)
        self.slots: list[bytes] = [b""] * world_size
        self.barrier = threading.Barrier(world_size)
        self.timeout_seconds = timeout_seconds


class ThreadBootstrap:
    """Ranks that are threads of this process; make them with `create`."""

    def __init__(self, group: _ThreadGroup, rank: int) -> None:
        self._group = group
        self.rank = rank
        self.world_size = len(group.slots)

    @classmethod
    def create(
        cls,
        world_size: int,
        timeout_seconds: float = 600.0,
        *,
        hosts: Sequence[int] | None = None,
        seed: int = 0,
    ) -> list[ThreadBootstrap]:
        """Make one bootstrap per rank; give each to a thread of its own.

        Parameters
        ----------
        world_size : int
            How many ranks.
        timeout_seconds : float, default 600
            How long a rank waits for the others to be made.
        hosts : sequence of int, optional
            Lets the ranks behave as if they were on these hosts: memory is mapped inside one only,
            and between them go messages. Default: one host.
        seed : int, default 0
            Of the times that messages take.

        Returns
        -------
        list of ThreadBootstrap
            In rank order.
        """
        group = _ThreadGroup(world_size, timeout_seconds, hosts, seed)
        return [cls(group, rank) for rank in range(world_size)]

    def allgather(self, data: bytes) -> list[bytes]:
        """Give every rank's bytes to every rank."""
        self._group.slots[self.rank] = data
        self.barrier()
        gathered = list(self._group.slots)
        self.barrier()
        return gathered

    def barrier(self) -> None:
        """Wait for all ranks."""
        try:
            self._group.barrier.wait(min(self._group.timeout_seconds, threading.TIMEOUT_MAX))
        except threading.BrokenBarrierError:
            raise PeerLostError(
                f"rank {self.rank} waited for {self.world_size} thread ranks to be made, and one "
                f"gave up or did not come within {self._group.timeout_seconds} s",
                rank=-1,
            ) from None

    def shares_host(self, peer: int) -> bool:
        """Whether a rank may be on this one's host."""
        hosts = self._group.hosts
        return hosts is None or hosts[peer] == hosts[self.rank]

    @property
    def network(self) -> _core.ThreadNetwork | None:
        """What messages between emulated hosts go through."""
        return self._group.network

    def make_carrier(self) -> Carrier | None:
        """Give what carries messages between emulated hosts."""
        if self._group.network is None:
            return None
        return ThreadCarrier(self._group.network, tuple(range(self.world_size)))

    def give_up(self) -> None:
        """Let the other threads' waits fail: this rank will not come."""
        self._group.barrier.abort()


class SocketBootstrap:
    """Processes of one host that meet at a Unix socket; rank 0 listens.

    Parameters
    ----------
    path : path-like
        Where rank 0 makes the socket; it is removed as soon as all ranks have come.
    rank, world_size : int
        Who this process is.
    timeout_seconds : float, default 600
        How long each step waits for the others: this one, and every allgather.

    Raises
    ------
    CommTimeoutError
        A rank did not come in time; `ranks` says which.
    RankError
        `rank` is out of range; or, on rank 0, the processes are not one for each rank.
    UsageError
        `path` is too long for a socket.
    """

    _HEADER = struct.Struct("<qq")

    def __init__(
        self,
        path: str | os.PathLike[str],
        rank: int,
        world_size: int,
        *,
        timeout_seconds: float = 600.0,
    ) -> None:
        if not 0 <= rank < world_size:
            raise RankError(f"wanted a rank in [0, {world_size}); got {rank}")
        longest_bytes = _PATH_BYTES - len(f".{os.getpid()}")
        if len(os.fsencode(path)) > longest_bytes:
            raise UsageError(
                f"the path of a Unix socket may have {longest_bytes} bytes here; got "
                f"{os.fspath(path)!r}. Name a shorter one (TMPDIR=/tmp)"
            )
        self.rank = rank
        self.world_size = world_size
        self._timeout_seconds = min(timeout_seconds, threading.TIMEOUT_MAX)
        self._links: dict[int, socket.socket] = {}
        self._start_waiting()
        try:
            if rank == 0:
                self._accept(Path(path))
            else:
                self._connect(Path(path))
        except BaseException:
            self.close()
            raise

    def _start_waiting(self) -> None:
        self._deadline = time.monotonic() + self._timeout_seconds

    def _remaining_seconds(self) -> float:
        return max(0.001, self._deadline - time.monotonic())

    def _late(self, ranks: tuple[int, ...]) -> CommTimeoutError:
        return CommTimeoutError(
            f"rank {self.rank} wanted all of {self.world_size} ranks within "
            f"{self._timeout_seconds} s; rank {', '.join(map(str, ranks))} did not come",
            ranks=ranks,
        )

    def _accept(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            # Bound aside and renamed, so that whoever sees the name can connect at once.
            aside = path.with_name(f"{path.name}.{os.getpid()}")
            listener.bind(str(aside))
            try:
                listener.listen(self.world_size)
                aside.rename(path)
                while len(self._links) < self.world_size - 1:
                    listener.settimeout(self._remaining_seconds())
                    link, _ = listener.accept()
                    try:
                        self._links[self._greet(link)] = link
                    except BaseException:
                        link.close()
                        raise
            except TimeoutError:
                missing = tuple(r for r in range(1, self.world_size) if r not in self._links)
                raise self._late(missing) from None
            finally:
                for name in (aside, path):
                    name.unlink(missing_ok=True)

    def _greet(self, link: socket.socket) -> int:
        link.settimeout(self._remaining_seconds())
        try:
            header: tuple[int, int] = self._HEADER.unpack(_read(link, self._HEADER.size))
        except ConnectionError as error:
            raise PeerLostError(f"rank 0 lost a rank as it came: {error}", rank=-1) from error
        peer, world_size = header
        if world_size != self.world_size:
            raise RankError(
                f"rank 0 has a world of {self.world_size} ranks; got rank {peer} of {world_size}"
            )
        if peer in self._links or not 0 < peer < self.world_size:
            raise RankError(
                f"wanted one process for each rank in [0, {self.world_size}); got a second rank "
                f"{peer}"
            )
        return peer

    def _connect(self, path: Path) -> None:
        while True:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.settimeout(self._remaining_seconds())
            try:
                link.connect(str(path))
                break
            except (FileNotFoundError, ConnectionRefusedError, TimeoutError):
                link.close()
                if time.monotonic() > self._deadline:
                    raise self._late((0,)) from None
                time.sleep(0.005)
            except BaseException:
                link.close()
                raise
        self._links[0] = link
        link.sendall(self._HEADER.pack(self.rank, self.world_size))

    def allgather(self, data: bytes) -> list[bytes]:
        """Give every rank's bytes to every rank."""
        self._start_waiting()
        if self.rank != 0:
            self._send(0, data)
            gathered: list[bytes] = pickle.loads(self._receive(0))
            return gathered
        gathered = [data] + [self._receive(peer) for peer in range(1, self.world_size)]
        everything = pickle.dumps(gathered)
        for peer in range(1, self.world_size):
            self._send(peer, everything)
        return gathered

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.allgather(b"")

    def close(self) -> None:
        """Close the connections. Idempotent."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _send(self, peer: int, data: bytes) -> None:
        link = self._links[peer]
        link.settimeout(self._remaining_seconds())
        try:
            link.sendall(self._HEADER.pack(len(data), 0) + data)
        except TimeoutError:
            raise self._late((peer,)) from None
        except OSError as error:
            raise PeerLostError(f"rank {self.rank} lost rank {peer}: {error}", rank=peer) from error

    def _receive(self, peer: int) -> bytes:
        link = self._links[peer]
        link.settimeout(self._remaining_seconds())
        try:
            length, _ = self._HEADER.unpack(_read(link, self._HEADER.size))
            return _read(link, length)
        except TimeoutError:
            raise self._late((peer,)) from None
        except OSError as error:
            raise PeerLostError(f"rank {self.rank} lost rank {peer}: {error}", rank=peer) from error


class DerivedBootstrap:
    """Some ranks of a communicator that exists: what `duplicate` and `split` use.

    Parameters
    ----------
    exchange : callable
        The parent's allgather of bytes; every rank of the parent calls it.
    members : sequence of int
        The parent's ranks that belong to the child, in the child's order.
    rank : int
        This rank in the child.
    shares_host : callable, optional
        Whether a rank of the parent is on this one's host. Default: all are.
    carrier : Carrier, optional
        The parent's.
    """

    def __init__(
        self,
        exchange: Callable[[bytes], list[bytes]],
        members: list[int],
        rank: int,
        shares_host: Callable[[int], bool] | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        self._shares_host = shares_host
        self._carrier = None if carrier is None else carrier.derive(members)
        self._exchange = exchange
        self._members = members
        self.rank = rank
        self.world_size = len(members)

    def allgather(self, data: bytes) -> list[bytes]:
        """Give the members' bytes; all ranks of the parent take part."""
        everything = self._exchange(data)
        return [everything[member] for member in self._members]

    def barrier(self) -> None:
        """Wait for all ranks of the parent."""
        self._exchange(b"")

    def shares_host(self, peer: int) -> bool:
        """Whether a member is on this one's host: what was found for the parent holds."""
        return self._shares_host is None or self._shares_host(self._members[peer])

    def make_carrier(self) -> Carrier | None:
        """Give what carries messages between hosts."""
        return self._carrier


def _read(link: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = link.recv(min(length - len(parts), 1 << 20))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts += part
    return bytes(parts)


def choose_bootstrap(given: object, environ: Mapping[str, str]) -> Bootstrap:
    """Find out how this process was started.

    Parameters
    ----------
    given : Bootstrap, mpi4py communicator or None
        What the user gave.
    environ : mapping of str to str
        The environment.

    Returns
    -------
    Bootstrap
        The user's; or MPI under a launcher; or under torchrun torch.distributed's default group,
        and its store where there is no group yet; or a world of one.

    Raises
    ------
    UnsupportedError
        A launcher started this process and mpi4py is not installed: four worlds of one would look
        like one of four.
    UsageError
        `given` is nothing that ranks can meet through.
    """
    if given is not None:
        if isinstance(given, Bootstrap):
            return given
        if hasattr(given, "Get_rank") and hasattr(given, "allgather"):
            return MpiBootstrap(given)
        raise UsageError(
            f"wanted an mpi4py communicator or a cocoll.bootstrap.Bootstrap; got "
            f"{type(given).__name__}"
        )
    found = [name for name in LAUNCHER_VARIABLES if name in environ]
    if not found:
        return _meet_under_torchrun(environ) if _TORCHRUN_VARIABLE in environ else SelfBootstrap()
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise UnsupportedError(
            f"a launcher started this process ({found[0]} is set) and mpi4py cannot be imported "
            f"({error}): install cocoll[mpi]"
        ) from error
    return MpiBootstrap(MPI.COMM_WORLD)


def _meet_under_torchrun(environ: Mapping[str, str]) -> Bootstrap:
    # Asked of the module that the user has imported: without a group there is no need of it yet.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        return TorchBootstrap()
    return StoreBootstrap(environ)


def find_launcher(bootstrap: Bootstrap, environ: Mapping[str, str]) -> int:
    """Say whose end is the end of this rank.

    Parameters
    ----------
    bootstrap : Bootstrap
        How the ranks have met.
    environ : mapping of str to str
        The environment.

    Returns
    -------
    int
        The process ID of the launcher on this host, 0 where ranks live on without one.
    """
    launched = any(name in environ for name in LAUNCHER_VARIABLES)
    return os.getppid() if launched and isinstance(bootstrap, MpiBootstrap) else 0
