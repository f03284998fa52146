"""Jobs as the driver sees them: started by their own launcher, given turns, ended for good."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from benchmarks.common.turns import Channel, Listener, Message, TurnError, exchange
from benchmarks.peers.launch import JobSpec, base_environment

__all__ = ["Job", "adopt_orphans", "end_descendants"]

_WORKER = str(Path(__file__).with_name("worker.py"))
_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_LOG_LINES = 12
_PR_SET_CHILD_SUBREAPER = 36


class Job:
    """One running job.

    Parameters
    ----------
    spec : JobSpec
        What to start.
    ranks : int
        World size.
    listener : Listener
        Where its ranks report.
    """

    def __init__(self, spec: JobSpec, ranks: int, listener: Listener) -> None:
        self.spec = spec
        self.ranks = ranks
        self.versions: dict[str, str] = {}
        self._listener = listener
        self._channels: list[Channel] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the job
        self._control = os.memfd_create(f"bench-control-{spec.name}")
        self._pool = os.memfd_create(f"bench-pool-{spec.name}")

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not been stopped."""
        return self._process is not None

    def start(self) -> None:
        """Start the launcher and wait until all ranks have reported.

        Raises
        ------
        TurnError
            The launcher cannot be run, ended early, or not all ranks reported in time; the message
            ends with the job's last lines of output.
        """
        descriptors = f"/proc/{os.getpid()}/fd"
        command = [
            *self.spec.command,
            _WORKER,
            "--runner",
            self.spec.runner,
            "--job",
            self.spec.name,
            "--socket",
            self._listener.name,
            "--control",
            f"{descriptors}/{self._control}",
            "--pool",
            f"{descriptors}/{self._pool}",
        ]
        try:
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={**base_environment(), **self.spec.environment},
                start_new_session=True,
            )
        except OSError as error:
            raise TurnError(f"{self.spec.name}: {error}") from error
        try:
            reported = self._listener.accept(
                self.spec.name, self.ranks, _START_SECONDS, lambda: process.poll() is not None
            )
        except TurnError as error:
            raise self._explain(error) from error
        self._channels = [channel for channel, _ in reported]
        self.versions = reported[0][1].get("versions", {})

    def turn(self, command: Message, timeout_seconds: float = 120.0) -> list[Message]:
        """Give every rank `command`; gives their replies in rank order.

        Raises
        ------
        TurnError
            A rank failed, is gone, or did not answer in time. The job must be stopped then.
        """
        try:
            return exchange(self._channels, command, timeout_seconds)
        except TurnError as error:
            raise self._explain(error) from error

    def clear_pool(self) -> None:
        """Give the limit loops' shared memory back, once the ranks have let go of it."""
        os.ftruncate(self._pool, 0)

    def stop(self, *, ask: bool = True) -> None:
        """End the job; safe to call at any time and twice.

        Parameters
        ----------
        ask : bool
            First ask the ranks to end by themselves. After a failure that would take its time.
        """
        process, self._process = self._process, None
        if process is None:
            return
        try:
            # Asked in vain, signals follow.
            with contextlib.suppress(TurnError, subprocess.TimeoutExpired):
                if ask and process.poll() is None and self._channels:
                    exchange(self._channels, {"do": "stop"}, _STOP_SECONDS)
                    process.wait(_STOP_SECONDS)
        finally:
            for channel in self._channels:
                channel.close()
            self._channels = []
            _end_process(process)
            self._log.close()
            os.close(self._control)
            os.close(self._pool)

    def _explain(self, error: TurnError) -> TurnError:
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-_LOG_LINES:]
        output = "".join(f"\n    | {line}" for line in lines)
        return type(error)(f"{self.spec.name}: {error}{output}")


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends.

    Launchers put ranks into process groups of their own; as their adoptive parent the driver finds
    and ends them whatever became of the launcher.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(timeout_seconds: float = 5.0) -> list[int]:
    """Kill whatever this process has started and is still there; gives the pids."""
    ended: list[int] = []
    deadline_seconds = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline_seconds:
        left = _descendants(os.getpid())
        for pid in left:
            _signal(pid, signal.SIGKILL)
            if pid not in ended:
                ended.append(pid)
        _reap()
        if not left:
            break
        time.sleep(0.02)
    return ended


def _end_process(process: subprocess.Popen[bytes]) -> None:
    below = _descendants(process.pid)
    if process.poll() is None:
        process.terminate()  # launchers pass it on to their ranks
        try:
            process.wait(3.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid in below:
        if pid in _descendants(os.getpid()):  # still ours, not a recycled number
            _signal(pid, signal.SIGKILL)


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
