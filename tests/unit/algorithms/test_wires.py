"""Plans that send and receive: what they move, and that the verifier misses none of their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cocoll.algorithms import ReduceSpec, native, wire_two_shot
from cocoll.errors import (
    DependenceError,
    RankError,
    ScheduleError,
    SignalMismatchError,
    UsageError,
)
from cocoll.plan import (
    After,
    Builder,
    Plan,
    Receive,
    Reduce,
    Send,
    Span,
    Step,
    build_all,
    render_plan,
    verify,
)
from cocoll.plan.ir import Native
from cocoll.plan.ranges import block_elements, chunk_range, loop_iterations
from tests.helpers.plan_cases import edit

SPEC = ReduceSpec(4, (4,))


def plans_of(world_size: int, *, chunk: int = 5, slots: int = 2) -> list[Plan]:
    return [
        wire_two_shot.plan_allreduce_wire(rank, world_size, SPEC, chunk_elements=chunk, slots=slots)
        for rank in range(world_size)
    ]


def sent_bytes(plan: Plan, count: int) -> tuple[int, int]:
    """Give how much a rank sends, and in how many messages that are not empty."""
    length = block_elements(count, plan.world_size, plan.alignment_elements)
    total = messages = 0
    for lane in plan.fragment.lanes:
        for loop in lane.loops:
            for iteration in loop_iterations(loop, count, length):
                for step in loop.steps:
                    if isinstance(step, Send):
                        first, stop = chunk_range(loop, step.block, iteration, count, length)
                        total += (stop - first) * step.source.itemsize_bytes
                        messages += stop > first
    return total, messages


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_the_least_that_an_allreduce_needs_is_sent(world_size: int) -> None:
    count = 16 * world_size * 7
    for plan in plans_of(world_size, chunk=16):
        sent, messages = sent_bytes(plan, count)
        # Each rank sends away all blocks but its own, and its own to all others.
        assert sent == 2 * 4 * count * (world_size - 1) // world_size
        assert messages == 2 * 7 * (world_size - 1)


def without(lane_name: str, kind: type[Step], lane: int, world: list[Plan]) -> Sequence[Plan]:
    """Drop what one lane's steps of a kind wait for in another."""

    def change(plan: Plan, name: str, step: Step) -> Sequence[Step]:
        if name != lane_name or not isinstance(step, kind):
            return (step,)
        return (replace(step, after=tuple(one for one in step.after if one.lane != lane)),)

    return edit(world, change)


COUNT = 2 * 16 * 3  # blocks of 48 elements: ten chunks of five


@pytest.mark.parametrize(
    ("lane", "kind", "other", "error"),
    [
        # A slot is overwritten while it is reduced; the two lanes of the wire lose their order.
        ("scatter", Send, 1, ScheduleError),
        ("scatter", Send, 2, DependenceError),
        # Reduced before it has come; sent before it is reduced; the order of the wire again.
        ("reduce", Reduce, 0, DependenceError),
        ("gather", Send, 1, DependenceError),
        ("gather", Send, 0, ScheduleError),
    ],
)
def test_every_dependence_is_needed(
    lane: str, kind: type[Step], other: int, error: type[Exception]
) -> None:
    verify(plans_of(2), counts=[COUNT])
    with pytest.raises(error):
        verify(without(lane, kind, other, plans_of(2, slots=1)), counts=[COUNT])


def test_a_group_that_falls_apart_is_a_deadlock() -> None:
    def alone(plan: Plan, name: str, step: Step) -> Sequence[Step]:
        return (replace(step, group=0),) if isinstance(step, Send | Receive) else (step,)

    with pytest.raises(SignalMismatchError, match="deadlock"):
        verify(edit(plans_of(3), alone), counts=[COUNT])


def test_steps_of_a_wire_in_two_lanes_need_an_order() -> None:
    def program(builder: Builder, *, ordered: bool) -> None:
        peer = 1 - builder.rank
        for number, name in enumerate(("one", "two")):
            after = {"one": None} if ordered and number else None
            with builder.lane(name):
                builder.send(
                    peer=peer,
                    source=builder.source(itemsize_bytes=4),
                    group=1,
                    after=after,
                )
                builder.recv(
                    peer=peer, destination=builder.result(itemsize_bytes=4, index=number), group=1
                )

    build_all(lambda builder: program(builder, ordered=True), 2, name="ordered")
    with pytest.raises(DependenceError, match="order of two wire steps is not certain"):
        build_all(lambda builder: program(builder, ordered=False), 2, name="free")


def test_a_step_may_wait_for_a_later_iteration_of_another_lane() -> None:
    def program(builder: Builder, lag: int) -> None:
        with builder.lane("ahead"), builder.loop(span=Span.WHOLE, chunk_elements=4):
            builder.copy(
                source=builder.source(itemsize_bytes=4),
                destination=builder.result(itemsize_bytes=4),
            )
        with builder.lane("behind"), builder.loop(span=Span.WHOLE, chunk_elements=4):
            builder.copy(
                source=builder.result(itemsize_bytes=4),
                destination=builder.result(itemsize_bytes=4, index=1),
                after={"ahead": lag},
            )

    plans = build_all(lambda builder: program(builder, -2), 1, name="ahead", counts=[0, 1, 40])
    assert "after iteration i + 2 of lane 'ahead'" in render_plan(plans[0])
    with pytest.raises(DependenceError):
        build_all(lambda builder: program(builder, 1), 1, name="too early", counts=[40])
    # It counts up to the lane's end, and an end that never comes is a deadlock.
    with pytest.raises(SignalMismatchError, match="deadlock"):
        verify(
            edit(
                plans,
                lambda plan, name, step: (
                    (replace(step, after=(After(1, -3),)),) if name == "ahead" else (step,)
                ),
            ),
            counts=[40],
        )


def test_ranks_that_meet_in_different_collectives() -> None:
    roots = [native.plan_broadcast_native(rank, 2, rank, 4) for rank in range(2)]
    with pytest.raises(SignalMismatchError, match="different native collectives"):
        verify(roots, counts=[7])


def test_what_planners_refuse() -> None:
    with pytest.raises(UsageError, match="chunk_elements >= 1"):
        plans_of(2, chunk=0)
    with pytest.raises(UsageError, match="slots >= 1"):
        plans_of(2, slots=0)
    with pytest.raises(RankError, match="wanted a root"):
        native.plan_broadcast_native(0, 2, 2, 4)
    plan = native.plan_allgather_native(0, 2, 4)

    def far(plan: Plan, name: str, step: Step) -> Sequence[Step]:
        assert isinstance(step, Native)
        return (replace(step, source_block=7),)

    with pytest.raises(RankError, match="wanted a block and a root below 2"):
        verify(edit([plan, replace(plan, rank=1)], far), counts=[7])
