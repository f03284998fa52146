"""The planners of later passes: verified over a grid, alone and after what comes before them."""

from __future__ import annotations

import pytest

from cocoll.algorithms import OperandSpec, ReduceSpec, flat_update
from cocoll.errors import UsageError
from cocoll.plan import Aliasing, Plan, Relation, verify
from cocoll.plan.ir import Copy, Reduce, Signal

SPECS = {
    "one result": ReduceSpec(4, (4,), (OperandSpec(4, sharded=True, updated=True),)),
    "two results": ReduceSpec(2, (2, 4), (OperandSpec(4), OperandSpec(4, sharded=True))),
    "no result": ReduceSpec(4, (), (OperandSpec(4, sharded=True, updated=True),)),
}
WORLDS = (1, 2, 3, 5)
COUNTS = (0, 1, 15, 16, 17, 160, 333)


def planners(spec: ReduceSpec, rank: int, world_size: int) -> dict[str, Plan]:
    found = {"local": flat_update.plan_local_update(rank, world_size, spec, chunk_elements=5)}
    if spec.result_itemsizes_bytes:
        found["mapped"] = flat_update.plan_update(rank, world_size, spec, chunk_elements=5)
        found["replicated"] = flat_update.plan_update(
            rank, world_size, spec, chunk_elements=5, replicated_result=True
        )
        for slots in (1, 2, 3):
            found[f"staged {slots}"] = flat_update.plan_update_staged(
                rank, world_size, spec, chunk_elements=5, slots=slots
            )
    return found


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_verified(name: str, world_size: int) -> None:
    spec = SPECS[name]
    ranks = [planners(spec, rank, world_size) for rank in range(world_size)]
    for kind in ranks[0]:
        aliasing = Aliasing(Relation.DISJOINT, replicated_results=kind == "replicated")
        verify([plans[kind] for plans in ranks], counts=COUNTS, aliasing=aliasing)


def test_what_is_computed_is_stored_once_for_everyone() -> None:
    spec = SPECS["one result"]
    (lane,) = flat_update.plan_update(1, 3, spec, chunk_elements=5).fragment.lanes
    (step,) = lane.loops[0].steps
    assert isinstance(step, Reduce)
    assert step.sources == ()
    assert [view.rank for view in step.destinations[0]] == [1, 2, 0]
    staged = flat_update.plan_update_staged(1, 3, spec, chunk_elements=5).fragment
    steps = [step for lane in staged.lanes for loop in lane.loops for step in loop.steps]
    # A chunk is staged once for all peers, not once for each.
    assert sum(isinstance(step, Reduce) for step in steps) == 1
    assert sum(isinstance(step, Copy) for step in steps) == 2
    assert sum(isinstance(step, Signal) for step in steps) == 4


@pytest.mark.parametrize("chunk_elements", [0, -1])
def test_chunks_without_elements(chunk_elements: int) -> None:
    spec = SPECS["one result"]
    for planner in (
        flat_update.plan_local_update,
        flat_update.plan_update,
        flat_update.plan_update_staged,
    ):
        with pytest.raises(UsageError, match="chunk_elements"):
            planner(0, 2, spec, chunk_elements=chunk_elements)
    with pytest.raises(UsageError, match="slots"):
        flat_update.plan_update_staged(0, 2, spec, chunk_elements=1, slots=0)
