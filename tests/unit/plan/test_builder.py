"""The public builder: what it builds, and what it refuses with the argument's name."""

from __future__ import annotations

import doctest

import pytest

from cocoll.algorithms import ReduceSpec, two_shot
from cocoll.errors import DependenceError, RankError, ScheduleError, UsageError
from cocoll.plan import (
    After,
    Buffer,
    Builder,
    Call,
    Copy,
    Flag,
    Fragment,
    Lane,
    Loop,
    Plan,
    Reduce,
    Signal,
    Span,
    View,
    Wait,
    build_all,
)
from cocoll.plan import (
    builder as builder_module,
)


def test_the_worked_example() -> None:
    results = doctest.testmod(builder_module, optionflags=doctest.ELLIPSIS)
    assert results.attempted >= 6
    assert results.failed == 0


def test_everything_lands_where_it_was_written() -> None:
    builder = Builder(1, 2, name="all", alignment_elements=4, mapped_sources=True)
    source = builder.source(itemsize_bytes=4)
    theirs = builder.source(itemsize_bytes=4, rank=0)
    result = builder.result(itemsize_bytes=4, index=1, origin=1)
    small = builder.scratch(Buffer.SMALL, itemsize_bytes=4, offset_bytes=64)
    slot = builder.scratch(Buffer.STAGING, itemsize_bytes=4, rank=0, slots=2, slot_bytes=32)
    operand = builder.operand(itemsize_bytes=8, index=3, origin=1)
    with builder.opening():
        builder.copy(source=source, destination=small)
    with builder.lane("first"):
        with builder.loop(span=Span.BLOCK, chunk_elements=8, begin=1, end=3):
            builder.copy(source=slot, destination=source, block=0, after={"second": 1})
        builder.signal(peer=0)
        builder.wait(peer=0, flag=Flag.DONE, after={"second": None})
    with builder.lane("second"):
        builder.reduce(
            sources=[source, theirs],
            destinations=[[source], [result]],
            block=1,
            operands=[operand],
            updated=[0],
        )
        builder.call(function=2, block=0, reads=[source], writes=[small])
    assert builder.build() == Plan(
        1,
        2,
        Fragment(
            lanes=(
                Lane(
                    "first",
                    (
                        Loop((Copy(0, slot, source, (After(1, 1),)),), Span.BLOCK, 8, 1, 3),
                        Loop((Signal(0, Flag.USER), Wait(0, Flag.DONE, (After(1, None),)))),
                    ),
                ),
                Lane(
                    "second",
                    (
                        Loop(
                            (
                                Reduce(
                                    1, (source, theirs), ((source,), (result,)), (operand,), (0,)
                                ),
                                Call(2, 0, (source,), (small,)),
                            )
                        ),
                    ),
                ),
            ),
            opening=(Loop((Copy(-1, source, small),)),),
        ),
        name="all",
        alignment_elements=4,
        mapped_sources=True,
    )
    assert operand == View(Buffer.OPERAND, 1, 8, index=3, origin=1)


def test_a_plan_of_ours_written_by_hand() -> None:
    """The direct two-shot through the public builder is the planner's, bit for bit."""

    def program(builder: Builder) -> None:
        rank, world_size = builder.rank, builder.world_size
        peers = [(rank + distance) % world_size for distance in range(1, world_size)]
        with builder.lane("own"):
            with builder.loop(span=Span.BLOCK, chunk_elements=7):
                builder.reduce(
                    block=rank,
                    sources=[
                        builder.source(rank=peer, itemsize_bytes=4) for peer in range(world_size)
                    ],
                    destinations=[
                        [builder.result(rank=peer, itemsize_bytes=4) for peer in [rank, *peers]]
                    ],
                )
            for peer in peers:
                builder.signal(peer=peer, flag=Flag.DONE)
            for peer in peers:
                builder.wait(peer=peer, flag=Flag.DONE)

    built = build_all(program, 3, name="mine", mapped_sources=True, mapped_results=True)
    for rank, plan in enumerate(built):
        ours = two_shot.plan_allreduce(rank, 3, ReduceSpec(4, (4,)), chunk_elements=7)
        assert plan.digest() == ours.digest()


