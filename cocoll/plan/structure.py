"""What every plan must satisfy whatever its peers do: ranks, views, loops and openings in shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cocoll.errors import RankError, ScheduleError, UsageError
from cocoll.plan.ir import (
    WHOLE_VECTOR,
    Buffer,
    Call,
    Copy,
    Lane,
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
from cocoll.plan.listing import OPENING, Place, describe_step, describe_view, render_plan

__all__ = ["check_plan", "check_world", "matches_by_tag", "reads_of", "writes_of"]

# Indices of updated operands travel as one 64-bit mask.
_MAX_OPERANDS = 63
# Executors keep a communicator's tags apart in what MPI leaves of 15 bits at least.
_TAGS = 2040


def reads_of(step: Step) -> tuple[View, ...]:
    """Give the views that a step reads."""
    match step:
        case Copy(source=source) | Send(source=source) | Native(source=source):
            return (source,)
        case Reduce(sources=sources, operands=operands):
            return sources + operands
        case Call(reads=reads):
            return reads
    return ()


def writes_of(step: Step) -> tuple[View, ...]:
    """Give the views that a step writes."""
    match step:
        case Copy(destination=view) | Receive(destination=view) | Native(destination=view):
            return (view,)
        case Reduce(destinations=destinations, operands=operands, updated=updated):
            stores = tuple(view for views in destinations for view in views)
            return stores + tuple(operands[index] for index in updated)
        case Call(writes=writes):
            return writes
    return ()


def matches_by_tag(plan: Plan) -> bool:
    """Whether a wire must match this plan's messages by sender, receiver and tag.

    Other plans give the wire steps of a rank one order, which is all that NCCL goes by.
    """
    lanes = plan.fragment.lanes
    return any(lane.in_flight > 1 for lane in lanes) or any(
        isinstance(step, Send | Receive) and step.tag
        for lane in lanes
        for loop in lane.loops
        for step in loop.steps
    )


def check_plan(plan: Plan) -> None:
    """Check one plan alone: everything that needs no count and no peer.

    Parameters
    ----------
    plan : Plan
        Any plan, packed or run or not.

    Raises
    ------
    RankError
        A peer, a view or a block names a rank outside the world, or a rank signals itself.
    UsageError
        A number is out of its range, a lane that a step waits for does not exist, a copy changes
        the element size, a reduce has nothing to do, or a lane with several messages in flight has
        other steps.
    ScheduleError
        The opening does more than fill this rank's own scratch; or a step touches a peer's array
        that the plan does not declare as mapped, or anything of a rank on another host.
        ``report()`` shows the step in its plan.
    """
    fragment = plan.fragment
    if plan.hosts is not None and len(plan.hosts) != plan.world_size:
        raise UsageError(
            f"plan {plan.name!r}: wanted the host of each of {plan.world_size} ranks, got "
            f"{len(plan.hosts)}"
        )
    for lane in fragment.lanes:
        _check_in_flight(plan, lane)
    if plan.alignment_elements < 1:
        raise UsageError(
            f"plan {plan.name!r}: wanted alignment_elements >= 1, got {plan.alignment_elements}"
        )
    for lane_index, loops in (
        (OPENING, fragment.opening),
        *((index, lane.loops) for index, lane in enumerate(fragment.lanes)),
    ):
        for loop_index, loop in enumerate(loops):
            _check_loop(plan, loop)
            for step_index, step in enumerate(loop.steps):
                _check_step(plan, loop, step)
                reason = _mapping_fault(plan, step) or _host_fault(plan, step)
                if lane_index == OPENING:
                    reason = _opening_fault(plan, step) or reason
                if reason is not None:
                    place = Place(lane_index, loop_index, step_index)
                    raise ScheduleError(
                        f"plan {plan.name!r} of rank {plan.rank}: {reason}",
                        detail=render_plan(plan, {place: reason}),
                    )


def check_world(plans: Sequence[Plan]) -> None:
    """Check every plan alone, and that together they are one operation of one world.

    Parameters
    ----------
    plans : sequence of Plan
        One per rank, in rank order.

    Raises
    ------
    UsageError
        A plan is missing, stands at another rank's place, or differs in what all ranks must agree
        on (world_size, alignment_elements, mapped_sources, mapped_results, hosts).
    """
    if not plans:
        raise UsageError("wanted one plan per rank, got none")
    first = plans[0]
    if len(plans) != first.world_size:
        raise UsageError(f"wanted {first.world_size} plans, one per rank, got {len(plans)}")
    agreed = ("world_size", "alignment_elements", "mapped_sources", "mapped_results", "hosts")
    for rank, plan in enumerate(plans):
        if plan.rank != rank:
            raise UsageError(f"wanted the plan of rank {rank} at place {rank}, got {plan.rank}'s")
        for name in agreed:
            wanted, got = getattr(first, name), getattr(plan, name)
            if wanted != got:
                raise UsageError(
                    f"plan {plan.name!r}: all ranks must agree on {name}; "
                    f"rank 0 has {wanted}, rank {rank} has {got}"
                )
    # Rank by rank and not all at once: a planner's mistake shows first on its lowest rank.
    for plan in plans:
        check_plan(plan)


def _check_in_flight(plan: Plan, lane: Lane) -> None:
    where = f"plan {plan.name!r} of rank {plan.rank}, lane {lane.name!r}"
    if lane.in_flight < 1:
        raise UsageError(f"{where}: wanted in_flight >= 1, got {lane.in_flight}")
    steps = (step for loop in lane.loops for step in loop.steps)
    if lane.in_flight > 1 and not all(isinstance(step, Send | Receive) for step in steps):
        raise UsageError(
            f"{where}: a lane with {lane.in_flight} messages in flight sends and receives only"
        )


def _check_loop(plan: Plan, loop: Loop) -> None:
    where = f"plan {plan.name!r} of rank {plan.rank}"
    if not loop.steps:
        raise UsageError(f"{where}: a loop without steps")
    if loop.span is not Span.ONCE and loop.chunk_elements < 1:
        raise UsageError(
            f"{where}: a loop over the {loop.span.name.lower()} wants chunk_elements >= 1, "
            f"got {loop.chunk_elements}"
        )
    if loop.begin < 0 or (loop.end is not None and loop.end < loop.begin):
        raise UsageError(
            f"{where}: wanted 0 <= begin <= end, got begin {loop.begin}, end {loop.end}"
        )
    if loop.first_element < 0 or (loop.span is not Span.RANGE and loop.first_element):
        raise UsageError(
            f"{where}: wanted first_element >= 0, and 0 unless the loop is over a range; got "
            f"{loop.first_element}"
        )
    groups = [step.group if isinstance(step, Send | Receive) else 0 for step in loop.steps]
    runs = [group for index, group in enumerate(groups) if index == 0 or groups[index - 1] != group]
    for group, times in Counter(runs).items():
        if group and times > 1:
            raise UsageError(
                f"{where}: the sends and receives of group {group} move as one and must stand "
                "side by side"
            )


@dataclass(frozen=True, slots=True)
class _Where:
    """Which step of which plan; in words only where something is wrong, for plans are long."""

    plan: Plan
    step: Step

    def __str__(self) -> str:
        return f"plan {self.plan.name!r} of rank {self.plan.rank}, {describe_step(self.step)}"


def _check_step(plan: Plan, loop: Loop, step: Step) -> None:
    where = _Where(plan, step)
    if isinstance(step, Signal | Wait | Send | Receive) and (
        not 0 <= step.peer < plan.world_size or step.peer == plan.rank
    ):
        raise RankError(
            f"{where}: wanted a peer in [0, {plan.world_size}) other than {plan.rank}, "
            f"got {step.peer}"
        )
    if isinstance(step, Signal | Wait) and step.flag < 0:
        raise UsageError(f"{where}: wanted a flag >= 0, got {step.flag}")
    if isinstance(step, Send | Receive) and not 0 <= step.tag < _TAGS:
        raise UsageError(f"{where}: wanted a tag in [0, {_TAGS}), got {step.tag}")
    if not isinstance(step, Signal | Wait) and not (
        step.block == WHOLE_VECTOR or 0 <= step.block < plan.world_size
    ):
        raise RankError(
            f"{where}: wanted a block in [0, {plan.world_size}) or WHOLE_VECTOR, got {step.block}"
        )
    if isinstance(step, Native) and (
        not WHOLE_VECTOR <= step.source_block < plan.world_size
        or not 0 <= step.root < plan.world_size
    ):
        raise RankError(
            f"{where}: wanted a block and a root below {plan.world_size}, got "
            f"{step.source_block} and {step.root}"
        )
    for after in step.after:
        if not 0 <= after.lane < len(plan.fragment.lanes):
            raise UsageError(f"{where}: there is no lane {after.lane}")
    if isinstance(step, Reduce):
        _check_reduce(where, step)
    for view in (*reads_of(step), *writes_of(step)):
        _check_view(where, plan, view)
        if view.slots and loop.span is Span.ONCE:
            raise UsageError(f"{where}: slots need a loop over chunks")
    if isinstance(step, Copy) and step.source.itemsize_bytes != step.destination.itemsize_bytes:
        raise UsageError(
            f"{where}: a copy keeps the element size, got {step.source.itemsize_bytes} and "
            f"{step.destination.itemsize_bytes} bytes"
        )


def _check_reduce(where: _Where, step: Reduce) -> None:
    if not (step.sources or step.operands) or not (step.destinations or step.updated):
        raise UsageError(f"{where}: wanted sources or operands, and results or updated operands")
    if step.partial and not step.sources:
        raise UsageError(f"{where}: a partial reduce has sources")
    if len({len(views) for views in step.destinations}) > 1 or () in step.destinations:
        raise UsageError(f"{where}: every result must have as many destinations, at least one")
    if step.partial and (step.operands or len(step.destinations) != 1):
        raise UsageError(f"{where}: a partial reduce has one result and no operands")
    if step.partial and step.destinations[0][0].itemsize_bytes != step.sources[0].itemsize_bytes:
        raise UsageError(f"{where}: a partial reduce keeps the element size")
    if len({view.itemsize_bytes for view in step.sources}) > 1:
        raise UsageError(f"{where}: all sources must have one element size")
    for views in step.destinations:
        if len({view.itemsize_bytes for view in views}) > 1:
            raise UsageError(f"{where}: all destinations of a result must have one element size")
    if len(step.operands) > _MAX_OPERANDS:
        raise UsageError(
            f"{where}: wanted at most {_MAX_OPERANDS} operands, got {len(step.operands)}"
        )
    for index in step.updated:
        if not 0 <= index < len(step.operands) or step.updated.count(index) > 1:
            raise UsageError(f"{where}: updated operand {index} does not exist, or stands twice")


def _check_view(where: _Where, plan: Plan, view: View) -> None:
    if not 0 <= view.rank < plan.world_size:
        raise RankError(f"{where}: wanted ranks in [0, {plan.world_size}), got {view.rank}")
    if not 0 <= view.origin < plan.world_size:
        raise RankError(f"{where}: wanted an origin in [0, {plan.world_size}), got {view.origin}")
    if view.itemsize_bytes < 1 or view.index < 0 or view.offset_bytes < 0:
        raise UsageError(f"{where}: {describe_view(view)} has a negative or zero field")
    if view.slots < 0 or view.slot_bytes < 0 or (view.slots and not view.slot_bytes):
        raise UsageError(f"{where}: {describe_view(view)} wants slots >= 0 of slot_bytes > 0")
    if not view.buffer.is_scratch and (view.slots or view.offset_bytes):
        raise UsageError(f"{where}: only scratch has slots and offsets")
    if view.slots and view.origin:
        raise UsageError(f"{where}: a view with slots has no origin")


def _opening_fault(plan: Plan, step: Step) -> str | None:
    """Say why a step may not stand before arrival."""
    if isinstance(step, Signal | Wait | Send | Receive | Native):
        return "the opening runs before the peers have arrived and may not talk to them"
    if step.after:
        return "the opening runs before the lanes and may not wait for one"
    if any(view.rank != plan.rank for view in (*reads_of(step), *writes_of(step))):
        return "the opening may not touch a peer's memory: the peer has not arrived"
    if not all(view.buffer.is_scratch for view in writes_of(step)):
        return (
            "the opening may write scratch only: ranks that disagree must all raise with "
            "nothing moved"
        )
    return None


def _mapping_fault(plan: Plan, step: Step) -> str | None:
    """Say which peer's array a step touches without the plan declaring it."""

    def foreign(buffer: Buffer) -> Callable[[View], bool]:
        return lambda view: view.buffer is buffer and view.rank != plan.rank

    views = (*reads_of(step), *writes_of(step))
    if any(map(foreign(Buffer.OPERAND), views)):
        return "the operands of a peer are not mapped here"
    if any(map(foreign(Buffer.PART), views)):
        return "the parts of a peer are not mapped here"
    if any(map(foreign(Buffer.SOURCE), views)) and not plan.mapped_sources:
        return "a peer's SOURCE is touched, yet mapped_sources is False"
    if any(map(foreign(Buffer.RESULT), views)) and not plan.mapped_results:
        return "a peer's RESULT is touched, yet mapped_results is False"
    return None


def _host_fault(plan: Plan, step: Step) -> str | None:
    """Say what a step wants of a rank on another host that only a message can reach."""
    hosts = plan.hosts
    if hosts is None:
        return None
    home = hosts[plan.rank]
    if isinstance(step, Signal | Wait) and hosts[step.peer] != home:
        return f"rank {step.peer} is on another host, where no signal goes"
    for view in (*reads_of(step), *writes_of(step)):
        if hosts[view.rank] != home:
            return f"rank {view.rank} is on another host: its memory is not mapped here"
    return None
