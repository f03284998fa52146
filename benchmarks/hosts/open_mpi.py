"""Open MPI as a peer: as it comes, and with the best algorithm of each operation.

Both run in one process. An algorithm is forced for the communicator that is made while its control
variable (MPI_T) is set, and whether ranks yield while they wait is switched from turn to turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common.runner import ADAM
from benchmarks.hosts.collectives import MpiCollectives, NumpyAdam
from benchmarks.hosts.peer_runner import PeerRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from benchmarks.hosts.collectives import Adam, Collectives

__all__ = ["OpenMpiRunner", "TunedOpenMpiRunner", "mpi_version", "prepare_environment"]

_KIB, _MIB = 1 << 10, 1 << 20

# Without it no algorithm can be forced. With it, and none forced, Open MPI chooses as it always
# does.
_DYNAMIC = "OMPI_MCA_coll_tuned_use_dynamic_rules"

# For each operation, by name: the algorithm's number and the length of a segment. The best of all
# that coll/tuned has, tried on 3 hosts with 2 ranks each at 400 Mbit/s; README.md says which lost.
_PIPELINE, _ALLGATHER_RING, _NEIGHBOURS, _REDUCE_SCATTER_RING = 3, 4, 5, 3
_ALLREDUCE_RING, _ALLREDUCE_SEGMENTED_RING = 4, 5
_SETTINGS: dict[str, dict[str, tuple[int, int]]] = {
    "broadcast": {
        "pipeline_16KiB": (_PIPELINE, 16 * _KIB),
        "pipeline_32KiB": (_PIPELINE, 32 * _KIB),
        "pipeline_128KiB": (_PIPELINE, 128 * _KIB),
    },
    "allgather": {"ring": (_ALLGATHER_RING, 0), "neighbours": (_NEIGHBOURS, 0)},
    "reduce_scatter": {"ring": (_REDUCE_SCATTER_RING, 0)},
    "allreduce": {
        "segmented_ring": (_ALLREDUCE_SEGMENTED_RING, 0),
        "ring": (_ALLREDUCE_RING, 0),
    },
}
_VARIABLES = {"broadcast": "bcast"}
# From here on longer segments are worth trying, and shorter ones not.
_LARGE_BYTES = 4 * _MIB


def prepare_environment() -> None:
    """Set what Open MPI reads once, when it is initialised."""
    os.environ.setdefault(_DYNAMIC, "1")


def mpi_version() -> str:
    """Give the library's first line about itself."""
    from mpi4py import MPI

    lines = MPI.Get_library_version().strip("\0\n ").splitlines()
    return " ".join(lines[0].split(",")[0].split())


class OpenMpiRunner(PeerRunner):
    """Open MPI as it comes: its own choice of algorithm, and ranks that spin while they wait."""

    def __init__(self, implementation: str = "openmpi", *, by_halves: bool = False) -> None:
        # Its own reduce-scatter of large vectors takes minutes where ranks share cores.
        super().__init__(implementation, by_halves=by_halves)
        self._comm: Any = None
        self._collectives: dict[str, dict[str, Collectives]] = {}

    def open(self) -> None:
        """MPI is initialised by the import of mpi4py."""
        from mpi4py import MPI

        if not MPI.Get_library_version().startswith("Open MPI"):
            raise RuntimeError(f"wanted Open MPI, which the cluster starts; got {mpi_version()}")
        self._comm = MPI.COMM_WORLD.Dup()
        self.rank = self._comm.Get_rank()
        self.world_size = self._comm.Get_size()
        own: Collectives = MpiCollectives(self._comm, MPI.IN_PLACE)
        self._collectives = {operation: {"own": own} for operation in _SETTINGS}

    def close(self) -> None:
        """Leave it to the end of the process, which ends MPI."""

    def versions(self) -> dict[str, str]:
        """Give the library's first line about itself."""
        return {"mpi": mpi_version()}

    def barrier(self) -> None:
        """``Barrier``."""
        self._comm.Barrier()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Spin while waiting, as Open MPI does unless it is told otherwise."""
        set_yielding = _opal().opal_progress_set_yield_when_idle
        set_yielding(ctypes.c_bool(False))
        try:
            yield
        finally:
            set_yielding(ctypes.c_bool(True))

    def settings(self, operation: str, input_bytes: int) -> dict[str, Collectives]:
        """Give the one there is."""
        del input_bytes
        return self._collectives[operation]

    def make_adam(
        self,
        param: NDArray[np.float32],
        gradient: NDArray[np.float32],
        m: NDArray[np.float32],
        v: NDArray[np.float32],
    ) -> Adam:
        """Make NumPy's: these processes have no torch."""
        return NumpyAdam(param, gradient, m, v, ADAM)


