"""One MPI job over the hosts of a cluster."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING

from benchmarks.cluster.namespaces import SCRATCH, cover, start_init
from benchmarks.cluster.network import LAUNCHER_ADDRESS, make_network
from benchmarks.cluster.topology import describe_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.cluster.options import Cluster

__all__ = ["find_mpirun", "run_job"]

_FOLDER = SCRATCH / "cluster"
_PROGRAMS = ("agent.sh", "rank.sh")
_TOPOLOGY, _PLACES = _FOLDER / "topology.json", _FOLDER / "places"
_NAMES, _SYSTEM_NAMES = _FOLDER / "hosts", Path("/etc/hosts")
_END_SECONDS = 5.0

# mpirun puts its child into a process group, and complains where the child has done so before.
_NO_ERROR = re.compile(rb"\[[^\]\n]*\] plm:ssh: Warning: setpgid\([^\n]*\n")

# Ranks are more than cores, and a rank that waits in MPI must leave its core to the others.
_MPI_SETTINGS = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def find_mpirun() -> str | None:
    """Give Open MPI's launcher: the one beside this Python, or else the one in the PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


def run_job(cluster: Cluster, mpirun: str, command: Sequence[str]) -> int:
    """Make the hosts, run `command` once a rank, and give mpirun's exit code.

    To be called on a machine of its own (:func:`~benchmarks.cluster.namespaces.run_isolated`).

    Parameters
    ----------
    cluster : Cluster
        The hosts, and how many ranks each has.
    mpirun : str
        Its path.
    command : sequence of str
        Program and arguments.

    Raises
    ------
    OSError, NetworkError
        The hosts cannot be made.
    """
    files = _files(cluster)
    _write(files)
    if _SYSTEM_NAMES.exists():
        cover(_SYSTEM_NAMES, _NAMES)
    inits = [start_init(host.name, lambda: _write(files)) for host in cluster.hosts]
    for host, init in zip(cluster.hosts, inits, strict=True):
        (_FOLDER / f"{host.name}.pid").write_text(str(init))
    make_network(cluster, inits)
    # A session of its own: Ctrl-C reaches it once, by way of this process.
    job = subprocess.Popen(
        [*_mpirun_words(cluster, mpirun), *command],
        env=_environment(cluster),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    errors = threading.Thread(target=_copy_errors, args=(job.stderr,), daemon=True)
    errors.start()
    try:
        code = job.wait()
    finally:
        if job.returncode is None:
            _end(job)
        errors.join(_END_SECONDS)
    return code if code >= 0 else 128 - code


def _copy_errors(source: IO[bytes]) -> None:
    while chunk := os.read(source.fileno(), 1 << 16):
        sys.stderr.buffer.write(_NO_ERROR.sub(b"", chunk))
        sys.stderr.flush()


def _files(cluster: Cluster) -> dict[Path, str]:
    here = Path(__file__).parent
    files = {_FOLDER / name: (here / name).read_text(encoding="utf-8") for name in _PROGRAMS}
    files[_TOPOLOGY] = describe_topology(cluster)
    names = [("127.0.0.1", "localhost"), (LAUNCHER_ADDRESS, socket.gethostname())]
    names += [(host.addresses[0], host.name) for host in cluster.hosts]
    files[_NAMES] = "".join(f"{address} {name}\n" for address, name in names)
    host_of = {rank: host.name for host in cluster.hosts for rank in host.ranks}
    files[_PLACES] = "".join(f"{host_of[rank]}\n" for rank in range(cluster.world_size))
    return files


def _write(files: dict[Path, str]) -> None:
    (_FOLDER / "tmp").mkdir(parents=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)


def _mpirun_words(cluster: Cluster, mpirun: str) -> list[str]:
    return [
        mpirun,
        *("-n", str(cluster.world_size)),
        *("--hostfile", str(_PLACES), "--map-by", "seq:oversubscribe"),
        *("--bind-to", "none"),
        *("--prtemca", "plm_ssh_agent", str(_FOLDER / "agent.sh")),
        *("--prtemca", "plm_ssh_no_tree_spawn", "1"),
        str(_FOLDER / "rank.sh"),
    ]


def _environment(cluster: Cluster) -> dict[str, str]:
    # The settings for MPI may be overridden, to try others.
    return {
        **_MPI_SETTINGS,
        **os.environ,
        "TMPDIR": str(_FOLDER / "tmp"),
        "COCOLL_CLUSTER": cluster.to_json(),
        "COCOLL_CLUSTER_NICS": str(cluster.nics_per_host),
        "COCOLL_TOPOLOGY": str(_TOPOLOGY),
    }


def _end(job: subprocess.Popen[bytes]) -> None:
    job.terminate()
    try:
        job.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        job.kill()
