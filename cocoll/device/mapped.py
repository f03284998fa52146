"""Kernels for the composites of plans, over memory that all ranks map.

What a composite means is its expansion into primitive steps; here it becomes a few kernels that
meet each other, which give the same bits (docs/plans.md). Symmetric arrays are worked on where they
lie. Ordinary ones go through a window of device memory, chunk by chunk: every rank copies what the
owners will read, one kernel reduces, runs the epilogue and hands the results over, and every rank
copies its own away. Small ones go one-shot: all that in one kernel; the smallest of them with low
latency, in a kernel that does not even meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cocoll.algorithms.flat import (
    FlatAllgather,
    FlatReduceScatter,
    StagedAllgather,
    StagedBroadcast,
    StagedReduceScatter,
)
from cocoll.algorithms.one_shot import OneShot
from cocoll.algorithms.two_shot import StagedTwoShot, TwoShot
from cocoll.device.launches import add_copy, add_meeting, add_reduction
from cocoll.failure import Option
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS, Composite, Plan
from cocoll.plan.ranges import block_range

if TYPE_CHECKING:
    from cocoll.cuda.binding import Operation
    from cocoll.device.request import Request

__all__ = ["add_composite", "is_pushed", "owners_chunk_elements", "shared_chunk_elements"]

_LANE_BYTES = 128


def add_composite(plan: Plan, request: Request, operation: Operation) -> bool:
    """Add the kernels of a composite, if there are any for it.

    Parameters
    ----------
    plan : Plan
        Of which only the body's kind and chunk matter here.
    request : Request
        The arrays.
    operation : Operation
        To which they are added.

    Returns
    -------
    bool
        False: nothing was added, and the plan's primitive steps are to be run.
    """
    body = plan.body
    if not isinstance(body, Composite) or type(body) not in _KERNELS:
        return False
    _KERNELS[type(body)](body, request, operation)
    return True


def is_pushed(request: Request) -> bool:
    """Say whether a one-shot all-reduce goes with low latency.

    Parameters
    ----------
    request : Request
        The all-reduce.

    Returns
    -------
    bool
        The same on all ranks.
    """
    limit_bytes = request.side.endpoint.low_latency_bytes
    nbytes = request.count * request.source.dtype.itemsize_bytes
    return request.comm.world_size > 1 and 0 < limit_bytes >= nbytes


def owners_chunk_elements(request: Request) -> int:
    """Give what every owner gets of a chunk: all owners' parts and results fit the window.

    Parameters
    ----------
    request : Request
        A reduction of ordinary arrays.

    Returns
    -------
    int
        The same on all ranks.
    """
    handed = [] if request.scattered else request.results
    itemsizes = [array.dtype.itemsize_bytes for array in (request.source, *handed)]
    room = request.side.endpoint.window_bytes - _LANE_BYTES * (1 + len(handed))
    unit = SHARD_ALIGNMENT_ELEMENTS
    return max(unit, room // (request.comm.world_size * sum(itemsizes)) // unit * unit)


def shared_chunk_elements(request: Request) -> int:
    """Give how much of one rank's array its window holds.

    Parameters
    ----------
    request : Request
        An all-gather or a broadcast of ordinary arrays.

    Returns
    -------
    int
        The same on all ranks.
    """
    return request.side.endpoint.window_bytes // request.source.dtype.itemsize_bytes


def _add_one_shot(_: Composite, request: Request, operation: Operation) -> None:
    # Pushed where it is small enough: then the kernel does not even meet. Whole packs of 4, 8 or 16
    # bytes are pushed: they fit where the elements do.
    add_reduction(
        request,
        operation,
        0,
        request.count,
        (),
        [[result.address] for result in request.results],
        largest=request.count,
        own_source=request.source.address,
        low_latency=is_pushed(request),
    )


def _add_two_shot(_: Composite, request: Request, operation: Operation) -> None:
    begin, end = request.own()
    addresses = [request.side.addresses(place) for place in request.places()]
    destinations = addresses[1:]
    if request.scattered:
        # The result is this rank's block alone: its element `begin` is the first there is.
        destinations = [
            [result.address - begin * result.dtype.itemsize_bytes] for result in request.results
        ]
    add_reduction(
        request,
        operation,
        begin,
        end,
        addresses[0],
        destinations,
        largest=request.block,
        zero_sources=Option.ZERO_GRAD in request.options,
    )


def _add_staged_two_shot(body: Composite, request: Request, operation: Operation) -> None:
    assert isinstance(body, StagedTwoShot | StagedReduceScatter)
    comm, side = request.comm, request.side
    world_size, itemsize = comm.world_size, request.source.dtype.itemsize_bytes
    handed = [] if request.scattered else request.results
    piece = body.chunk_elements
    windows = [side.endpoint.window(rank) for rank in range(world_size)]
    # Behind the sources lie the results, each where a pack may begin.
    offsets = []
    offset = piece * world_size * itemsize
    for result in handed:
        offset = -(-offset // _LANE_BYTES) * _LANE_BYTES
        offsets.append(offset)
        offset += piece * world_size * result.dtype.itemsize_bytes
    for first in range(0, max(request.block, 1), piece):
        parts = []  # of every owner: where its part of the chunk lies in the vector
        for owner in range(world_size):
            begin, end = block_range(owner, request.count, request.block)
            start = min(begin + first, end)
            parts.append((start, min(start + piece, end)))
        for owner, (start, stop) in enumerate(parts):
            nbytes = (stop - start) * itemsize
            here = request.source.address + start * itemsize
            operation.copy(windows[comm.rank] + owner * piece * itemsize, here, nbytes)
        begin, end = parts[comm.rank]
        place = comm.rank * piece
        sources = [window + (place - begin) * itemsize for window in windows]
        if request.scattered:
            start, _ = request.own()
            destinations = [
                [result.address - start * result.dtype.itemsize_bytes] for result in request.results
            ]
        else:
            destinations = [
                [w + offset + (place - begin) * result.dtype.itemsize_bytes for w in windows]
                for offset, result in zip(offsets, handed, strict=True)
            ]
        add_reduction(request, operation, begin, end, sources, destinations, largest=piece)
        for owner, (start, stop) in enumerate(parts):
            if Option.ZERO_GRAD in request.options:
                here = request.source.address + start * itemsize
                add_copy(side, operation, here, 0, (stop - start) * itemsize)
            for offset, result in zip(offsets, handed, strict=True):
                size = result.dtype.itemsize_bytes
                add_copy(
                    side,
                    operation,
                    result.address + start * size,
                    windows[comm.rank] + offset + owner * piece * size,
                    (stop - start) * size,
                )


def _add_allgather(body: Composite, request: Request, operation: Operation) -> None:
    # Every rank copies each block from its owner.
    assert isinstance(body, FlatAllgather | StagedAllgather)
    comm, side = request.comm, request.side
    source, (result,) = request.source, request.results
    itemsize, piece = source.dtype.itemsize_bytes, body.chunk_elements
    staged = isinstance(body, StagedAllgather)
    begins = [side.endpoint.window(rank) for rank in range(comm.world_size)]
    if not staged:
        (place,) = request.places()
        begins = side.addresses(place)
    for first in range(0, max(request.block, 1), piece):
        if staged:
            own = max(0, min(piece, source.count - first))
            operation.copy(begins[comm.rank], source.address + first * itemsize, own * itemsize)
        add_meeting(comm, side, operation)
        for owner in range(comm.world_size):
            start, stop = block_range(owner, result.count, request.block)
            start = min(start + first, stop)
            length = min(piece, stop - start)
            add_copy(
                side, operation, result.address + start * itemsize, begins[owner], length * itemsize
            )
        add_meeting(comm, side, operation)


def _add_broadcast(body: Composite, request: Request, operation: Operation) -> None:
    # Every rank copies from the root's window, never from its array: only the root knows where that
    # is.
    assert isinstance(body, StagedBroadcast)
    comm, side, root = request.comm, request.side, body.root
    source, (result,) = request.source, request.results
    itemsize, piece = source.dtype.itemsize_bytes, body.chunk_elements
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


_KERNELS: dict[type, Callable[[Composite, Request, Operation], None]] = {
    OneShot: _add_one_shot,
    TwoShot: _add_two_shot,
    FlatReduceScatter: _add_two_shot,
    StagedTwoShot: _add_staged_two_shot,
    StagedReduceScatter: _add_staged_two_shot,
    FlatAllgather: _add_allgather,
    StagedAllgather: _add_allgather,
    StagedBroadcast: _add_broadcast,
}
