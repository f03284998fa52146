"""The intermediate representation: what one rank does, as immutable data.

A plan opens with steps that touch only this rank's scratch, then all ranks *arrive*, then its lanes
run. A lane is an in-order queue of loops; a loop repeats its steps over the chunks of the vector.
Counts are bound when the plan runs, so one plan serves every length.

The vector of an operation has ``count`` elements and is cut into ``world_size`` blocks of
``block_elements``; block ``b`` is ``[b * block_elements, min((b + 1) * block_elements, count))``.
"""

from __future__ import annotations

import abc
import enum
import hashlib
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias

from cocoll.errors import UsageError

__all__ = [
    "SHARD_ALIGNMENT_ELEMENTS",
    "WHOLE_VECTOR",
    "After",
    "Buffer",
    "Call",
    "Composite",
    "Copy",
    "Flag",
    "Fragment",
    "Lane",
    "Loop",
    "Native",
    "Plan",
    "Receive",
    "Reduce",
    "Send",
    "Signal",
    "Span",
    "Step",
    "View",
    "Wait",
]

#: ``Communicator.shard_range`` rounds a shard up to this many elements, so that a shard of any
#: dtype starts on a 16-byte boundary and no Philox group of four is cut (docs/plans.md, rule 9).
SHARD_ALIGNMENT_ELEMENTS = 16

#: The block index that stands for the vector as a whole.
WHOLE_VECTOR = -1


class Buffer(enum.IntEnum):
    """The memory that a view lies in.

    ``SOURCE``, ``RESULT``, ``OPERAND`` and ``PART`` are the caller's arrays; of parts there are any
    number, each with elements counted from its own first one. The others are the executor's, in
    every rank's mapped memory: ``LINE`` the 64-byte payload of the arrival line, ``SMALL`` the
    staging of one-shot operations, ``STAGING`` the slots of chunked ones.
    """

    SOURCE = 0
    RESULT = 1
    OPERAND = 2
    LINE = 3
    SMALL = 4
    STAGING = 5
    PART = 6

    @property
    def copies(self) -> int:
        """How many instances alternate between consecutive operations of a communicator."""
        return 2 if self in (Buffer.LINE, Buffer.SMALL) else 1

    @property
    def is_scratch(self) -> bool:
        """Whether the executor, not the caller, owns the memory."""
        return Buffer.LINE <= self <= Buffer.STAGING


class Flag(enum.IntEnum):
    """The counters between each ordered pair of ranks; each has one writer and one reader."""

    REQUEST = 0
    ANSWER = 1
    DONE = 2
    USER = 3
    GATHER = 4
    GATHERED = 5


class Span(enum.IntEnum):
    """What a loop runs over."""

    ONCE = 0
    BLOCK = 1
    WHOLE = 2
    RANGE = 3


@dataclass(frozen=True, slots=True)
class View:
    """Where the elements of the current chunk lie in one buffer of one rank.

    Parameters
    ----------
    buffer : Buffer
        The memory.
    rank : int
        The rank that owns the memory.
    itemsize_bytes : int
        Bytes of one element as stored here.
    index : int, default 0
        Which result or operand, where there are several.
    origin : int, default 0
        The block whose first element is the buffer's first element (0: the buffer holds the whole
        vector; below 0: it holds a vector that begins so many blocks further on). Only where
        `slots` is 0.
    offset_bytes : int, default 0
        Scratch only: distance from the start of the region.
    slots : int, default 0
        0: elements lie at their logical place. k > 0: iteration i uses slot ``i % k`` and the
        chunk starts at the start of its slot.
    slot_bytes : int, default 0
        Distance between slots.
    """

    buffer: Buffer
    rank: int
    itemsize_bytes: int
    index: int = 0
    origin: int = 0
    offset_bytes: int = 0
    slots: int = 0
    slot_bytes: int = 0


@dataclass(frozen=True, slots=True)
class After:
    """Wait, inside a rank, until a lane has completed iteration ``i - lag``; i is this loop's.

    A negative lag waits for what the other lane does later, or for its end where it has no such
    iteration. ``lag=None`` waits for the end.
    """

    lane: int
    lag: int | None = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Move the chunk of `block` from one view to another of the same element type.

    Onto itself (an operation in place) it does nothing: peers may read the bytes meanwhile.
    """

    block: int
    source: View
    destination: View
    after: tuple[After, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce the chunk of `block` over `sources` in their order and store every result.

    ``destinations[k]`` are the views that receive result k. `operands` are the epilogue's arrays
    on this rank; those whose index stands in `updated` are written in place. A `partial` one adds
    up values that another goes on with: one result of the sources' type, no epilogue, no division.
    """

    block: int
    sources: tuple[View, ...]
    destinations: tuple[tuple[View, ...], ...]
    operands: tuple[View, ...] = ()
    updated: tuple[int, ...] = ()
    partial: bool = False
    after: tuple[After, ...] = ()


