"""Plans from schedules for wires that know messages by their order alone, such as NCCL.

All messages of a schedule have one order: group by group, and in a group by the beat in which they
go if each hop of a tree follows the hop before it by one round. Every rank goes through its own in
this order. Those of one beat move as one, so that a rank passes a chunk on while the next one
comes. Where to cut its order into what moves as one each rank decides by itself: of all
messages that are left the first one is always among those that both of its ranks are at, so it
moves.

=========  =====================================================================================
wire       messages, straight from and to where the bytes belong if they lie side by side there
pack       what does not, to a slot
deliver    from a slot to where the bytes belong
keep       what stays on the rank, and first values of sums
=========  =====================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cocoll.errors import UnsupportedError
from cocoll.plan.ir import Buffer, Copy, Fragment, Plan, Receive, Reduce, Send, Step, View
from cocoll.resharding.beats import Message, beats_of
from cocoll.resharding.chunks import Chunk, rounds_of
from cocoll.resharding.lanes import LaneWriter, Moments, later
from cocoll.resharding.layout import box_elements
from cocoll.resharding.parts import Part, Parts

if TYPE_CHECKING:
    from cocoll.resharding.planner import MulticastPlan

__all__ = ["WireLimits", "lower_for_wire"]

_LANES = ("wire", "pack", "deliver", "keep")
_LINE_BYTES = 128
# Besides what is passed on: a chunk that comes, one that goes, and one more of each, so that
# packing goes on beside the wire.
_SPARE_SLOTS = 4


class WireLimits(NamedTuple):
    """What plans may use of their executor; the same on all ranks.

    Attributes
    ----------
    least_bytes, most_bytes : int
        Of a chunk that is cut.
    staging_bytes : int
        Of each rank.
    """

    least_bytes: int
    most_bytes: int
    staging_bytes: int


@dataclass(slots=True)
class _Held:
    """A chunk that a rank has yet to send to others."""

    at: View
    ready: Moments
    slot: int | None
    left: int
    read: Moments = field(default_factory=dict)


def lower_for_wire(
    made: MulticastPlan,
    rank: int,
    itemsizes_bytes: Sequence[int],
    limits: WireLimits,
    is_contiguous: Callable[[Part], bool],
    *,
    result_itemsizes_bytes: Sequence[int] | None = None,
) -> tuple[Plan, tuple[Part, ...]]:
    """Give one rank's part in a schedule as a plan whose messages have one order.

    Pure: every rank that calls it with equal arguments gets plans that fit together.

    Parameters
    ----------
    made : MulticastPlan
        Tasks and their schedule, on a topology of all the world's ranks.
    rank : int
        Whose plan.
    itemsizes_bytes : sequence of int
        Of each tensor.
    limits : WireLimits
        What the executor has; the same on all ranks.
    is_contiguous : callable
        Whether the elements of one of this rank's parts lie side by side: only those are sent,
        received and reduced where they lie.
    result_itemsizes_bytes : sequence of int, optional
        Of each tensor where it arrives, when a kernel with one source stores it. Default: chunks
        are copied.

    Returns
    -------
    tuple of Plan and tuple of Part
        The plan, and what its parts are by index.

    Raises
    ------
    UnsupportedError
        So many chunks are passed on at once that the staging has no room for them.
    """
    staging = _Staging.divide(made, itemsizes_bytes, result_itemsizes_bytes, limits)
    parts = Parts(made, rank, itemsizes_bytes, result_itemsizes_bytes)
    converts = result_itemsizes_bytes is not None
    return _WireLowering(made, rank, itemsizes_bytes, limits, staging, parts, is_contiguous,
                         converts).run()  # fmt: skip


class _Staging(NamedTuple):
    """How the staging is divided: slots for chunks, then room for what kernels take and give."""

    slots: int
    slot_bytes: int
    result_bytes: int

    @staticmethod
    def divide(
        made: MulticastPlan,
        itemsizes: Sequence[int],
        result_itemsizes: Sequence[int] | None,
        limits: WireLimits,
    ) -> _Staging:
        widest = max([*itemsizes, *(result_itemsizes or ())])
        growth = 1
        for itemsize, result in zip(itemsizes, result_itemsizes or itemsizes, strict=True):
            growth = max(growth, -(-result // itemsize))
        # A chunk that is passed on keeps its slot for two rounds.
        least = 2 * _most_passed_on(made) + _SPARE_SLOTS
        # What `keep` packs, and what it and `deliver` convert.
        room = 1 + 2 * growth
        most = min(limits.most_bytes, limits.staging_bytes // (least + room))
        # Even the least slots begin where elements of every size may.
        grain = _LINE_BYTES if most >= _LINE_BYTES else widest
        slot_bytes = most // grain * grain
        if slot_bytes == 0:
            raise UnsupportedError(
                f"the schedule of {made.schedule.solver} passes {(least - _SPARE_SLOTS) // 2} "
                f"chunks on at once, for which {limits.staging_bytes} bytes of staging are too "
                "little; give more in Tuning.gpu_window_bytes"
            )
        slots = limits.staging_bytes // slot_bytes - room
        return _Staging(slots, slot_bytes, growth * slot_bytes)

    def slot(self, rank: int, number: int, itemsize: int) -> View:
        return self._view(rank, itemsize, number * self.slot_bytes, self.slot_bytes)

    def packed(self, rank: int, itemsize: int) -> View:
        return self._view(rank, itemsize, self.slots * self.slot_bytes, self.slot_bytes)

    def converted(self, rank: int, lane: str, itemsize: int) -> View:
        begin = (self.slots + 1) * self.slot_bytes + (lane == "keep") * self.result_bytes
        return self._view(rank, itemsize, begin, self.result_bytes)

    @staticmethod
    def _view(rank: int, itemsize: int, offset_bytes: int, nbytes: int) -> View:
        return View(Buffer.STAGING, rank, itemsize, offset_bytes=offset_bytes, slots=1,
                    slot_bytes=nbytes)  # fmt: skip


def _takes_time(_source: int, _destination: int) -> bool:
    # Inside a host too: what comes in a move is there when the move has ended.
    return True


def _most_passed_on(made: MulticastPlan) -> int:
    """Give how many transfers of a group a rank passes on, at most."""
    most = 0
    for group in made.schedule.groups:
        passing: Counter[int] = Counter()
        for transfer in group.transfers:
            sources = {source for source, _ in transfer.hops}
            passing.update(rank for _, rank in transfer.hops if rank in sources)
        most = max(most, max(passing.values(), default=0))
    return most


class _WireLowering:
    """Writes the plan of one rank."""

    def __init__(
        self,
        made: MulticastPlan,
        rank: int,
        itemsizes: Sequence[int],
        limits: WireLimits,
        staging: _Staging,
        parts: Parts,
        is_contiguous: Callable[[Part], bool],
        converts: bool,
    ) -> None:
        self._made = made
        self._rank = rank
        self._itemsizes = itemsizes
        self._limits = limits
        self._staging = staging
        self._parts = parts
        self._is_contiguous = is_contiguous
        self._converts = converts
        self._lanes = LaneWriter(_LANES)
        self._held: dict[Chunk, _Held] = {}
        self._sums_begun: Moments = {}
        # What moves as one now, and the slots that are in use by it.
        self._move = 1
        self._slots_of_move: set[int] = set()
        self._next_slot = 0
        # By slot: when it has been read, and whether a later move still has to.
        self._free: dict[int, Moments] = {}
        self._kept_slots: set[int] = set()

    def run(self) -> tuple[Plan, tuple[Part, ...]]:
        self._begin_sums()
        for messages in self._beats():
            self._end_move()
            for chunk, source, destination in messages:
                if destination == self._rank:
                    self._receive(chunk, source)
                else:
                    self._send(chunk, destination)
        self._keep_own()
        world = self._made.problem.topology.world_size
        lanes = self._lanes.build({})
        name = f"reshard_{self._made.schedule.solver}"
        return Plan(self._rank, world, Fragment(lanes), name), self._parts.found

    def _beats(self) -> Iterator[list[Message]]:
        """Give this rank's messages, those of one beat together."""
        least, most = self._limits.least_bytes, self._staging.slot_bytes
        for rounds in rounds_of(self._made, self._itemsizes, least, most, _takes_time):
            for beat in beats_of(rounds, _takes_time):
                own = [one for one in beat if self._rank in (one.source, one.destination)]
                if own:
                    yield own

    # --- Messages. ---

    def _end_move(self) -> None:
        self._move += 1
        self._slots_of_move.clear()

    def _take_slot(self) -> int:
        while True:
            slot = self._next_slot % self._staging.slots
            self._next_slot += 1
            if slot not in self._kept_slots:
                break
        if slot in self._slots_of_move:
            self._end_move()
        self._slots_of_move.add(slot)
        return slot

    def _receive(self, chunk: Chunk, source: int) -> None:
        task = self._made.tasks[chunk.task]
        sends = sum(begin == self._rank for begin, _ in chunk.hops)
        needs = self._rank in task.needers
        slot: int | None = None
        free: Moments = {}
        at = None
        if needs and not self._converts and not task.adds:
            at = self._parts.target(chunk.task)
        if at is None or not self._is_whole(at):
            slot = self._take_slot()
            at = self._staging.slot(self._rank, slot, self._itemsizes[task.tensor])
            free = self._free.pop(slot, {})
        arrived = self._add("wire", chunk, Receive(-1, source, at, self._move), free)
        held = _Held(at, arrived, slot, sends)
        if needs:
            if slot is not None:
                steps = self._storing(chunk.task, at, "deliver")
                begin = later(held.ready, self._sums_begun)
                held.read = arrived = self._add("deliver", chunk, steps, begin)
            self._parts.arrive(chunk.task, chunk.first, chunk.stop, arrived)
        self._hold(chunk, held)

    def _send(self, chunk: Chunk, destination: int) -> None:
        held = self._held.get(chunk) or self._take_own(chunk)
        held.left -= 1
        sent = self._add("wire", chunk, Send(-1, destination, held.at, self._move), held.ready)
        held.read = later(held.read, sent)
        self._hold(chunk, held)

    def _take_own(self, chunk: Chunk) -> _Held:
        """Get a chunk of what this rank has ready to be sent."""
        at, ready = self._parts.origin(chunk.task, chunk.first, chunk.stop)
        slot: int | None = None
        if not self._is_whole(at):
            slot = self._take_slot()
            packed = self._staging.slot(self._rank, slot, at.itemsize_bytes)
            free = self._free.pop(slot, {})
            ready = self._add("pack", chunk, Copy(-1, at, packed), later(ready, free))
            at = packed
        return _Held(at, ready, slot, sum(begin == self._rank for begin, _ in chunk.hops))

    def _hold(self, chunk: Chunk, held: _Held) -> None:
        """Keep a chunk until the last rank that gets it from here has."""
        if held.left:
            self._held[chunk] = held
            if held.slot is not None:
                self._kept_slots.add(held.slot)
            return
        self._held.pop(chunk, None)
        if held.slot is not None:
            self._kept_slots.discard(held.slot)
            # What moves as one now may still read it, wherever it was filled.
            self._slots_of_move.add(held.slot)
            self._free[held.slot] = held.read

    def _add(
        self, lane: str, chunk: Chunk, step: Step | tuple[Step, ...], after: Moments
    ) -> Moments:
        steps = step if isinstance(step, tuple) else (step,)
        return self._lanes.add(lane, chunk.first, chunk.stop, steps, after)

    # --- Where bytes are. ---

    def _is_whole(self, view: View) -> bool:
        part = self._parts.part_of(view)
        return part is None or self._is_contiguous(part)

    def _storing(self, number: int, source: View, lane: str) -> tuple[Step, ...]:
        """Give the steps that take a chunk to where it belongs."""
        if self._made.tasks[number].adds:
            total = self._parts.view("sum", number)
            return (Reduce(-1, (total, source), ((total,),), partial=True),)
        target = self._parts.target(number)
        if not self._converts:
            return (Copy(-1, source, target),)
        if self._is_whole(target):
            return (Reduce(-1, (source,), ((target,),)),)
        converted = self._staging.converted(self._rank, lane, target.itemsize_bytes)
        return Reduce(-1, (source,), ((converted,),)), Copy(-1, converted, target)

    # --- What stays on a rank. ---

    def _begin_sums(self) -> None:
        for number, own, total in self._parts.first_summands():
            self._add("keep", self._whole(number), Copy(-1, own, total), {})
        # Nothing is added before all sums have their first values: one moment for all tasks.
        self._sums_begun = self._lanes.last("keep")

    def _keep_own(self) -> None:
        for number, task in enumerate(self._made.tasks):
            if self._rank not in task.keepers:
                continue
            whole = self._whole(number)
            source, ready = self._parts.origin(number, whole.first, whole.stop)
            if not self._converts:
                self._add("keep", whole, self._storing(number, source, "keep"), ready)
                continue
            packing: tuple[Step, ...] = ()
            if not self._is_whole(source):
                packed = self._staging.packed(self._rank, source.itemsize_bytes)
                packing, source = (Copy(-1, source, packed),), packed
            steps = (*packing, *self._storing(number, source, "keep"))
            length = self._staging.slot_bytes // source.itemsize_bytes
            for first in range(0, whole.stop, length):
                chunk = whole._replace(first=first, stop=min(whole.stop, first + length))
                self._add("keep", chunk, steps, ready)

    def _whole(self, number: int) -> Chunk:
        return Chunk(number, 0, box_elements(self._made.tasks[number].box), ())
