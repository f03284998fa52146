"""Plans over several hosts for wires without tags: verified, in one order, and of least bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from cocoll.algorithms import ReduceSpec
from cocoll.algorithms.hierarchy import Hierarchy, make_hierarchy
from cocoll.algorithms.ordered_broadcast import plan_broadcast_ordered, prefers_tree
from cocoll.algorithms.ordered_hosts import (
    plan_allgather_ordered,
    plan_allreduce_ordered,
    plan_reduce_scatter_ordered,
)
from cocoll.errors import RankError, ScheduleError, UsageError
from cocoll.plan import Aliasing, Plan, Receive, Relation, Send, Signal, Step, Wait, verify
from cocoll.plan.ranges import block_elements, chunk_range, loop_iterations
from cocoll.plan.structure import matches_by_tag
from cocoll.plan.trace import Event, Operation, Trace
from cocoll.plan.unrolling import unroll
from cocoll.topology import load_preset
from tests.helpers.plan_cases import SPECS, UPDATED_OPERANDS, edit

LAYOUTS = ((0, 0, 1), (0, 0, 1, 1), (0, 1, 2), (0, 1, 0, 1), (0, 1, 1, 1), (0, 0, 1, 1, 2), (0, 1))
USUAL = LAYOUTS[0]
CHUNK = 5
PLAIN = ReduceSpec(4, (4,))


def marks(hosts: Sequence[int], name: str) -> tuple[pytest.MarkDecorator, ...]:
    usual = hosts == USUAL and name in ("plain", "adam", "state_only", "")
    return () if usual else (pytest.mark.long,)


CASES = [
    pytest.param(hosts, name, id=f"{''.join(map(str, hosts))}-{name}", marks=marks(hosts, name))
    for hosts in LAYOUTS
    for name in SPECS
]
COPIES = [
    pytest.param(hosts, id="".join(map(str, hosts)), marks=marks(hosts, "")) for hosts in LAYOUTS
]


def plans_of(hosts: Sequence[int], planner: Callable[[int, Hierarchy], Plan]) -> list[Plan]:
    hierarchy = Hierarchy(tuple(hosts))
    return [planner(rank, hierarchy) for rank in range(len(hosts))]


def counts_of(world_size: int) -> tuple[int, ...]:
    # Nothing, blocks that are empty, and ten chunks of a block: every slot is used three times.
    return (0, 37, world_size * 16 * 3 - 1)


@pytest.mark.parametrize(("hosts", "name"), CASES)
def test_reductions(hosts: tuple[int, ...], name: str) -> None:
    spec = SPECS[name]
    updated = UPDATED_OPERANDS.get(name, ())
    same = spec.result_itemsizes_bytes == (spec.source_itemsize_bytes,)
    in_place = same and not updated and not spec.zero_source
    for staged in (True, False):
        plans = plans_of(
            hosts,
            lambda rank, hierarchy, staged=staged: plan_allreduce_ordered(
                rank, hierarchy, spec, chunk_elements=CHUNK, staged=staged
            ),
        )
        for relation in (Relation.DISJOINT, Relation.IDENTICAL)[: 1 + in_place]:
            verify(
                plans,
                counts=counts_of(len(hosts)),
                aliasing=Aliasing(relation, updated_operands=updated),
                zero_source=spec.zero_source,
            )
        check_order(plans)
        if name == "adam":
            continue
        for alignment in (1, 16):
            plans = plans_of(
                hosts,
                lambda rank, hierarchy, staged=staged, alignment=alignment: (
                    plan_reduce_scatter_ordered(
                        rank,
                        hierarchy,
                        spec,
                        chunk_elements=CHUNK,
                        staged=staged,
                        alignment_elements=alignment,
                    )
                ),
            )
            for relation in (Relation.DISJOINT, Relation.RESULT_IS_SHARD)[: 1 + in_place]:
                verify(
                    plans,
                    counts=counts_of(len(hosts))[1:],
                    aliasing=Aliasing(relation),
                    zero_source=spec.zero_source,
                )
        check_order(plans)


@pytest.mark.parametrize("hosts", COPIES)
def test_copies(hosts: tuple[int, ...]) -> None:
    for staged in (True, False):
        plans = plans_of(
            hosts,
            lambda rank, hierarchy, staged=staged: plan_allgather_ordered(
                rank, hierarchy, 4, chunk_elements=CHUNK, staged=staged
            ),
        )
        for relation in (Relation.DISJOINT, Relation.SOURCE_IS_SHARD):
            verify(plans, counts=counts_of(len(hosts)), aliasing=Aliasing(relation))
        check_order(plans)
    for root in range(len(hosts)):
        for tree in (False, True):
            plans = plans_of(
                hosts,
                lambda rank, hierarchy, root=root, tree=tree: plan_broadcast_ordered(
                    rank, hierarchy, root, 4, chunk_elements=CHUNK, tree=tree
                ),
            )
            for relation in (Relation.DISJOINT, Relation.IDENTICAL)[: 1 + tree]:
                verify(plans, counts=counts_of(len(hosts))[1:], aliasing=Aliasing(relation))
            check_order(plans)


def check_order(plans: Sequence[Plan]) -> None:
    """Let whatever waits for another rank have one order, by what its own rank's lanes say."""
    assert not any(map(matches_by_tag, plans))
    operation = Operation(tuple(plans), Aliasing(), False, False)
    trace = unroll([operation], len(plans) * 16 + 1)
    for rank in range(len(plans)):
        events = [
            event
            for event in trace.events
            if event.rank == rank and isinstance(event.step, Signal | Wait | Send | Receive)
        ]
        events.sort(key=lambda event: len(ancestors(trace, event)))
        before: set[int] = set()
        for event in events:
            assert before <= ancestors(trace, event) | {event.begin, event.end}, event
            before = {event.end}


