"""A run on a cluster: each rank serves turns, and rank 0 hands them out besides."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common.turns import Listener, TurnError, connect, serve
from benchmarks.hosts import open_mpi
from benchmarks.hosts.child import TorchChild, free_port
from benchmarks.hosts.job import SharedJob, Workers
from benchmarks.hosts.port_runner import PortRunner
from benchmarks.hosts.rank import HostsRank

if TYPE_CHECKING:
    from benchmarks.hosts.runner import HostsRunner
    from benchmarks.hosts.setting import HostsSetting

__all__ = ["Jobs", "run_rank"]

_RANKS, _GLOO = "ranks", "gloo"
_START_SECONDS = 120.0
_GLOO_WORKER = Path(__file__).with_name("gloo_worker.py")


def run_rank(setting: HostsSetting, drive: Callable[[Jobs], int]) -> int:
    """Take part in a run, as the rank of the cluster that this process is.

    Parameters
    ----------
    setting : HostsSetting
        The cluster.
    drive : callable
        Called on rank 0 alone, in a thread; gives the exit status.

    Returns
    -------
    int
        On rank 0 the exit status, on others 0. Does not return where ranks hang in a call that
        others have given up: the process ends then, and its launcher ends the others.
    """
    open_mpi.prepare_environment()
    from mpi4py import MPI

    from benchmarks.hosts.cocoll_runner import HostsCocollRunner

    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    listener = Listener(setting.address(0)) if rank == 0 else None
    name: str = world.bcast(listener.name if listener else None)
    child = TorchChild(_GLOO_WORKER, name, _GLOO, setting, rank)
    runners: dict[str, HostsRunner] = {
        "cocoll": HostsCocollRunner(),
        "port": PortRunner(setting),
        "openmpi": open_mpi.OpenMpiRunner(),
        "openmpi_tuned": open_mpi.TunedOpenMpiRunner(),
    }
    status = [0]
    driver = None
    if listener:
        arguments = (listener, setting, child, drive, status)
        driver = threading.Thread(target=_drive, args=arguments)
        driver.start()
    service = HostsRank(runners, setting)
    channel = connect(name, {"job": _RANKS, "rank": rank})
    serve(channel, {**service.handlers(), "start_child": child.start})
    if driver:
        driver.join()
    child.wait()
    service.close()
    return status[0]


class Jobs:
    """The implementations that the ranks can run, as rank 0 sees them.

    Parameters
    ----------
    listener : Listener
        Where processes report.
    setting : HostsSetting
        The cluster.
    child_has_ended : callable
        Whether the process beside rank 0 has ended.
    """

    def __init__(
        self, listener: Listener, setting: HostsSetting, child_has_ended: Callable[[], bool]
    ) -> None:
        self._listener = listener
        self._setting = setting
        self._child_has_ended = child_has_ended
        self._ranks = self._accept(_RANKS, lambda: False)
        self._children: Workers | None = None

    def make(self, name: str) -> SharedJob:
        """Give the job of one implementation, not opened yet.

        Raises
        ------
        TurnError
            Its processes cannot be started.
        """
        if name != _GLOO:
            return SharedJob(name, self._ranks)
        address = self._setting.address(0)
        command = {"do": "start_child", "address": address, "port": free_port(address)}
        self._ranks.turn(command, _START_SECONDS)
        self._children = self._accept(_GLOO, self._child_has_ended)
        return SharedJob(name, self._children)

    def stop(self) -> bool:
        """End all processes; gives whether none of them hangs."""
        workers = [self._ranks] if self._children is None else [self._children, self._ranks]
        for each in workers:
            # Who does not answer is ended with this process.
            with contextlib.suppress(TurnError):
                each.stop()
        return not any(each.is_broken for each in workers)

    def _accept(self, name: str, has_ended: Callable[[], bool]) -> Workers:
        world_size = self._setting.world_size
        reported = self._listener.accept(name, world_size, _START_SECONDS, has_ended)
        return Workers(name, [channel for channel, _ in reported])


def _drive(
    listener: Listener,
    setting: HostsSetting,
    child: TorchChild,
    drive: Callable[[Jobs], int],
    status: list[int],
) -> None:
    is_clean = False
    try:
        jobs = Jobs(listener, setting, child.has_ended)
        status[0] = drive(jobs)
        is_clean = jobs.stop()
    except Exception:
        traceback.print_exc()
    finally:
        if not is_clean:
            # This rank itself may be the one that hangs.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status[0] or 1)
