"""Tests of the tests: every kind of mistake in a plan is caught by the verifier, and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from cocoll.algorithms import ReduceSpec, one_shot, two_shot
from cocoll.errors import DependenceError, ScheduleError, SignalMismatchError
from cocoll.plan import (
    After,
    Aliasing,
    Buffer,
    Builder,
    Copy,
    Flag,
    Loop,
    Plan,
    Reduce,
    Relation,
    Signal,
    Span,
    Step,
    Wait,
    build_all,
    verify,
)
from tests.helpers.plan_cases import edit, make_cases, verify_operation
from tests.helpers.plan_runner import Operation, StuckError, run_operations

CHUNK = 5
SPEC = ReduceSpec(4, (4,))
COUNT = 2 * 3 * 16


def direct(world_size: int = 3) -> tuple[Plan, ...]:
    return tuple(
        two_shot.plan_allreduce(rank, world_size, SPEC, chunk_elements=CHUNK)
        for rank in range(world_size)
    )


def staged(world_size: int = 3, slots: int = 2) -> tuple[Plan, ...]:
    return tuple(
        two_shot.plan_allreduce_staged(rank, world_size, SPEC, chunk_elements=CHUNK, slots=slots)
        for rank in range(world_size)
    )


def without(kind: type[Step], flag: Flag, rank: int) -> Callable[..., Sequence[Step]]:
    """Drop one rank's signals or waits of a flag."""

    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        gone = plan.rank == rank and isinstance(step, kind) and step.flag == flag
        return () if gone else (step,)

    return change


def test_the_plans_are_right_before_anything_is_planted() -> None:
    verify(direct(), counts=[COUNT])
    verify(staged(), counts=[COUNT])
    verify(edit(staged(), lambda plan, lane, step: (step,)), counts=[COUNT])


@pytest.mark.parametrize("flag", [Flag.REQUEST, Flag.ANSWER])
@pytest.mark.parametrize("kind", [Wait, Signal])
def test_a_missing_wait_or_signal(kind: type[Step], flag: Flag) -> None:
    plans = edit(staged(), without(kind, flag, 1))
    with pytest.raises(SignalMismatchError, match=f"signals {flag.name} to rank") as caught:
        verify(plans, counts=[COUNT])
    report = caught.value.report()
    assert "  >> " in report
    assert "has no partner" in report
    assert caught.value.count == COUNT


