"""Turns what a kernel or a watch has left into an exception that says who, what and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.errors import (
    AbortedError,
    CocollError,
    CollectiveMismatchError,
    CommTimeoutError,
    NcclError,
)

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.device.side import DeviceSide

__all__ = ["LATE", "make_device_failure"]

# COCOLL_GRID_* of kernels/grid_abi.h.
LATE = 1
_MISMATCH, _WIRE = 2, 4


def make_device_failure(
    comm: Communicator, side: DeviceSide, found: tuple[int, int, int, int, int]
) -> CocollError:
    """Give the exception for what `Endpoint.failure` gave.

    Parameters
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    found : tuple of int
        Reason, block, peer, and what was wanted and seen.

    Returns
    -------
    CocollError
        To be raised.
    """
    reason, _, peer, wanted, seen = found
    if reason == LATE and peer < 0:
        return CommTimeoutError(
            f"an operation over NCCL ran for {comm.settings.timeout_seconds} s on rank "
            f"{comm.rank}: another rank did not come, or has gone; the communicator is closed",
            ranks=(),
        )
    if reason == LATE:
        return CommTimeoutError(
            f"rank {comm.rank} waited {comm.settings.timeout_seconds} s on its GPU for rank "
            f"{peer}, which did not come; the communicator is closed",
            ranks=(peer,),
        )
    if reason == _WIRE:
        nccl = side.endpoint.nccl
        text = str(seen) if nccl is None else nccl.describe(seen)
        return NcclError(
            f"NCCL gave up on rank {comm.rank}: {text}; the communicator is closed. "
            f"NCCL_DEBUG=WARN makes NCCL say more",
            status=seen,
        )
    if reason == _MISMATCH:
        return CollectiveMismatchError(
            f"ranks {comm.rank} and {peer} asked for different operations on their GPUs, or for "
            f"arrays at different places of symmetric memory (signatures {wanted >> 32:08x} and "
            f"{seen >> 32:08x}); "
            + ("the results are undefined" if not side.is_mapped else "nothing has moved")
            + ", and the communicator is closed",
            requests={},
        )
    return AbortedError(
        f"another rank gave the communicator up while rank {comm.rank} was in an operation on its "
        f"GPU; it is closed"
    )
