"""Plans from schedules: the chunks of all transfers, one after the other, as steps of each rank.

All ranks go through the messages of a schedule in one order, so that each pair of ranks agrees on
which message is which and no rank waits in a circle: group by group, and in a group by the beat in
which they go if each hop between hosts follows the hop before it by one round. A rank has a lane
for each thing that it does:

=========  =====================================================================================
receive    messages from other hosts, to where they belong, or to a slot of the staging
send       messages to other hosts, from where the bytes lie
pack       what neighbours fetch, to a slot
offer      tells neighbours that a slot is filled
fetch      takes a chunk out of a neighbour's slot, and tells it so
reclaim    hears that a slot has been emptied
deliver    from a slot to where the bytes belong
keep       what stays on the rank, and first values of sums
=========  =====================================================================================

A slot is filled again when all who read it have. Strided boxes are packed by the messages and
copies themselves, chunk by chunk: there is no temporary of a whole tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cocoll.plan.ir import (
    Buffer,
    Copy,
    Flag,
    Fragment,
    Plan,
    Receive,
    Reduce,
    Send,
    Signal,
    Step,
    View,
    Wait,
)
from cocoll.resharding.beats import Message, beats_of
from cocoll.resharding.chunks import Chunk, depth_of, rounds_of
from cocoll.resharding.lanes import LaneWriter, Moments, later
from cocoll.resharding.layout import box_elements
from cocoll.resharding.parts import Part, Parts

if TYPE_CHECKING:
    from cocoll.resharding.planner import MulticastPlan

__all__ = ["ReshardLimits", "lower"]

_LANES = ("receive", "send", "pack", "offer", "fetch", "reclaim", "deliver", "keep")
# A copy inside a rank keeps its other lanes waiting: at most this much at a time.
_KEPT_BYTES = 1 << 20


class ReshardLimits(NamedTuple):
    """What plans may use of their executor.

    Attributes
    ----------
    least_bytes : int
        Of a chunk that is cut: what each message costs counts for more below it.
    slot_bytes : int
        Of a slot of staging, and of the longest message.
    slots : int
        How many slots each rank has.
    in_flight : int
        Messages that may be under way in each direction.
    """

    least_bytes: int
    slot_bytes: int
    slots: int
    in_flight: int


@dataclass(slots=True)
class _Role:
    """What a rank does with a chunk."""

    parent: int | None = None
    parent_is_near: bool = False
    feeds_near: bool = False
    feeds_far: bool = False
    staged: bool = False


@dataclass(slots=True)
class _UnderWay:
    """Where a chunk has come to: on this host in which slots, and where it is on this rank."""

    roles: dict[int, _Role]
    entered: set[int] = field(default_factory=set)
    slots: dict[int, int] = field(default_factory=dict)
    at: View | None = None
    ready: Moments = field(default_factory=dict)


def lower(
    made: MulticastPlan,
    rank: int,
    itemsizes_bytes: Sequence[int],
    limits: ReshardLimits,
    *,
    hosts: Sequence[int] | None = None,
    result_itemsizes_bytes: Sequence[int] | None = None,
) -> tuple[Plan, tuple[Part, ...]]:
    """Give one rank's part in a schedule as a plan.

    Pure: every rank that calls it with equal arguments gets plans that fit together.

    Parameters
    ----------
    made : MulticastPlan
        Tasks and their schedule, on a topology of all the world's ranks.
    rank : int
        Whose plan.
    itemsizes_bytes : sequence of int
        Of each tensor; 1 for multicasts of bytes.
    limits : ReshardLimits
        What the executor has; the same on all ranks.
    hosts : sequence of int, optional
        The host of every rank of the world: only ranks of one map each other's staging. Default:
        all are on one.
    result_itemsizes_bytes : sequence of int, optional
        Of each tensor where it arrives, when a kernel with one source stores it. Default: chunks
        are copied.

    Returns
    -------
    tuple of Plan and tuple of Part
        The plan, and what its parts are by index.
    """
    world = made.problem.topology.world_size
    places = [0] * world if hosts is None else list(hosts)
    return _Lowering(made, rank, itemsizes_bytes, limits, places, result_itemsizes_bytes).run()


class _Lowering:
    """Writes the plan of one rank."""

    def __init__(
        self,
        made: MulticastPlan,
        rank: int,
        itemsizes: Sequence[int],
        limits: ReshardLimits,
        hosts: Sequence[int],
        result_itemsizes: Sequence[int] | None,
    ) -> None:
        self._made = made
        self._rank = rank
        self._itemsizes = itemsizes
        self._limits = limits
        self._parts = Parts(made, rank, itemsizes, result_itemsizes)
        self._converts = result_itemsizes is not None
        self._hosts = hosts
        self._lanes = LaneWriter(_LANES)
        # Of this rank and its neighbours: how many chunks each has put into slots.
        self._staged: dict[int, int] = {}
        self._known_roles: dict[tuple[int, int], dict[int, _Role]] = {}
        self._under_way: dict[Chunk, _UnderWay] = {}
        # By slot, those who must have read it before it is filled again.
        self._readers: dict[int, Moments] = {}
        self._sums_begun: Moments = {}

    def run(self) -> tuple[Plan, tuple[Part, ...]]:
        self._begin_sums()
        limits = self._limits
        for rounds in rounds_of(
            self._made, self._itemsizes, limits.least_bytes, limits.slot_bytes, self._is_far
        ):
            for beat in self._beats(rounds):
                for message in beat:
                    if self._is_near(message.source) or self._is_near(message.destination):
                        self._pass(message)
            self._under_way.clear()
        self._keep_own()
        return self._plan(), self._parts.found

    def _beats(self, rounds: Sequence[Sequence[Chunk]]) -> Iterator[list[Message]]:
        """Give the messages of a group beat by beat, as far as the slots allow.

        What lies in a slot has been read one beat after it came. In that time no rank may get more
        than it has slots for.
        """
        hops = {chunk.hops for chunks in rounds for chunk in chunks}
        deepest = max(depth_of(one, self._is_far) for one in hops)
        most = self._limits.slots // (deepest + 2)
        if not most:
            return beats_of(rounds, lambda _, __: False)
        return beats_of(self._split(rounds, most), self._is_far)

    def _split(self, rounds: Sequence[Sequence[Chunk]], most: int) -> Iterator[list[Chunk]]:
        """Cut rounds so that in none of them a rank puts more chunks into slots than `most`."""
        for chunks in rounds:
            part: list[Chunk] = []
            staged: Counter[int] = Counter()
            for chunk in chunks:
                ranks = [rank for rank, role in self._roles(chunk).items() if role.staged]
                if any(staged[rank] == most for rank in ranks):
                    yield part
                    part = []
                    staged.clear()
                staged.update(ranks)
                part.append(chunk)
            yield part

    def _plan(self) -> Plan:
        in_flight = self._limits.in_flight
        lanes = self._lanes.build({"receive": in_flight, "send": in_flight})
        hosts = tuple(self._hosts)
        return Plan(
            self._rank,
            len(hosts),
            Fragment(lanes),
            f"reshard_{self._made.schedule.solver}",
            hosts=hosts if len(set(hosts)) > 1 else None,
        )

    # --- What a rank does with a chunk. ---

    def _is_near(self, rank: int) -> bool:
        return self._hosts[rank] == self._hosts[self._rank]

    def _is_far(self, source: int, destination: int) -> bool:
        return self._hosts[source] != self._hosts[destination]

    def _roles(self, chunk: Chunk) -> dict[int, _Role]:
        """Give what each rank of a chunk does, in the order in which the chunk comes to them."""
        key = chunk.task, id(chunk.hops)
        if key not in self._known_roles:
            self._known_roles[key] = self._find_roles(chunk)
        return self._known_roles[key]

    def _find_roles(self, chunk: Chunk) -> dict[int, _Role]:
        task = self._made.tasks[chunk.task]
        roles: dict[int, _Role] = {}
        for source, destination in chunk.hops:
            parent = roles.setdefault(source, _Role())
            child = roles.setdefault(destination, _Role())
            child.parent = source
            child.parent_is_near = not self._is_far(source, destination)
            parent.feeds_near |= child.parent_is_near
            parent.feeds_far |= not child.parent_is_near
        converts = self._converts or task.adds
        for rank, role in roles.items():
            passes_whole = rank in task.needers and not converts
            role.staged = role.feeds_near
            if role.parent is not None and not passes_whole:
                role.staged |= role.feeds_far or not role.parent_is_near
        return roles

    def _pass(self, message: Message) -> None:
        """Let a chunk go on by a hop that begins or ends on this host."""
        chunk, source, destination = message
        under_way = self._under_way.get(chunk)
        if under_way is None:
            under_way = self._under_way[chunk] = _UnderWay(self._roles(chunk))
        if under_way.roles[source].parent is None and source not in under_way.entered:
            self._enter(chunk, source, under_way)
        if source == self._rank:
            self._give(chunk, destination, under_way)
        self._enter(chunk, destination, under_way)

    def _enter(self, chunk: Chunk, rank: int, under_way: _UnderWay) -> None:
        """Let a chunk come to a rank: all of a host count the slots that it takes there."""
        under_way.entered.add(rank)
        if not self._is_near(rank):
            return
        if under_way.roles[rank].staged:
            number = self._staged.get(rank, 0)
            self._staged[rank] = number + 1
            under_way.slots[rank] = number % self._limits.slots
        if rank == self._rank:
            self._get(chunk, under_way)

    def _get(self, chunk: Chunk, under_way: _UnderWay) -> None:
        """Take a chunk from where it comes, and bring it to where it belongs."""
        role = under_way.roles[self._rank]
        task, slot = self._made.tasks[chunk.task], under_way.slots.get(self._rank)
        itemsize = self._itemsizes[task.tensor]
        needs = role.parent is not None and self._rank in task.needers
        staging = None if slot is None else self._slot_view(self._rank, slot, itemsize)
        free = {} if slot is None else self._readers.pop(slot, {})
        if role.parent is None:
            at, ready = self._parts.origin(chunk.task, chunk.first, chunk.stop)
            if staging is not None:
                step = Copy(-1, at, staging)
                ready = self._add("pack", chunk, step, later(ready, free))
                at = staging
        elif role.parent_is_near:
            parent_slot = self._slot_view(role.parent, under_way.slots[role.parent], itemsize)
            ready, at = self._fetch(chunk, role.parent, parent_slot, staging, free)
        else:
            at = staging if staging is not None else self._parts.target(chunk.task)
            ready = self._add("receive", chunk, Receive(-1, role.parent, at), free)
        read: Moments = {}
        arrived = ready
        if staging is not None and needs:
            store = self._store(chunk.task, staging)
            read = arrived = self._add("deliver", chunk, store, later(ready, self._sums_begun))
        if needs:
            self._parts.arrive(chunk.task, chunk.first, chunk.stop, arrived)
        under_way.at, under_way.ready = at, ready
        if slot is not None:
            self._readers[slot] = read

    def _give(self, chunk: Chunk, peer: int, under_way: _UnderWay) -> None:
        """Pass a chunk on."""
        slot = under_way.slots.get(self._rank)
        if self._is_far(self._rank, peer):
            assert under_way.at is not None
            read = self._add("send", chunk, Send(-1, peer, under_way.at), under_way.ready)
        else:
            self._add("offer", chunk, Signal(peer, Flag.REQUEST), under_way.ready)
            read = self._add("reclaim", chunk, Wait(peer, Flag.ANSWER), {})
        if slot is not None:
            self._readers[slot] = later(self._readers.get(slot, {}), read)

    def _fetch(
        self,
        chunk: Chunk,
        parent: int,
        source: View,
        staging: View | None,
        free: Moments,
    ) -> tuple[Moments, View]:
        """Take a chunk out of a neighbour's slot; give when it is here, and where."""
        step: Copy | Reduce
        if staging is not None:
            at, step, begin = staging, Copy(-1, source, staging), free
        else:
            step = self._store(chunk.task, source)
            # Of a sum nothing is sent as it comes.
            at = source if isinstance(step, Reduce) else step.destination
            begin = later(free, self._sums_begun)
        steps = (Wait(parent, Flag.REQUEST), step, Signal(parent, Flag.ANSWER))
        return self._add("fetch", chunk, steps, begin), at

    def _add(
        self, lane: str, chunk: Chunk, step: Step | tuple[Step, ...], after: Moments
    ) -> Moments:
        steps = step if isinstance(step, tuple) else (step,)
        return self._lanes.add(lane, chunk.first, chunk.stop, steps, after)

    # --- Where bytes are. ---

    def _store(self, number: int, source: View) -> Copy | Reduce:
        """Give the step that takes a chunk to where it belongs."""
        if self._made.tasks[number].adds:
            total = self._parts.view("sum", number)
            return Reduce(-1, (total, source), ((total,),), partial=True)
        if self._converts:
            return Reduce(-1, (source,), ((self._parts.target(number),),))
        return Copy(-1, source, self._parts.target(number))

    def _slot_view(self, rank: int, slot: int, itemsize: int) -> View:
        limits = self._limits
        return View(
            Buffer.STAGING,
            rank,
            itemsize,
            offset_bytes=slot * limits.slot_bytes,
            slots=1,
            slot_bytes=limits.slot_bytes,
        )

    # --- What stays on a rank. ---

    def _begin_sums(self) -> None:
        """Let every sum begin with this rank's own summand."""
        for number, own, total in self._parts.first_summands():
            self._copy_whole(number, Copy(-1, own, total), {})
        # Nothing is added before all sums have their first values: one moment for all tasks.
        self._sums_begun = self._lanes.last("keep")

    def _keep_own(self) -> None:
        for number, task in enumerate(self._made.tasks):
            if self._rank in task.keepers:
                source, ready = self._parts.origin(number, 0, box_elements(task.box))
                self._copy_whole(number, self._store(number, source), ready)

    def _copy_whole(self, number: int, step: Step, after: Moments) -> None:
        task = self._made.tasks[number]
        count = box_elements(task.box)
        length = max(1, _KEPT_BYTES // self._itemsizes[task.tensor])
        for first in range(0, count, length):
            chunk = Chunk(number, first, min(count, first + length), ())
            self._add("keep", chunk, step, after)
