"""A process of torch's that a rank starts beside itself, in its own host."""

from __future__ import annotations

import socket
import subprocess
from typing import TYPE_CHECKING

from benchmarks.peers.launch import base_environment, torch_python

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.common.turns import Message
    from benchmarks.hosts.setting import HostsSetting

__all__ = ["TorchChild", "free_port"]

_END_SECONDS = 20.0


def free_port(address: str) -> int:
    """Give a port of an address of this host that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    return port


class TorchChild:
    """A program that joins ``torch.distributed`` with the rank's number, and serves turns.

    Parameters
    ----------
    worker : Path
        The program; takes ``--socket`` and ``--job``.
    listener_name : str
        Where it reports.
    job : str
        What it reports as.
    setting : HostsSetting
        The cluster.
    rank : int
        Of the process that starts it.
    """

    def __init__(
        self, worker: Path, listener_name: str, job: str, setting: HostsSetting, rank: int
    ) -> None:
        self._worker = worker
        self._listener_name = listener_name
        self._job = job
        self._setting = setting
        self._rank = rank
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Message) -> Message:
        """Start it; `command` says at which ``address`` and ``port`` the processes meet."""
        host, index = self._setting.place(self._rank)
        environment = {
            **base_environment(),
            "RANK": str(self._rank),
            "WORLD_SIZE": str(self._setting.world_size),
            "LOCAL_RANK": str(index),
            "LOCAL_WORLD_SIZE": str(len(self._setting.ranks_of_hosts[host])),
            "MASTER_ADDR": command["address"],
            "MASTER_PORT": str(command["port"]),
            "THP_MEM_ALLOC_ENABLE": "1",
            # Names that torch is about to change, and addresses that have none: every rank would
            # say so.
            "PYTHONWARNINGS": "ignore::FutureWarning",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        words = [torch_python(), str(self._worker)]
        words += ["--socket", self._listener_name, "--job", self._job]
        self._process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL)
        return {}

    def has_ended(self) -> bool:
        """Say whether it was started and is gone."""
        return self._process is not None and self._process.poll() is not None

    def wait(self) -> None:
        """Wait until it is gone, and end it if that takes long."""
        if self._process is None:
            return
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.end()

    def end(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
