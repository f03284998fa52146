"""Hosts as namespaces: where they cannot be made, nothing here runs, and it is said why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster.namespaces import extend_path, missing_rights
from tests.helpers.leftovers import MARK, wait_for_end
from tests.repo.layout import ROOT

LAUNCHER = [sys.executable, str(ROOT / "benchmarks" / "cluster" / "run.py")]
LIMIT_SECONDS = 60

# What every rank's script can use; rank 0 prints what the test reads.
PRELUDE = """
import json, os, socket, subprocess, sys, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
cluster = json.loads(os.environ["COCOLL_CLUSTER"])
(mine,) = [host for host in cluster["hosts"] if rank in host["ranks"]]

def tell(value):
    told = comm.gather(value)
    if rank == 0:
        print(json.dumps(told), flush=True)

def count(nic, way):
    with open(f"/sys/class/net/{nic}/statistics/{way}_bytes") as file:
        return int(file.read())
"""


@dataclass(frozen=True)
class Cluster:
    """Starts clusters, marked so that what they leave can be found."""

    mark: str

    def command(self, options: str, *command: str) -> list[str]:
        """Give the words that start `command` on a cluster."""
        return [*LAUNCHER, *options.split(), "--", *command]

    def run(self, options: str, script: str) -> list[Any]:
        """Run a script on every rank; gives what the ranks told."""
        command = self.command(options, sys.executable, "-c", PRELUDE + textwrap.dedent(script))
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        told: list[Any] = json.loads(ran.stdout)
        return told

    def start(self, options: str) -> subprocess.Popen[str]:
        """Start ranks that never end, and return when all run."""
        script = PRELUDE + "tell(os.getpid())\nwhile True: time.sleep(1)"
        command = self.command(options, sys.executable, "-c", script)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("[")
        return process


@pytest.fixture(scope="session", autouse=True)
def _rights() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.environ["PATH"])
        extend_path()
        reason = missing_rights()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cluster]:
    """Give what starts clusters; afterwards nothing of them may be there."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = machine()
    yield Cluster(mark)
    left = wait_for_end(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes are left: {left}"
    assert not list(tmp_path.iterdir())
    # Devices go with their namespaces, and those some time after the last process.
    deadline = time.monotonic() + 10
    while machine() != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert machine() == before


def machine() -> dict[str, list[str]]:
    """Give what of this machine a cluster might change."""
    lists: dict[str, Callable[[], Iterator[str]]] = {
        "devices": lambda: (path.name for path in Path("/sys/class/net").iterdir()),
        "mounts": lambda: iter(Path("/proc/self/mountinfo").read_text().splitlines()),
        "shared": lambda: (path.name for path in Path("/dev/shm").glob("*cluster*")),
        "names": lambda: iter(Path("/etc/hosts").read_text().splitlines()),
    }
    return {name: sorted(entries()) for name, entries in lists.items()}
