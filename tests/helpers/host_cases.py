"""Every planner for several hosts with every kind of arguments, as operations to verify and run."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeAlias

from cocoll.algorithms import hierarchical, hierarchical_broadcast, recursive_doubling
from cocoll.algorithms.hierarchy import Hierarchy
from cocoll.algorithms.operands import OperandSpec, ReduceSpec
from cocoll.plan import Aliasing, Plan, Relation
from cocoll.plan.ir import Receive, Send
from cocoll.plan.ranges import block_elements, chunk_range, loop_iterations
from tests.helpers.plan_cases import SPECS, UPDATED_OPERANDS, reduction_operation
from tests.helpers.plan_runner import Operation

__all__ = [
    "CHUNK",
    "DOUBLING_LAYOUTS",
    "LAYOUTS",
    "host_counts",
    "make_host_cases",
    "messages_of",
    "received_bytes",
    "runs_by_share",
]

Make: TypeAlias = Callable[[], Operation]

CHUNK = 5
#: What the vectors of recursive doubling may have.
LONGEST = 64

LAYOUTS = {
    "pairs": Hierarchy((0, 0, 1, 1)),
    "two_singles": Hierarchy((0, 1)),
    "singles": Hierarchy((0, 1, 2)),
    "singles_reordered": Hierarchy((0, 1, 2, 3), order=(2, 0, 3, 1)),
    "uneven": Hierarchy((0, 0, 1)),
    "interleaved": Hierarchy((0, 1, 0, 1, 2)),
    "mixed": Hierarchy((0, 1, 1, 2, 2, 2, 0, 2), order=(1, 2, 0)),
    "two_nics": Hierarchy((0, 0, 1, 1, 2, 2), nics=(0, 1, 0, 1, 0, 1)),
    "shared_nics": Hierarchy((0, 0, 0, 1, 1), nics=(0, 1, 0, 1, 1)),
}
#: What does not depend on the layout is covered in full on few.
SPECS_OF_LAYOUTS = {
    "interleaved": ("plain", "two_results", "adam"),
    "mixed": ("plain", "adam"),
    "two_nics": ("plain", "zeroing"),
    "shared_nics": ("plain", "state_only"),
    "singles_reordered": ("plain", "zeroing"),
}
DOUBLING_LAYOUTS = {
    **{name: LAYOUTS[name] for name in ("pairs", "two_singles", "singles", "uneven", "mixed")},
    "four": Hierarchy((0, 1, 2, 3)),
    "five": Hierarchy((0, 1, 2, 3, 4)),
    "six": Hierarchy((0, 1, 2, 3, 4, 4, 5)),
    "seven": Hierarchy((0, 1, 2, 3, 4, 5, 6)),
}


def host_counts(operation: Operation) -> tuple[int, ...]:
    """Give counts with every kind of last chunk and with ranks that have no block."""
    world_size = len(operation.plans)
    if operation.plans[0].name == "recursive_doubling":
        return (0, 1, 3, LONGEST)
    blocks = world_size * 16
    return (0, 1, CHUNK, world_size + 1, 37, blocks - 1, blocks, 2 * blocks + 7)


def runs_by_share(name: str, share: int) -> bool:
    """Say whether a case is among one in `share` that run each time."""
    return zlib.crc32(name.encode()) % share == 0


def messages_of(plan: Plan, count: int) -> Iterator[tuple[int, int, int]]:
    """Give whom a rank sends to, the tag and the bytes, of every message that is not empty."""
    for step, nbytes in _wire_steps(plan, count):
        if isinstance(step, Send):
            yield step.peer, step.tag, nbytes


def received_bytes(plan: Plan, count: int) -> int:
    """Give what a rank receives."""
    return sum(nbytes for step, nbytes in _wire_steps(plan, count) if isinstance(step, Receive))


def _wire_steps(plan: Plan, count: int) -> Iterator[tuple[Send | Receive, int]]:
    length = block_elements(count, plan.world_size, plan.alignment_elements)
    for lane in plan.fragment.lanes:
        for loop in lane.loops:
            for iteration in loop_iterations(loop, count, length):
                for step in loop.steps:
                    if not isinstance(step, Send | Receive):
                        continue
                    first, stop = chunk_range(loop, step.block, iteration, count, length)
                    view = step.source if isinstance(step, Send) else step.destination
                    if stop > first:
                        yield step, (stop - first) * view.itemsize_bytes


@cache
def make_host_cases(layout: str) -> dict[str, Make]:
    """Give every legal combination on a layout, by a name that says what it is; made when asked."""
    found: dict[str, Make] = {}
    if layout in LAYOUTS:
        hierarchy = LAYOUTS[layout]
        for name in SPECS_OF_LAYOUTS.get(layout, tuple(SPECS)):
            found.update(_allreduces(hierarchy, name))
            found.update(_reduce_scatters(hierarchy, name))
        found.update(_allgathers(hierarchy))
        found.update(_broadcasts(hierarchy))
    if layout in DOUBLING_LAYOUTS:
        found.update(_doublings(DOUBLING_LAYOUTS[layout]))
    return found


_FORMS = tuple(itertools.product((False, True), repeat=2))


def _may_be_in_place(name: str) -> bool:
    spec = SPECS[name]
    same_size = spec.result_itemsizes_bytes == (spec.source_itemsize_bytes,)
    return same_size and name not in UPDATED_OPERANDS and not spec.zero_source


def _make(
    kind: str,
    planner: Callable[..., Plan],
    hierarchy: Hierarchy,
    what: ReduceSpec | int,
    aliasing: Aliasing,
    root: int | None,
    **options: Any,
) -> Operation:
    staged = options.get("staged", False)
    arguments = (what,) if root is None else (root, what)
    plans = tuple(
        planner(rank, hierarchy, *arguments, **options) for rank in range(hierarchy.world_size)
    )
    if isinstance(what, ReduceSpec):
        operation = reduction_operation(kind, what, plans, aliasing)
        return replace(operation, commutative=True, late_opening=staged)
    return Operation(kind, plans, what, (what,), (), aliasing, root or 0, late_opening=staged)


def _allreduces(hierarchy: Hierarchy, name: str) -> Iterator[tuple[str, Make]]:
    spec = SPECS[name]
    updated = UPDATED_OPERANDS.get(name, ())
    aliasings = {"": Aliasing(updated_operands=updated)}
    if _may_be_in_place(name):
        aliasings["_in_place"] = Aliasing(Relation.IDENTICAL)
    if spec.result_itemsizes_bytes:
        aliasings["_replicated"] = Aliasing(replicated_results=True, updated_operands=updated)
    for (ring, staged), (suffix, aliasing) in itertools.product(_FORMS, aliasings.items()):
        yield (
            f"allreduce{_form(ring=ring, staged=staged)}-{name}{suffix}",
            partial(
                _make,
                "allreduce",
                hierarchical.plan_allreduce,
                hierarchy,
                spec,
                aliasing,
                None,
                chunk_elements=CHUNK,
                ring=ring,
                staged=staged,
                replicated_result=aliasing.replicated_results,
            ),
        )


def _reduce_scatters(hierarchy: Hierarchy, name: str) -> Iterator[tuple[str, Make]]:
    if name == "adam":
        # A replicated operand cannot be updated by a sharded result.
        return
    aliasings = {"": Aliasing()}
    if _may_be_in_place(name):
        aliasings["_in_place"] = Aliasing(Relation.RESULT_IS_SHARD)
    alignments = (1, 16) if name == "plain" else (1,)
    for (ring, staged), (suffix, aliasing), alignment in itertools.product(
        _FORMS, aliasings.items(), alignments
    ):
        yield (
            f"reduce_scatter{_form(ring=ring, staged=staged)}-{name}{suffix}-align{alignment}",
            partial(
                _make,
                "reduce_scatter",
                hierarchical.plan_reduce_scatter,
                hierarchy,
                SPECS[name],
                aliasing,
                None,
                chunk_elements=CHUNK,
                # Other numbers than the usual two.
                slots=1 if ring else 3,
                in_flight=1 if staged else 3,
                ring=ring,
                staged=staged,
                alignment_elements=alignment,
            ),
        )


def _form(*, ring: bool, staged: bool) -> str:
    return ("_ring" if ring else "") + ("_staged" if staged else "")


def _copies_aliasings(in_place: Relation) -> dict[str, Aliasing]:
    return {
        "": Aliasing(),
        "_in_place": Aliasing(in_place),
        "_replicated": Aliasing(replicated_results=True),
    }


def _allgathers(hierarchy: Hierarchy) -> Iterator[tuple[str, Make]]:
    aliasings = _copies_aliasings(Relation.SOURCE_IS_SHARD)
    for (ring, staged), (suffix, aliasing), alignment in itertools.product(
        _FORMS, aliasings.items(), (1, 16)
    ):
        yield (
            f"allgather{_form(ring=ring, staged=staged)}{suffix}-align{alignment}",
            partial(
                _make,
                "allgather",
                hierarchical.plan_allgather,
                hierarchy,
                4,
                aliasing,
                None,
                chunk_elements=CHUNK,
                ring=ring,
                staged=staged,
                alignment_elements=alignment,
                replicated_result=aliasing.replicated_results,
            ),
        )


def _broadcasts(hierarchy: Hierarchy) -> Iterator[tuple[str, Make]]:
    aliasings = _copies_aliasings(Relation.IDENTICAL)
    last = hierarchy.world_size - 1
    for (tree, staged), (suffix, aliasing), root in itertools.product(
        _FORMS, aliasings.items(), sorted({0, last // 2, last})
    ):
        form = ("_tree" if tree else "_chain") + ("_staged" if staged else "")
        yield (
            f"broadcast{form}{suffix}-root{root}",
            partial(
                _make,
                "broadcast",
                hierarchical_broadcast.plan_broadcast,
                hierarchy,
                2,
                aliasing,
                root,
                chunk_elements=CHUNK,
                tree=tree,
                staged=staged,
                replicated_result=aliasing.replicated_results,
            ),
        )


def _doublings(hierarchy: Hierarchy) -> Iterator[tuple[str, Make]]:
    specs = {
        **{name: SPECS[name] for name in ("plain", "wider", "narrower", "two_results")},
        "updates": ReduceSpec(4, (4,), (OperandSpec(4), OperandSpec(8))),
    }
    for name, spec in specs.items():
        aliasings = {"": Aliasing()}
        if name == "plain":
            aliasings["_in_place"] = Aliasing(Relation.IDENTICAL)
        if name == "updates":
            aliasings = {"": Aliasing(updated_operands=((0, 0),))}
        for suffix, aliasing in aliasings.items():
            yield (
                f"recursive_doubling-{name}{suffix}",
                partial(
                    _make,
                    "allreduce",
                    recursive_doubling.plan_allreduce,
                    hierarchy,
                    spec,
                    aliasing,
                    None,
                    longest_elements=LONGEST,
                ),
            )
