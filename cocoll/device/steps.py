"""The steps of an operation on a GPU: kernels and copies, for every rank, from agreed facts.

Symmetric arrays are worked on where they lie. Ordinary ones go through a window of device memory,
chunk by chunk: every rank copies what the owners will read, one kernel reduces, runs the epilogue
and hands the results over, and every rank copies its own away. Small ones go one-shot: all that
into one kernel. Whether arrays are symmetric, and where, is part of the signature that the kernels
compare: ranks that differ find out before anything has moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cocoll.cuda.binding import Operation
from cocoll.device.copies import add_copy, all_aligned, blocks_for, sign
from cocoll.failure import Kind, Option
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS, block_range

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.device.array import DeviceDescription
    from cocoll.device.layout import Operand
    from cocoll.device.side import DeviceSide, Place
    from cocoll.kernels.spec import KernelSpec

__all__ = ["Reduction", "plan_reduction"]

_LANE_BYTES = 128


@dataclass
class Reduction:
    """What all ways of carrying a reduction out have in common.

    Attributes
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    kind : Kind
        Which collective.
    spec : KernelSpec
        What its kernel computes.
    source, results : DeviceDescription
        The caller's arrays; each result the whole vector or, scattered, this rank's block.
    count, block : int
        Elements of the logical vector, and of a rank's block of it.
    options : Option
        Agreed.
    operands : list of Operand
        The epilogue's arrays.
    """

    comm: Communicator
    side: DeviceSide
    kind: Kind
    spec: KernelSpec
    source: DeviceDescription
    results: list[DeviceDescription]
    count: int
    block: int
    options: Option
    operands: list[Operand] = field(default_factory=list)

    @property
    def scattered(self) -> bool:
        """Whether every rank keeps its own block of the results alone."""
        return self.kind in (Kind.REDUCE_SCATTER, Kind.REDUCE_SCATTER_FUSED)

    def own(self) -> tuple[int, int]:
        """Give this rank's block."""
        return block_range(self.comm.rank, self.count, self.block)


# ---- reductions --------------------------------------------------------------------------------


def plan_reduction(work: Reduction) -> tuple[Operation, str]:
    """Choose the way of a reduction, and make its steps.

    Parameters
    ----------
    work : Reduction
        What is to be done.

    Returns
    -------
    tuple of Operation and str
        The steps, and the way's name.
    """
    side = work.side
    places = [side.place_of(work.source.address, work.source.nbytes)]
    if not work.scattered:
        places += [side.place_of(result.address, result.nbytes) for result in work.results]
    everywhere = not (
        work.scattered
        or Option.ZERO_GRAD in work.options
        or any(operand.sharded for operand in work.operands)
    )
    size = work.count * work.source.dtype.itemsize_bytes
    if everywhere and size <= side.endpoint.staging_bytes:
        way = "one_shot"
        operation = _sign_operation(work, way, ())
        _add_one_shot(work, operation)
    elif all(place is not None for place in places):
        way = "two_shot"
        found = [place for place in places if place is not None]
        operation = _sign_operation(work, way, [(p.segment, p.offset_bytes) for p in found])
        _add_two_shot(work, operation, found)
    else:
        way = "two_shot staged"
        operation = _sign_operation(work, way, ())
        _add_staged(work, operation)
    return operation, way


def _sign_operation(work: Reduction, way: str, places: object) -> Operation:
    facts = (
        int(work.kind),
        work.spec.name(),
        int(work.source.dtype),
        work.count,
        int(work.options),
        way,
        places,
    )
    return Operation(work.side.endpoint, sign(*facts))