class TunedOpenMpiRunner(OpenMpiRunner):
    """Open MPI with the best algorithm of each operation, and ranks that yield while they wait."""

    def __init__(self) -> None:
        super().__init__("openmpi_tuned", by_halves=True)

    def open(self) -> None:
        """Make a communicator for each setting."""
        from mpi4py import MPI

        super().open()
        for operation, settings in _SETTINGS.items():
            self._collectives[operation] = {
                name: MpiCollectives(
                    _forced(MPI, operation, algorithm, segment_bytes),
                    MPI.IN_PLACE,
                    unequal=operation == "reduce_scatter",
                )
                for name, (algorithm, segment_bytes) in settings.items()
            }

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Yield while waiting; the cluster's launcher has set it so."""
        yield

    def settings(self, operation: str, input_bytes: int) -> dict[str, Collectives]:
        """Give those worth trying at a size."""
        chosen = dict(self._collectives[operation])
        if operation == "broadcast":
            chosen.pop("pipeline_128KiB" if input_bytes < _LARGE_BYTES else "pipeline_16KiB")
        return chosen


def _forced(mpi: Any, operation: str, algorithm: int, segment_bytes: int) -> Any:
    """Make a communicator whose `operation` is carried out by one algorithm."""
    name = f"coll_tuned_{_VARIABLES.get(operation, operation)}_algorithm"
    values = {name: algorithm}
    if segment_bytes:
        values[f"{name}_segmentsize"] = segment_bytes
    library = _mpi_library()
    before = {name: _control_variable(library, name, value) for name, value in values.items()}
    try:
        info = mpi.Info.Create()
        # The component for several hosts comes first, and knows nothing of what is forced.
        info.Set("ompi_comm_coll_preference", "^han")
        return mpi.COMM_WORLD.Dup_with_info(info)
    finally:
        for name, value in before.items():
            _control_variable(library, name, value)


def _control_variable(library: ctypes.CDLL, name: str, value: int) -> int:
    """Set one of MPI's control variables; gives what it was."""
    index, count = ctypes.c_int(), ctypes.c_int()
    handle = ctypes.c_void_p()
    _check(library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)), name)
    allocated = library.MPI_T_cvar_handle_alloc(
        index, None, ctypes.byref(handle), ctypes.byref(count)
    )
    _check(allocated, name)
    try:
        before, after = ctypes.c_int(), ctypes.c_int(value)
        _check(library.MPI_T_cvar_read(handle, ctypes.byref(before)), name)
        _check(library.MPI_T_cvar_write(handle, ctypes.byref(after)), name)
    finally:
        library.MPI_T_cvar_handle_free(ctypes.byref(handle))
    return before.value


def _check(code: int, name: str) -> None:
    if code != 0:
        raise RuntimeError(f"MPI_T refused to set {name}: error {code}")


def _mpi_library() -> ctypes.CDLL:
    library = _loaded("libmpi.so")
    provided = ctypes.c_int()
    _check(library.MPI_T_init_thread(0, ctypes.byref(provided)), "anything")
    return library


def _opal() -> ctypes.CDLL:
    return _loaded("libopen-pal.so")


def _loaded(name: str) -> ctypes.CDLL:
    """Give a library that this process has loaded already."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(name):
            return ctypes.CDLL(path)
    raise RuntimeError(f"wanted {name} of Open MPI; it is not loaded")
