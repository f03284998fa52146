"""Gradient sum and LAMB step over 200 tensors, in one call: against all-reduce + LAMB of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.common import streams
from benchmarks.common.cases import Group, View
from benchmarks.common.lamb import TENSORS
from benchmarks.common.suite import Suite
from benchmarks.peers.launch import ALLREDUCE_PEERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.common.streams import LimitSpec

__all__ = ["SUITE"]

_DEFAULT_ELEMENTS = 1 << 24


def _groups(
    ranks: int, sizes_bytes: Sequence[int] | None, dtypes: Sequence[str] | None
) -> list[Group]:
    if dtypes and list(dtypes) != ["float32"]:
        raise ValueError(f"lamb is measured in float32; got {', '.join(dtypes)}")
    counts = [_DEFAULT_ELEMENTS] if sizes_bytes is None else [size // 4 for size in sizes_bytes]
    for elements in counts:
        if elements < 2 * TENSORS or elements % ranks:
            raise ValueError(
                f"wanted at least {2 * TENSORS} elements that divide by {ranks}; got {elements}"
            )
    return [
        Group(suite="lamb", operation="lamb", dtype="float32", ranks=ranks, elements=elements)
        for elements in counts
    ]


def _limits(group: Group) -> list[LimitSpec]:
    return [
        streams.lamb("limit:symmetric", group.ranks, param_copies=1),
        streams.lamb("limit:ordinary", group.ranks, param_copies=group.ranks),
    ]


def _views(group: Group) -> list[View]:
    name = str(group.elements)
    if not group.elements & (group.elements - 1):
        name = f"2^{group.elements.bit_length() - 1}"
    return [
        View(f"{name}/{form}", memory, form, f"limit:{memory}", ALLREDUCE_PEERS)
        for form, memory in (
            ("list", "symmetric"),
            ("vector", "symmetric"),
            ("ordinary", "ordinary"),
        )
    ]


SUITE = Suite(
    name="lamb",
    peers=ALLREDUCE_PEERS,
    default_ranks=(2,),
    groups=_groups,
    limits=_limits,
    views=_views,
    uses_adam=True,
)