def _add_launch(
    work: Reduction,
    operation: Operation,
    function: int,
    begin: int,
    end: int,
    sources: Sequence[int],
    destinations: Sequence[Sequence[int]],
    *,
    largest: int,
    own_source: int | None = None,
    zero_sources: bool = False,
) -> None:
    """Add one kernel; `sources` and `destinations` are of element 0 of the logical vector."""
    itemsize = work.source.dtype.itemsize_bytes
    starts = [address + begin * itemsize for address in sources]
    if own_source is not None:
        starts.append(own_source + begin * itemsize)
    for places, result in zip(destinations, work.results, strict=True):
        starts += [address + begin * result.dtype.itemsize_bytes for address in places]
    for operand in work.operands:
        if operand.layout is None:
            first = begin - operand.origin
            starts.append(operand.address + first * operand.itemsize_bytes)
    # Arrays of one shape and stride share a layout: a launch takes few.
    layouts = list(
        dict.fromkeys(operand.layout for operand in work.operands if operand.layout is not None)
    )
    operation.launch(
        function,
        blocks_for(work.side, largest, itemsize),
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
            for operand in work.operands
        ],
        layouts,
        own_source=own_source,
        aligned=all_aligned(starts),
        zero_sources=zero_sources,
    )


def _add_one_shot(work: Reduction, operation: Operation) -> None:
    function = work.side.function(work.spec)
    _add_launch(
        work,
        operation,
        function,
        0,
        work.count,
        (),
        [[result.address] for result in work.results],
        largest=work.count,
        own_source=work.source.address,
    )


def _add_two_shot(work: Reduction, operation: Operation, places: list[Place]) -> None:
    function = work.side.function(work.spec)
    begin, end = work.own()
    if work.scattered:
        # The result is this rank's block alone: its element `begin` is the first there is.
        destinations = [
            [result.address - begin * result.dtype.itemsize_bytes] for result in work.results
        ]
    else:
        destinations = [work.side.addresses(place) for place in places[1:]]
    _add_launch(
        work,
        operation,
        function,
        begin,
        end,
        work.side.addresses(places[0]),
        destinations,
        largest=work.block,
        zero_sources=Option.ZERO_GRAD in work.options,
    )


def _add_staged(work: Reduction, operation: Operation) -> None:
    """Add chunks through the windows of all ranks."""
    comm, side = work.comm, work.side
    function = side.function(work.spec)
    world_size, itemsize = comm.world_size, work.source.dtype.itemsize_bytes
    handed = [] if work.scattered else work.results
    widest = itemsize + sum(result.dtype.itemsize_bytes for result in handed)
    room = side.endpoint.window_bytes - _LANE_BYTES * (1 + len(handed))
    unit = SHARD_ALIGNMENT_ELEMENTS
    piece = max(unit, room // (world_size * widest) // unit * unit)
    windows = [side.endpoint.window(rank) for rank in range(world_size)]
    # Behind the sources lie the results, each where a pack may begin.
    offsets = []
    offset = piece * world_size * itemsize
    for result in handed:
        offset = -(-offset // _LANE_BYTES) * _LANE_BYTES
        offsets.append(offset)
        offset += piece * world_size * result.dtype.itemsize_bytes
    for first in range(0, max(work.block, 1), piece):
        parts = []  # of every owner: where its part of the chunk lies in the vector
        for owner in range(world_size):
            begin, end = block_range(owner, work.count, work.block)
            start = min(begin + first, end)
            parts.append((start, min(start + piece, end)))
        for owner, (start, stop) in enumerate(parts):
            nbytes = (stop - start) * itemsize
            here = work.source.address + start * itemsize
            operation.copy(windows[comm.rank] + owner * piece * itemsize, here, nbytes)
        begin, end = parts[comm.rank]
        place = comm.rank * piece
        sources = [window + (place - begin) * itemsize for window in windows]
        if work.scattered:
            start, _ = work.own()
            destinations = [
                [result.address - start * result.dtype.itemsize_bytes] for result in work.results
            ]
        else:
            destinations = [
                [w + offset + (place - begin) * result.dtype.itemsize_bytes for w in windows]
                for offset, result in zip(offsets, handed, strict=True)
            ]
        _add_launch(work, operation, function, begin, end, sources, destinations, largest=piece)
        for owner, (start, stop) in enumerate(parts):
            if Option.ZERO_GRAD in work.options:
                here = work.source.address + start * itemsize
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
