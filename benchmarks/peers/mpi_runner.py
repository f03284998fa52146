"""An MPI library, called as Python users call it: mpi4py's upper-case methods."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from benchmarks.peers.collective_runner import Call, CollectiveRunner

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MpiRunner"]


class MpiRunner(CollectiveRunner):
    """Open MPI, MPICH or Intel MPI: whichever ``MPI4PY_LIBMPI`` names."""

    implementation = os.environ.get("BENCH_IMPLEMENTATION", "mpi")

    def open(self) -> None:
        """MPI is initialised by the import of mpi4py."""
        self._comm = MPI.COMM_WORLD
        self.rank = self._comm.Get_rank()
        self.world_size = self._comm.Get_size()

    def close(self) -> None:
        """End MPI while all ranks are still there."""
        self._comm.Barrier()
        MPI.Finalize()

    def versions(self) -> dict[str, str]:
        """Give the library's first line about itself."""
        lines = MPI.Get_library_version().strip("\0\n ").splitlines()
        return {"mpi": " ".join(lines[0].split(",")[0].split())}

    def bind_allreduce(self, source: NDArray[Any] | None, output: NDArray[Any]) -> Call:
        """``Allreduce``."""
        allreduce, send = self._comm.Allreduce, MPI.IN_PLACE if source is None else source
        return lambda: allreduce(send, output)

    def bind_reduce_scatter(self, source: NDArray[Any], block: NDArray[Any]) -> Call:
        """``Reduce_scatter_block``."""
        reduce_scatter_block = self._comm.Reduce_scatter_block
        return lambda: reduce_scatter_block(source, block)

    def bind_allgather(self, block: NDArray[Any], output: NDArray[Any]) -> Call:
        """``Allgather`` in place."""
        del block
        allgather = self._comm.Allgather
        buffer = output.view(np.uint8)
        return lambda: allgather(MPI.IN_PLACE, buffer)
