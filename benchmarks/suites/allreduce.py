"""All-reduce of float32 sums: symmetric in place and out of place, and ordinary arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.common import streams
from benchmarks.common.cases import ITEMSIZE_BYTES, Group, View
from benchmarks.common.sizes import format_bytes
from benchmarks.common.suite import Suite
from benchmarks.peers.launch import ALLREDUCE_PEERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.common.streams import LimitSpec

__all__ = ["SUITE"]

_KIB, _MIB = 1 << 10, 1 << 20
_DEFAULT_BYTES = (8, _KIB, 32 * _KIB, 256 * _KIB, _MIB, 16 * _MIB, 64 * _MIB)

# Below this a call is shorter than the scatter of a barrier: it is timed in loops.
_LOOP_BELOW_BYTES = 32 * _KIB

_IN_PLACE, _OUT_OF_PLACE = "limit:in_place", "limit:out_of_place"


def _groups(
    ranks: int, sizes_bytes: Sequence[int] | None, dtypes: Sequence[str] | None
) -> list[Group]:
    if dtypes and list(dtypes) != ["float32"]:
        raise ValueError(f"the suite allreduce knows float32 alone; got {', '.join(dtypes)}")
    return [
        Group(
            suite="allreduce",
            operation="allreduce",
            dtype="float32",
            ranks=ranks,
            elements=_elements(size_bytes),
            calls_per_sample=0 if size_bytes < _LOOP_BELOW_BYTES else 1,
        )
        for size_bytes in sizes_bytes or _DEFAULT_BYTES
    ]


def _elements(size_bytes: int) -> int:
    if size_bytes % ITEMSIZE_BYTES["float32"]:
        raise ValueError(f"wanted whole float32 elements; got {size_bytes} bytes")
    return size_bytes // ITEMSIZE_BYTES["float32"]


def _limits(group: Group) -> list[LimitSpec]:
    if group.input_bytes < _LOOP_BELOW_BYTES:
        return []
    return [
        streams.allreduce(_IN_PLACE, group.ranks, 4, in_place=True),
        streams.allreduce(_OUT_OF_PLACE, group.ranks, 4, in_place=False),
    ]


def _views(group: Group) -> list[View]:
    size = format_bytes(group.input_bytes)
    return [
        View(f"{size}/in_place", "symmetric", "symmetric_in_place", _IN_PLACE, ALLREDUCE_PEERS),
        View(
            f"{size}/out_of_place",
            "symmetric",
            "symmetric_out_of_place",
            _OUT_OF_PLACE,
            ALLREDUCE_PEERS,
        ),
        View(f"{size}/ordinary", "ordinary", "ordinary", _OUT_OF_PLACE, ALLREDUCE_PEERS),
    ]


SUITE = Suite(
    name="allreduce",
    peers=ALLREDUCE_PEERS,
    default_ranks=(2, 4),
    groups=_groups,
    limits=_limits,
    views=_views,
)
