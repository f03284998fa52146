"""The driver hands out turns: one command to every rank of a job, one reply from each.

Commands and replies are JSON objects, one a line, over a Unix socket in the abstract namespace (no
file to leave behind), or over TCP where ranks are on other hosts. A rank that has no turn sleeps in
``read()``, whatever library it measures.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Channel", "Listener", "RankError", "TurnError", "connect", "exchange", "serve"]

Message = dict[str, Any]


class TurnError(Exception):
    """A job broke off: a rank left, did not answer in time, or said what cannot be understood."""


class RankError(TurnError):
    """A rank answered that the command failed there; the message is the rank's own."""


class Channel:
    """One end of a connection between the driver and a rank."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pending = b""

    def fileno(self) -> int:
        """Give the descriptor, for ``select``."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send one message.

        Raises
        ------
        TurnError
            The other end is gone.
        """
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise TurnError(f"the other end is gone ({error})") from error

    def receive(self, deadline_seconds: float | None = None) -> Message:
        """Wait for one message, asleep.

        Parameters
        ----------
        deadline_seconds : float, optional
            A time of ``time.monotonic()``; default waits for ever.

        Raises
        ------
        TurnError
            The other end is gone, or the deadline passed.
        """
        while b"\n" not in self._pending:
            if deadline_seconds is not None:
                left_seconds = max(0.0, deadline_seconds - time.monotonic())
                if not select.select([self._connection], [], [], left_seconds)[0]:
                    raise TurnError("no answer in time")
            try:
                data = self._connection.recv(1 << 16)
            except OSError as error:
                raise TurnError(f"the other end is gone ({error})") from error
            if not data:
                raise TurnError("the other end is gone")
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        message = json.loads(line)
        if not isinstance(message, dict):
            raise TurnError(f"wanted an object, got {message!r}")
        return message

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


class Listener:
    """Where the ranks of all jobs report to the driver.

    Parameters
    ----------
    address : str, optional
        An address of this host, for ranks that are on others too.
    """

    def __init__(self, address: str | None = None) -> None:
        if address is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(f"\0cocoll-bench-{os.getpid()}-{id(self):x}")
        else:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._socket.bind((address, 0))
        self._socket.listen(256)

    @property
    def name(self) -> str:
        """The name to hand to ranks: ``ADDRESS:PORT``, or without the leading zero byte."""
        name: Any = self._socket.getsockname()
        return name[1:].decode() if isinstance(name, bytes) else f"{name[0]}:{name[1]}"

    def accept(
        self,
        job: str,
        world_size: int,
        timeout_seconds: float,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> list[tuple[Channel, Message]]:
        """Wait until all ranks of `job` have reported.

        Parameters
        ----------
        job : str
            The name its ranks give; ranks that give another are turned away.
        world_size : int
            How many must report.
        timeout_seconds : float
            For all of them together.
        has_ended : callable
            Asked now and then; True means that the job's launcher is gone.

        Returns
        -------
        list of (Channel, dict)
            In rank order, each with what the rank said of itself.

        Raises
        ------
        TurnError
            Not all reported in time, or the launcher ended first.
        """
        reported: dict[int, tuple[Channel, Message]] = {}
        deadline_seconds = time.monotonic() + timeout_seconds
        try:
            while len(reported) < world_size:
                missing = sorted(set(range(world_size)) - set(reported))
                if has_ended():
                    raise TurnError(f"ended before ranks {missing} had reported")  # noqa: TRY301
                if time.monotonic() > deadline_seconds:
                    reason = f"ranks {missing} did not report in {timeout_seconds:.0f} s"
                    raise TurnError(reason)  # noqa: TRY301 - the cleanup below is for these too
                if select.select([self._socket], [], [], 0.2)[0]:
                    channel, hello = self._greet(deadline_seconds)
                    if hello.get("job") == job:
                        reported[int(hello["rank"])] = (channel, hello)
                    else:
                        channel.close()
        except BaseException:
            for channel, _ in reported.values():
                channel.close()
            raise
        return [reported[rank] for rank in range(world_size)]

    def _greet(self, deadline_seconds: float) -> tuple[Channel, Message]:
        channel = Channel(self._socket.accept()[0])
        try:
            return channel, channel.receive(deadline_seconds)
        except TurnError:
            return channel, {}  # left again without a word

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def connect(name: str, hello: Message) -> Channel:
    """Report to the driver, as a rank.

    Parameters
    ----------
    name : str
        :attr:`Listener.name`.
    hello : dict
        At least ``job`` and ``rank``.
    """
    address, colon, port = name.rpartition(":")
    if colon:
        connection = socket.create_connection((address, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect("\0" + name)
    channel = Channel(connection)
    channel.send(hello)
    return channel


def exchange(
    channels: Sequence[Channel], command: Message, timeout_seconds: float
) -> list[Message]:
    """Give all ranks of a job a turn and wait for all replies.

    Returns
    -------
    list of dict
        In rank order.

    Raises
    ------
    RankError
        A rank replied with an error.
    TurnError
        A rank is gone or did not reply within `timeout_seconds`.
    """
    for channel in channels:
        channel.send(command)
    deadline_seconds = time.monotonic() + timeout_seconds
    replies: dict[int, Message] = {}
    errors: dict[str, list[int]] = {}
    # Whoever fails first must be heard first: the ranks that wait for it may never answer.
    waiting = dict(enumerate(channels))
    while waiting:
        left_seconds = deadline_seconds - time.monotonic()
        ready = select.select(list(waiting.values()), [], [], max(0.0, left_seconds))[0]
        if not ready:
            reason = f"ranks {sorted(waiting)} did not answer {command.get('do')!r}"
            raise TurnError("; ".join([*_told(errors), f"{reason} in {timeout_seconds:.0f} s"]))
        for rank in [rank for rank, channel in waiting.items() if channel in ready]:
            reply = waiting.pop(rank).receive(deadline_seconds)
            replies[rank] = reply
            if "error" in reply:
                errors.setdefault(reply["error"], []).append(rank)
                # The others get a moment to fail or finish too, then the job is given up.
                deadline_seconds = min(deadline_seconds, time.monotonic() + 5.0)
    if errors:
        raise RankError("; ".join(_told(errors)))
    return [replies[rank] for rank in range(len(channels))]


def _told(errors: dict[str, list[int]]) -> list[str]:
    return [
        f"rank {ranks[0]}: {error}" if len(ranks) == 1 else f"ranks {sorted(ranks)}: {error}"
        for error, ranks in errors.items()
    ]


def serve(channel: Channel, handlers: dict[str, Callable[[Message], Message]]) -> None:
    """Answer commands, as a rank, until told to stop or the driver is gone.

    Parameters
    ----------
    channel : Channel
        From :func:`connect`.
    handlers : dict
        For each ``do`` what carries it out; its reply is sent back. An exception in one is sent to
        the driver as ``error``, and the rank goes on listening.
    """
    # Once the driver is gone, in a turn or between two, a rank has nothing left to do.
    with contextlib.suppress(TurnError):
        while True:
            command = channel.receive()
            if command["do"] == "stop":
                channel.send({})
                return
            try:
                reply = handlers[command["do"]](command)
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            channel.send(reply)
