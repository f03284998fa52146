"""Memory that is not there, small file systems, limits; and what a job that was killed leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cocoll.testing import run_processes
from tests.helpers import resources
from tests.helpers.scripts import MPIRUN, run_script

LIMITED = """
    import resource, sys
    import numpy as np
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    import cocoll
    from cocoll.testing import run_ranks

    def body(comm):
        found = f"rank {comm.rank} has it"
        try:
            comm.empty(64 << 20, "uint8")
        except OSError as error:
            found = f"rank {comm.rank}: {error}"
        small = comm.empty(1000)
        small[:] = 1.0
        cocoll.allreduce(small)
        assert (small == comm.world_size).all()
        return found

    try:
        print("\\n".join(run_ranks(int(sys.argv[1]), body)))
    except OSError as error:
        print(f"not made: {error}")
"""


def test_a_file_size_limit_below_the_scratch() -> None:
    ran = run_script(LIMITED, "2", str(1 << 20))
    assert ran.code == 0, ran
    assert ran.out.startswith("not made: rank 0: "), ran
    assert "File too large" in ran.out
    assert "bytes of shared memory" in ran.out


def test_a_file_size_limit_below_an_array() -> None:
    ran = run_script(LIMITED, "2", str(32 << 20))
    assert ran.code == 0, ran
    lines = sorted(ran.out.splitlines())
    assert len(lines) == 2, ran
    assert all("File too large" in line and "rank 0 has no 67108864 bytes" in line
               for line in lines)  # fmt: skip
    assert [line[:7] for line in lines] == ["rank 0:", "rank 1:"]


def test_an_address_space_limit() -> None:
    # Reservations shrink with the limit; an array that cannot fit is refused, not a crash.
    script = LIMITED.replace("RLIMIT_FSIZE", "RLIMIT_AS")
    ran = run_script(script, "2", str(8 << 30))
    assert ran.code == 0, ran
    assert sorted(ran.out.splitlines()) == ["rank 0 has it", "rank 1 has it"]


def may_mount() -> bool:
    """Whether this user may have a mount namespace of its own."""
    command = ["unshare", "-m", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not may_mount(), reason="mount namespaces are not permitted here")
def test_a_tiny_dev_shm() -> None:
    script = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$0" "$@"'
    ran = run_script(LIMITED.replace("resource.setrlimit", "0 and resource.setrlimit"), "2", "0",
                     launcher=("unshare", "-m", "sh", "-c", script))  # fmt: skip
    assert ran.code == 0, ran
    assert sorted(ran.out.splitlines()) == ["rank 0 has it", "rank 1 has it"]


@pytest.mark.parametrize("names", [pytest.param(1024, marks=pytest.mark.long), 64])
def test_few_open_files(names: int) -> None:
    script = """
        import resource, sys
        limit = int(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        import cocoll
        comm = cocoll.init()
        made = []
        try:
            for _ in range(600):
                made.append(comm.duplicate())
        except OSError as error:
            print(error)
        for other in made:
            other.close()
        del made[:]
        for _ in range(3):
            made.append(comm.duplicate())
            made[-1].barrier()
        comm.barrier()
        print("end")
    """
    ran = run_script(script, str(names))
    assert ran.code == 0, ran
    assert "Too many open files" in ran.out
    assert ran.out.endswith("end\n")


BUSY = """
    import os, sys
    import numpy as np
    import cocoll
    comm = cocoll.init(timeout_seconds=600.0)
    arrays = []
    x = np.ones(100_001, np.float32)
    for turn in range(10**9):
        arrays = [comm.empty(1 << 20), *arrays[:3]]
        cocoll.allreduce(x, "max")
        cocoll.allreduce(arrays[-1], "max")
        if turn == 5:
            os.write(1, f"ready {os.getpid()}\\n".encode())
"""


def start_busy_job(ranks: int) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a job that never ends; give it and its ranks once all are busy."""
    job = subprocess.Popen(
        [str(MPIRUN), "-n", str(ranks), sys.executable, "-c", textwrap.dedent(BUSY)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    pids = [int(job.stdout.readline().split()[1]) for _ in range(ranks)]
    return job, pids


@pytest.mark.parametrize(
    "whom", ["one rank", "all ranks", "mpirun", pytest.param("Ctrl-C", marks=pytest.mark.long)]
)
def test_a_killed_job_leaves_nothing(whom: str) -> None:
    job, pids = start_busy_job(3)
    try:
        victims = {"one rank": pids[1:2], "all ranks": pids}.get(whom, [job.pid])
        for pid in victims:
            os.kill(pid, signal.SIGINT if whom == "Ctrl-C" else signal.SIGKILL)
        job.communicate(timeout=200)
    finally:
        job.kill()
        job.wait()
    assert job.returncode != 0
    # The fixture looks for what is left; and the next start works.
    assert all(outcome.error is None for outcome in run_processes(2, resources.use_memory))


def test_rank_processes_that_are_killed_leave_nothing() -> None:
    outcomes = run_processes(3, resources.use_memory_and_die, timeout_seconds=200.0,
                             limit_seconds=250.0)  # fmt: skip
    assert [outcome.exit_code for outcome in outcomes] == [-9] * 3
    assert all(outcome.error is None for outcome in run_processes(3, resources.use_memory))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.long
def test_another_user_starts_after_a_killed_job() -> None:
    outcomes = run_processes(2, resources.use_memory_and_die, limit_seconds=250.0)
    assert [outcome.exit_code for outcome in outcomes] == [-9] * 2
    # Everything is loaded first: the other user may not read the interpreter's files.
    script = """
        import os
        from cocoll.testing import run_ranks
        from tests.helpers.resources import use_memory
        run_ranks(2, use_memory)
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        run_ranks(2, use_memory)
        print(os.getuid())
    """
    ran = run_script(script)
    assert (ran.code, ran.out) == (0, "65534\n"), ran


def test_importing_leaves_nothing(tmp_path: Path) -> None:
    script = """
        import os, sys, threading
        import numpy
        before = set(os.listdir("/proc/self/fd"))
        import cocoll
        assert set(os.listdir("/proc/self/fd")) == before
        assert threading.active_count() == 1
        tops = {name.partition(".")[0] for name in sys.modules}
        assert not tops & {"mpi4py", "torch", "cupy"}
    """
    ran = run_script(script, environ={"COCOLL_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path)})
    assert ran.code == 0, ran
    assert list(tmp_path.iterdir()) == []
