"""Every planner with every kind of arguments, as operations that tests verify and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cocoll.algorithms import (
    OperandSpec,
    ReduceSpec,
    flat,
    inline,
    native,
    one_shot,
    two_shot,
    wire_two_shot,
)
from cocoll.plan import Aliasing, Fragment, Loop, Plan, Relation, Step, verify
from tests.helpers.plan_runner import Operation

WORLD_SIZES = (1, 2, 3, 4, 5, 8)

REPLICATED = OperandSpec(4)
FLOAT_STATE = OperandSpec(4, sharded=True, updated=True)
WIDE_STATE = OperandSpec(8, sharded=True, updated=True)

SPECS = {
    "plain": ReduceSpec(4, (4,)),
    "wider": ReduceSpec(2, (4,)),
    "narrower": ReduceSpec(4, (2,)),
    "two_results": ReduceSpec(2, (4, 2), (REPLICATED, OperandSpec(1))),
    "zeroing": ReduceSpec(4, (4,), zero_source=True),
    "adam": ReduceSpec(4, (4,), (REPLICATED, FLOAT_STATE, WIDE_STATE)),
    "state_only": ReduceSpec(2, (), (REPLICATED, FLOAT_STATE)),
}

# The operand that the first result updates, where there is one.
UPDATED_OPERANDS = {"adam": ((0, 0),)}

Planner = Callable[[int], Plan]


def plans_of(planner: Planner, world_size: int) -> tuple[Plan, ...]:
    return tuple(planner(rank) for rank in range(world_size))


def verify_operation(
    operation: Operation,
    counts: Sequence[int] | None = None,
    other: Operation | None = None,
    *,
    late_opening: bool = False,
) -> None:
    """Verify an operation, alone or with another."""
    more = {}
    if other is not None:
        more = {
            "other": other.plans,
            "other_aliasing": other.aliasing,
            "other_zero_source": other.zero_source,
            "other_late_opening": other.late_opening,
        }
    verify(
        operation.plans,
        counts=counts,
        aliasing=operation.aliasing,
        zero_source=operation.zero_source,
        late_opening=late_opening or operation.late_opening,
        **more,
    )


def make_cases(
    world_size: int, *, chunk_elements: int = 5, specs: Sequence[str] = tuple(SPECS)
) -> dict[str, Operation]:
    """Give every legal combination, by a name that says what it is."""
    return dict(_cases(world_size, chunk_elements, specs))


def reduction_operation(
    kind: str, spec: ReduceSpec, plans: tuple[Plan, ...], aliasing: Aliasing
) -> Operation:
    return Operation(
        kind,
        plans,
        spec.source_itemsize_bytes,
        spec.result_itemsizes_bytes,
        tuple((one.itemsize_bytes, one.sharded, one.updated) for one in spec.operands),
        aliasing,
        zero_source=spec.zero_source,
    )


def _cases(world_size: int, chunk: int, specs: Sequence[str]) -> Iterator[tuple[str, Operation]]:
    for name in specs:
        spec = SPECS[name]
        yield from _allreduces(name, spec, world_size, chunk)
        yield from _reduce_scatters(name, spec, world_size, chunk)
    yield from _copies(world_size, chunk)
    yield from _wire_copies(world_size)
    plans = plans_of(lambda rank: flat.plan_barrier(rank, world_size), world_size)
    yield "barrier", Operation("barrier", plans, 4, ())


def _aliasings(spec: ReduceSpec, name: str, relation: Relation) -> Iterator[tuple[str, Aliasing]]:
    updated = UPDATED_OPERANDS.get(name, ())
    yield "", Aliasing(updated_operands=updated)
    same_size = spec.result_itemsizes_bytes == (spec.source_itemsize_bytes,)
    if same_size and not updated and not spec.zero_source:
        yield "_in_place", Aliasing(relation)


def _allreduces(
    name: str, spec: ReduceSpec, world_size: int, chunk: int
) -> Iterator[tuple[str, Operation]]:
    for suffix, aliasing in _aliasings(spec, name, Relation.IDENTICAL):
        planners: dict[str, Planner] = {
            "two_shot": lambda rank: two_shot.plan_allreduce(
                rank, world_size, spec, chunk_elements=chunk
            ),
            "two_shot_staged": lambda rank: two_shot.plan_allreduce_staged(
                rank, world_size, spec, chunk_elements=chunk
            ),
        }
        # Slots beyond two only change when a slot is free.
        for slots in (1, 2, 3) if name == "plain" else (2,):
            planners[f"wire_two_shot_{slots}"] = lambda rank, slots=slots: (
                wire_two_shot.plan_allreduce_wire(
                    rank, world_size, spec, chunk_elements=chunk, slots=slots
                )
            )
        if name == "plain":
            planners["native"] = lambda rank: native.plan_allreduce_native(rank, world_size, 4)
        if not spec.is_sharded:
            planners["one_shot"] = lambda rank: one_shot.plan_allreduce(rank, world_size, spec)
            if len(spec.result_itemsizes_bytes) == 1:
                planners["inline"] = lambda rank: inline.plan_allreduce(rank, world_size, spec)
        for planner_name, planner in planners.items():
            plans = plans_of(planner, world_size)
            yield (
                f"{planner_name}-{name}{suffix}",
                reduction_operation("allreduce", spec, plans, aliasing),
            )
    aliasing = Aliasing(replicated_results=True, updated_operands=UPDATED_OPERANDS.get(name, ()))
    replicated: dict[str, Planner] = {
        "two_shot": lambda rank: two_shot.plan_allreduce(
            rank, world_size, spec, chunk_elements=chunk, replicated_result=True
        ),
        "two_shot_staged": lambda rank: two_shot.plan_allreduce_staged(
            rank, world_size, spec, chunk_elements=chunk, replicated_result=True
        ),
    }
    for planner_name, planner in replicated.items():
        plans = plans_of(planner, world_size)
        yield (
            f"{planner_name}-{name}_replicated",
            reduction_operation("allreduce", spec, plans, aliasing),
        )


def _reduce_scatters(
    name: str, spec: ReduceSpec, world_size: int, chunk: int
) -> Iterator[tuple[str, Operation]]:
    if name == "adam":
        # A replicated operand cannot be updated by a sharded result.
        return
    for suffix, aliasing in _aliasings(spec, name, Relation.RESULT_IS_SHARD):
        for alignment in (1, 16) if name == "plain" else (1,):
            planners: dict[str, Planner] = {
                "reduce_scatter": lambda rank, alignment=alignment: flat.plan_reduce_scatter(
                    rank, world_size, spec, chunk_elements=chunk, alignment_elements=alignment
                ),
                "reduce_scatter_staged": lambda rank, alignment=alignment: (
                    flat.plan_reduce_scatter_staged(
                        rank, world_size, spec, chunk_elements=chunk, alignment_elements=alignment
                    )
                ),
            }
            planners["wire_reduce_scatter"] = lambda rank, alignment=alignment: (
                wire_two_shot.plan_reduce_scatter_wire(
                    rank, world_size, spec, chunk_elements=chunk, alignment_elements=alignment
                )
            )
            for planner_name, planner in planners.items():
                plans = plans_of(planner, world_size)
                yield (
                    f"{planner_name}-{name}{suffix}-align{alignment}",
                    reduction_operation("reduce_scatter", spec, plans, aliasing),
                )


def _copies(world_size: int, chunk: int) -> Iterator[tuple[str, Operation]]:
    for layout, in_place, replicated in (
        ("", False, False),
        ("_in_place", True, False),
        ("_in_place_untold", True, False),
        ("_replicated", False, True),
    ):
        options = {
            "in_place": layout == "_in_place",
            "replicated_result": replicated,
            "chunk_elements": chunk,
        }
        relation = Relation.SOURCE_IS_SHARD if in_place else Relation.DISJOINT
        aliasing = Aliasing(relation, replicated_results=replicated)
        for alignment in (1, 16):
            for name, planner in (
                ("allgather", flat.plan_allgather),
                ("allgather_staged", flat.plan_allgather_staged),
            ):
                plans = tuple(
                    planner(rank, world_size, 4, alignment_elements=alignment, **options)
                    for rank in range(world_size)
                )
                yield (
                    f"{name}{layout}-align{alignment}",
                    Operation("allgather", plans, 4, (4,), (), aliasing),
                )
        relation = Relation.IDENTICAL if in_place else Relation.DISJOINT
        aliasing = Aliasing(relation, replicated_results=replicated)
        for root in {0, world_size - 1}:
            for name, planner in (
                ("broadcast", flat.plan_broadcast),
                ("broadcast_staged", flat.plan_broadcast_staged),
            ):
                plans = tuple(
                    planner(rank, world_size, root, 2, **options) for rank in range(world_size)
                )
                yield (
                    f"{name}{layout}-root{root}",
                    Operation("broadcast", plans, 2, (2,), (), aliasing, root),
                )


def _wire_copies(world_size: int) -> Iterator[tuple[str, Operation]]:
    for in_place in (False, True):
        suffix = "_in_place" if in_place else ""
        aliasing = Aliasing(Relation.SOURCE_IS_SHARD if in_place else Relation.DISJOINT)
        for alignment in (1, 16):
            plans = tuple(
                native.plan_allgather_wire(rank, world_size, 4, alignment_elements=alignment)
                for rank in range(world_size)
            )
            yield (
                f"wire_allgather{suffix}-align{alignment}",
                Operation("allgather", plans, 4, (4,), (), aliasing),
            )
        plans = plans_of(lambda rank: native.plan_allgather_native(rank, world_size, 4), world_size)
        yield (
            f"native_allgather{suffix}",
            Operation("allgather", plans, 4, (4,), (), aliasing),
        )
        aliasing = Aliasing(Relation.IDENTICAL if in_place else Relation.DISJOINT)
        for root in {0, world_size - 1}:
            plans = tuple(
                native.plan_broadcast_native(rank, world_size, root, 2)
                for rank in range(world_size)
            )
            yield (
                f"native_broadcast{suffix}-root{root}",
                Operation("broadcast", plans, 2, (2,), (), aliasing, root),
            )


def is_inline(operation: Operation) -> bool:
    return operation.plans[0].name == "inline"


def case_counts(operation: Operation, world_size: int, chunk_elements: int = 5) -> tuple[int, ...]:
    """Give counts with every kind of last chunk and with ranks that have no block."""
    if is_inline(operation):
        return (0, 1, 3, 16)
    blocks = world_size * 16
    return (
        0,
        1,
        chunk_elements - 1,
        chunk_elements,
        chunk_elements + 1,
        world_size + 1,
        31,
        blocks - 1,
        blocks,
        blocks + 1,
        2 * blocks + 7,
    )


def edit(
    plans: Sequence[Plan], change: Callable[[Plan, str, Step], Sequence[Step]]
) -> tuple[Plan, ...]:
    """Give plans whose every step has been replaced by what `change` gives for it."""

    def edit_loops(plan: Plan, lane: str, loops: Sequence[Loop]) -> tuple[Loop, ...]:
        edited = (
            replace(
                loop,
                steps=tuple(new for step in loop.steps for new in change(plan, lane, step)),
            )
            for loop in loops
        )
        return tuple(loop for loop in edited if loop.steps)

    return tuple(
        replace(
            plan,
            body=Fragment(
                tuple(
                    replace(lane, loops=edit_loops(plan, lane.name, lane.loops))
                    for lane in plan.fragment.lanes
                ),
                edit_loops(plan, "opening", plan.fragment.opening),
            ),
            _fragment=[],
        )
        for plan in plans
    )
