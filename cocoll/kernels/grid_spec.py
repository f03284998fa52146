"""Grid kernels: the C++ of whole collectives in one launch, from the same specifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cocoll.epilogues.graph import Kind
from cocoll.epilogues.render import dropout_ordinals, render_functor, storage_type
from cocoll.errors import UnsupportedError
from cocoll.kernels.spec import KernelSpec, reduction_type

if TYPE_CHECKING:
    from cocoll.epilogues.traced import Operand, Result

__all__ = [
    "COMMON_KERNELS",
    "COMPARE_KERNEL",
    "COPY_KERNEL",
    "COPY_STRIDED_KERNEL",
    "SIGNAL_KERNEL",
    "WAIT_KERNEL",
    "check_grid_limits",
    "grid_kernel_name",
    "render_grid_kernels",
]

#: Kernels that every source has: they copy bytes, copy boxes, compare what ranks say, signal, wait.
COPY_KERNEL = "cocoll_grid_copy_bytes"
COMPARE_KERNEL = "cocoll_grid_compare"
SIGNAL_KERNEL = "cocoll_grid_signal"
WAIT_KERNEL = "cocoll_grid_wait"
COPY_STRIDED_KERNEL = "cocoll_grid_copy_strided"
COMMON_KERNELS = (COPY_KERNEL, COPY_STRIDED_KERNEL, COMPARE_KERNEL, SIGNAL_KERNEL, WAIT_KERNEL)
_COMMON_FUNCTIONS = ("copy_grid", "copy_strided_grid", "compare_grid", "signal_grid", "wait_grid")

_PREAMBLE = '#include "cocoll/kernels/grid.h"\n'
_PACK_BYTES = 16
_NARROWEST_BYTES = 2
_COMPUTED_BYTES = 4
# COCOLL_GRID_MAX_RESULTS, _OPERANDS and _DERIVED of grid_abi.h: a test compares them.
_MAX_RESULTS, _MAX_OPERANDS, _MAX_DERIVED = 4, 8, 24


def grid_kernel_name(spec: KernelSpec) -> str:
    """Give the symbol of a kernel.

    Parameters
    ----------
    spec : KernelSpec
        What it computes.

    Returns
    -------
    str
        Equal on all ranks.
    """
    return f"cocoll_grid_{spec.name()}"


def check_grid_limits(spec: KernelSpec) -> None:
    """Refuse an epilogue that has more arrays or numbers than a launch can hand over.

    Parameters
    ----------
    spec : KernelSpec
        What is to be launched.

    Raises
    ------
    UnsupportedError
        What there is too much of.
    """
    traced = spec.traced
    if traced is None:
        return
    for what, count, limit in (
        ("outputs", len(traced.results), _MAX_RESULTS),
        ("arrays", len(traced.operands), _MAX_OPERANDS),
        ("scalars", len(traced.derived), _MAX_DERIVED),
    ):
        if count > limit:
            raise UnsupportedError(
                f"a kernel on a GPU takes at most {limit} {what}; epilogue {traced.name!r} has "
                f"{count}. Split it in two"
            )


def render_grid_kernels(specs: Sequence[KernelSpec]) -> str:
    """Give the source of grid kernels, read alike by nvcc, NVRTC and g++ (an emulated device).

    Parameters
    ----------
    specs : sequence of KernelSpec
        What is computed.

    Returns
    -------
    str
        C++ that includes ``cocoll/kernels/grid.h`` and nothing else.

    Raises
    ------
    UnsupportedError
        An epilogue has more arrays or scalars than a launch can hand over.
    """
    parts = [_PREAMBLE]
    for symbol, function in zip(COMMON_KERNELS, _COMMON_FUNCTIONS, strict=True):
        parts.append(
            f"COCOLL_GRID_KERNEL({symbol}) {{ cocoll::{function}(call, COCOLL_GRID_PLACE); }}\n"
        )
    for spec in specs:
        check_grid_limits(spec)
        parts += [
            _render_pass(spec),
            f"COCOLL_GRID_KERNEL({grid_kernel_name(spec)}) {{\n"
            f"  cocoll::run_grid<cocoll_passes::Pass_{spec.name()}>(call, COCOLL_GRID_PLACE);\n"
            "}\n",
        ]
    return "\n".join(parts)


def _pack_elements(spec: KernelSpec) -> int:
    # The widest array moves in whole words; narrower ones in parts of a word, still coalesced.
    # Bytes move by eight: sixteen of eight ranks would not stay in registers. Nor would more than
    # four at a time of an epilogue, which computes in float32 at least.
    itemsizes = [max(spec.source_dtype.itemsize_bytes, _NARROWEST_BYTES)]
    if spec.traced is not None:
        itemsizes.append(_COMPUTED_BYTES)
        itemsizes += [operand.dtype.itemsize_bytes for operand in spec.traced.operands]
        itemsizes += [result.dtype.itemsize_bytes for result in spec.traced.results]
    return _PACK_BYTES // max(itemsizes)


def _types(array: Operand | Result) -> str:
    return f"{storage_type(array.dtype)}, {Kind.of(array.dtype).value}"


def _render_pass(spec: KernelSpec) -> str:
    name = spec.name()
    traced = spec.traced
    finish, members = _plain_lines(spec), []
    functor = ""
    if traced is not None:
        functor = render_functor(traced, f"GridEpilogue_{name}", tiles=False)
        members = [f"  GridEpilogue_{name} epilogue;"]
        finish = _epilogue_lines(spec)
    constructor = "call) : epilogue(call.derived) {}" if members else ") {}"
    return "\n".join(
        [
            "namespace cocoll_passes {",
            functor,
            f"struct Pass_{name} {{",
            f"  typedef {reduction_type(spec)} Reduction;",
            f"  static constexpr int kElements = {_pack_elements(spec)};",
            f"  COCOLL_INLINE explicit Pass_{name}(const cocoll_grid_call& {constructor}",
            "  COCOLL_INLINE void finish(const cocoll_grid_call& call, const cocoll::Part& part,",
            "                            const Reduction::State* reduced) const {",
            *(f"    {line}" for line in finish),
            "  }",
            *members,
            "};",
            "}  // namespace cocoll_passes",
            "",
        ]
    )


def _plain_lines(spec: KernelSpec) -> list[str]:
    return [
        "Reduction::Value values[kElements];",
        "COCOLL_UNROLL for (int i = 0; i < kElements; ++i) {",
        "  values[i] = Reduction::finish(reduced[i], call.world_size);",
        "}",
        f"cocoll::spread_part<{storage_type(spec.source_dtype)}, Reduction::Value, kElements>"
        "(call, 0, part, values);",
    ]


def _epilogue_lines(spec: KernelSpec) -> list[str]:
    traced = spec.traced
    if traced is None:
        raise TypeError(spec)
    opened, arguments, outputs, closed = [], [], [], []
    for place, operand in enumerate(traced.operands):
        if operand.source_node is not None:
            opened += [
                f"{Kind.of(operand.dtype).value} a{place}[kElements];",
                f"cocoll::open_part<{_types(operand)}, kElements>"
                f"(call, call.operands[{place}], part, a{place});",
            ]
            arguments.append(f"a{place}[i]")
    for ordinal in dropout_ordinals(traced):
        opened += [
            f"uint32_t w{ordinal}[kElements];",
            f"cocoll::draw_pack<kElements>(part.index, cocoll::philox_key(epilogue.seed{ordinal}, "
            f"{ordinal}u), epilogue.step{ordinal}, w{ordinal});",
        ]
        arguments.append(f"w{ordinal}[i]")
    for place, result in enumerate(traced.results):
        opened.append(f"{Kind.of(result.dtype).value} r{place}[kElements];")
        outputs.append(f"&r{place}[i]")
        closed.append(
            f"cocoll::spread_part<{_types(result)}, kElements>(call, {place}, part, r{place});"
        )
    for place, operand in enumerate(traced.operands):
        if operand.node is not None:
            opened.append(f"{Kind.of(operand.dtype).value} u{place}[kElements];")
            outputs.append(f"&u{place}[i]")
            closed.append(
                f"cocoll::close_part<{_types(operand)}, kElements>"
                f"(call, call.operands[{place}], part, u{place});"
            )
    reduced = "Reduction::finish(reduced[i], call.world_size)"
    return [
        *opened,
        "COCOLL_UNROLL for (int i = 0; i < kElements; ++i) {",
        f"  epilogue.element({', '.join([reduced, *arguments, *outputs])});",
        "}",
        *closed,
    ]