def ancestors(trace: Trace, event: Event) -> frozenset[int]:
    found, stack = set(), [event.begin]
    while stack:
        for node in trace.before[stack.pop()]:
            if node not in found:
                found.add(node)
                stack.append(node)
    return frozenset(found)


def sent_between_hosts(plans: Sequence[Plan], count: int) -> dict[tuple[int, int], int]:
    """Give the bytes that each host sends (host, 0) and receives (host, 1)."""
    total: defaultdict[tuple[int, int], int] = defaultdict(int)
    for plan in plans:
        hosts = plan.hosts
        assert hosts is not None
        for step, elements in unrolled(plan, count):
            if isinstance(step, Send):
                assert hosts[step.peer] != hosts[plan.rank]
                nbytes = elements * step.source.itemsize_bytes
                total[hosts[plan.rank], 0] += nbytes
                total[hosts[step.peer], 1] += nbytes
    return dict(total)


def unrolled(plan: Plan, count: int) -> Iterator[tuple[Step, int]]:
    length = block_elements(count, plan.world_size, plan.alignment_elements)
    for lane in plan.fragment.lanes:
        for loop in lane.loops:
            for iteration in loop_iterations(loop, count, length):
                for step in loop.steps:
                    if not isinstance(step, Signal | Wait):
                        first, stop = chunk_range(loop, step.block, iteration, count, length)
                        yield step, stop - first


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 2), (0, 1, 2, 0, 1, 2)])
def test_the_least_is_sent(hosts: tuple[int, ...]) -> None:
    world_size, number = len(hosts), max(hosts) + 1
    count = 16 * world_size * 3
    part = 4 * count * (number - 1) // number

    def planned(planner: Callable[[int, Hierarchy], Plan]) -> dict[tuple[int, int], int]:
        return sent_between_hosts(plans_of(hosts, planner), count)

    for staged in (True, False):
        more = {"chunk_elements": CHUNK, "staged": staged}
        found = planned(lambda r, h, more=more: plan_allreduce_ordered(r, h, PLAIN, **more))
        assert set(found.values()) == {2 * part}
        found = planned(lambda r, h, more=more: plan_reduce_scatter_ordered(r, h, PLAIN, **more))
        assert set(found.values()) == {part}
        found = planned(lambda r, h, more=more: plan_allgather_ordered(r, h, 4, **more))
        assert set(found.values()) == {part}
    found = planned(lambda r, h: plan_broadcast_ordered(r, h, 0, 4, chunk_elements=CHUNK))
    # All but the root's host receive it once, all but the last one pass it on once.
    assert sorted(found.values()) == [4 * count] * (2 * number - 2)