@dataclass(frozen=True, slots=True)
class Signal:
    """Add one to the counter that `peer` waits on, releasing everything before it."""

    peer: int
    flag: int
    after: tuple[After, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the next signal of `peer`, acquiring everything before it."""

    peer: int
    flag: int
    after: tuple[After, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Send the chunk of `block` to a rank whose memory is not mapped.

    Neighbouring steps with equal `group` (not 0) move as one; so do those of loops over ranges that
    follow each other in a lane. The n-th send to a rank meets its n-th
    receive from here with the same `tag`.
    """

    block: int
    peer: int
    source: View
    group: int = 0
    tag: int = 0
    after: tuple[After, ...] = ()


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive the chunk of `block` from a rank whose memory is not mapped."""

    block: int
    peer: int
    destination: View
    group: int = 0
    tag: int = 0
    after: tuple[After, ...] = ()


@dataclass(frozen=True, slots=True)
class Native:
    """Run a whole collective of the library below, the same on all ranks.

    `name` is "allreduce", "allgather" or "broadcast" (of `root`). An all-gather reads another block
    than it writes.
    """

    name: str
    block: int
    source: View
    destination: View
    root: int = 0
    source_block: int = WHOLE_VECTOR
    after: tuple[After, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """Run a user function on a tile; it touches the views it names alone; not run yet."""

    function: int
    block: int
    reads: tuple[View, ...] = ()
    writes: tuple[View, ...] = ()
    after: tuple[After, ...] = ()


Step: TypeAlias = Copy | Reduce | Signal | Wait | Send | Receive | Native | Call


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps repeated over chunks of at most `chunk_elements`, iterations ``begin`` to ``end``.

    ``Span.ONCE`` runs once, its chunk is the whole block; ``Span.BLOCK`` runs ``ceil(block_elements
    / chunk_elements)`` times on every rank, ``Span.WHOLE`` ``ceil(count / chunk_elements)`` times.
    The last chunk is clipped; one iteration always exists, so that empty vectors synchronise.

    ``Span.RANGE`` runs once, as iteration `begin`, over `chunk_elements` from `first_element` on,
    whatever the vector and the block are: a plan of such loops serves one shape.
    """

    steps: tuple[Step, ...]
    span: Span = Span.ONCE
    chunk_elements: int = 0
    begin: int = 0
    end: int | None = None
    first_element: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """An in-order queue of loops. Not a thread: an executor runs all lanes as coroutines.

    A lane of messages alone may have `in_flight` of them under way: a step begins when the one
    before it has begun and the one `in_flight` places before it has ended. They end in order.
    """

    name: str
    loops: tuple[Loop, ...]
    in_flight: int = 1


@dataclass(frozen=True, slots=True)
class Fragment:
    """Primitive steps: the opening (before arrival, own scratch only) and the lanes (after it)."""

    lanes: tuple[Lane, ...]
    opening: tuple[Loop, ...] = ()


class Composite(abc.ABC):
    """An algorithm with parameters whose meaning is its expansion into primitive steps."""

    kind: ClassVar[str]

    @abc.abstractmethod
    def expand(self, rank: int, world_size: int) -> Fragment:
        """Give the primitive steps of one rank."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one rank does in one operation.

    Parameters
    ----------
    rank, world_size : int
        Whose plan this is.
    body : Fragment or Composite
        The steps.
    name : str
        The algorithm, for people.
    alignment_elements : int, default SHARD_ALIGNMENT_ELEMENTS
        What ``block_elements`` is rounded up to; 1 for equal blocks.
    mapped_sources, mapped_results : bool, default False
        Whether peers touch the caller's own arrays, which then must be symmetric memory.
    hosts : tuple of int, optional
        The host of every rank: only ranks of one touch each other's memory. Default: one host.
    """

    rank: int
    world_size: int
    body: Fragment | Composite
    name: str
    alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS
    mapped_sources: bool = False
    mapped_results: bool = False
    hosts: tuple[int, ...] | None = None
    _fragment: list[Fragment] = field(default_factory=list, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        """Refuse a rank outside the world."""
        if not 0 <= self.rank < self.world_size:
            raise UsageError(
                f"plan {self.name!r}: wanted a rank in [0, {self.world_size}), got {self.rank}"
            )

    @property
    def fragment(self) -> Fragment:
        """The primitive steps, expanded once."""
        if not self._fragment:
            body = self.body
            if isinstance(body, Composite):
                body = body.expand(self.rank, self.world_size)
            self._fragment.append(body)
        return self._fragment[0]

    def expand(self) -> Plan:
        """Give an equal plan of primitive steps only."""
        return replace(self, body=self.fragment, _fragment=[])

    def pack(self) -> bytes:
        """Give the records that executors run and stores keep; see :mod:`cocoll.plan.packing`."""
        from cocoll.plan.packing import pack_plan  # that module's steps are defined here

        return pack_plan(self)

    def digest(self) -> str:
        """Give the SHA-256 of the packed plan."""
        return hashlib.sha256(self.pack()).hexdigest()