def drop_flags(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
    """Drop all signals and waits."""
    return () if isinstance(step, Signal | Wait) else (step,)


def run_until_wrong(operations: Sequence[Operation], count: int) -> None:
    """Try interleavings until one gives a wrong element, which raises."""
    for seed in range(100):
        run_operations(operations, count, seed)


def test_a_missing_exchange_lets_a_rank_return_too_early() -> None:
    """Rule 2: after its end nobody may touch the arrays of a rank."""
    plans = edit(
        direct(), lambda plan, lane, step: () if isinstance(step, Signal | Wait) else (step,)
    )
    with pytest.raises(DependenceError, match="race on bytes") as caught:
        verify(plans, counts=[COUNT])
    assert "the caller" in caught.value.message


def test_an_exchange_with_one_peer_only() -> None:
    plans = edit(
        direct(),
        lambda plan, lane, step: (
            () if isinstance(step, Signal | Wait) and {plan.rank, step.peer} == {0, 2} else (step,)
        ),
    )
    with pytest.raises(DependenceError, match="race on bytes"):
        verify(plans, counts=[COUNT])


def test_the_exchange_before_the_work() -> None:
    def reversed_loops(plan: Plan) -> Plan:
        lane = plan.fragment.lanes[0]
        body = replace(plan.fragment, lanes=(replace(lane, loops=lane.loops[::-1]),))
        return replace(plan, body=body, _fragment=[])

    with pytest.raises(DependenceError, match="race on bytes"):
        verify([reversed_loops(plan) for plan in direct()], counts=[COUNT])


def test_a_chunk_that_overruns_its_slot() -> None:
    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        if isinstance(step, Copy) and step.destination.buffer is Buffer.STAGING:
            small = replace(step.destination, slot_bytes=16)
            return (replace(step, destination=small),)
        return (step,)

    with pytest.raises(ScheduleError, match="overruns its slot of 16"):
        verify(edit(staged(), change), counts=[COUNT])


def test_a_chunk_bound_that_differs_between_writer_and_reader() -> None:
    """The request lane stages chunks of 4, the owner reduces chunks of 5."""

    def shortened(loop: Loop) -> Loop:
        return replace(loop, chunk_elements=CHUNK - 1)

    def change(plan: Plan) -> Plan:
        own, request, answer = plan.fragment.lanes
        body = replace(
            plan.fragment,
            opening=tuple(map(shortened, plan.fragment.opening)),
            lanes=(own, replace(request, loops=tuple(map(shortened, request.loops))), answer),
        )
        return replace(plan, body=body, _fragment=[])

    plans = [change(plan) for plan in staged()]
    # 16 elements are 4 chunks of 4 or of 5: the flags pair up, and only the bytes are wrong.
    with pytest.raises(DependenceError, match="no step of this operation has written"):
        verify(plans, counts=[48])


def test_block_bounds_that_differ() -> None:
    """Rank 1 reduces block 0 as well as its own."""

    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        if plan.rank == 1 and isinstance(step, Reduce):
            return (step, replace(step, block=0))
        return (step,)

    with pytest.raises(DependenceError, match="race on bytes"):
        verify(edit(direct(), change), counts=[COUNT])


def test_waiting_before_signalling_is_a_deadlock() -> None:
    def program(builder: Builder) -> None:
        peer = 1 - builder.rank
        with builder.lane("main"):
            builder.wait(peer=peer, flag=Flag.DONE)
            builder.signal(peer=peer, flag=Flag.DONE)

    with pytest.raises(SignalMismatchError, match="deadlock") as caught:
        build_all(program, 2, name="polite")
    message = caught.value.message
    assert "(1) rank 0" in message
    assert "wait for DONE of rank 1" in message
    assert "needs (1)" in message
    assert caught.value.report().count("  >> ") == 4


def test_a_reversed_order_in_one_lane_is_a_deadlock() -> None:
    """The owner answers before it has been asked, and the asker waits for the answer first."""

    def change(plan: Plan) -> Plan:
        own, request, answer = plan.fragment.lanes
        (loop,) = answer.loops
        # One lane: copy out the answer of an iteration, then request it.
        merged = replace(answer, loops=(loop, *request.loops))
        body = replace(plan.fragment, lanes=(own, merged))
        return replace(plan, body=body, _fragment=[])

    plans = edit(
        staged(2), lambda plan, lane, step: (replace(step, after=()) if step.after else step,)
    )
    with pytest.raises(SignalMismatchError, match="deadlock"):
        verify([change(plan) for plan in plans], counts=[COUNT])


def test_a_dependence_on_itself_is_a_deadlock() -> None:
    def program(builder: Builder) -> None:
        with (
            builder.lane("main"),
            builder.loop(span=Span.WHOLE, chunk_elements=4),
        ):
            builder.copy(
                source=builder.source(itemsize_bytes=4),
                destination=builder.result(itemsize_bytes=4),
                after={"main": 0},
            )

    with pytest.raises(SignalMismatchError, match="deadlock"):
        build_all(program, 2, name="self")


def test_a_lane_waited_for_by_iteration_counts_up() -> None:
    """The closing exchange starts again at iteration 0: executors keep one number per lane."""

    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        return (replace(step, after=(After(0, 1),)) if isinstance(step, Reduce) else step,)

    with pytest.raises(SignalMismatchError, match="must continue each other's iterations from 0"):
        verify(edit(direct(), change), counts=[COUNT])


def test_a_lane_waited_for_beyond_its_end() -> None:
    def program(builder: Builder) -> None:
        source = builder.source(itemsize_bytes=4)
        with (
            builder.lane("long"),
            builder.loop(span=Span.WHOLE, chunk_elements=4),
        ):
            builder.copy(
                source=source, destination=builder.result(itemsize_bytes=4), after={"short": 0}
            )
        with (
            builder.lane("short"),
            builder.loop(span=Span.WHOLE, chunk_elements=8),
        ):
            builder.copy(source=source, destination=builder.scratch(Buffer.SMALL, itemsize_bytes=4))

    with pytest.raises(SignalMismatchError, match="waits for iteration 3 of lane 'short'"):
        build_all(program, 1, name="short", counts=[20])


def relax(lag: int | None) -> Callable[..., Sequence[Step]]:
    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        if not step.after:
            return (step,)
        kept = () if lag is None else (replace(step.after[0], lag=lag),)
        return (replace(step, after=kept),)

    return change


@pytest.mark.parametrize(("slots", "lag"), [(1, 2), (2, 3), (2, None), (3, 4)])
def test_a_slot_is_filled_again_too_early(slots: int, lag: int | None) -> None:
    plans = edit(staged(slots=slots), relax(lag))
    with pytest.raises(DependenceError, match="STAGING of rank"):
        verify(plans, counts=[COUNT * 3])


@pytest.mark.parametrize(("slots", "lag"), [(2, 1), (3, 2), (3, 3)])
def test_a_slot_may_be_filled_again_later(slots: int, lag: int) -> None:
    verify(edit(staged(slots=slots), relax(lag)), counts=[COUNT * 3])


@pytest.mark.parametrize("world_size", [2, 3])
def test_one_copy_of_the_double_buffered_scratch(
    monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    plans = [one_shot.plan_allreduce(rank, world_size, SPEC) for rank in range(world_size)]
    verify(plans, counts=[COUNT])
    monkeypatch.setattr(Buffer, "copies", property(lambda buffer: 1))
    with pytest.raises(DependenceError, match="SMALL of rank"):
        verify(plans, counts=[COUNT])


def test_one_copy_is_wrong_when_it_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug above is real: some interleaving gives a wrong sum."""
    monkeypatch.setattr(Buffer, "copies", property(lambda buffer: 1))
    operation = make_cases(2, specs=("plain",))["one_shot-plain"]
    with pytest.raises(AssertionError, match="wanted"):
        run_until_wrong([operation] * 3, 16)


def test_a_relaxed_lag_is_wrong_when_it_runs_too() -> None:
    operation = make_cases(2, specs=("plain",))["two_shot_staged-plain"]
    planted = replace(operation, plans=edit(operation.plans, relax(None)))
    with pytest.raises(AssertionError, match="wanted"):
        run_until_wrong([planted], 160)


def test_a_missing_exchange_is_wrong_when_it_runs_too() -> None:
    operation = make_cases(2, specs=("plain",))["two_shot-plain"]
    planted = replace(operation, plans=edit(operation.plans, drop_flags))
    with pytest.raises(AssertionError, match="wanted"):
        run_until_wrong([planted] * 2, 32)


def test_a_deadlock_stands_still_when_it_runs_too() -> None:
    operation = make_cases(2, specs=("plain",))["two_shot-plain"]
    plans = edit(operation.plans, without(Signal, Flag.DONE, 1))
    with pytest.raises(StuckError, match="lane own"):
        run_operations([replace(operation, plans=plans)], 32, 0)


# --- sends and receives ------------------------------------------------------------------------


def exchange_program(*, first: str, group: int) -> Callable[[Builder], None]:
    def program(builder: Builder) -> None:
        peer = 1 - builder.rank
        source = builder.source(itemsize_bytes=4)
        result = builder.result(itemsize_bytes=4)
        with builder.lane("wire"):
            if first == "send" or (first == "by rank" and builder.rank == 0):
                builder.send(peer=peer, source=source, group=group)
                builder.recv(peer=peer, destination=result, group=group)
            else:
                builder.recv(peer=peer, destination=result, group=group)
                builder.send(peer=peer, source=source, group=group)

    return program


@pytest.mark.parametrize("first", ["send", "receive"])
def test_the_same_order_on_both_sides_deadlocks_under_rendezvous(first: str) -> None:
    with pytest.raises(SignalMismatchError, match="deadlock"):
        build_all(exchange_program(first=first, group=0), 2, name="exchange")


@pytest.mark.parametrize(("first", "group"), [("by rank", 0), ("send", 1), ("receive", 1)])
def test_a_matching_order_or_a_group_does_not(first: str, group: int) -> None:
    assert build_all(exchange_program(first=first, group=group), 2, name="exchange")


def test_a_ring_of_sends_deadlocks_and_a_ring_of_groups_does_not() -> None:
    def ring(group: int) -> Callable[[Builder], None]:
        def program(builder: Builder) -> None:
            following = (builder.rank + 1) % builder.world_size
            preceding = (builder.rank - 1) % builder.world_size
            with builder.lane("wire"):
                builder.send(peer=following, source=builder.source(itemsize_bytes=4), group=group)
                builder.recv(
                    peer=preceding, destination=builder.result(itemsize_bytes=4), group=group
                )

        return program

    with pytest.raises(SignalMismatchError, match="deadlock"):
        build_all(ring(0), 4, name="ring")
    assert build_all(ring(1), 4, name="ring")


def test_a_chain_of_chunks_passes() -> None:
    """Receive, then send on: each link waits for the one before."""

    def program(builder: Builder) -> None:
        rank, last = builder.rank, builder.world_size - 1
        result = builder.result(itemsize_bytes=4)
        with (
            builder.lane("wire"),
            builder.loop(span=Span.WHOLE, chunk_elements=8),
        ):
            if rank > 0:
                builder.recv(peer=rank - 1, destination=result)
            if rank < last:
                source = builder.source(itemsize_bytes=4) if rank == 0 else result
                builder.send(peer=rank + 1, source=source)

    assert build_all(program, 4, name="chain")


@pytest.mark.parametrize(
    ("program_sizes", "message"),
    [((4, 8), "sends .* bytes to rank 1, which receives"), ((8, 4), "which receives")],
)
def test_sizes_that_differ(program_sizes: tuple[int, int], message: str) -> None:
    sent, received = program_sizes

    def program(builder: Builder) -> None:
        with builder.lane("wire"):
            if builder.rank == 0:
                builder.send(peer=1, source=builder.source(itemsize_bytes=sent))
            else:
                builder.recv(peer=0, destination=builder.result(itemsize_bytes=received))

    with pytest.raises(SignalMismatchError, match=message):
        build_all(program, 2, name="sizes")


def test_a_send_without_its_receive() -> None:
    def program(builder: Builder) -> None:
        with builder.lane("wire"):
            if builder.rank == 0:
                builder.send(peer=1, source=builder.source(itemsize_bytes=4))
            else:
                builder.wait(peer=0)

    with pytest.raises(SignalMismatchError):
        build_all(program, 2, name="lost")


def test_wire_steps_of_a_rank_need_a_total_order() -> None:
    def program(ordered: bool) -> Callable[[Builder], None]:
        def write(builder: Builder) -> None:
            for index, lane in enumerate(("first", "second")):
                after = {"first": None} if ordered and index else None
                if index == 0:
                    sender, receiver = 0, 1
                else:
                    sender, receiver = 1, 0
                with builder.lane(lane):
                    if builder.rank == sender:
                        builder.send(
                            peer=receiver, source=builder.source(itemsize_bytes=4), after=after
                        )
                    else:
                        builder.recv(
                            peer=sender, destination=builder.result(itemsize_bytes=4), after=after
                        )

        return write

    assert build_all(program(True), 2, name="ordered")
    with pytest.raises(DependenceError, match="order of two wire steps is not certain"):
        build_all(program(False), 2, name="unordered")


def test_eager_delivery_orders_nothing() -> None:
    """A send may end before its receive begins: the sender may not rely on the receiver."""

    def program(builder: Builder) -> None:
        with builder.lane("main"):
            if builder.rank == 0:
                builder.send(peer=1, source=builder.source(itemsize_bytes=4))
                # Relies on rank 1 having received: rank 1 still reads this slot.
                builder.copy(
                    source=builder.source(itemsize_bytes=4),
                    destination=builder.scratch(Buffer.SMALL, itemsize_bytes=4),
                )
            else:
                builder.copy(
                    source=builder.source(itemsize_bytes=4),
                    destination=builder.scratch(Buffer.SMALL, itemsize_bytes=4, rank=0),
                )
                builder.recv(peer=0, destination=builder.result(itemsize_bytes=4))

    with pytest.raises(DependenceError, match="SMALL"):
        build_all(program, 2, name="eager")


# --- aliasing ----------------------------------------------------------------------------------


def test_in_place_must_be_legal_for_the_algorithm() -> None:
    """Reading everything from everyone's source does not work over the result."""

    def program(builder: Builder) -> None:
        ranks = range(builder.world_size)
        peers = [rank for rank in ranks if rank != builder.rank]
        with builder.lane("reduce"):
            builder.reduce(
                sources=[builder.source(rank=rank, itemsize_bytes=4) for rank in ranks],
                destinations=[[builder.result(itemsize_bytes=4)]],
            )
            for peer in peers:
                builder.signal(peer=peer, flag=Flag.DONE)
            for peer in peers:
                builder.wait(peer=peer, flag=Flag.DONE)

    plans = build_all(program, 3, name="read_everything", mapped_sources=True)
    with pytest.raises(DependenceError, match="race on bytes"):
        verify(plans, aliasing=Aliasing(Relation.IDENTICAL))


def test_results_of_another_size_do_not_go_in_place() -> None:
    wider = [
        two_shot.plan_allreduce(rank, 2, ReduceSpec(2, (4,)), chunk_elements=CHUNK)
        for rank in range(2)
    ]
    with pytest.raises(DependenceError, match="while it reads"):
        verify(wider, counts=[COUNT], aliasing=Aliasing(Relation.IDENTICAL))


def test_a_replicated_result_that_every_rank_writes() -> None:
    plans = [one_shot.plan_allreduce(rank, 2, SPEC) for rank in range(2)]
    with pytest.raises(DependenceError, match="of all ranks"):
        verify(plans, counts=[COUNT], aliasing=Aliasing(replicated_results=True))


def test_zeros_over_what_a_peer_still_reads() -> None:
    """With R readers of each source, none may clear it."""

    def program(builder: Builder) -> None:
        ranks = range(builder.world_size)
        peers = [rank for rank in ranks if rank != builder.rank]
        with builder.lane("reduce"):
            builder.reduce(
                sources=[builder.source(rank=rank, itemsize_bytes=4) for rank in ranks],
                destinations=[[builder.result(itemsize_bytes=4)]],
            )
            for peer in peers:
                builder.signal(peer=peer, flag=Flag.DONE)
            for peer in peers:
                builder.wait(peer=peer, flag=Flag.DONE)

    plans = build_all(program, 2, name="read_everything", mapped_sources=True)
    with pytest.raises(DependenceError, match="race on bytes"):
        verify(plans, zero_source=True)


def test_zeros_over_a_result() -> None:
    with pytest.raises(DependenceError, match="stores twice"):
        verify(direct(), counts=[COUNT], zero_source=True, aliasing=Aliasing(Relation.IDENTICAL))


def test_a_second_operation_that_uses_the_same_slots_unsafely() -> None:
    """Alone it is right; after another one its late copy meets the next opening."""

    def program(builder: Builder) -> None:
        peer = 1 - builder.rank
        own = builder.scratch(Buffer.STAGING, itemsize_bytes=4)
        theirs = builder.scratch(Buffer.STAGING, itemsize_bytes=4, rank=peer)
        with builder.opening():
            builder.copy(source=builder.source(itemsize_bytes=4), destination=own)
        with builder.lane("read"):
            builder.copy(source=theirs, destination=builder.result(itemsize_bytes=4))

    # STAGING has one copy: the peer may still read it when this rank opens the next operation.
    with pytest.raises(DependenceError, match=r"operation 0.*operation 1, opening"):
        build_all(program, 2, name="unanswered")


def test_a_view_past_the_arrival_line() -> None:
    operation = make_cases(2, specs=("plain",))["inline-plain"]
    verify_operation(operation, [16])
    with pytest.raises(ScheduleError, match="past the arrival line's 64"):
        verify_operation(operation, [17])


def test_a_view_before_its_array() -> None:
    """Rank 1's array begins with block 1, and the step reads block 0 of it."""

    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        if isinstance(step, Reduce) and plan.rank == 0:
            sources = (replace(step.sources[0], origin=1), *step.sources[1:])
            return (replace(step, sources=sources),)
        return (step,)

    with pytest.raises(ScheduleError, match="lies before the array's first element, 32"):
        verify(edit(direct(), change), counts=[COUNT])
