"""The test of mapped memory: what one GPU writes into another one's must arrive, and come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cocoll.cuda.binding import DeviceStream, Kernels, Operation
from cocoll.device.agreement import agree, compare
from cocoll.device.side import MEETING
from cocoll.errors import CudaError, KernelError
from cocoll.kernels.grid_spec import COPY_KERNEL

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.cuda.binding import Endpoint
    from cocoll.kernels.grid_loader import GridLoader

__all__ = ["probe_peers"]

_PROBE_BYTES = 64


def probe_peers(
    comm: Communicator, endpoint: Endpoint, loader: GridLoader, mapped: Sequence[int]
) -> str:
    """Write into the window of every neighbour, and read back what was written. Collective.

    Mappings have been seen that say yes to everything and give other bytes back (IOMMUs). A kernel
    stores and loads, as operations do; where none can be compiled yet, the copy engine does.

    Parameters
    ----------
    comm, endpoint : Communicator, Endpoint
        Whose; the neighbours attached.
    loader : GridLoader
        Of kernels.
    mapped : sequence of int
        The ranks whose memory is mapped, this one among them.

    Returns
    -------
    str
        What is wrong, the same on all ranks; nothing if all is well.
    """
    import numpy as np

    rank, world_size, device = comm.rank, comm.world_size, endpoint.device
    stream = DeviceStream(device)
    # The windows hold what each rank wrote, then what each rank read back, then the rank's own.
    windows = {peer: endpoint.window(peer) for peer in mapped}
    own = windows[rank] + 2 * world_size * _PROBE_BYTES
    pattern = np.full(_PROBE_BYTES, rank + 1, np.uint8)
    function: int | None = None
    kernels: Kernels | None = None
    problem = ""
    try:
        kernels = Kernels(device, loader.load(MEETING)[1])
        function = kernels.function(COPY_KERNEL)
    except KernelError:
        function = None
    except CudaError as error:
        problem = str(error)

    def copy(pairs: list[tuple[int, int]]) -> str:
        operation = Operation(endpoint, 1)
        for to, source in pairs:
            if function is None:
                operation.copy(to, source, _PROBE_BYTES)
            else:
                operation.launch(
                    function, 1, 0, _PROBE_BYTES, (), [[to]], copied_from=source, aligned=True
                )
        try:
            operation.run(stream.handle)
            stream.synchronize()
        except CudaError as error:
            return str(error)
        return ""

    if not problem:
        device.copy(own, pattern.ctypes.data, _PROBE_BYTES, stream.handle)
        stream.synchronize()
        problem = copy([(window + rank * _PROBE_BYTES, own) for window in windows.values()])
    agree(comm, b"", problem)
    back = windows[rank] + world_size * _PROBE_BYTES
    problem = copy(
        [
            (back + peer * _PROBE_BYTES, window + rank * _PROBE_BYTES)
            for peer, window in windows.items()
        ]
    )
    found = np.zeros((2, world_size, _PROBE_BYTES), np.uint8)
    device.copy(found.ctypes.data, windows[rank], found.nbytes, stream.handle)
    stream.synchronize()
    for peer in mapped:
        if not (found[0][peer] == peer + 1).all():
            problem = f"what rank {peer} writes into the GPU memory of rank {rank} does not arrive"
        elif not (found[1][peer] == rank + 1).all():
            problem = f"what rank {rank} reads from the GPU memory of rank {peer} is not what it is"
    return compare(comm, b"", problem)[1]
