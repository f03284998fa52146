"""A job that hangs is looked at from outside: who waits for whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cocoll import flight
from tests.helpers.scripts import run_script

HANGING = """
import os, sys
import numpy as np
import cocoll
from cocoll.bootstrap import SocketBootstrap

rank = int(sys.argv[1])
comm = cocoll.Communicator(SocketBootstrap(sys.argv[2], rank, 3), timeout_seconds=600.0)
x = np.ones(70_001, np.float32)
cocoll.allreduce(x, "max", comm=comm)
cocoll.broadcast(x, 1, comm=comm)
print(os.getpid(), flush=True)
if rank == 1:
    # Where a program is stuck in a way that no handler helps: it does not even hold still.
    while True:
        pass
if rank == 2:
    cocoll.allreduce(x, "min", comm=comm, stream=(stream := cocoll.Stream())).wait()
cocoll.allreduce(x, "min", comm=comm)
"""


@pytest.fixture
def hanging_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    path = tmp_path_factory.mktemp("d") / "s"
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", HANGING, str(rank), str(path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        yield [int(job.stdout.readline()) for job in jobs if job.stdout is not None]
    finally:
        for job in jobs:
            job.kill()
            job.communicate()


def count_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_until_all_wait(pids: list[int]) -> None:
    while True:
        pages = {page["rank"]: page for page in flight.read_pages(pids[0])}
        if all(pages[rank]["waiting"] is not None for rank in (0, 2)):
            return
        time.sleep(0.01)


def test_who_waits_for_whom(hanging_job: list[int]) -> None:
    wait_until_all_wait(hanging_job)
    before = sorted(Path("/proc/self/fd").iterdir())
    texts = {pid: flight.dump(pid) for pid in hanging_job}
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    # Any rank tells the same: each maps the memory of all.
    assert len({"\n".join(sorted(text.splitlines())) for text in texts.values()}) == 1
    text = texts[hanging_job[0]]
    for rank in (0, 2):
        assert (
            f"rank {rank} (pid {hanging_job[rank]}) is in allreduce(count=70001, dtype=float32, "
            f"op=min), operation 2, waiting for rank 1 to arrive"
        ) in text
    assert (
        f"rank 1 (pid {hanging_job[1]}) is outside cocoll; its last was broadcast(count=70001, "
        f"dtype=float32, root=1), operation 1"
    ) in text
    assert "0 done     allreduce(count=70001, dtype=float32, op=max)" in text
    assert flight.dump(hanging_job[0], operations=1).count("done") == 1


def test_the_command(hanging_job: list[int]) -> None:
    wait_until_all_wait(hanging_job)
    os.kill(hanging_job[1], signal.SIGSTOP)
    command = Path(sys.executable).with_name("cocoll")
    ran = subprocess.run(
        [str(command), "dump", str(hanging_job[1])], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran
    assert ran.stderr == ""
    assert ran.stdout.count("waiting for rank 1 to arrive") == 2


def test_a_process_without_a_communicator() -> None:
    script = """
        import os
        from cocoll import flight
        from cocoll.errors import UsageError
        for pid in (os.getpid(), 1 << 22):
            try:
                print(flight.dump(pid))
            except UsageError as error:
                print(error)
    """
    ran = run_script(script)
    lines = ran.out.splitlines()
    assert "has no communicator of cocoll" in lines[0]
    assert f"cannot read process {1 << 22}" in lines[1]
