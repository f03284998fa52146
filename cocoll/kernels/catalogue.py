"""The kernels that a wheel carries: one list, and the sources they are built from.

``setup.py`` imports this module before anything is compiled: it needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cocoll import epilogues
from cocoll.dtypes import DType
from cocoll.epilogues.stages import split_stages
from cocoll.kernels import isa as isa_module
from cocoll.kernels.spec import OPS, KernelSpec, distinct_kernels, render_kernels, render_table

if TYPE_CHECKING:
    from cocoll.epilogues.trace import Epilogue

__all__ = ["compile_options", "grid_specs", "isa_levels", "specs", "write_sources"]

#: Keeps a wheel small and its build short.
MAX_INSTANCES = 185

_F16, _BF16, _F32, _F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64
_FLOATS = (_F16, _BF16, _F32, _F64)
# Without a compiler every reduction of every dtype works; these are the ones that have no meaning.
_MEANINGLESS = (
    *((op, dtype) for op in ("min", "max") for dtype in (DType.COMPLEX64, DType.COMPLEX128)),
    ("avg", DType.BOOL),
)

# Gradients, parameters, state, and whether a float32 master copy is kept.
_FULL_PRECISION = ((_F32, _F32, _F32, False), (_F64, _F64, _F64, False))
_MIXED_PRECISION = tuple(
    combination
    for half in (_F16, _BF16)
    for combination in (
        (half, half, _F32, False),
        (half, half, _F32, True),
        (half, _F32, _F32, False),
    )
)
_MASTER_ONLY = tuple(combination for combination in _MIXED_PRECISION if combination[3])
_STATELESS = (*_FULL_PRECISION, (_F16, _F16, _F32, False), (_BF16, _BF16, _F32, False))

# How many source files a library is compiled from, so that a build uses several cores.
_SOURCE_COUNT = 8


def _optimizer(
    optimizer: Epilogue,
    state: tuple[str, ...],
    combinations: Iterable[tuple[DType, DType, DType, bool]],
) -> Iterator[KernelSpec]:
    for source, param, stored, keeps_master in combinations:
        arrays = {"param": param, **dict.fromkeys(state, stored)}
        if keeps_master:
            arrays["master"] = _F32
        traced = optimizer.trace(source, arrays)
        for op in ("sum", "avg"):
            yield KernelSpec(op, source, traced)


def _staged(optimizer: Epilogue, state: tuple[str, ...]) -> Iterator[KernelSpec]:
    traced = optimizer.trace(_F32, {"param": _F32, **dict.fromkeys(state, _F32)})
    stages = split_stages(traced)
    for stage in () if stages is None else stages.stages:
        for op in ("sum", "avg") if stage.reads_sources else ("sum",):
            yield KernelSpec(op, _F32, stage)


def _activation(activation: Epilogue, arrays: tuple[str, ...] = ()) -> Iterator[KernelSpec]:
    for dtype in _FLOATS:
        yield KernelSpec("sum", dtype, activation.trace(dtype, dict.fromkeys(arrays, dtype)))


def specs() -> list[KernelSpec]:
    """Give every kernel of the catalogue, in a fixed order.

    Returns
    -------
    list of KernelSpec
        At most 185, no two of one name.
    """
    every_precision = (*_FULL_PRECISION, *_MIXED_PRECISION)
    found = [
        KernelSpec(op, dtype) for dtype in DType for op in OPS if (op, dtype) not in _MEANINGLESS
    ]
    found += _optimizer(epilogues.adam(), ("m", "v"), every_precision)
    found += _optimizer(epilogues.adamw(), ("m", "v"), every_precision)
    found += _optimizer(epilogues.sgd(), (), _STATELESS)
    found += _optimizer(epilogues.sgd(momentum=0.9), ("momentum_buffer",), every_precision)
    nesterov = epilogues.sgd(momentum=0.9, nesterov=True)
    found += _optimizer(nesterov, ("momentum_buffer",), (*_FULL_PRECISION, *_MASTER_ONLY))
    found += _staged(epilogues.lamb(), ("m", "v"))
    found += _staged(epilogues.clip_by_global_norm(epilogues.adamw()), ("m", "v"))
    found += _activation(epilogues.scale())
    found += _activation(epilogues.relu())
    found += _activation(epilogues.gelu())
    found += _activation(epilogues.gelu(approximate="tanh"))
    found += _activation(epilogues.silu())
    found += _activation(epilogues.bias_dropout_residual(), ("bias", "residual"))
    for source, target in ((_F32, _F16), (_F32, _BF16), (_F16, _F32), (_BF16, _F32)):
        traced = epilogues.cast(target).trace(source, {})
        found += [KernelSpec(op, source, traced) for op in ("sum", "avg")]
    return found


def grid_specs() -> list[KernelSpec]:
    """Give those kernels of the catalogue that GPUs run too: all but stages.

    Returns
    -------
    list of KernelSpec
        In the order of `specs`.
    """
    return [spec for spec in specs() if not spec.is_stage]


def isa_levels() -> tuple[str, ...]:
    """Give the ISA levels of this architecture, each built into a library of its own.

    Returns
    -------
    tuple of str
        Lowest first.
    """
    return isa_module.isa_levels()


def compile_options(isa: str) -> list[str]:
    """Give the compiler options for the sources of one level.

    Parameters
    ----------
    isa : str
        The level.

    Returns
    -------
    list of str
        Options for g++ and clang++, with the include path.

    Raises
    ------
    UsageError
        There is no such level.
    """
    root = Path(__file__).resolve().parent.parent.parent
    return [*isa_module.compile_options(isa), "-iquote", str(root)]


def write_sources(directory: Path, isa: str) -> list[Path]:
    """Write the sources of one level's library, whose names do not change between builds.

    Parameters
    ----------
    directory : Path
        An existing folder.
    isa : str
        The level.

    Returns
    -------
    list of Path
        C++ sources that link into ``_catalogue_<isa>.so``.
    """
    every = specs()
    texts = {f"catalogue_{isa}_table.cpp": render_table(every, declare=True)}
    # Kernels of one source dtype share most of their code: it is compiled once a file.
    ordered = sorted(distinct_kernels(every), key=lambda spec: spec.source_dtype)
    for part in range(_SOURCE_COUNT):
        begin, end = (len(ordered) * edge // _SOURCE_COUNT for edge in (part, part + 1))
        texts[f"catalogue_{isa}_{part}.cpp"] = render_kernels(ordered[begin:end])
    paths = []
    for name, text in texts.items():
        path = directory / name
        # An unchanged file keeps its time stamp, for builds that look at it.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
