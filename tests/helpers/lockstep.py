"""A pytest plugin for runs under mpirun: all ranks see the same verdict, and none waits forever.

A test that fails on one rank would otherwise leave the others inside a collective call. Here a
failing rank prints its traceback at once, the ranks exchange verdicts after every phase of every
test, so that they fail alike, and a watchdog prints all stacks and ends the job when a phase does
not return.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING

import pytest
from mpi4py import MPI

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["DEADLOCK_STATUS", "Lockstep"]

DEADLOCK_STATUS = 70
LIMIT_SECONDS = 240.0


class Lockstep:
    """The hooks; registered by conftest where there is more than one rank."""

    def __init__(self) -> None:
        # A communicator of its own: no message of a test can be taken for a verdict.
        self.comm = MPI.COMM_WORLD.Dup()
        if self.comm.rank > 0:
            # One report is enough; what fails elsewhere is printed by `_settle`.
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """End the job if a test does not."""
        watchdog = threading.Timer(LIMIT_SECONDS, self._abort, [item.nodeid])
        watchdog.daemon = True
        watchdog.start()
        try:
            return (yield)
        finally:
            watchdog.cancel()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let no rank start a test whose fixtures failed on another."""
        return (yield from self._settle(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail on all ranks what failed on one."""
        return (yield from self._settle(item, "call"))

    def _settle(self, item: pytest.Item, phase: str) -> Generator[None, object, object]:
        raised: BaseException | None = None
        result: object = None
        try:
            result = yield
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
            raised = error
        failed = raised is not None and not isinstance(raised, pytest.skip.Exception)
        if failed:
            text = "".join(traceback.format_exception(raised))
            self._say(f"rank {self.comm.rank}: {item.nodeid} failed in {phase}\n{text}")
        verdicts = self.comm.allgather(failed)
        if raised is not None:
            raise raised
        if any(verdicts):
            ranks = ", ".join(str(rank) for rank, bad in enumerate(verdicts) if bad)
            pytest.fail(f"{phase} failed on rank {ranks}", pytrace=False)
        return result

    def _abort(self, nodeid: str) -> None:
        self._say(f"rank {self.comm.rank}: {nodeid} did not end in {LIMIT_SECONDS:g} s")
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        MPI.COMM_WORLD.Abort(DEADLOCK_STATUS)

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.__stderr__, flush=True)
