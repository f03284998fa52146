"""The yardstick: how long a port takes for what it has to carry at least."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common.cases import Entry, Group
from benchmarks.common.memory import private_array
from benchmarks.hosts.runner import HostsRunner
from benchmarks.hosts.setting import PORT_ROW, vector_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from benchmarks.hosts.setting import HostsSetting

__all__ = ["PortRunner"]

_FORM = "stream"
# So long that neither what passes at once after a pause nor a process that wakes up late counts.
_MESSAGE_BYTES = 8 << 20


class PortRunner(HostsRunner):
    """One large message from host 0 to host 1 by each NIC that ranks use, all at once.

    Parameters
    ----------
    setting : HostsSetting
        The cluster.
    """

    def __init__(self, setting: HostsSetting) -> None:
        self._setting = setting
        self._comm: Any = None
        self._message: NDArray[Any] = np.empty(0, np.uint8)
        self._scale = 1.0

    def open(self) -> None:
        """Take a communicator of MPI's."""
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD.Dup()
        self.rank = self._comm.Get_rank()
        self.world_size = self._comm.Get_size()

    def close(self) -> None:
        """Leave it to the end of the process, which ends MPI."""

    def barrier(self) -> None:
        """``Barrier``."""
        self._comm.Barrier()

    def prepare(self, group: Group) -> list[Entry]:
        """Take memory for the message."""
        port_bytes = self._setting.port_bytes(group.operation, vector_bytes(group))
        self._scale = port_bytes / _MESSAGE_BYTES
        self._message = private_array(_MESSAGE_BYTES, np.uint8)
        return [Entry(_FORM, "limit", PORT_ROW)]

    def inputs(self, form: str) -> list[NDArray[Any]]:
        """Give none: nothing is rewritten."""
        del form
        return []

    def call(self, form: str) -> Callable[[], object]:
        """Give this rank's part: sender, receiver, or nothing."""
        del form
        host, index = self._setting.place(self.rank)
        if host > 1 or index >= self._setting.used_nics:
            return lambda: None
        other = self._setting.ranks_of_hosts[1 - host][index]
        if host == 0:
            return lambda: self._comm.Send(self._message, other)
        return lambda: self._comm.Recv(self._message, other)

    def result(self, form: str) -> NDArray[Any]:
        """Give the message."""
        del form
        return self._message

    def release(self) -> None:
        """Drop the message."""
        self._message = np.empty(0, np.uint8)

    def measure(self, form: str) -> float:
        """Give the seconds that a port takes for what it has to carry, at the rate measured."""
        return super().measure(form) * self._scale
