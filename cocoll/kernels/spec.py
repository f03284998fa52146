"""Kernel specifications and the C++ they are rendered to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.dtypes import DType
from cocoll.epilogues.graph import Kind
from cocoll.epilogues.render import (
    dropout_ordinals,
    passes_scalars_on,
    render_functor,
    render_prepare,
    storage_type,
)
from cocoll.errors import UsageError

if TYPE_CHECKING:
    from cocoll.epilogues.traced import Operand, Result, Traced

__all__ = [
    "OPS",
    "KernelSpec",
    "distinct_kernels",
    "reduction_type",
    "render_kernels",
    "render_library",
    "render_table",
]

_REDUCTIONS = {"sum": "Sum", "prod": "Prod", "min": "Min", "max": "Max", "avg": "Avg"}

#: The reductions, by the names that users write.
OPS = tuple(_REDUCTIONS)

# Reductions without an epilogue that change the same bits in the same way: the integers of the
# other sign, and of truth values the greatest and the least. One kernel has both names.
_SIGNED = {
    DType.UINT8: DType.INT8,
    DType.UINT16: DType.INT16,
    DType.UINT32: DType.INT32,
    DType.UINT64: DType.INT64,
}
_OF_TRUTH_VALUES = {"sum": "max", "prod": "min"}

_PREAMBLE = '#include "cocoll/kernels/plain.h"\n'


@dataclass(frozen=True)
class KernelSpec:
    """What a reduction kernel computes.

    Parameters
    ----------
    op : str
        ``"sum"``, ``"prod"``, ``"min"``, ``"max"`` or ``"avg"``.
    source_dtype : DType
        How the sources are stored.
    traced : Traced or None
        The epilogue; without one the result is stored in `source_dtype`.

    Raises
    ------
    UsageError
        `op` is none of these, or the epilogue was traced for other sources.
    DTypeError
        `op` has no meaning for `source_dtype`.
    """

    op: str
    source_dtype: DType
    traced: Traced | None = None

    def __post_init__(self) -> None:
        """Refuse what no kernel can be."""
        if self.op not in _REDUCTIONS:
            raise UsageError(f"wanted an op out of {', '.join(OPS)}; got {self.op!r}")
        self.source_dtype.check_op(self.op)
        if self.traced is not None and self.traced.source_dtype is not self.source_dtype:
            raise UsageError(
                f"epilogue {self.traced.name!r} was traced for sources of "
                f"{self.traced.source_dtype.label}, not {self.source_dtype.label}"
            )

    def name(self) -> str:
        """Give a name that differs for different kernels, equal on all ranks."""
        base = f"{self.op}_{self.source_dtype.label}"
        return base if self.traced is None else f"{base}_{self.traced.digest[:32]}"

    @property
    def derived_count(self) -> int:
        """How many numbers the kernel reads: what ``prepare`` writes."""
        return 0 if self.traced is None else len(self.traced.derived)

    @property
    def prepares(self) -> bool:
        """Whether the kernel reads anything else than the scalars of the call."""
        return self.traced is not None and not passes_scalars_on(self.traced)

    @property
    def is_stage(self) -> bool:
        """Whether it is one of several passes of an epilogue with totals."""
        return self.traced is not None and (
            bool(self.traced.summands) or not self.traced.reads_sources
        )

    def render(self) -> str:
        """Give the C++ source of a library that holds this kernel alone."""
        return render_library([self])


def _twin(spec: KernelSpec) -> KernelSpec:
    """Give the kernel that stands for this one as well: itself, for most."""
    if spec.traced is None and spec.op in _OF_TRUTH_VALUES:
        if spec.source_dtype is DType.BOOL:
            return KernelSpec(_OF_TRUTH_VALUES[spec.op], DType.BOOL)
        return KernelSpec(spec.op, _SIGNED.get(spec.source_dtype, spec.source_dtype))
    return spec


def distinct_kernels(specs: Sequence[KernelSpec]) -> list[KernelSpec]:
    """Give the kernels that serve all of `specs`, in their order: some serve two of them."""
    return list({twin.name(): twin for twin in map(_twin, specs)}.values())


def reduction_type(spec: KernelSpec) -> str:
    """Give the C++ type that says how sources are reduced."""
    return f"cocoll::{_REDUCTIONS[spec.op]}<{storage_type(spec.source_dtype)}>"


def render_library(specs: Sequence[KernelSpec]) -> str:
    """Give the C++ source of a library of kernels, with its table.

    Parameters
    ----------
    specs : sequence of KernelSpec
        The kernels.

    Returns
    -------
    str
        C++ that includes ``cocoll/kernels/plain.h`` and nothing else.
    """
    return f"{render_kernels(specs)}\n{render_table(specs, declare=False)}"


def render_kernels(specs: Sequence[KernelSpec]) -> str:
    """Give the C++ source of host kernels without a table."""
    return "\n".join([_PREAMBLE, *(_render_kernel(spec) for spec in distinct_kernels(specs))])


def render_table(specs: Sequence[KernelSpec], *, declare: bool) -> str:
    """Give the table that a host library exports.

    Parameters
    ----------
    specs : sequence of KernelSpec
        The kernels.
    declare : bool
        Whether the kernels lie in other source files, and the table in one of its own.

    Returns
    -------
    str
        C++ text.
    """
    lines = []
    if declare:
        lines.append('#include "cocoll/kernels/tiles.h"\n')
        for spec in distinct_kernels(specs):
            lines.append(f"COCOLL_KERNEL({_symbol(spec)});")
            if spec.prepares:
                lines.append(f"COCOLL_PREPARE({_symbol(spec)}_prepare);")
    lines.append("static const cocoll_kernel_entry kEntries[] = {")
    for spec in specs:
        symbol = _symbol(spec)
        prepare = f"{symbol}_prepare" if spec.prepares else "nullptr"
        lines.append(f'    {{"{spec.name()}", {symbol}, {prepare}, {spec.derived_count}}},')
    lines += [
        "};",
        f"COCOLL_EXPORT_TABLE(kEntries, {len(specs)})",
        "",
    ]
    return "\n".join(lines)


def _symbol(spec: KernelSpec) -> str:
    return f"cocoll_{_twin(spec).name()}"


def _render_kernel(spec: KernelSpec) -> str:
    reduction = reduction_type(spec)
    symbol = _symbol(spec)
    if spec.traced is None:
        return f"COCOLL_KERNEL({symbol}) {{\n  cocoll::reduce_plain<{reduction}>(args);\n}}\n"
    traced = spec.traced
    parts = [
        f"// {spec.op} of {spec.source_dtype.label}, then {_describe(traced)}.",
        "namespace cocoll_epilogues {",
        render_functor(traced, f"Epilogue_{spec.name()}", tiles=True),
        "}  // namespace cocoll_epilogues",
        "",
        _render_body(spec, traced, reduction),
    ]
    if spec.prepares:
        parts.append(render_prepare(traced, f"{symbol}_prepare"))
    return "\n".join([*parts, ""])


def _describe(traced: Traced) -> str:
    arrays = [f"{operand.name}: {operand.dtype.label}" for operand in traced.operands]
    results = [f"{result.name}: {result.dtype.label}" for result in traced.results]
    return f"{traced.name}({', '.join(arrays)}) -> {', '.join(results) or 'nothing'}"


def _types(array: Operand | Result) -> str:
    return f"{storage_type(array.dtype)}, {Kind.of(array.dtype).value}"


def _render_body(spec: KernelSpec, traced: Traced, reduction: str) -> str:
    value = Kind.of(traced.accumulate).value
    first = traced.results[0].dtype if traced.results else spec.source_dtype
    source = storage_type(spec.source_dtype)
    scratch, opened, closed = [], [], []
    outputs, declared, stored = [], [], []
    if traced.reads_sources:
        scratch = [
            f"COCOLL_SCRATCH({value}, x_scratch, cocoll::kTileElements);",
            f"COCOLL_SCRATCH({source}, last_scratch, cocoll::kTileElements);",
        ]
        opened = [
            "const cocoll::Reduced<Reduction> x = "
            "cocoll::open_sources<Reduction>(args, tile, x_scratch, last_scratch);"
        ]
        closed = [f"cocoll::close_sources<{source}>(args, tile);"]
        arguments, read = ["Reduction::finish(x[i], world_size)"], ["x.state", "x.last"]
    else:
        arguments, read = [f"{value}(0)"], []
    for place, operand in enumerate(traced.operands):
        kind = Kind.of(operand.dtype).value
        if operand.source_node is None and operand.node is None:
            continue
        scratch.append(f"COCOLL_SCRATCH({kind}, a{place}_scratch, cocoll::kTileElements);")
        array = f"args->operands[{place}], tile"
        if operand.node is None:
            opened.append(
                f"const {kind}* a{place} = "
                f"cocoll::open_input<{_types(operand)}>({array}, a{place}_scratch);"
            )
        else:
            how = "open_updated" if operand.source_node is not None else "open_written"
            opened.append(
                f"{kind}* a{place} = cocoll::{how}<{_types(operand)}>({array}, a{place}_scratch);"
            )
            closed.append(f"cocoll::close_updated<{_types(operand)}>({array}, a{place});")
        if operand.source_node is not None:
            arguments.append(f"a{place}[i]")
            read.append(f"a{place}")
    for ordinal in dropout_ordinals(traced):
        scratch.append(
            f"COCOLL_SCRATCH(uint32_t, w{ordinal}_scratch, "
            "COCOLL_PHILOX_CAPACITY(cocoll::kTileElements));"
        )
        opened.append(
            f"const uint32_t* w{ordinal} = epilogue.words{ordinal}"
            f"(w{ordinal}_scratch, args->first + tile.offset, tile.count);"
        )
        arguments.append(f"w{ordinal}[i]")
    for place, result in enumerate(traced.results):
        kind = Kind.of(result.dtype).value
        scratch.append(f"COCOLL_SCRATCH({kind}, r{place}_scratch, cocoll::kTileElements);")
        opened.append(
            f"{kind}* r{place} = "
            f"cocoll::open_result<{_types(result)}>(args, {place}, tile, r{place}_scratch);"
        )
        closed.append(f"cocoll::close_result<{_types(result)}>(args, {place}, tile, r{place});")
        declared.append(f"{kind} r{place}_value;")
        outputs.append(f"&r{place}_value")
        stored.append(f"r{place}[i] = r{place}_value;")
    for place, operand in enumerate(traced.operands):
        if operand.node is not None:
            declared.append(f"{Kind.of(operand.dtype).value} a{place}_value;")
            outputs.append(f"&a{place}_value")
            stored.append(f"a{place}[i] = a{place}_value;")
    for place, summand in enumerate(traced.summands):
        kind = traced.nodes[summand.node].kind.value
        scratch.append(f"COCOLL_SCRATCH({kind}, s{place}_scratch, cocoll::kTileElements);")
        declared.append(f"{kind} s{place}_value;")
        outputs.append(f"&s{place}_value")
        stored.append(f"s{place}_scratch[i] = s{place}_value;")
        closed.append(
            f"cocoll::add_up<{str(summand.squares).lower()}>(s{place}_scratch, tile.count, "
            f"args->first + tile.offset, args->sums[{place}]);"
        )
    reducing = [f"  typedef {reduction} Reduction;", "  const int world_size = args->world_size;"]
    return "\n".join(
        [
            f"COCOLL_KERNEL({_symbol(spec)}) {{",
            *(reducing if traced.reads_sources else []),
            f"  const cocoll_epilogues::Epilogue_{spec.name()} epilogue(args->scalars);",
            f"  const cocoll::Tiles tiles(args, sizeof({storage_type(first)}));",
            *(f"  {line}" for line in scratch),
            "  for (int64_t ordinal = 0; ordinal < tiles.size(); ++ordinal) {",
            "    const cocoll::Tile tile = tiles.tile(ordinal);",
            *(f"    {line}" for line in opened),
            "    const auto element = COCOLL_ELEMENT(i) {",
            *(f"      {line}" for line in declared),
            f"      epilogue.element({', '.join([*arguments, *outputs])});",
            *(f"      {line}" for line in stored),
            "    };",
            f"    cocoll::for_each_element({', '.join(['tile.count', 'element', *read])});",
            *(f"    {line}" for line in closed),
            "  }",
            "  cocoll::finish_stores(args);",
            "}",
        ]
    )
