"""The verifier against the runner: what one accepts, the other computes right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cocoll.algorithms import OperandSpec, ReduceSpec, flat, two_shot
from cocoll.errors import ScheduleError
from cocoll.plan import Fragment, Plan, Signal, Step, Wait
from tests.helpers.plan_cases import edit, make_cases, verify_operation
from tests.helpers.plan_runner import Operation, run_operations

specs = st.builds(
    ReduceSpec,
    st.sampled_from([1, 2, 4, 8]),
    st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3).map(tuple),
    st.lists(st.builds(OperandSpec, st.sampled_from([2, 4]), st.booleans()), max_size=3).map(tuple),
)


@settings(max_examples=40)
@given(
    specs,
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 70),
    st.booleans(),
    st.integers(0, 1 << 30),
)
def test_any_staged_plan(
    spec: ReduceSpec,
    world_size: int,
    chunk_elements: int,
    slots: int,
    count: int,
    scatter: bool,
    seed: int,
) -> None:
    planner = flat.plan_reduce_scatter_staged if scatter else two_shot.plan_allreduce_staged
    plans = tuple(
        planner(rank, world_size, spec, chunk_elements=chunk_elements, slots=slots)
        for rank in range(world_size)
    )
    operation = Operation(
        "reduce_scatter" if scatter else "allreduce",
        plans,
        spec.source_itemsize_bytes,
        spec.result_itemsizes_bytes,
        tuple((one.itemsize_bytes, one.sharded, one.updated) for one in spec.operands),
    )
    verify_operation(operation, [count], late_opening=True)
    run_operations([replace(operation, late_opening=True)] * 2, count, seed)


def drop_pairs(plans: Sequence[Plan], drawn: random.Random) -> tuple[Plan, ...]:
    """Drop some flags at both ends, and some dependences: less order, the same work."""
    counters = sorted(
        {
            (plan.rank, step.peer, step.flag)
            for plan in plans
            for lane in plan.fragment.lanes
            for loop in lane.loops
            for step in loop.steps
            if isinstance(step, Signal)
        }
    )
    dropped = {one for one in counters if drawn.random() < 0.3}
    keep_after = drawn.random() < 0.7

    def change(plan: Plan, lane: str, step: Step) -> Sequence[Step]:
        if isinstance(step, Signal) and (plan.rank, step.peer, step.flag) in dropped:
            return ()
        if isinstance(step, Wait) and (step.peer, plan.rank, step.flag) in dropped:
            return ()
        return (step if keep_after else replace(step, after=()),)

    return edit(plans, change)


def shuffle_steps(plans: Sequence[Plan], drawn: random.Random) -> tuple[Plan, ...]:
    """Swap two neighbours somewhere in each plan's loops."""
    shuffled = []
    for plan in plans:
        lanes = []
        for lane in plan.fragment.lanes:
            loops = []
            for loop in lane.loops:
                steps = list(loop.steps)
                if len(steps) > 1 and drawn.random() < 0.3:
                    place = drawn.randrange(len(steps) - 1)
                    steps[place : place + 2] = steps[place : place + 2][::-1]
                loops.append(replace(loop, steps=tuple(steps)))
            lanes.append(replace(lane, loops=tuple(loops)))
        body = Fragment(tuple(lanes), plan.fragment.opening)
        shuffled.append(replace(plan, body=body, _fragment=[]))
    return tuple(shuffled)


CASES = {
    world_size: {
        name: operation
        for name, operation in make_cases(world_size, specs=("plain", "adam")).items()
        if "inline" not in name
    }
    for world_size in (2, 3)
}
VERDICTS = {"accepted": 0, "refused": 0}


def judge(operation: Operation, count: int, seed: int) -> None:
    """If the verifier accepts a plan, no interleaving of it may stick or go wrong."""
    try:
        verify_operation(operation, [count])
    except ScheduleError:
        VERDICTS["refused"] += 1
        return
    VERDICTS["accepted"] += 1
    for attempt in range(3):
        run_operations([operation] * 2, count, seed + attempt)


@settings(max_examples=120)
@given(
    st.sampled_from([2, 3]),
    st.integers(0, 1 << 30),
    st.sampled_from([0, 7, 33, 100]),
    st.booleans(),
)
def test_what_is_accepted_with_less_order_computes_the_same(
    world_size: int, seed: int, count: int, shuffled: bool
) -> None:
    drawn = random.Random(seed)
    operation = CASES[world_size][drawn.choice(sorted(CASES[world_size]))]
    mutate = shuffle_steps if shuffled else drop_pairs
    judge(replace(operation, plans=mutate(operation.plans, drawn)), count, seed)


def test_both_verdicts_were_seen() -> None:
    """The property above says something only if it met both."""
    for seed in range(20):
        drawn = random.Random(seed)
        operation = CASES[2][drawn.choice(sorted(CASES[2]))]
        judge(replace(operation, plans=drop_pairs(operation.plans, drawn)), 33, seed)
    assert VERDICTS["accepted"] >= 3
    assert VERDICTS["refused"] >= 3
