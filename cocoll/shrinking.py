"""How the ranks that are left make a communicator of their own: behind `Communicator.shrink`.

On one host they agree through the control pages of the communicator that has ended, which outlive
every rank but the last; ``host/survivors.h`` says how. Over several hosts MPI agrees for them,
where it can.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias

from cocoll import _core
from cocoll.bootstrap import DerivedBootstrap
from cocoll.errors import (
    ClosedError,
    CommTimeoutError,
    PeerLostError,
    TransportError,
    UnsupportedError,
)
from cocoll.wire import MpiCarrier

if TYPE_CHECKING:
    from collections.abc import Callable

    from cocoll.bootstrap import Bootstrap
    from cocoll.communicator import Communicator

__all__ = ["LetterBootstrap", "shrink_over_mpi", "shrink_over_pages"]

#: Makes a communicator of some ranks: how they meet, and who they were.
Derive: TypeAlias = "Callable[[Bootstrap, list[int]], Communicator]"

# Until Python looks for signals, and for ranks that died.
_NAP_SECONDS = 0.05
_TURNS_BITS = 32


class LetterBootstrap:
    """Some ranks of a communicator that has ended, in one round of shrinking it.

    Parameters
    ----------
    survivors : Survivors
        The pages of that communicator.
    round_number : int
        The round.
    members : list of int
        Its ranks that take part, in order.
    old_rank : int
        Who this rank was.
    timeout_seconds : float
        How long each exchange waits.
    """

    def __init__(
        self,
        survivors: _core.Survivors,
        round_number: int,
        members: list[int],
        old_rank: int,
        timeout_seconds: float,
    ) -> None:
        self._survivors = survivors
        self._round = round_number
        self._members = members
        self._old_rank = old_rank
        self._timeout_seconds = timeout_seconds
        # No turn of an earlier round has this number, and turn 0 is of nobody.
        self._turn = round_number << _TURNS_BITS
        self.rank = members.index(old_rank)
        self.world_size = len(members)

    def allgather(self, data: bytes) -> list[bytes]:
        """Give every member's bytes to every member.

        Raises
        ------
        PeerLostError
            A member is gone, or another one has found so: the round has failed for all.
        CommTimeoutError
            A member did not come in time.
        """
        unit = self._survivors.letter_bytes
        totals = [len(data)] + [0] * (self.world_size - 1)
        gathered = [b""] * self.world_size
        start = 0
        while start == 0 or start < max(totals):
            part = data[start : start + unit]
            self._survivors.post(self._turn, len(data), part)
            for index, member in enumerate(self._members):
                total, payload = self._await_letter(member)
                totals[index] = total
                gathered[index] += payload[: max(0, total - start)]
            self._turn += 1
            start += unit
        return gathered

    def barrier(self) -> None:
        """Wait for all members."""
        self.allgather(b"")

    def _await_letter(self, member: int) -> tuple[int, bytes]:
        deadline = time.monotonic() + self._timeout_seconds
        gone = False
        while True:
            seen = self._survivors.doorbell()
            letter = self._survivors.read(member, self._turn)
            if letter is not None:
                return letter
            # What a rank has posted is visible once it is seen to be gone: so look again.
            if gone or self._survivors.outcome(self._round) is False:
                raise PeerLostError(
                    f"rank {self._old_rank} wanted all of {self._members} to shrink; rank {member} "
                    f"has gone",
                    rank=member,
                )
            gone = self._survivors.has_gone(member)
            if time.monotonic() >= deadline:
                raise CommTimeoutError(
                    f"rank {self._old_rank} wanted all of {self._members} to shrink; rank {member} "
                    f"did not come within {self._timeout_seconds:g} s",
                    ranks=(member,),
                )
            if not gone:
                self._survivors.doze(seen, _NAP_SECONDS)


def shrink_over_pages(comm: Communicator, timeout_seconds: float, derive: Derive) -> Communicator:
    """Make a communicator of those ranks of one host that come. Collective of these.

    Parameters
    ----------
    comm : Communicator
        The one that has ended.
    timeout_seconds : float
        How long to wait for ranks that are alive and have not come.
    derive : callable
        Makes the new communicator.

    Returns
    -------
    Communicator
        Its ranks are in the order of their old ones.

    Raises
    ------
    ClosedError
        The others have gone on without this rank, which came too late.
    """
    survivors = _core.Survivors(comm)
    while True:
        number, members = survivors.decided()
        if number == 0 or survivors.outcome(number) is False:
            # Nothing is decided, or what was has failed: the next round.
            _propose(survivors, comm, number + 1, timeout_seconds)
            continue
        if comm.rank not in members:
            raise ClosedError(
                f"rank {comm.rank} came too late: the others have gone on without it, as ranks "
                f"{members} of {comm.world_size}"
            )
        meeting = LetterBootstrap(survivors, number, members, comm.rank, timeout_seconds)
        made = _make(survivors, number, meeting, members, derive)
        if made is not None:
            return made


def _propose(
    survivors: _core.Survivors, comm: Communicator, number: int, timeout_seconds: float
) -> None:
    """Come to a round, wait for the others, and propose those that have come."""
    survivors.announce(number)
    deadline = time.monotonic() + timeout_seconds
    while True:
        seen = survivors.doorbell()
        decided, _ = survivors.decided()
        if decided >= number:
            return
        peers = range(comm.world_size)
        come = [peer for peer in peers if survivors.announced(peer) >= number]
        gone = [peer for peer in peers if survivors.has_gone(peer)]
        if len({*come, *gone}) == comm.world_size or time.monotonic() >= deadline:
            survivors.propose(number, [peer for peer in come if peer not in gone])
            return
        survivors.doze(seen, _NAP_SECONDS)


def _make(
    survivors: _core.Survivors,
    number: int,
    meeting: LetterBootstrap,
    members: list[int],
    derive: Derive,
) -> Communicator | None:
    """Make the communicator of a round; None where a member was lost on the way."""
    made = None
    try:
        made = derive(meeting, members)
        meeting.barrier()
    except TransportError:
        # The others may have seen all of it stand, and gone on: what they say holds.
        if survivors.conclude(number, False) and made is not None:
            return made
        _discard(made)
        return None
    except BaseException:
        survivors.conclude(number, False)
        _discard(made)
        raise
    if survivors.conclude(number, True):
        return made
    _discard(made)
    return None


def _discard(made: Communicator | None) -> None:
    if made is not None:
        made.close()


def shrink_over_mpi(comm: Communicator, derive: Derive) -> Communicator:
    """Let MPI find out who is left, on several hosts. Collective of the ranks that are left.

    Parameters
    ----------
    comm : Communicator
        The one that has ended.
    derive : callable
        Makes the new communicator.

    Returns
    -------
    Communicator
        Its ranks are in the order of their old ones.

    Raises
    ------
    UnsupportedError
        Something else carries the messages, or this MPI has no fault tolerance.
    """
    carrier = comm._carrier
    if not isinstance(carrier, MpiCarrier):
        raise UnsupportedError(
            f"over several hosts comm.shrink needs MPI to find out who is left; got "
            f"{type(carrier).__name__} on rank {comm.rank}"
        )
    rest: Any = carrier.shrink(comm.world_size)

    def exchange(data: bytes) -> list[bytes]:
        gathered: list[bytes] = rest.allgather(data)
        return gathered

    members = [int(data) for data in exchange(f"{comm.rank}".encode())]
    rank = members.index(comm.rank)
    hosts = comm.hosts or (0,) * comm.world_size
    meeting = DerivedBootstrap(
        exchange,
        list(range(len(members))),
        rank,
        lambda peer: hosts[members[peer]] == hosts[comm.rank],
        MpiCarrier(rest),
    )
    return derive(meeting, members)
