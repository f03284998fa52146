"""The packed form of plans: one versioned array of fixed-size records.

Executors run it, digests hash it, caches store it. ``host/packed.h`` reads it and has the same
numbers; a change of either needs a new :data:`PACK_VERSION`.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Iterator

from cocoll.errors import InternalError, UsageError
from cocoll.plan.ir import (
    Call,
    Copy,
    Loop,
    Native,
    Plan,
    Receive,
    Reduce,
    Send,
    Signal,
    Span,
    Step,
    View,
    Wait,
)
from cocoll.plan.listing import Place, describe_step

__all__ = ["PACK_VERSION", "RECORD_BYTES", "Opcode", "pack_plan", "places_of_records"]

PACK_VERSION = 4


class Opcode(enum.IntEnum):
    """What a packed record is; ``host/packed.h`` has the same numbers."""

    HEADER = 0
    LANE = 1
    LOOP = 2
    COPY = 3
    REDUCE = 4
    SIGNAL = 5
    WAIT = 6
    AFTER = 7
    VIEW = 8
    SEND = 9
    RECEIVE = 10
    NATIVE = 11
    CALL = 12


# opcode and seven 32-bit fields, then two 64-bit fields; little-endian on every machine, so that a
# stored plan can be read on another one.
_RECORD = struct.Struct("<8i2q")
RECORD_BYTES = _RECORD.size
_NO_END = -1
# Not a lag that a plan could have.
_WHOLE_LANE = -(1 << 31)
_OPENING = -1


def _record(opcode: Opcode, *fields: int, x: int = 0, y: int = 0) -> bytes:
    padded = fields + (0,) * (7 - len(fields))
    try:
        return _RECORD.pack(opcode, *padded, x, y)
    except struct.error as error:
        raise InternalError(f"{opcode.name} record {fields} does not fit 32 bits") from error


def _pack_view(view: View) -> bytes:
    return _record(
        Opcode.VIEW,
        view.buffer,
        view.rank,
        view.itemsize_bytes,
        view.index,
        view.origin,
        view.slots,
        x=view.offset_bytes,
        y=view.slot_bytes,
    )


def _pack_step(step: Step) -> Iterator[bytes]:
    for after in step.after:
        lag = _WHOLE_LANE if after.lag is None else after.lag
        yield _record(Opcode.AFTER, after.lane, lag)
    match step:
        case Copy(block, source, destination):
            yield _record(Opcode.COPY, block)
            yield _pack_view(source)
            yield _pack_view(destination)
        case Reduce(block, sources, destinations, operands, updated, partial):
            copies = len(destinations[0]) if destinations else 0
            if any(len(views) != copies for views in destinations):
                raise UsageError("every result of a reduce step must have as many destinations")
            mask = sum(1 << index for index in updated)
            yield _record(
                Opcode.REDUCE,
                block,
                len(sources),
                len(destinations),
                copies,
                len(operands),
                partial,
                x=mask,
            )
            for view in (*sources, *(v for views in destinations for v in views), *operands):
                yield _pack_view(view)
        case Signal(peer, flag):
            yield _record(Opcode.SIGNAL, peer, flag)
        case Wait(peer, flag):
            yield _record(Opcode.WAIT, peer, flag)
        case Send(block, peer, view, group, tag):
            yield _record(Opcode.SEND, block, peer, group, tag)
            yield _pack_view(view)
        case Receive(block, peer, view, group, tag):
            yield _record(Opcode.RECEIVE, block, peer, group, tag)
            yield _pack_view(view)
        case Native(name, block, source, destination, root, source_block):
            code = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
            yield _record(Opcode.NATIVE, block, root, source_block, x=code)
            yield _pack_view(source)
            yield _pack_view(destination)
        case Call(function, block, reads, writes):
            yield _record(Opcode.CALL, function, block, len(reads), len(writes))
            for view in (*reads, *writes):
                yield _pack_view(view)


def _pack_loop(loop: Loop) -> Iterator[bytes]:
    if loop.span is not Span.ONCE and loop.chunk_elements <= 0:
        raise UsageError(f"a loop over {loop.span.name} needs chunk_elements > 0")
    end = _NO_END if loop.end is None else loop.end
    body = [record for step in loop.steps for record in _pack_step(step)]
    # Fields are signed: the lower one has 31 bits.
    high, low = divmod(loop.first_element, 1 << 31)
    yield _record(
        Opcode.LOOP, loop.span, loop.begin, end, low, high, x=loop.chunk_elements, y=len(body)
    )
    yield from body


def pack_plan(plan: Plan) -> bytes:
    """Give the records of a plan, one after the other.

    Parameters
    ----------
    plan : Plan
        Any plan; composites are packed as their expansion.

    Returns
    -------
    bytes
        Records of :data:`RECORD_BYTES` bytes.

    Raises
    ------
    UsageError
        A loop has no chunk, or the results of a reduce differ in destinations.
    InternalError
        A field does not fit its 32 bits.
    """
    return b"".join(_pack_records(plan))


def places_of_records(plan: Plan) -> dict[int, tuple[Place, str]]:
    """Give where the steps of a plan stand in its packed form.

    Parameters
    ----------
    plan : Plan
        Any plan.

    Returns
    -------
    dict of int to (Place, str)
        For the number of each step's first record, its place and its words.
    """
    fragment = plan.fragment
    found = {}
    at = 1
    for lane_index, loops in (
        (_OPENING, fragment.opening),
        *((index, lane.loops) for index, lane in enumerate(fragment.lanes)),
    ):
        at += 1
        for loop_index, loop in enumerate(loops):
            at += 1
            for step_index, step in enumerate(loop.steps):
                place = Place(lane_index, loop_index, step_index)
                found[at + len(step.after)] = (place, describe_step(step, fragment.lanes))
                at += sum(1 for _ in _pack_step(step))
    return found


def _pack_records(plan: Plan) -> Iterator[bytes]:
    fragment = plan.fragment
    flags = plan.mapped_sources | plan.mapped_results << 1
    yield _record(
        Opcode.HEADER,
        PACK_VERSION,
        plan.rank,
        plan.world_size,
        plan.alignment_elements,
        len(fragment.lanes),
        flags,
    )
    for index, loops, in_flight in (
        (_OPENING, fragment.opening, 1),
        *((index, lane.loops, lane.in_flight) for index, lane in enumerate(fragment.lanes)),
    ):
        yield _record(Opcode.LANE, index, len(loops), in_flight)
        for loop in loops:
            yield from _pack_loop(loop)
