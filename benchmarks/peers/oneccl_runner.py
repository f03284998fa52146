"""oneCCL, through ``oneccl_bridge.cpp``."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from benchmarks.common.memory import address_of
from benchmarks.peers.collective_runner import Call, CollectiveRunner

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["OneCclRunner"]


class OneCclRunner(CollectiveRunner):
    """Bootstrapped over Intel MPI, which oneCCL also uses below."""

    implementation = "oneccl"
    sums_bfloat16 = True

    def open(self) -> None:
        """Load the bridge, share rank 0's address, connect."""
        self._comm = MPI.COMM_WORLD
        self.rank = self._comm.Get_rank()
        self.world_size = self._comm.Get_size()
        self._library = ctypes.CDLL(os.environ["BENCH_ONECCL_BRIDGE"])
        self._library.oneccl_bridge_error.restype = ctypes.c_char_p
        self._library.oneccl_bridge_address_bytes.restype = ctypes.c_size_t
        pointer, size, flag = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for name in ("allreduce", "reduce_scatter", "allgather"):
            function = getattr(self._library, f"oneccl_bridge_{name}")
            function.argtypes = [pointer, pointer, size, flag]
        address = ctypes.create_string_buffer(int(self._library.oneccl_bridge_address_bytes()))
        self._check(self._library.oneccl_bridge_open(self.rank, address))
        raw = self._comm.bcast(address.raw)
        self._check(self._library.oneccl_bridge_connect(self.rank, self.world_size, raw))

    def close(self) -> None:
        """Leave at once: oneCCL's own threads and destructors do not survive the end of MPI."""
        self._comm.Barrier()
        self._library.oneccl_bridge_close()
        MPI.Finalize()
        os._exit(0)

    def bind_allreduce(self, source: NDArray[Any] | None, output: NDArray[Any]) -> Call:
        """``ccl::allreduce``."""
        send = output if source is None else source
        return self._bind("allreduce", send, output, output.size)

    def bind_reduce_scatter(self, source: NDArray[Any], block: NDArray[Any]) -> Call:
        """``ccl::reduce_scatter``."""
        return self._bind("reduce_scatter", source, block, block.size)

    def bind_allgather(self, block: NDArray[Any], output: NDArray[Any]) -> Call:
        """``ccl::allgather``."""
        return self._bind("allgather", block, output, block.size)

    def _bind(self, name: str, source: NDArray[Any], output: NDArray[Any], count: int) -> Call:
        function = getattr(self._library, f"oneccl_bridge_{name}")
        check = self._check
        from_address, to_address = address_of(source), address_of(output)
        half = int(output.dtype == np.uint16)
        return lambda: check(function(from_address, to_address, count, half))

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"oneCCL: {self._library.oneccl_bridge_error().decode()}")
