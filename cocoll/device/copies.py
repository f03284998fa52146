"""Copies on a GPU, and collectives that are nothing else: copies between two meetings."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cocoll.device.side import MEETING
from cocoll.plan.ir import block_range

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.cuda.binding import Operation
    from cocoll.device.array import DeviceDescription
    from cocoll.device.side import DeviceSide, Place

__all__ = [
    "add_allgather",
    "add_broadcast",
    "add_copy",
    "add_meeting",
    "all_aligned",
    "blocks_for",
    "sign",
]

_ALIGNED_BYTES = 16
_THREADS = 512
# Packs of 16 bytes that a thread works on before it is worth another block.
_PACKS_OF_A_THREAD = 4


def blocks_for(side: DeviceSide, elements: int, itemsize_bytes: int) -> int:
    """Give the grid for some elements: from agreed numbers alone.

    Parameters
    ----------
    side : DeviceSide
        Of which the largest grid is asked.
    elements, itemsize_bytes : int
        The most that a rank works on.

    Returns
    -------
    int
        Equal on all ranks.
    """
    of_a_block = _THREADS * _PACKS_OF_A_THREAD * max(1, _ALIGNED_BYTES // itemsize_bytes)
    return max(1, min(side.endpoint.blocks, -(-elements // of_a_block)))


def sign(*facts: object) -> int:
    """Give the signature of agreed facts.

    Parameters
    ----------
    *facts : object
        Whose repr is the same on all ranks.

    Returns
    -------
    int
        32 bits, not zero: that is what memory holds that nobody has signed.
    """
    return zlib.crc32(repr(facts).encode()) | 1


def all_aligned(addresses: Sequence[int]) -> bool:
    """Say whether packs may begin at all of some addresses.

    Parameters
    ----------
    addresses : sequence of int
        In device memory.

    Returns
    -------
    bool
        Whether all are multiples of 16 bytes.
    """
    return all(address % _ALIGNED_BYTES == 0 for address in addresses)


def add_meeting(comm: Communicator, side: DeviceSide, operation: Operation) -> None:
    """Add a kernel without elements: it meets all peers, and is done.

    Parameters
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    operation : Operation
        To which it is added.
    """
    operation.launch(side.function(MEETING), 1, 0, 0, [0] * comm.world_size, [[]])


def add_copy(side: DeviceSide, operation: Operation, to: int, source: int, nbytes: int) -> None:
    """Add a copy that does not happen once a meeting has failed; zeros where there is no source.

    Parameters
    ----------
    side : DeviceSide
        Whose.
    operation : Operation
        To which it is added.
    to, source : int
        Addresses; 0 is no source.
    nbytes : int
        How much.
    """
    if nbytes == 0 or to == source:
        return
    operation.launch(
        side.copy_function(),
        blocks_for(side, nbytes, 1),
        0,
        nbytes,
        (),
        [[to]],
        copied_from=source,
        aligned=all_aligned((to, source)),
    )


def add_allgather(
    comm: Communicator,
    side: DeviceSide,
    operation: Operation,
    source: DeviceDescription,
    result: DeviceDescription,
    block: int,
    place: Place | None,
) -> None:
    """Add the steps of an all-gather: every rank copies each block from its owner.

    Parameters
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    operation : Operation
        To which they are added.
    source, result : DeviceDescription
        This rank's block, and the whole vector.
    block : int
        Elements of a rank's block.
    place : Place or None
        Where the block lies in symmetric memory.
    """
    itemsize = source.dtype.itemsize_bytes
    piece = block if place else side.endpoint.window_bytes // itemsize
    begins = [side.endpoint.window(rank) for rank in range(comm.world_size)]
    if place is not None:
        begins = side.addresses(place)
    for first in range(0, max(block, 1), max(piece, 1)):
        if place is None:
            own = max(0, min(piece, source.count - first))
            operation.copy(begins[comm.rank], source.address + first * itemsize, own * itemsize)
        add_meeting(comm, side, operation)
        for owner in range(comm.world_size):
            start, stop = block_range(owner, result.count, block)
            start = min(start + first, stop)
            length = min(piece, stop - start)
            add_copy(
                side, operation, result.address + start * itemsize, begins[owner], length * itemsize
            )
        add_meeting(comm, side, operation)


def add_broadcast(
    comm: Communicator,
    side: DeviceSide,
    operation: Operation,
    source: DeviceDescription,
    result: DeviceDescription,
    root: int,
) -> None:
    """Add the steps of a broadcast: every rank copies from the root's window.

    Never from the root's array: only the root knows where that is.

    Parameters
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    operation : Operation
        To which they are added.
    source, result : DeviceDescription
        The root's data, and where it goes.
    root : int
        Whose data.
    """
    itemsize = source.dtype.itemsize_bytes
    piece = side.endpoint.window_bytes // itemsize
    window = side.endpoint.window(root)
    for first in range(0, max(source.count, 1), piece):
        nbytes = min(piece, source.count - first) * itemsize
        here = source.address + first * itemsize
        there = result.address + first * itemsize
        if comm.rank == root:
            operation.copy(window, here, nbytes)
        add_meeting(comm, side, operation)
        add_copy(side, operation, there, here if comm.rank == root else window, nbytes)
        add_meeting(comm, side, operation)
