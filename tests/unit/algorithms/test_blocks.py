"""Plans of reduce, gather, scatter and all-to-all: verified over a grid of hosts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from cocoll.algorithms import ReduceSpec
from cocoll.algorithms.flat_alltoall import plan_alltoall
from cocoll.algorithms.flat_gather import plan_gather
from cocoll.algorithms.flat_reduce import plan_reduce, plan_reduce_staged
from cocoll.algorithms.flat_scatter import plan_scatter
from cocoll.errors import RankError, ScheduleError, UsageError
from cocoll.plan import Aliasing, Plan, Relation, verify
from cocoll.plan.ir import Send

SPEC = ReduceSpec(4, (4,))
LAYOUTS: dict[str, tuple[int, tuple[int, ...] | None]] = {
    **{str(size): (size, None) for size in (1, 2, 3, 5, 8)},
    **{
        "+".join(map(str, hosts)): (len(hosts), hosts)
        for hosts in ((0, 1), (0, 1, 2), (0, 0, 1, 1), (0, 1, 0, 1, 2))
    },
}
CHUNK = 5
BLOCKS = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 17)


def check(
    make: Callable[[int], Plan], size: int, counts: tuple[int, ...], *relations: Relation
) -> None:
    plans = [make(rank) for rank in range(size)]
    for relation in relations:
        verify(plans, counts=counts, aliasing=Aliasing(relation))


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_moves_are_verified(layout: str, staged: bool) -> None:
    size, hosts = LAYOUTS[layout]
    counts = tuple(size * block for block in (BLOCKS if size < 5 else BLOCKS[2:5]))
    options: dict[str, Any] = {"chunk_elements": CHUNK, "staged": staged, "hosts": hosts}

    for root in {0, size - 1}:
        for planner, shard in (
            (plan_gather, Relation.SOURCE_IS_SHARD),
            (plan_scatter, Relation.RESULT_IS_SHARD),
        ):
            make = partial(_plan_of_root, planner, size, root, options)
            check(make, size, counts, Relation.DISJOINT, shard)
    check(lambda rank: plan_alltoall(rank, size, 4, **options), size, counts, Relation.DISJOINT)


def _plan_of_root(
    planner: Callable[..., Plan], size: int, root: int, options: dict[str, Any], rank: int
) -> Plan:
    return planner(rank, size, root, 4, **options)


@pytest.mark.parametrize("in_rank_order", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reductions_are_verified(layout: str, in_rank_order: bool) -> None:
    size, hosts = LAYOUTS[layout]
    counts = (0, 1, CHUNK, CHUNK + 1, 17)
    for root in {0, size - 1}:
        check(
            lambda rank, root=root: plan_reduce_staged(
                rank,
                size,
                root,
                SPEC,
                chunk_elements=CHUNK,
                hosts=hosts,
                in_rank_order=in_rank_order,
            ),
            size,
            counts,
            Relation.DISJOINT,
            Relation.IDENTICAL,
        )
        if hosts is None:
            check(
                lambda rank, root=root: plan_reduce(rank, size, root, SPEC, chunk_elements=CHUNK),
                size,
                counts,
                Relation.DISJOINT,
                Relation.IDENTICAL,
            )


def test_an_all_to_all_in_place_is_no_plan() -> None:
    plans = [plan_alltoall(rank, 2, 4, chunk_elements=CHUNK, staged=False) for rank in range(2)]
    with pytest.raises(ScheduleError):
        verify(plans, counts=(4,), aliasing=Aliasing(Relation.IDENTICAL))


def test_every_host_of_a_reduction_sends_the_vector_once() -> None:
    hosts, root = (0, 0, 1, 1, 2, 2), 3
    plans = [
        plan_reduce_staged(rank, 6, root, SPEC, chunk_elements=CHUNK, hosts=hosts)
        for rank in range(6)
    ]
    sends = [
        (hosts[plan.rank], hosts[step.peer])
        for plan in plans
        for lane in plan.fragment.lanes
        for loop in lane.loops
        for step in loop.steps
        if isinstance(step, Send)
    ]
    assert sorted(sends) == [(0, 1), (2, 0)]


def test_arguments_are_refused() -> None:
    with pytest.raises(RankError, match="root"):
        plan_gather(0, 2, 2, 4, chunk_elements=1)
    with pytest.raises(RankError, match="root"):
        plan_reduce(0, 2, -1, SPEC, chunk_elements=1)
    with pytest.raises(UsageError, match="chunk_elements"):
        plan_alltoall(0, 2, 4, chunk_elements=0)
    with pytest.raises(UsageError, match="slots"):
        plan_scatter(0, 2, 0, 4, chunk_elements=1, slots=0)
