"""What carries messages between hosts: found here, used by the executor.

A *carrier* belongs to the ranks of one MPI communicator (or of one process, in tests) and serves
all communicators that are made of them, each with tags of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from cocoll import _core
from cocoll.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Carrier", "MpiCarrier", "PersistentMessages", "ThreadCarrier", "find_mpi"]

#: Tags that one communicator uses; ``host/wire.h`` has the same number.
TAGS_PER_COMMUNICATOR = 2048

_FUNCTIONS = ("Isend", "Issend", "Irecv", "Test", "Cancel", "Request_free", "Error_string")


class Carrier(Protocol):
    """Ranks that messages can go between, seen from one of them."""

    @property
    def next_number(self) -> int:
        """The least number that no communicator of this rank has had."""

    def derive(self, members: Sequence[int]) -> Carrier:
        """Give the carrier of some of its ranks, in their order."""

    def open(self, rank: int, number: int, *, persistent: bool) -> _core.WireEnd:
        """Give the end of `rank`, for a communicator whose `number` all its ranks agree on."""


@dataclass(slots=True)
class _Numbers:
    """The numbers that communicators over one set of ranks have had."""

    next: int = 0

    def take(self, number: int, last_tag: int) -> int:
        """Note that a number is taken, and give its first tag."""
        first_tag = number * TAGS_PER_COMMUNICATOR
        if first_tag + TAGS_PER_COMMUNICATOR > last_tag:
            raise UnsupportedError(
                f"this MPI has tags for {last_tag // TAGS_PER_COMMUNICATOR} communicators over "
                f"several hosts in the life of a process; got one more. Keep communicators and use "
                f"them again"
            )
        self.next = max(self.next, number + 1)
        return first_tag


@dataclass(frozen=True, slots=True)
class ThreadCarrier:
    """Ranks that are threads of one process.

    Parameters
    ----------
    network : ThreadNetwork
        What they share.
    places : tuple of int
        Where the ranks are in the network.
    """

    network: _core.ThreadNetwork
    places: tuple[int, ...]
    _numbers: _Numbers = field(default_factory=_Numbers)

    @property
    def next_number(self) -> int:
        """The least number that no communicator of this rank has had."""
        return self._numbers.next

    def derive(self, members: Sequence[int]) -> ThreadCarrier:
        """Give the carrier of some of its ranks."""
        places = tuple(self.places[member] for member in members)
        return ThreadCarrier(self.network, places, self._numbers)

    def open(self, rank: int, number: int, *, persistent: bool) -> _core.WireEnd:
        """Give the end of a rank."""
        del persistent
        first_tag = self._numbers.take(number, (1 << 31) - 1)
        return self.network.open(self.places, rank, first_tag)


class MpiCarrier:
    """The ranks of an mpi4py communicator.

    It keeps a duplicate of the communicator, so that no message of the caller's is taken for one of
    cocoll's; one duplicate serves all communicators that are ever made of it.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        An intracommunicator. Making the first carrier of one is collective.

    Raises
    ------
    UnsupportedError
        MPI has been started without support for threads.
    """

    _keyval: int | None = None

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UnsupportedError(
                "over several hosts cocoll calls MPI from its streams' threads and needs "
                "MPI_THREAD_MULTIPLE; this MPI was started with less. Leave "
                "mpi4py.rc.thread_level at 'multiple', and start MPI through mpi4py"
            )
        if MpiCarrier._keyval is None:
            MpiCarrier._keyval = MPI.Comm.Create_keyval()
        kept = comm.Get_attr(MpiCarrier._keyval)
        if kept is None:
            duplicate = comm.Dup()
            # A broken wire is an exception on each rank, not the end of the job.
            duplicate.Set_errhandler(MPI.ERRORS_RETURN)
            kept = (duplicate, _Numbers())
            comm.Set_attr(MpiCarrier._keyval, kept)
        self._comm, self._numbers = kept
        self._places = tuple(range(comm.Get_size()))

    @property
    def next_number(self) -> int:
        """The least number that no communicator of this rank has had."""
        number: int = self._numbers.next
        return number

    def derive(self, members: Sequence[int]) -> MpiCarrier:
        """Give the carrier of some of its ranks."""
        made = MpiCarrier.__new__(MpiCarrier)
        made._comm, made._numbers = self._comm, self._numbers
        made._places = tuple(self._places[member] for member in members)
        return made

    def shrink(self, world_size: int) -> Any:
        """Give an MPI communicator of the ranks that are left. Collective of these.

        Parameters
        ----------
        world_size : int
            How many ranks the communicator of cocoll's had.

        Returns
        -------
        mpi4py.MPI.Comm
            New; in the old order.

        Raises
        ------
        UnsupportedError
            This MPI cannot, or the communicator had been made of a part of MPI's.
        """
        from mpi4py import MPI

        if world_size != self._comm.Get_size():
            raise UnsupportedError(
                f"over several hosts MPI shrinks whole communicators: this one has {world_size} of "
                f"{self._comm.Get_size()} ranks. Shrink the one that it was split from"
            )
        try:
            if not self._comm.Is_revoked():
                self._comm.Revoke()
            return self._comm.Shrink()
        except (AttributeError, NotImplementedError, MPI.Exception) as error:
            raise UnsupportedError(
                f"this MPI cannot go on without ranks that were lost ({error}): start the job with "
                f"`mpirun --with-ft ulfm` of Open MPI 5, and use mpi4py 4.1 or later"
            ) from error

    def open(self, rank: int, number: int, *, persistent: bool) -> _core.WireEnd:
        """Give the end of a rank.

        Parameters
        ----------
        rank : int
            Whose end.
        number : int
            The communicator's.
        persistent : bool
            Whether to go through mpi4py's persistent requests even where MPI's own functions are to
            be had.

        Returns
        -------
        WireEnd
            For the communicator.

        Raises
        ------
        UnsupportedError
            All tags have been used.
        """
        from mpi4py import MPI

        del rank
        first_tag = self._numbers.take(number, self._comm.Get_attr(MPI.TAG_UB))
        functions = {} if persistent else find_mpi(MPI)
        if not functions:
            messages = PersistentMessages(self._comm, self._places, first_tag)
            return _core.open_messages(messages)
        constants = {
            # An int of MPICH's comes as the unsigned number that has its bits.
            "BYTE": ctypes.c_ssize_t(MPI._handleof(MPI.BYTE)).value,
            "COMM": ctypes.c_ssize_t(MPI._handleof(self._comm)).value,
            "ANY_SOURCE": MPI.ANY_SOURCE,
        }
        return _core.open_mpi(functions, constants, self._places, first_tag)


def find_mpi(mpi: Any) -> dict[str, int]:
    """Find the functions of the MPI that mpi4py calls.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.

    Returns
    -------
    dict of str to int
        Their addresses by name, without ``MPI_``; empty where one is missing.

    Notes
    -----
    Looked up through the extension module itself, so that they come from the library that it is
    linked with, whatever else the process has loaded.
    """
    functions: dict[str, int] = {}
    with contextlib.suppress(OSError):
        library = ctypes.CDLL(mpi.__file__, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        for name in _FUNCTIONS:
            # Absent: not an MPI library as we know it; the caller has another way.
            function = getattr(library, f"MPI_{name}", None)
            address = None if function is None else ctypes.cast(function, ctypes.c_void_p).value
            if not address:
                return {}
            functions[name] = address
    return functions


class PersistentMessages:
    """Messages through mpi4py: persistent requests, kept and started again.

    Slower than MPI's own functions by the interpreter's part of each call, and as correct.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Whose.
    places : tuple of int
        Where the ranks are in it.
    first_tag : int
        The first of the tags.
    """

    #: Requests that wait to be started again.
    KEPT = 256

    def __init__(self, comm: Any, places: tuple[int, ...], first_tag: int) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._places = places
        self._first_tag = first_tag
        self._idle: OrderedDict[tuple[Any, ...], list[Any]] = OrderedDict()
        self._idle_count = 0
        self._active: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self._last = 0
        self.error = b""

    def begin(self, sends: bool, peer: int, tag: int, address: int, nbytes: int) -> int:
        """Begin a message; gives its number, 0 where MPI refuses."""
        key = (sends, peer, tag, address, nbytes)
        try:
            waiting = self._idle.get(key)
            if waiting:
                request = waiting.pop()
                self._idle_count -= 1
                if not waiting:
                    del self._idle[key]
            else:
                request = self._make(*key)
            request.Start()
        except self._mpi.Exception as failure:
            self.error = f"MPI says: {failure}".encode()
            return 0
        self._last += 1
        self._active[self._last] = (request, key)
        return self._last

    def _make(self, sends: bool, peer: int, tag: int, address: int, nbytes: int) -> Any:
        place = self._mpi.ANY_SOURCE if peer < 0 else self._places[peer]
        memory = [self._mpi.buffer.fromaddress(address, nbytes), self._mpi.BYTE]
        make = self._comm.Ssend_init if sends else self._comm.Recv_init
        return make(memory, place, self._first_tag + tag)

    def test(self, number: int) -> int:
        """Look once: 1 done, 0 pending, -1 failed."""
        request, key = self._active[number]
        try:
            if not request.Test():
                return 0
        except self._mpi.Exception as failure:
            self.error = f"MPI says: {failure}".encode()
            del self._active[number]
            return -1
        del self._active[number]
        self._idle.setdefault(key, []).append(request)
        self._idle.move_to_end(key)
        self._idle_count += 1
        while self._idle_count > self.KEPT:
            _, oldest = self._idle.popitem(last=False)
            self._idle_count -= len(oldest)
            for one in oldest:
                one.Free()
        return 1

    def cancel(self, number: int, receives: bool) -> bool:
        """Give a message up; False where it may still move."""
        request, _ = self._active.pop(number)
        try:
            if receives:
                request.Cancel()
            for _look in range(1000):
                if request.Test():
                    request.Free()
                    return True
            request.Free()
        except self._mpi.Exception as failure:
            self.error = f"MPI says: {failure}".encode()
        return False
