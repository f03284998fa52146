"""The kernels that operations on a GPU are made of: they meet, copy, reduce, compare."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cocoll.device.side import MEETING
from cocoll.kernels.grid_spec import COMPARE_KERNEL, COPY_KERNEL

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.cuda.binding import Operation
    from cocoll.device.request import Request
    from cocoll.device.side import DeviceSide

__all__ = [
    "add_arrival",
    "add_copy",
    "add_meeting",
    "add_reduction",
    "all_aligned",
    "blocks_for",
    "sign",
]

_WORD_BYTES = 4
_ALIGNED_BYTES = 16
_THREADS = 512
# Packs of 16 bytes that a thread works on before it is worth another block.
_PACKS_OF_A_THREAD = 4


def blocks_for(
    side: DeviceSide,
    elements: int,
    itemsize_bytes: int,
    *,
    packs_of_a_thread: int = _PACKS_OF_A_THREAD,
) -> int:
    """Give the grid for some elements: from agreed numbers alone.

    Parameters
    ----------
    side : DeviceSide
        Of which the largest grid is asked.
    elements, itemsize_bytes : int
        The most that a rank works on.
    packs_of_a_thread : int
        Of 16 bytes.

    Returns
    -------
    int
        Equal on all ranks.
    """
    of_a_block = _THREADS * packs_of_a_thread * max(1, _ALIGNED_BYTES // itemsize_bytes)
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
    """Add a kernel without elements: it meets all whose memory is mapped, and is done.

    Parameters
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    operation : Operation
        To which it is added.
    """
    operation.launch(side.function(MEETING), 1, 0, 0, [0] * comm.world_size, [[]])


def add_copy(
    side: DeviceSide, operation: Operation, to: int, source: int, nbytes: int, stream: int = 0
) -> None:
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
    stream : int, default 0
        See `Operation.record`.
    """
    if nbytes == 0 or to == source:
        return
    operation.launch(
        side.common_function(COPY_KERNEL),
        blocks_for(side, nbytes, 1),
        0,
        nbytes,
        (),
        [[to]],
        copied_from=source,
        aligned=all_aligned((to, source)),
        stream=stream,
    )


def add_reduction(
    request: Request,
    operation: Operation,
    begin: int,
    end: int,
    sources: Sequence[int],
    destinations: Sequence[Sequence[int]],
    *,
    largest: int,
    own_source: int | None = None,
    zero_sources: bool = False,
    low_latency: bool = False,
    alone: bool = False,
    stream: int = 0,
) -> None:
    """Add one kernel that reduces.

    Parameters
    ----------
    request : Request
        What it computes.
    operation : Operation
        To which it is added.
    begin, end : int
        The logical elements that this rank reduces.
    sources, destinations : sequence
        Of every rank, and of every result; element 0 of the logical vector.
    largest : int
        The most elements that a rank reduces: the grid depends on it.
    own_source, zero_sources, low_latency, alone, stream
        As of `Operation.launch`.
    """
    itemsize = request.source.dtype.itemsize_bytes
    starts = [address + begin * itemsize for address in sources]
    if own_source is not None:
        starts.append(own_source + begin * itemsize)
    for places, result in zip(destinations, request.results, strict=True):
        starts += [address + begin * result.dtype.itemsize_bytes for address in places]
    for operand in request.operands:
        if operand.layout is None:
            first = begin - operand.origin
            starts.append(operand.address + first * operand.itemsize_bytes)
    # Arrays of one shape and stride share a layout: a launch takes few.
    layouts = list(
        dict.fromkeys(operand.layout for operand in request.operands if operand.layout is not None)
    )
    # With low latency one pack would wait behind another.
    packs = 1 if low_latency else _PACKS_OF_A_THREAD
    operation.launch(
        request.side.function(request.spec),
        blocks_for(request.side, largest, itemsize, packs_of_a_thread=packs),
        begin,
        end,
        sources,
        destinations,
        [
            (
                operand.address,
                operand.origin,
                -1 if operand.layout is None else layouts.index(operand.layout),
            )
            for operand in request.operands
        ],
        layouts,
        own_source=own_source,
        aligned=all_aligned(starts),
        zero_sources=zero_sources,
        low_latency=low_latency,
        alone=alone,
        stream=stream,
    )


def add_arrival(comm: Communicator, side: DeviceSide, operation: Operation) -> None:
    """Add the arrival of an operation: ranks tell each other what they believe it to be.

    Parameters
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    operation : Operation
        To which it is added.
    """
    if not side.is_mapped:
        _add_greeting(comm, side, operation)
    # Not before: a neighbour that finds a difference poisons this rank, which must know as well.
    if side.is_mapped or side.neighbours:
        add_meeting(comm, side, operation)


def _add_greeting(comm: Communicator, side: DeviceSide, operation: Operation) -> None:
    """Add a word from each rank to each other over NCCL, and a kernel that compares them."""
    base = side.endpoint.greetings
    own = base + _WORD_BYTES * comm.rank
    operation.store_signature(own)
    operation.begin_group()
    for peer in range(comm.world_size):
        if peer != comm.rank:
            operation.send(peer, own, _WORD_BYTES)
            operation.receive(peer, base + _WORD_BYTES * peer, _WORD_BYTES)
    operation.end_group()
    compare = side.common_function(COMPARE_KERNEL)
    operation.launch(compare, 1, 0, 0, (), [[]], copied_from=base)
