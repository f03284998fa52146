"""What the verifier accepts, how it reports, and the parts that no planner of ours reaches."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from cocoll.algorithms import ReduceSpec, flat, inline, one_shot, two_shot
from cocoll.errors import DependenceError, SignalMismatchError, UsageError
from cocoll.plan import (
    Aliasing,
    Buffer,
    Builder,
    Flag,
    Fragment,
    Lane,
    Loop,
    Native,
    Plan,
    Relation,
    Send,
    Signal,
    Span,
    View,
    build_all,
    default_counts,
    render_plan,
    verify,
)
from tests.helpers.ring_plans import plan_ring

SPEC = ReduceSpec(4, (4,))
SOURCE = View(Buffer.SOURCE, 0, 4)
RESULT = View(Buffer.RESULT, 0, 4)


def staged(world_size: int = 2) -> list[Plan]:
    return [
        two_shot.plan_allreduce_staged(rank, world_size, SPEC, chunk_elements=16)
        for rank in range(world_size)
    ]


# --- arguments ---------------------------------------------------------------------------------


def test_counts_are_not_negative() -> None:
    with pytest.raises(UsageError, match="counts >= 0, got -1"):
        verify(staged(), counts=[-1])


def test_a_second_operation_has_the_same_ranks() -> None:
    with pytest.raises(UsageError, match="second operation of 2 ranks, got 3"):
        verify(staged(2), other=staged(3))


def test_the_second_operation_brings_its_own_aliasing() -> None:
    wider = [
        two_shot.plan_allreduce(rank, 2, ReduceSpec(2, (4,)), chunk_elements=16)
        for rank in range(2)
    ]
    verify(staged(), counts=[40], aliasing=Aliasing(Relation.IDENTICAL), other=wider)
    with pytest.raises(DependenceError):
        verify(staged(), counts=[40], other=wider, other_aliasing=Aliasing(Relation.IDENTICAL))


def test_a_replicated_result_is_nobodys_source() -> None:
    with pytest.raises(UsageError, match="replicated"):
        Aliasing(Relation.IDENTICAL, replicated_results=True)


def test_default_counts_reach_every_shape() -> None:
    counts = default_counts(staged())
    # None, one, a clipped first chunk, and five chunks of each block: both slots used again.
    assert {0, 1, 31, 33, 2 * 16 * 5 - 9} <= set(counts)
    assert list(counts) == sorted(counts)


def test_default_counts_fit_the_line() -> None:
    plans = [inline.plan_allreduce(rank, 2, ReduceSpec(8, (8,))) for rank in range(2)]
    assert default_counts(plans) == (0, 1, 3, 8)
    verify(plans)


def test_default_counts_of_a_whole_vector_loop() -> None:
    plans = [flat.plan_broadcast(rank, 2, 0, 4, chunk_elements=100) for rank in range(2)]
    assert {99, 101} <= set(default_counts(plans))


# --- accepted ----------------------------------------------------------------------------------


def test_nothing_to_do() -> None:
    verify([flat.plan_barrier(rank, 3) for rank in range(3)])


def test_many_iterations() -> None:
    verify(staged(3), counts=[16 * 3 * 25])


def test_an_end_of_a_lane_orders() -> None:
    def program(after: bool) -> Callable[[Builder], None]:
        def write(builder: Builder) -> None:
            small = builder.scratch(Buffer.SMALL, itemsize_bytes=4)
            with builder.lane("write"):
                builder.copy(source=builder.source(itemsize_bytes=4), destination=small)
            with builder.lane("read"):
                builder.copy(
                    source=small,
                    destination=builder.result(itemsize_bytes=4),
                    after={"write": None} if after else None,
                )

        return write

    assert build_all(program(True), 2, name="ordered")
    with pytest.raises(DependenceError, match="SMALL"):
        build_all(program(False), 2, name="unordered")


def test_order_travels_over_several_ranks() -> None:
    """0 writes for 2, and only tells 1, who tells 2: releases and acquires add up."""

    def program(builder: Builder) -> None:
        rank = builder.rank
        shared = builder.scratch(Buffer.STAGING, itemsize_bytes=4, rank=2)
        with builder.lane("main"):
            if rank == 0:
                builder.copy(source=builder.source(itemsize_bytes=4), destination=shared)
                builder.signal(peer=1)
                builder.wait(peer=1, flag=Flag.DONE)
            elif rank == 1:
                builder.wait(peer=0)
                builder.signal(peer=2)
                builder.wait(peer=2, flag=Flag.DONE)
                builder.signal(peer=0, flag=Flag.DONE)
            else:
                builder.wait(peer=1)
                builder.copy(source=shared, destination=builder.result(itemsize_bytes=4))
                builder.signal(peer=1, flag=Flag.DONE)

    assert build_all(program, 3, name="relay")


def test_a_call_is_checked_like_any_step() -> None:
    def program(after: bool) -> Callable[[Builder], None]:
        def write(builder: Builder) -> None:
            result = builder.result(itemsize_bytes=4)
            with (
                builder.lane("compute"),
                builder.loop(span=Span.WHOLE, chunk_elements=8),
            ):
                builder.call(function=0, reads=[builder.source(itemsize_bytes=4)], writes=[result])
            with (
                builder.lane("publish"),
                builder.loop(span=Span.WHOLE, chunk_elements=8),
            ):
                builder.copy(
                    source=result,
                    destination=builder.scratch(Buffer.SMALL, itemsize_bytes=4),
                    after={"compute": 0} if after else None,
                )

        return write

    assert build_all(program(True), 1, name="tiles")
    with pytest.raises(DependenceError, match="call 0"):
        build_all(program(False), 1, name="tiles")


# --- flags -------------------------------------------------------------------------------------


def test_one_counter_has_one_lane_at_each_end() -> None:
    def program(lanes: Sequence[str]) -> Callable[[Builder], None]:
        def write(builder: Builder) -> None:
            peer = 1 - builder.rank
            if builder.rank == 0:
                for lane in lanes:
                    with builder.lane(lane):
                        for _ in range(2 // len(lanes)):
                            builder.signal(peer=peer)
            else:
                with builder.lane("main"):
                    builder.wait(peer=peer)
                    builder.wait(peer=peer)

        return write

    assert build_all(program(["only"]), 2, name="one")
    with pytest.raises(SignalMismatchError, match="from several lanes"):
        build_all(program(["one", "two"]), 2, name="two")


def test_an_unknown_flag_has_a_number() -> None:
    lane = Lane("main", (Loop((Signal(1, 9),)),))
    plans = [Plan(0, 2, Fragment((lane,)), "odd"), Plan(1, 2, Fragment(()), "odd")]
    with pytest.raises(SignalMismatchError, match="signals flag 9 to rank 1 1 times"):
        verify(plans)


def test_a_long_cycle_names_every_rank() -> None:
    """Each rank waits for the one before, and tells the next only then."""

    def program(builder: Builder) -> None:
        with builder.lane("ring"):
            builder.wait(peer=(builder.rank - 1) % 4)
            builder.signal(peer=(builder.rank + 1) % 4)

    with pytest.raises(SignalMismatchError, match="deadlock") as caught:
        build_all(program, 4, name="ring")
    message = caught.value.message
    for rank in range(4):
        assert f"rank {rank}, operation 0, lane 'ring', iteration 0: wait for USER" in message
    assert "(8)" in message
    assert "(9)" not in message


# --- reports -----------------------------------------------------------------------------------


def test_a_report_shows_the_plan_with_the_place_marked() -> None:
    def program(builder: Builder) -> None:
        theirs = builder.source(rank=1 - builder.rank, itemsize_bytes=4)
        with builder.lane("read"):
            builder.copy(source=theirs, destination=builder.result(itemsize_bytes=4))

    with pytest.raises(DependenceError) as caught:
        build_all(program, 2, name="hasty", mapped_sources=True, counts=[8])
    error = caught.value
    assert error.message.startswith("race on bytes [0, 32) of SOURCE 0 of rank ")
    assert error.message.endswith("with 8 elements")
    report = error.report()
    assert "plan 'hasty' of rank" in report
    assert "lane 'read'" in report
    marked = [line for line in report.splitlines() if line.startswith("  >> ")]
    assert len(marked) == 1
    assert marked[0].endswith("<-- races with the other (iteration 0)")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.message, copy.report(), copy.count) == (error.message, report, 8)


def test_every_step_has_its_words() -> None:
    plan = two_shot.plan_allreduce_staged(1, 2, ReduceSpec(4, (4, 2)), chunk_elements=16)
    text = render_plan(plan)
    for words in (
        "plan 'two_shot_staged' of rank 1 out of 2",
        "opening",
        "for i from 0 to 1 over the block by 16 elements",
        "copy block 0: SOURCE[rank 1] -> STAGING[rank 1] (2 slots of",
        "reduce block 1: STAGING[rank 0]",
        "signal REQUEST to rank 0",
        "wait for ANSWER of rank 0",
        "RESULT.1[rank 1]",
        "after iteration i - 2 of lane 'answer'",
    ):
        assert words in text

    def program(builder: Builder) -> None:
        peer = 1 - builder.rank
        operand = builder.operand(itemsize_bytes=4, index=0, origin=builder.rank)
        with builder.lane("main"):
            builder.send(peer=peer, source=builder.source(itemsize_bytes=4), group=1)
            builder.recv(peer=peer, destination=builder.result(itemsize_bytes=4), group=1)
            builder.call(function=3, reads=[], writes=[])
            builder.reduce(
                block=builder.rank,
                sources=[builder.source(itemsize_bytes=4)],
                destinations=[],
                operands=[operand],
                updated=[0],
            )

    text = render_plan(build_all(program, 2, name="words")[1])
    for words in (
        "once",
        "send whole vector to rank 0: SOURCE[rank 1] (group 1)",
        "receive whole vector of rank 0: RESULT[rank 1] (group 1)",
        "call 3 whole vector: reads nothing, writes nothing",
        "with OPERAND.0[rank 1] from block 1 updating 0",
    ):
        assert words in text


# --- native collectives ------------------------------------------------------------------------


def natives(*names: Sequence[str]) -> list[Plan]:
    """Give one plan per rank, each with the collectives named."""
    plans = []
    for rank, row in enumerate(names):
        source, result = View(Buffer.SOURCE, rank, 4), View(Buffer.RESULT, rank, 4)
        steps = tuple(Native(name, -1, source, result) for name in row)
        lanes = (Lane("wire", (Loop(steps),)),) if steps else ()
        plans.append(Plan(rank, len(names), Fragment(lanes), "native"))
    return plans


def test_native_collectives_need_all_ranks() -> None:
    verify(natives(["allreduce", "barrier"], ["allreduce", "barrier"]))
    with pytest.raises(SignalMismatchError, match="needs all ranks; ranks have 1, 0"):
        verify(natives(["allreduce"], []))
    with pytest.raises(SignalMismatchError, match="different native collectives"):
        verify(natives(["allreduce", "barrier"], ["barrier", "allreduce"]))


def test_a_native_collective_between_a_send_and_its_receive() -> None:
    """Rank 0 enters the collective before it receives what rank 1 sends before entering."""

    def program(builder: Builder) -> None:
        peer = 1 - builder.rank
        with builder.lane("wire"):
            if builder.rank == 0:
                builder.recv(peer=peer, destination=builder.result(itemsize_bytes=4))
            else:
                builder.send(peer=peer, source=builder.source(itemsize_bytes=4))

    receiver, sender = build_all(program, 2, name="mixed")

    def with_native(plan: Plan, *, first: bool) -> Plan:
        source = View(Buffer.SOURCE, plan.rank, 4)
        scratch = View(Buffer.SMALL, plan.rank, 4)
        native = Loop((Native("allreduce", -1, source, scratch),))
        (loop,) = plan.fragment.lanes[0].loops
        loops = (native, loop) if first else (loop, native)
        return Plan(plan.rank, 2, Fragment((Lane("wire", loops),)), "mixed")

    verify([with_native(receiver, first=False), with_native(sender, first=False)])
    with pytest.raises(SignalMismatchError, match="deadlock"):
        verify([with_native(receiver, first=True), with_native(sender, first=False)])


# --- memory ------------------------------------------------------------------------------------


def test_the_shard_of_the_source_may_be_the_result() -> None:
    plans = [flat.plan_reduce_scatter(rank, 3, SPEC, chunk_elements=4) for rank in range(3)]
    verify(plans, counts=[0, 1, 31], aliasing=Aliasing(Relation.RESULT_IS_SHARD))
    # At the start of the source lies block 0, which rank 0 still reads.
    with pytest.raises(DependenceError):
        verify(plans, counts=[31], aliasing=Aliasing(Relation.IDENTICAL))


def test_an_operand_that_is_a_result() -> None:
    """An updated replicated operand is read and stored at one place, by one rank."""
    from cocoll.algorithms import OperandSpec

    spec = ReduceSpec(4, (4,), (OperandSpec(4),))
    aliasing = Aliasing(updated_operands=((0, 0),), replicated_results=True)
    plans = [
        two_shot.plan_allreduce(rank, 2, spec, chunk_elements=4, replicated_result=True)
        for rank in range(2)
    ]
    verify(plans, aliasing=aliasing)
    every_rank = [one_shot.plan_allreduce(rank, 2, spec) for rank in range(2)]
    verify(every_rank, aliasing=Aliasing(updated_operands=((0, 0),)))
    # One copy for all ranks, and each would apply its own update.
    with pytest.raises(DependenceError, match="of all ranks"):
        verify(every_rank, aliasing=aliasing)


# --- groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_a_group_goes_on_over_loops_of_ranges(world_size: int) -> None:
    alone, together = (
        [plan_ring(rank, world_size, group=group) for rank in range(world_size)] for group in (0, 1)
    )
    verify(together, counts=[12])
    with pytest.raises(SignalMismatchError, match="deadlock"):
        verify(alone, counts=[12])


def test_what_comes_in_a_group_cannot_be_sent_in_it() -> None:
    plans = [plan_ring(rank, 2, group=1) for rank in range(2)]
    for number, plan in enumerate(plans):
        (lane,) = plan.fragment.lanes
        result = View(Buffer.RESULT, number, 4)
        loops = tuple(
            replace(loop, steps=(replace(loop.steps[0], source=result),))
            if isinstance(loop.steps[0], Send)
            else loop
            for loop in lane.loops
        )
        plans[number] = replace(plan, body=Fragment((replace(lane, loops=loops),)), _fragment=[])
    with pytest.raises(DependenceError, match="race"):
        verify(plans, counts=[12])
