"""What is wrong with a plan by itself is said before any peer is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cocoll.errors import RankError, ScheduleError, UsageError
from cocoll.plan import (
    After,
    Buffer,
    Call,
    Copy,
    Fragment,
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
    check_plan,
    verify,
)

SOURCE = View(Buffer.SOURCE, 0, 4)
RESULT = View(Buffer.RESULT, 0, 4)
OPERAND = View(Buffer.OPERAND, 0, 4)
SMALL = View(Buffer.SMALL, 0, 4)
SLOT = View(Buffer.STAGING, 0, 4, slots=2, slot_bytes=64)
REDUCE = Reduce(0, (SOURCE,), ((RESULT,),))


def plan_of(*steps: Step, opening: tuple[Step, ...] = (), **loop: object) -> Plan:
    lanes = (Lane("main", (Loop(steps, **loop),)),) if steps else ()
    openings = (Loop(opening),) if opening else ()
    return Plan(0, 2, Fragment(lanes, openings), "mine")


def test_what_is_right_passes() -> None:
    check_plan(plan_of(Copy(-1, SOURCE, RESULT), REDUCE, Signal(1, 0), opening=()))
    check_plan(plan_of(Copy(0, SLOT, RESULT), span=Span.BLOCK, chunk_elements=16))
    check_plan(plan_of(opening=(Copy(0, SOURCE, SMALL),)))
    check_plan(plan_of(Send(0, 1, SOURCE, 3), Receive(1, 1, RESULT, 3), Send(0, 1, SOURCE)))


@pytest.mark.parametrize(
    "step",
    [
        Signal(0, 0),
        Wait(2, 0),
        Send(0, -1, SOURCE),
        Receive(0, 0, RESULT),
        Copy(2, SOURCE, RESULT),
        Copy(-2, SOURCE, RESULT),
        Call(0, 5),
        Copy(0, replace(SOURCE, rank=2), RESULT),
        Copy(0, replace(SOURCE, origin=2), RESULT),
    ],
)
def test_ranks_and_blocks_lie_in_the_world(step: Step) -> None:
    with pytest.raises(RankError, match="wanted"):
        check_plan(plan_of(step))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Signal(1, -1), "flag >= 0"),
        (Signal(1, 0, (After(1, 0),)), "there is no lane 1"),
        (Copy(0, SOURCE, replace(RESULT, itemsize_bytes=2)), "keeps the element size"),
        (Copy(0, replace(SOURCE, itemsize_bytes=0), RESULT), "negative or zero"),
        (Copy(0, replace(SMALL, offset_bytes=-1), RESULT), "negative or zero"),
        (Copy(0, replace(SMALL, slots=1), RESULT), "slot_bytes > 0"),
        (Copy(0, replace(SOURCE, offset_bytes=4), RESULT), "only scratch has slots"),
        (Copy(0, replace(SLOT, origin=1), RESULT), "has no origin"),
        (Copy(0, SLOT, RESULT), "slots need a loop over chunks"),
        (replace(REDUCE, sources=()), "wanted sources or operands"),
        (replace(REDUCE, sources=(), partial=True), "wanted sources or operands"),
        (replace(REDUCE, destinations=()), "and results or updated operands"),
        (replace(REDUCE, destinations=((),)), "as many destinations"),
        (replace(REDUCE, destinations=((RESULT,), (RESULT, RESULT))), "as many destinations"),
        (replace(REDUCE, sources=(SOURCE, replace(SOURCE, itemsize_bytes=2))), "one element size"),
        (
            replace(REDUCE, destinations=((RESULT, replace(RESULT, itemsize_bytes=2)),)),
            "destinations of a result must have one element size",
        ),
        (replace(REDUCE, operands=(OPERAND,), updated=(1,)), "updated operand 1"),
        (replace(REDUCE, operands=(OPERAND,), updated=(0, 0)), "stands twice"),
        (replace(REDUCE, operands=(OPERAND,) * 64), "at most 63 operands"),
    ],
)
def test_numbers_are_in_their_range(step: Step, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_plan(plan_of(step))


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (Loop(()), "without steps"),
        (Loop((REDUCE,), Span.WHOLE), "chunk_elements >= 1"),
        (Loop((REDUCE,), begin=-1), "0 <= begin <= end"),
        (Loop((REDUCE,), begin=2, end=1), "0 <= begin <= end"),
        (
            Loop((Send(0, 1, SOURCE, 1), Signal(1, 0), Send(0, 1, SOURCE, 1))),
            "group 1 move as one and must stand side by side",
        ),
    ],
)
def test_loops_are_checked(loop: Loop, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_plan(Plan(0, 2, Fragment((Lane("main", (loop,)),)), "mine"))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Signal(1, 0), "may not talk"),
        (Wait(1, 0), "may not talk"),
        (Native("barrier", 0, SOURCE, SMALL), "may not talk"),
        (Copy(0, replace(SMALL, rank=1), SMALL), "may not touch a peer's memory"),
        (Copy(0, SMALL, replace(SMALL, rank=1)), "may not touch a peer's memory"),
        (Copy(0, SOURCE, RESULT), "may write scratch only"),
    ],
)
def test_the_opening_fills_the_own_scratch_only(step: Step, message: str) -> None:
    with pytest.raises(ScheduleError, match=message) as caught:
        check_plan(plan_of(opening=(step,)))
    assert "  >> " in caught.value.report()


def test_the_opening_waits_for_no_lane() -> None:
    with pytest.raises(ScheduleError, match="may not wait"):
        check_plan(plan_of(REDUCE, opening=(Copy(0, SOURCE, SMALL, (After(0, 0),)),)))


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (replace(SOURCE, rank=1), "mapped_sources is False"),
        (replace(RESULT, rank=1), "mapped_results is False"),
        (replace(OPERAND, rank=1), "operands of a peer"),
        (View(Buffer.PART, 1, 4), "parts of a peer"),
    ],
)
def test_arrays_of_peers_are_declared(view: View, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check_plan(plan_of(Copy(0, view, RESULT)))


def test_declared_arrays_pass() -> None:
    plan = plan_of(Copy(0, replace(SOURCE, rank=1), replace(RESULT, rank=1)))
    check_plan(replace(plan, mapped_sources=True, mapped_results=True, _fragment=[]))


def test_alignment_is_positive() -> None:
    with pytest.raises(UsageError, match="alignment_elements >= 1"):
        check_plan(replace(plan_of(REDUCE), alignment_elements=0, _fragment=[]))


def world() -> list[Plan]:
    return [Plan(rank, 2, Fragment(()), "mine") for rank in range(2)]


def test_a_world_has_one_plan_per_rank() -> None:
    verify(world())
    with pytest.raises(UsageError, match="got none"):
        verify([])
    with pytest.raises(UsageError, match="wanted 2 plans, one per rank, got 1"):
        verify(world()[:1])
    with pytest.raises(UsageError, match="wanted the plan of rank 0"):
        verify(world()[::-1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("world_size", 3),
        ("alignment_elements", 1),
        ("mapped_sources", True),
        ("mapped_results", True),
    ],
)
def test_a_world_agrees(name: str, value: object) -> None:
    first, second = world()
    with pytest.raises(UsageError, match=f"agree on {name}"):
        verify([first, replace(second, **{name: value}, _fragment=[])])
