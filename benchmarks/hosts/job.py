"""Jobs as the driver sees them, where all ranks are there already and several share a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.common.turns import Message, RankError, TurnError, exchange
from benchmarks.peers.launch import JobSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.common.turns import Channel

__all__ = ["SharedJob", "Workers"]

_STOP_SECONDS = 20.0
# Open MPI as it comes takes minutes for a large vector where other programs want the cores too.
_TURN_SECONDS = 240.0


class Workers:
    """One process per rank.

    Parameters
    ----------
    name : str
        What messages call them.
    channels : sequence of Channel
        By rank.
    """

    def __init__(self, name: str, channels: Sequence[Channel]) -> None:
        self._name = name
        self._channels = channels
        self._broken = ""

    @property
    def is_broken(self) -> bool:
        """Whether some of them hang in a call that others have given up."""
        return bool(self._broken)

    def turn(self, command: Message, timeout_seconds: float) -> list[Message]:
        """Give every rank `command`; gives their replies in rank order.

        Raises
        ------
        TurnError
            A rank failed, is gone, or did not answer in time; then, or if that was so before.
        """
        if self._broken:
            raise TurnError(self._broken)
        try:
            return exchange(self._channels, command, timeout_seconds)
        except RankError:
            raise  # all have answered: the others in these processes can go on
        except TurnError as error:
            self._broken = f"the ranks of {self._name} hang since: {error}"
            raise

    def stop(self) -> None:
        """Let them end."""
        if not self._broken:
            exchange(self._channels, {"do": "stop"}, _STOP_SECONDS)


class SharedJob:
    """One implementation, in processes that others may share.

    Parameters
    ----------
    name : str
        Its name; also the implementation's.
    workers : Workers
        The processes.
    """

    def __init__(self, name: str, workers: Workers) -> None:
        self.spec = JobSpec(name, "", "", ())
        self.versions: dict[str, str] = {}
        self._workers = workers
        self._is_running = False

    @property
    def is_running(self) -> bool:
        """Whether it has been opened and not been stopped."""
        return self._is_running

    def start(self) -> None:
        """Open the library on all ranks.

        Raises
        ------
        TurnError
            It cannot be opened.
        """
        self.versions = self.turn({"do": "open"})[0]["versions"]
        self._is_running = True

    def turn(self, command: Message, timeout_seconds: float = _TURN_SECONDS) -> list[Message]:
        """Give every rank `command` for this implementation; gives their replies in rank order.

        Raises
        ------
        TurnError
            A rank failed, is gone, or did not answer in time. The job must be stopped then.
        """
        return self._workers.turn({**command, "job": self.spec.name}, timeout_seconds)

    def clear_pool(self) -> None:
        """Do nothing: there are no limit loops in memory."""

    def stop(self, *, ask: bool = True) -> None:
        """Give it no more turns; the processes stay, for the others."""
        del ask
        self._is_running = False
