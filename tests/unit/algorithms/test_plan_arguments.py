"""What planners refuse, and what they declare about the plans they give."""

from __future__ import annotations

import itertools

import pytest

from cocoll.algorithms import OperandSpec, ReduceSpec, flat, inline, one_shot, two_shot
from cocoll.errors import RankError, UsageError
from cocoll.plan import Buffer, Copy, Fragment, Plan, Reduce, Signal, View
from cocoll.plan.structure import reads_of, writes_of

PLAIN = ReduceSpec(4, (4,))
SHARDED = ReduceSpec(4, (4,), (OperandSpec(4, sharded=True, updated=True),))


def steps_of(plan: Plan) -> list[object]:
    loops = [*plan.fragment.opening, *(loop for lane in plan.fragment.lanes for loop in lane.loops)]
    return [step for loop in loops for step in loop.steps]


def views_of(plan: Plan) -> list[View]:
    return [view for step in steps_of(plan) for view in (*reads_of(step), *writes_of(step))]


@pytest.mark.parametrize("planner", [inline.plan_allreduce, one_shot.plan_allreduce])
def test_shards_need_two_shots(planner) -> None:
    with pytest.raises(UsageError, match="shards"):
        planner(0, 2, SHARDED)


def test_the_line_has_room_for_one_result() -> None:
    with pytest.raises(UsageError, match="one result"):
        inline.plan_allreduce(0, 2, ReduceSpec(4, (4, 2)))


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: two_shot.plan_allreduce(0, 2, PLAIN, **more),
        lambda **more: two_shot.plan_allreduce_staged(0, 2, PLAIN, **more),
        lambda **more: flat.plan_reduce_scatter(0, 2, PLAIN, **more),
        lambda **more: flat.plan_reduce_scatter_staged(0, 2, PLAIN, **more),
        lambda **more: flat.plan_allgather(0, 2, 4, **more),
        lambda **more: flat.plan_allgather_staged(0, 2, 4, **more),
        lambda **more: flat.plan_broadcast(0, 2, 0, 4, **more),
        lambda **more: flat.plan_broadcast_staged(0, 2, 0, 4, **more),
    ],
)
def test_a_chunk_has_elements(make) -> None:
    assert make(chunk_elements=1).fragment
    with pytest.raises(UsageError, match="chunk_elements"):
        make(chunk_elements=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda slots: two_shot.plan_allreduce_staged(0, 2, PLAIN, chunk_elements=4, slots=slots),
        lambda slots: flat.plan_reduce_scatter_staged(0, 2, PLAIN, chunk_elements=4, slots=slots),
        lambda slots: flat.plan_allgather_staged(0, 2, 4, chunk_elements=4, slots=slots),
        lambda slots: flat.plan_broadcast_staged(0, 2, 0, 4, chunk_elements=4, slots=slots),
    ],
)
def test_staging_has_slots(make) -> None:
    assert {view.slots for view in views_of(make(3)) if view.buffer is Buffer.STAGING} == {3}
    with pytest.raises(UsageError, match="slots"):
        make(0)


