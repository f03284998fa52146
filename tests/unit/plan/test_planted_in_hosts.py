"""Mistakes planted in plans for several hosts: every dependence is needed, or is implied."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest

from cocoll.errors import DependenceError, ScheduleError, SignalMismatchError
from cocoll.plan import After, Buffer, Flag, Plan, Receive, Reduce, Send, Signal, Step, Wait
from tests.helpers.host_cases import CHUNK, make_host_cases
from tests.helpers.plan_cases import edit, verify_operation
from tests.helpers.plan_runner import Operation, run_operations

NAMES = (
    "allreduce-plain",
    "allreduce-plain_in_place",
    "allreduce-plain_replicated",
    "allreduce_staged-plain",
    "allreduce_staged-plain_in_place",
    "allreduce_ring-plain_in_place",
    "allreduce_ring_staged-plain",
    "reduce_scatter-plain-align16",
    "reduce_scatter_staged-plain-align16",
    "reduce_scatter_ring-plain-align16",
    "reduce_scatter_ring_staged-plain-align16",
    "allgather-align16",
    "allgather_staged-align16",
    "allgather_ring-align16",
    "allgather_ring_staged-align16",
    "allgather_replicated-align16",
    "broadcast_chain-root0",
    "broadcast_chain_staged-root1",
    "broadcast_chain_replicated-root1",
    "broadcast_tree-root1",
    "broadcast_tree_staged-root2",
    "recursive_doubling-plain",
)
SHORT = (
    "allreduce-plain_in_place",
    "reduce_scatter_staged-plain-align16",
    "allgather_staged-align16",
    "broadcast_chain_staged-root1",
)
CASES = [
    pytest.param(
        layout,
        name,
        marks=() if layout == "uneven" and name in SHORT else pytest.mark.long,
    )
    for layout in ("uneven", "pairs", "singles", "interleaved")
    for name in NAMES
    if name in make_host_cases(layout)
]


def test_no_case_is_misspelt() -> None:
    """What no layout has would be left out in silence."""
    found = {case.values[1] for case in CASES}
    assert found == set(NAMES)
    assert set(SHORT) <= {case.values[1] for case in CASES if not case.marks}


def count_of(operation: Operation) -> int:
    """Give a count of which all blocks are whole: a short block would hide what it needs."""
    doubling = operation.plans[0].name == "recursive_doubling"
    return 37 if doubling else len(operation.plans) * 32


def dependences(plan: Plan) -> Iterator[tuple[str, int, int, After, bool]]:
    """Give lane, loop, step and dependence; and whether an earlier step of the loop has it too."""
    for lane in plan.fragment.lanes:
        for place, loop in enumerate(lane.loops):
            seen: set[After] = set()
            for index, step in enumerate(loop.steps):
                for after in step.after:
                    yield lane.name, place, index, after, after in seen
                seen |= set(step.after)


def without_dependence(
    plans: Sequence[Plan], rank: int, name: str, place: int, index: int, after: After
) -> tuple[Plan, ...]:
    def change(plan: Plan) -> Plan:
        lanes = []
        for lane in plan.fragment.lanes:
            if lane.name == name:
                loops = list(lane.loops)
                steps = list(loops[place].steps)
                kept = tuple(one for one in steps[index].after if one != after)
                steps[index] = replace(steps[index], after=kept)
                loops[place] = replace(loops[place], steps=tuple(steps))
                lane = replace(lane, loops=tuple(loops))
            lanes.append(lane)
        body = replace(plan.fragment, lanes=tuple(lanes))
        return replace(plan, body=body, _fragment=[])

    return tuple(change(plan) if plan.rank == rank else plan for plan in plans)


def is_accepted(operation: Operation) -> bool:
    try:
        verify_operation(operation, [count_of(operation)])
    except ScheduleError:
        return False
    return True


def is_implied(name: str, lane: str, other: str) -> bool:
    """Say whether what a dependence gives follows from others."""
    # Results go where sources were only in place; there nothing of this is implied.
    if lane.startswith("gather") and "in_place" not in name and not lane.endswith("_on"):
        return other.startswith(("partial", "scatter"))
    # What came back over the wire came after what went; and the next arrival follows the end.
    if lane == "done":
        return other.startswith(("partial", "final", "copy", "gather", "own"))
    # The root sends its source, not the one copy that it fills.
    return lane == "gather_on" and other == "own" and "broadcast" in name


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_every_dependence_is_needed_or_implied(layout: str, name: str) -> None:
    operation = make_host_cases(layout)[name]()
    count = count_of(operation)
    refused = 0
    for plan in operation.plans:
        lanes = [lane.name for lane in plan.fragment.lanes]
        for lane, place, index, after, again in dependences(plan):
            plans = without_dependence(operation.plans, plan.rank, lane, place, index, after)
            planted = replace(operation, plans=plans)
            if not is_accepted(planted):
                refused += 1
                continue
            told = f"rank {plan.rank}, {lane} after {lanes[after.lane]}"
            assert again or is_implied(name, lane, lanes[after.lane]), told
            # And the verifier is right about it.
            run_operations([planted] * 2, count, zlib.crc32(told.encode()))
    assert refused or name == "recursive_doubling-plain" or layout == "singles"


def drop_exchange(
    exchange: tuple[int, int, int], plan: Plan, lane: str, step: Step
) -> Sequence[Step]:
    """Drop the signals of one rank to another, and their waits."""
    if isinstance(step, Signal) and (plan.rank, step.peer, step.flag) == exchange:
        return ()
    if isinstance(step, Wait) and (step.peer, plan.rank, step.flag) == exchange:
        return ()
    return (step,)


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_every_exchange_inside_a_host_is_needed(layout: str, name: str) -> None:
    operation = make_host_cases(layout)[name]()
    exchanges = {
        (plan.rank, step.peer, step.flag)
        for plan in operation.plans
        for lane in plan.fragment.lanes
        for loop in lane.loops
        for step in loop.steps
        if isinstance(step, Signal)
    }
    for one, other, flag in sorted(exchanges):
        change = partial(drop_exchange, (one, other, flag))
        planted = replace(operation, plans=edit(operation.plans, change))
        if not is_accepted(planted):
            continue
        # Where all share one copy, arrival at the next operation is all that they need.
        assert flag == Flag.DONE, (one, other, flag)
        assert "replicated" in name
        run_operations([planted] * 2, count_of(operation), one)


# ---- messages ----


def run_until_wrong(operations: Sequence[Operation], count: int) -> None:
    """Try interleavings until one gives a wrong element, which raises."""
    for seed in range(100):
        run_operations(operations, count, seed)


def planted(name: str, change: Callable[..., Sequence[Step]], layout: str = "uneven") -> Operation:
    operation = make_host_cases(layout)[name]()
    return replace(operation, plans=edit(operation.plans, change))


@pytest.mark.parametrize("kind", [Send, Receive])
@pytest.mark.parametrize("name", ["allreduce-plain", "allgather_ring-align16"])
def test_a_message_with_one_end(kind: type[Step], name: str) -> None:
    operation = planted(
        name, lambda plan, lane, step: () if plan.rank == 0 and isinstance(step, kind) else (step,)
    )
    with pytest.raises(SignalMismatchError):
        verify_operation(operation, [count_of(operation)])
    # It stands still, or a rank ends without what it should have got.
    with pytest.raises(AssertionError):
        run_operations([operation], count_of(operation), 0)


def test_tags_that_differ() -> None:
    operation = planted(
        "allreduce-plain",
        lambda plan, lane, step: (
            (replace(step, tag=step.tag + 1),)
            if plan.rank == 0 and isinstance(step, Send)
            else (step,)
        ),
    )
    with pytest.raises(SignalMismatchError):
        verify_operation(operation, [count_of(operation)])


def test_blocks_of_a_ring_with_one_tag() -> None:
    """Two blocks go one way in lanes of their own: without tags either may take the other's."""
    operation = planted(
        "allreduce_ring-plain",
        lambda plan, lane, step: (
            (replace(step, tag=0),) if isinstance(step, Send | Receive) else (step,)
        ),
    )
    with pytest.raises(DependenceError, match="order of two wire steps is not certain"):
        verify_operation(operation, [count_of(operation)])