def test_both_directions_of_a_chain_are_busy() -> None:
    """In a round a middle host receives one part and passes the part before on."""
    hosts = (0, 1, 2, 3)
    plans = plans_of(
        hosts, lambda rank, h: plan_broadcast_ordered(rank, h, 0, 4, chunk_elements=16)
    )
    groups: defaultdict[int, list[str]] = defaultdict(list)
    for step, _ in unrolled(plans[1], 1):
        if isinstance(step, Send | Receive):
            groups[step.group].append(f"{type(step).__name__} {step.block}")
    assert list(groups.values()) == [
        ["Receive 0"],
        ["Send 0", "Receive 1"],
        ["Send 1", "Receive 2"],
        ["Send 2", "Receive 3"],
        ["Send 3"],
    ]


def without(lane: str, other: str, plans: Sequence[Plan]) -> Sequence[Plan]:
    """Drop what a lane's steps wait for in another lane."""
    names = [one.name for one in plans[0].fragment.lanes]

    def change(plan: Plan, name: str, step: Step) -> Sequence[Step]:
        after = tuple(one for one in step.after if name != lane or names[one.lane] != other)
        return (replace(step, after=after),)

    return edit(list(plans), change)


NEEDED = [
    ("staged", "share", "show"),
    ("staged", "meet", "share"),
    ("staged", "partial", "meet"),
    ("mapped", "partial", "scatter"),
    ("staged", "scatter", "partial"),
    ("scattered", "scatter", "final"),
    ("mapped", "scatter", "gather"),
    ("staged", "final", "scatter"),
    ("staged", "gather", "final"),
    ("staged", "distribute", "gather"),
    ("staged", "distribute", "show"),
    ("staged", "show", "distribute"),
    ("staged", "pull", "show"),
]


@pytest.mark.parametrize(("form", "lane", "other"), NEEDED)
def test_every_dependence_is_needed(form: str, lane: str, other: str) -> None:
    def planner(rank: int, hierarchy: Hierarchy) -> Plan:
        if form == "scattered":
            return plan_reduce_scatter_ordered(
                rank, hierarchy, PLAIN, chunk_elements=8, staged=False
            )
        return plan_allreduce_ordered(
            rank, hierarchy, PLAIN, chunk_elements=8, staged=form == "staged"
        )

    plans = plans_of((0, 0, 1, 1), planner)
    with pytest.raises(ScheduleError):
        verify(without(lane, other, plans), counts=[4 * 16 * 3])


def test_chains_and_trees_are_chosen_by_cost() -> None:
    def chosen(preset: str, nbytes: int) -> bool:
        topology = load_preset(preset)
        block = -(-nbytes // topology.world_size)
        return prefers_tree(
            topology, make_hierarchy(topology), 3, block_bytes=block, chunk_bytes=1 << 18
        )

    assert chosen("p3.8xlarge:4", 1 << 10)
    assert not chosen("p3.8xlarge:4", 1 << 30)
    # Between two hosts a tree is the chain, in fewer rounds.
    assert chosen("p3.8xlarge:2", 1 << 30)


def test_what_planners_refuse() -> None:
    hierarchy = Hierarchy((0, 0, 1))
    with pytest.raises(UsageError, match="chunk_elements >= 1"):
        plan_allreduce_ordered(0, hierarchy, PLAIN, chunk_elements=0)
    with pytest.raises(RankError, match="wanted a root"):
        plan_broadcast_ordered(0, hierarchy, 3, 4, chunk_elements=5)