@pytest.mark.parametrize("root", [-1, 2])
@pytest.mark.parametrize("planner", [flat.plan_broadcast, flat.plan_broadcast_staged])
def test_the_root_is_a_rank(planner, root: int) -> None:
    with pytest.raises(RankError, match="root"):
        planner(0, 2, root, 4, chunk_elements=4)


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: flat.plan_broadcast(0, 2, 0, 4, **more),
        lambda **more: flat.plan_broadcast_staged(0, 2, 0, 4, **more),
        lambda **more: flat.plan_allgather(0, 2, 4, **more),
        lambda **more: flat.plan_allgather_staged(0, 2, 4, **more),
    ],
)
def test_a_shared_result_is_no_source(make) -> None:
    with pytest.raises(UsageError, match="replicated"):
        make(chunk_elements=4, in_place=True, replicated_result=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, (4,)), "element sizes"),
        ((4, (0,)), "element sizes"),
        ((4, ()), "at least one result"),
        ((4, (), (OperandSpec(4),)), "at least one result"),
    ],
)
def test_specs_are_checked(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ReduceSpec(*arguments)


def test_operands_are_checked() -> None:
    with pytest.raises(UsageError, match="itemsize_bytes"):
        OperandSpec(0)
    with pytest.raises(UsageError, match="through a result"):
        OperandSpec(4, sharded=False, updated=True)


def test_sharded_operands_begin_with_the_own_block() -> None:
    spec = ReduceSpec(4, (4,), (OperandSpec(2), OperandSpec(8, sharded=True)))
    views = spec.operand_views(3)
    assert [(view.index, view.origin, view.itemsize_bytes) for view in views] == [
        (0, 0, 2),
        (1, 3, 8),
    ]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_mapped_exactly_where_peers_arrays_are_touched(world_size: int) -> None:
    plans = [
        inline.plan_allreduce(0, world_size, PLAIN),
        one_shot.plan_allreduce(0, world_size, PLAIN),
        flat.plan_barrier(0, world_size),
    ]
    for replicated in (False, True):
        more = {"chunk_elements": 4, "replicated_result": replicated}
        plans += [
            two_shot.plan_allreduce(0, world_size, PLAIN, **more),
            two_shot.plan_allreduce_staged(0, world_size, PLAIN, **more),
            flat.plan_allgather(0, world_size, 4, **more),
            flat.plan_allgather_staged(0, world_size, 4, **more),
            flat.plan_broadcast_staged(0, world_size, world_size - 1, 4, **more),
        ]
    for plan in plans:
        touched = {view.buffer for view in views_of(plan) if view.rank != plan.rank}
        assert plan.mapped_sources == (Buffer.SOURCE in touched), plan
        assert plan.mapped_results == (Buffer.RESULT in touched), plan


@pytest.mark.parametrize("rank", range(3))
def test_every_reduction_is_in_rank_order(rank: int) -> None:
    for plan in (
        inline.plan_allreduce(rank, 3, PLAIN),
        one_shot.plan_allreduce(rank, 3, PLAIN),
        two_shot.plan_allreduce(rank, 3, PLAIN, chunk_elements=4),
        two_shot.plan_allreduce_staged(rank, 3, PLAIN, chunk_elements=4),
        flat.plan_reduce_scatter(rank, 3, PLAIN, chunk_elements=4),
        flat.plan_reduce_scatter_staged(rank, 3, PLAIN, chunk_elements=4),
    ):
        (reduce,) = [step for step in steps_of(plan) if isinstance(step, Reduce)]
        assert [view.rank for view in reduce.sources] == [0, 1, 2], plan.name


def test_a_world_of_one_stages_and_signals_nothing() -> None:
    for plan in (
        two_shot.plan_allreduce(0, 1, PLAIN, chunk_elements=4),
        two_shot.plan_allreduce_staged(0, 1, PLAIN, chunk_elements=4),
        flat.plan_reduce_scatter_staged(0, 1, PLAIN, chunk_elements=4),
        flat.plan_allgather_staged(0, 1, 4, chunk_elements=4),
        flat.plan_broadcast_staged(0, 1, 0, 4, chunk_elements=4),
    ):
        steps = steps_of(plan)
        assert len(steps) == 1, plan.name
        assert isinstance(steps[0], Copy | Reduce)
        assert not any(view.buffer.is_scratch for view in views_of(plan))
    assert steps_of(flat.plan_allgather(0, 1, 4, chunk_elements=4, in_place=True)) == []


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize(
    ("spec", "in_place"),
    [
        (ReduceSpec(4, (4,)), True),
        (ReduceSpec(2, (4,)), False),
        (ReduceSpec(4, (2,)), False),
        (ReduceSpec(2, (2, 4)), False),
        (ReduceSpec(4, (4, 4)), False),
    ],
)
def test_answers_share_the_bytes_of_the_chunk_only_at_equal_size(
    spec: ReduceSpec, in_place: bool, world_size: int
) -> None:
    """A kernel works tile by tile: an answer of another size would run over unread sources."""
    chunk_elements = 100
    plan = two_shot.plan_allreduce_staged(1, world_size, spec, chunk_elements=chunk_elements)
    (reduce,) = [step for step in steps_of(plan) if isinstance(step, Reduce)]
    sections: dict[int, list[tuple[int, int]]] = {}
    stores = [view for views in reduce.destinations for view in views]
    for view in (*reduce.sources, *stores):
        if view.buffer is Buffer.STAGING:
            assert view.offset_bytes % 64 == 0
            assert view.slot_bytes % 64 == 0
            end = view.offset_bytes + chunk_elements * view.itemsize_bytes
            sections.setdefault(view.rank, []).append((view.offset_bytes, end))
    assert sorted(sections) == [rank for rank in range(world_size) if rank != 1]
    for spans in sections.values():
        assert len(spans) == 1 + len(spec.result_itemsizes_bytes)
        if in_place:
            assert spans[0] == spans[1]
        else:
            spans.sort()
            assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))
            assert spans[-1][1] - spans[0][0] <= reduce.sources[0].slot_bytes


def test_a_replicated_result_is_stored_once() -> None:
    plan = two_shot.plan_allreduce(2, 4, PLAIN, chunk_elements=4, replicated_result=True)
    (reduce,) = [step for step in steps_of(plan) if isinstance(step, Reduce)]
    assert [view.rank for view in reduce.destinations[0]] == [2]
    staged = two_shot.plan_allreduce_staged(2, 4, PLAIN, chunk_elements=4, replicated_result=True)
    assert not any(
        isinstance(step, Copy) and step.destination.buffer is Buffer.RESULT
        for step in steps_of(staged)
    )


def test_peers_are_taken_in_turn() -> None:
    """Ranks begin with different peers, so that no memory is everyone's first."""
    firsts = [
        next(
            step.peer
            for step in steps_of(two_shot.plan_allreduce(rank, 4, PLAIN, chunk_elements=4))
            if isinstance(step, Signal)
        )
        for rank in range(4)
    ]
    assert sorted(firsts) == [0, 1, 2, 3]


def test_the_barrier_is_the_arrival_alone() -> None:
    plan = flat.plan_barrier(1, 3)
    assert plan.body == Fragment(lanes=())
    assert plan.fragment.lanes == plan.fragment.opening == ()


def test_composites_expand_to_what_their_plans_run() -> None:
    plan = two_shot.plan_allreduce_staged(1, 3, PLAIN, chunk_elements=4)
    assert plan.body.kind == "two_shot_staged"
    assert plan.expand().body == plan.body.expand(1, 3)
    assert plan.expand().pack() == plan.pack()