def test_plans_are_verified() -> None:
    def program(builder: Builder) -> None:
        with builder.lane("read"):
            builder.copy(
                source=builder.source(rank=0, itemsize_bytes=4),
                destination=builder.result(itemsize_bytes=4),
            )

    with pytest.raises(DependenceError):
        build_all(program, 2, name="unguarded", mapped_sources=True)
    with pytest.raises(ScheduleError, match="mapped_sources is False") as caught:
        build_all(program, 2, name="undeclared")
    assert "  >> " in caught.value.report()


@pytest.fixture
def builder() -> Builder:
    return Builder(0, 2, name="mine")


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world(rank: int, world_size: int) -> None:
    with pytest.raises(RankError):
        Builder(rank, world_size, name="mine")


def test_no_ranks_at_all() -> None:
    with pytest.raises(RankError, match="world_size >= 1"):
        build_all(lambda builder: None, 0, name="none")


@pytest.mark.parametrize("name", ["source", "result"])
def test_memory_of_a_rank_outside_the_world(builder: Builder, name: str) -> None:
    with pytest.raises(RankError, match=r"\[0, 2\), got 2"):
        getattr(builder, name)(itemsize_bytes=4, rank=2)


def test_scratch_is_scratch(builder: Builder) -> None:
    with pytest.raises(UsageError, match="SOURCE is the caller's"):
        builder.scratch(Buffer.SOURCE, itemsize_bytes=4)


def test_steps_and_loops_stand_in_lanes(builder: Builder) -> None:
    with pytest.raises(UsageError, match="a step stands in a lane"):
        builder.signal(peer=1)
    with pytest.raises(UsageError, match="a loop stands in a lane"), builder.loop(span=Span.ONCE):
        pass


def test_loops_do_not_nest(builder: Builder) -> None:
    with (
        builder.lane("a"),
        builder.loop(span=Span.ONCE),
        pytest.raises(UsageError, match="do not nest"),
        builder.loop(span=Span.ONCE),
    ):
        pass


def test_lanes_do_not_nest(builder: Builder) -> None:
    with (
        builder.lane("a"),
        pytest.raises(UsageError, match="inside another lane"),
        builder.lane("b"),
    ):
        pass


def test_names_of_lanes_are_unique(builder: Builder) -> None:
    with builder.lane("a"):
        builder.signal(peer=1)
    with pytest.raises(UsageError, match="already a lane 'a'"), builder.lane("a"):
        pass


def test_lanes_waited_for_exist(builder: Builder) -> None:
    with builder.lane("a"):
        builder.signal(peer=1, after={"b": 0})
    with pytest.raises(UsageError, match="waits for lane 'b'; there are 'a'"):
        builder.build()


def test_a_lane_is_closed_before_the_plan_is_built(builder: Builder) -> None:
    with builder.lane("a"), pytest.raises(UsageError, match="still open"):
        builder.build()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"span": Span.BLOCK}, "chunk_elements >= 1, got 0"),
        ({"span": Span.ONCE, "begin": -1}, "0 <= begin <= end"),
        ({"span": Span.ONCE, "begin": 2, "end": 1}, "0 <= begin <= end"),
    ],
)
def test_numbers_of_a_loop(builder: Builder, arguments: dict[str, object], message: str) -> None:
    with (
        builder.lane("a"),
        pytest.raises(UsageError, match=message),
        builder.loop(**arguments),
    ):
        pass


def test_a_failure_inside_closes_the_lane(builder: Builder) -> None:
    def fail() -> None:
        with builder.lane("a"), builder.loop(span=Span.ONCE):
            builder.signal(peer=1)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fail()
    with builder.lane("b"):
        builder.signal(peer=1)
    assert [lane.name for lane in builder.build().fragment.lanes] == ["a", "b"]