def test_more_messages_under_way_than_slots() -> None:
    """A receive that begins before what its slot held has been reduced."""

    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        if lane == "collect":
            relaxed = tuple(replace(one, lag=3) for one in step.after)
            return (replace(step, after=relaxed),)
        return (step,)

    with pytest.raises(DependenceError, match="STAGING of rank"):
        verify_operation(planted("allreduce-plain", change), [3 * 32])


def test_a_partial_that_is_sent_and_filled_again() -> None:
    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        if lane == "partial" and isinstance(step, Reduce):
            relaxed = tuple(replace(one, lag=3) if one.lag == 2 else one for one in step.after)
            return (replace(step, after=relaxed),)
        return (step,)

    operation = planted("allreduce-plain", change)
    with pytest.raises(DependenceError, match="STAGING of rank"):
        verify_operation(operation, [3 * 32])
    with pytest.raises(AssertionError, match="wanted"):
        run_until_wrong([operation], 3 * 32)


def test_a_chunk_that_overruns_its_area() -> None:
    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        if isinstance(step, Receive) and step.destination.buffer is Buffer.STAGING:
            return (replace(step, destination=replace(step.destination, slot_bytes=CHUNK)),)
        return (step,)

    with pytest.raises(ScheduleError, match="overruns its slot"):
        verify_operation(planted("allreduce-plain", change), [3 * 32])


@pytest.mark.parametrize("what", ["signal", "read"])
def test_memory_and_signals_do_not_cross_hosts(what: str) -> None:
    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        if plan.rank == 2 and what == "signal" and isinstance(step, Send):
            return (step, Signal(0, Flag.USER))
        if plan.rank == 0 and what == "signal" and lane == "done" and isinstance(step, Wait):
            return (step, Wait(2, Flag.USER))
        if plan.rank == 2 and what == "read" and isinstance(step, Reduce):
            sources = (replace(step.sources[0], rank=0), *step.sources[1:])
            return (replace(step, sources=sources),)
        return (step,)

    with pytest.raises(ScheduleError, match="host"):
        verify_operation(planted("allreduce-plain", change), [3 * 32])
