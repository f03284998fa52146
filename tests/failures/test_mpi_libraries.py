"""Other MPIs between hosts than the one that cocoll is tested with most; skipped without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".venv-peers" / "mpi"

SCRIPT = """
import sys
import numpy as np
from mpi4py import MPI
import cocoll
from cocoll.bootstrap import MpiBootstrap

class HostsOfOneMachine(MpiBootstrap):
    def shares_host(self, peer):
        return peer % 2 == self.rank % 2

comm = cocoll.Communicator(
    HostsOfOneMachine(MPI.COMM_WORLD), mpi_persistent=sys.argv[1] == "persistent"
)
size = comm.world_size
assert comm.hosts == (0, 1, 0)
for count in (5, 1_000, 300_001):
    for _ in range(3):
        x = np.arange(count, dtype=np.float64) + comm.rank
        cocoll.allreduce(x, comm=comm)
        assert (x == np.arange(count) * size + sum(range(size))).all()
        y = np.full(count, comm.rank)
        cocoll.broadcast(y, size - 1, comm=comm)
        assert (y == size - 1).all()
try:
    cocoll.allreduce(np.ones(5 + comm.rank), comm=comm)
except cocoll.errors.CollectiveMismatchError as error:
    assert len(error.requests) == size
for _ in range(5):
    with comm.duplicate() as child:
        cocoll.allreduce(np.ones(4), comm=child)
comm.close()
print(MPI.Get_library_version().splitlines()[0])
"""


@pytest.mark.parametrize("wire", ["direct", "persistent"])
@pytest.mark.parametrize(("name", "vendor"), [("mpich", "MPICH"), ("intel", "Intel")])
def test_it_carries_messages(name: str, vendor: str, wire: str) -> None:
    folder = INSTALLED / name
    if not (folder / "bin" / "mpiexec").exists():
        pytest.skip(f"{name} is not installed; make bench-peers installs it")
    libraries = folder / "lib"
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))
    }
    environ |= {
        "MPI4PY_MPIABI": "mpich",
        "MPI4PY_LIBMPI": str(libraries / "libmpi.so.12"),
        "LD_LIBRARY_PATH": str(libraries),
        "I_MPI_ROOT": str(folder),
        "FI_PROVIDER_PATH": str(libraries / "libfabric" / "prov"),
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(
        [str(folder / "bin" / "mpiexec"), "-n", "3", sys.executable, "-c", SCRIPT, wire],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env=environ,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(vendor) == 3, ran.stdout
    assert not ran.stderr, ran.stderr
