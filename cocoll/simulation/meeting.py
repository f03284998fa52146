"""Where ranks meet in a simulation: flags, messages, whole collectives of the library below.

With classes of ranks (:mod:`cocoll.simulation.roles`) a meeting is named as the receiving side's
representative sees it, so that both sides come to the same one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from cocoll.errors import SimulationError
from cocoll.simulation.roles import path_of

if TYPE_CHECKING:
    from cocoll.simulation.flows import Route, Traffic
    from cocoll.simulation.roles import Roles

__all__ = ["Connection", "FlagMeeting", "MessageMeeting", "Switchboard"]


class FlagMeeting:
    """A counter with one writer and one reader.

    Attributes
    ----------
    writer, reader, flag : int
        Whose it is.
    latency_nanoseconds : int
        From the signal until the reader sees it.
    times : deque of int
        When signals that nobody has waited for yet can be seen.
    waiting : deque
        Waits without a signal.
    """

    __slots__ = ("flag", "latency_nanoseconds", "reader", "times", "waiting", "writer")

    def __init__(self, writer: int, reader: int, flag: int, latency_nanoseconds: int) -> None:
        self.writer = writer
        self.reader = reader
        self.flag = flag
        self.latency_nanoseconds = latency_nanoseconds
        self.times: deque[int] = deque()
        self.waiting: deque[Any] = deque()


class Connection:
    """What carries all messages from one rank to another: one after the other, as TCP and NCCL do.

    The latency of a message passes while earlier ones move, so two in flight hide it.

    Attributes
    ----------
    route : Route or None
        What the bytes cross; None where nothing on the way saturates.
    latency_nanoseconds : int
        From when both sides want a message until its first byte moves.
    multiplicity : int
        How many ranks the sender stands for.
    is_busy : bool
        Whether bytes move.
    queue : deque of (int, object)
        Messages whose turn has not come: how many bytes, and whose they are.
    """

    __slots__ = ("is_busy", "latency_nanoseconds", "multiplicity", "queue", "route")

    def __init__(self) -> None:
        self.route: Route | None = None
        self.latency_nanoseconds = 0
        self.multiplicity = 1
        self.is_busy = False
        self.queue: deque[tuple[int, Any]] = deque()


class MessageMeeting:
    """The messages from one rank to another with one tag, in order.

    Attributes
    ----------
    sender, receiver, tag : int
        Whose they are.
    connection : Connection
        What carries them.
    sends, receives : deque of (object, int)
        Whose step has begun without the other side, and how many bytes it wants to move.
    """

    __slots__ = ("connection", "receiver", "receives", "sender", "sends", "tag")

    def __init__(self, sender: int, receiver: int, tag: int, connection: Connection) -> None:
        self.sender = sender
        self.receiver = receiver
        self.tag = tag
        self.connection = connection
        self.sends: deque[tuple[Any, int]] = deque()
        self.receives: deque[tuple[Any, int]] = deque()


class Switchboard:
    """Brings both sides of a meeting together, and knows what bytes cross.

    Parameters
    ----------
    roles : Roles
        Who stands for whom.
    traffic : Traffic
        Where routes are made.
    threads : int
        The number of the first rank's thread among the ports; the other ranks' follow.
    """

    def __init__(self, roles: Roles, traffic: Traffic, threads: int) -> None:
        self.roles = roles
        self._traffic = traffic
        self._threads = threads
        self.flags: dict[tuple[int, int, int], FlagMeeting] = {}
        self.messages: dict[tuple[int, int, int], MessageMeeting] = {}
        self._connections: dict[tuple[int, int], Connection] = {}
        self._ways: dict[tuple[str, int, int], tuple[Route | None, int]] = {}

    def flag_from(self, rank: int, peer: int, flag: int) -> FlagMeeting:
        """Give the counter that a representative adds to for a peer."""
        return self._flag(self._seen_by(rank, peer), self.roles.representative(peer), flag)

    def flag_to(self, rank: int, peer: int, flag: int) -> FlagMeeting:
        """Give the counter that a representative reads, written by a peer."""
        return self._flag(peer, rank, flag)

    def _flag(self, writer: int, reader: int, flag: int) -> FlagMeeting:
        key = (writer, reader, flag)
        meeting = self.flags.get(key)
        if meeting is None:
            path = path_of(self.roles.topology, "write", writer, reader)
            meeting = self.flags[key] = FlagMeeting(*key, path.latency_nanoseconds)
        return meeting

    def message_from(self, rank: int, peer: int, tag: int) -> MessageMeeting:
        """Give where a representative's messages to a peer are received."""
        meeting = self._message(self._seen_by(rank, peer), self.roles.representative(peer), tag)
        connection = meeting.connection
        connection.route, connection.latency_nanoseconds = self.way("send", rank, peer)
        connection.multiplicity = self.roles.class_size(rank)
        return meeting

    def message_to(self, rank: int, peer: int, tag: int) -> MessageMeeting:
        """Give where a representative receives the messages of a peer."""
        return self._message(peer, rank, tag)

    def _message(self, sender: int, receiver: int, tag: int) -> MessageMeeting:
        key = (sender, receiver, tag)
        meeting = self.messages.get(key)
        if meeting is None:
            connection = self._connections.setdefault((sender, receiver), Connection())
            meeting = self.messages[key] = MessageMeeting(*key, connection)
        return meeting

    def _seen_by(self, rank: int, peer: int) -> int:
        """Give who a representative is to the representative of its peer."""
        twin = self.roles.counterpart(peer, rank)
        if self.roles.representative(twin) != rank:
            raise SimulationError(
                f"rank {rank} meets rank {peer}, whose representative "
                f"{self.roles.representative(peer)} would meet rank {twin} instead, which has "
                "another role: the roles are not those of these plans"
            )
        return twin

    def way(self, use: str, rank: int, other: int) -> tuple[Route | None, int]:
        """Give the route of a representative's bytes, and the latency in nanoseconds.

        Parameters
        ----------
        use : {"send", "read", "write"}
            As in :func:`~cocoll.simulation.roles.path_of`. What is read or written goes through the
            thread of a rank that has no GPU.
        rank, other : int
            The representative, and whose message or memory it is.
        """
        key = (use, rank, other)
        way = self._ways.get(key)
        if way is None:
            path = self.roles.weigh(use, rank, other)
            ports, weights = path.ports, path.weights
            if use != "send" and self.has_thread(rank):
                ports, weights = (*ports, self._threads + rank), (*weights, 1)
            route = self._traffic.add_route(ports, weights) if ports else None
            way = self._ways[key] = (route, path.latency_nanoseconds)
        return way

    def has_thread(self, rank: int) -> bool:
        """Say whether one thread does all that a rank does, as on the host, one step at a time."""
        return self.roles.topology.placements[rank].device is None
