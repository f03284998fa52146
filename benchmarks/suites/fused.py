"""Gradient sum and Adam step, in one call: against all-reduce + Adam and its sharded form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.common import streams
from benchmarks.common.cases import ITEMSIZE_BYTES, Group, View
from benchmarks.common.suite import Suite
from benchmarks.peers.launch import FUSED_PEERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.common.streams import LimitSpec

__all__ = ["SUITE"]

_DEFAULT_ELEMENTS = (("float32", 1 << 20), ("float32", 1 << 24), ("bfloat16", 1 << 24))

# ZeroRedundancyOptimizer keeps its state in the parameters' own type: with bfloat16 parameters it
# would carry out another, coarser optimisation.
_BFLOAT16_PEERS = tuple(peer for peer in FUSED_PEERS if peer != "zero")


def _groups(
    ranks: int, sizes_bytes: Sequence[int] | None, dtypes: Sequence[str] | None
) -> list[Group]:
    if sizes_bytes is None:
        pairs = [pair for pair in _DEFAULT_ELEMENTS if not dtypes or pair[0] in dtypes]
    else:
        pairs = [
            (dtype, size_bytes // ITEMSIZE_BYTES[dtype])
            for dtype in dtypes or ("float32",)
            for size_bytes in sizes_bytes
        ]
    for dtype, elements in pairs:
        if elements % (16 * ranks):
            raise ValueError(
                f"wanted a multiple of {16 * ranks} elements (16 tensors, {ranks} equal blocks); "
                f"got {elements} of {dtype}"
            )
    return [
        Group(
            suite="fused",
            operation="allreduce_fused",
            dtype=dtype,
            ranks=ranks,
            elements=elements,
        )
        for dtype, elements in pairs
    ]


def _limits(group: Group) -> list[LimitSpec]:
    half = group.dtype == "bfloat16"
    itemsize_bytes = ITEMSIZE_BYTES[group.dtype]

    def limit(row: str, param_copies: int) -> LimitSpec:
        return streams.adam(
            row,
            group.ranks,
            gradient_bytes=itemsize_bytes,
            param_bytes=itemsize_bytes,
            param_copies=param_copies,
            master=half,
        )

    limits = [limit("limit:symmetric", 1)]
    if not half:
        limits.append(limit("limit:ordinary", group.ranks))
    return limits


def _views(group: Group) -> list[View]:
    half = group.dtype == "bfloat16"
    peers = _BFLOAT16_PEERS if half else FUSED_PEERS
    yardsticks = ("torch_adam",)
    name = _parameters(group.elements)
    if half:
        name += "/bfloat16"
    views = [
        View(f"{name}/symmetric", "symmetric", "symmetric", "limit:symmetric", peers, yardsticks),
        View(f"{name}/zero_grad", "symmetric", "symmetric_zero_grad", None, peers, yardsticks),
    ]
    if not half:
        views.append(
            View(f"{name}/ordinary", "ordinary", "ordinary", "limit:ordinary", peers, yardsticks)
        )
    return views


def _parameters(elements: int) -> str:
    if elements & (elements - 1):
        return str(elements)
    return f"2^{elements.bit_length() - 1}"


SUITE = Suite(
    name="fused",
    peers=FUSED_PEERS,
    default_ranks=(2, 4),
    groups=_groups,
    limits=_limits,
    views=_views,
    uses_adam=True,
)
