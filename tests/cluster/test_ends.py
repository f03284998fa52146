"""However a cluster ends, nothing of it stays; the fixture looks for it."""

from __future__ import annotations

import shutil
import signal
import subprocess

import pytest

from tests.cluster.conftest import LIMIT_SECONDS, Cluster
from tests.helpers.leftovers import marked_processes

OPTIONS = "--hosts 2 --ranks-per-host 1 --nic 1gbit"


def end(cluster: Cluster, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )


def test_the_exit_code_of_the_job(cluster: Cluster) -> None:
    ran = end(cluster, cluster.command(OPTIONS, "sh", "-c", "exit $((5 * OMPI_COMM_WORLD_RANK))"))
    assert ran.returncode == 5, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
    ],
)
def test_a_signal_to_the_launcher(cluster: Cluster, number: signal.Signals, code: int) -> None:
    process = cluster.start(OPTIONS)
    # The launcher, the first process of its machine and of each host, mpirun, daemons, ranks.
    assert len(marked_processes(cluster.mark)) >= 9
    process.send_signal(number)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == code


def test_without_rights_it_is_skipped(cluster: Cluster) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not there")
    without = ["setpriv", "--bounding-set=-sys_admin"]
    ran = end(cluster, [*without, *cluster.command(OPTIONS, "true")])
    assert ran.returncode == 77, ran.stdout + ran.stderr
    assert "CAP_SYS_ADMIN" in ran.stderr
