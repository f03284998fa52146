"""The catalogue: its size, its results against float64, its bits on every level, its loops."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cocoll import epilogues
from cocoll.dtypes import DType
from cocoll.errors import UsageError
from cocoll.kernels import catalogue
from cocoll.kernels.build import KernelLoader
from cocoll.kernels.compiler import find_compiler
from cocoll.kernels.isa import cpu_levels
from cocoll.kernels.spec import KernelSpec, distinct_kernels, render_kernels
from tests.helpers import philox
from tests.helpers.kernel_runner import (
    NUMPY_DTYPES,
    STREAMING,
    ZERO_SOURCES,
    bits,
    random_values,
    run,
    scalar_values,
)

Values = np.ndarray[Any, Any]
SPECS = catalogue.specs()
# Stages of one call are tested as a call, in tests/ranks/test_totals.py.
ONE_PASS = [spec for spec in SPECS if not spec.is_stage]
FUSED = [spec for spec in ONE_PASS if spec.traced is not None]
BEST = cpu_levels()[-1]
ROOT = Path(catalogue.__file__).resolve().parents[2]
SCALARS = {
    "lr": 0.01,
    "step": 3.0,
    "weight_decay": 0.1,
    "momentum": 0.9,
    "factor": 0.37,
    "p": 0.3,
    "seed": 12345.0,
}


def label(spec: KernelSpec) -> str:
    traced = spec.traced
    assert traced is not None
    arrays = "-".join(operand.dtype.label for operand in traced.operands)
    return f"{traced.name}-{spec.op}-{spec.source_dtype.label}-{arrays}-{spec.name()[-4:]}"


def test_size_and_names() -> None:
    names = [spec.name() for spec in SPECS]
    assert len(SPECS) <= catalogue.MAX_INSTANCES
    assert len(set(names)) == len(names)


def test_sources_are_stable_and_hold_every_kernel_once(tmp_path: Path) -> None:
    for isa in catalogue.isa_levels():
        paths = catalogue.write_sources(tmp_path, isa)
        texts = [path.read_text() for path in paths]
        stamps = [path.stat().st_mtime_ns for path in paths]
        again = catalogue.write_sources(tmp_path, isa)
        assert again == paths
        assert [path.stat().st_mtime_ns for path in again] == stamps
        table = next(text for text in texts if "kEntries" in text)
        for spec in SPECS:
            assert table.count(f'{{"{spec.name()}",') == 1
        declared_and_defined = sum(text.count("\nCOCOLL_KERNEL(") for text in texts)
        assert declared_and_defined == 2 * len(distinct_kernels(SPECS))
    with pytest.raises(UsageError, match="ISA level"):
        catalogue.compile_options("v9")


# ---- results -----------------------------------------------------------------------------------


def adam(x: Values, a: Mapping[str, Values], s: Mapping[str, float]) -> dict[str, Values]:
    p = a.get("master", a["param"])
    return adam_step(x + s["weight_decay"] * p, p, a, s)


def adamw(x: Values, a: Mapping[str, Values], s: Mapping[str, float]) -> dict[str, Values]:
    p = a.get("master", a["param"])
    return adam_step(x, p * (1.0 - s["lr"] * s["weight_decay"]), a, s)


def adam_step(
    g: Values, p: Values, a: Mapping[str, Values], s: Mapping[str, float]
) -> dict[str, Values]:
    m = s["beta1"] * a["m"] + (1.0 - s["beta1"]) * g
    v = s["beta2"] * a["v"] + (1.0 - s["beta2"]) * g**2
    corrected_m = m / (1.0 - s["beta1"] ** s["step"])
    corrected_v = v / (1.0 - s["beta2"] ** s["step"])
    p = p - s["lr"] * corrected_m / (np.sqrt(corrected_v) + s["eps"])
    return {"param": p, "m": m, "v": v, "master": p}


def sgd(x: Values, a: Mapping[str, Values], s: Mapping[str, float]) -> dict[str, Values]:
    p = a.get("master", a["param"])
    g = x + s["weight_decay"] * p
    buffer = s["momentum"] * a["momentum_buffer"] + g if "momentum_buffer" in a else g
    nesterov = g + s["momentum"] * buffer if "momentum_buffer" in a else g
    return {
        "param": p - s["lr"] * buffer,
        "nesterov": p - s["lr"] * nesterov,
        "momentum_buffer": buffer,
    }


def dropped(x: Values, a: Mapping[str, Values], s: Mapping[str, float]) -> dict[str, Values]:
    keep = philox.keeps(0, x.size, p=s["p"], seed=int(s["seed"]), step=int(s["step"]))
    return {"out": np.where(keep, (x + a["bias"]) / (1.0 - s["p"]), 0.0) + a["residual"]}


def gelu_tanh(x: Values) -> Values:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def gelu(x: Values) -> Values:
    phi = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x.tolist()])
    return np.asarray(x * phi)


REFERENCES: dict[str, Callable[..., dict[str, Values]]] = {
    "adam": adam,
    "adamw": adamw,
    "sgd": sgd,
    "bias_dropout_residual": dropped,
    "scale": lambda x, _, s: {"out": x * s["factor"]},
    "relu": lambda x, _, __: {"out": np.maximum(x, 0.0)},
    "gelu": lambda x, _, __: {"out": gelu(x)},
    "gelu_tanh": lambda x, _, __: {"out": gelu_tanh(x)},
    "silu": lambda x, _, __: {"out": x / (1.0 + np.exp(-x))},
    "cast_float16": lambda x, _, __: {"out": x},
    "cast_bfloat16": lambda x, _, __: {"out": x},
    "cast_float32": lambda x, _, __: {"out": x},
}
EPSILON = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8, DType.FLOAT32: 2.0**-24}


class Call:
    """Random arrays for one fused kernel, and what it should do to them."""

    def __init__(self, spec: KernelSpec, size: int, world_size: int, seed: int) -> None:
        assert spec.traced is not None
        self.spec, self.traced = spec, spec.traced
        rng = np.random.default_rng(seed)
        self.world_size = world_size
        self.sources = [random_values(rng, spec.source_dtype, size) for _ in range(world_size)]
        self.operands = {
            operand.name: random_values(rng, operand.dtype, size)
            for operand in self.traced.operands
        }
        if "v" in self.operands:
            self.operands["v"] = np.abs(self.operands["v"])
        self.results = [
            np.zeros(size, NUMPY_DTYPES[result.dtype]) for result in self.traced.results
        ]

    def copy(self) -> Call:
        made = object.__new__(Call)
        made.spec, made.traced, made.world_size = self.spec, self.traced, self.world_size
        made.sources = [source.copy() for source in self.sources]
        made.operands = {name: operand.copy() for name, operand in self.operands.items()}
        made.results = [result.copy() for result in self.results]
        return made

    def run(self, loader: KernelLoader, **keywords: Any) -> None:
        run(
            loader.load(self.spec),
            self.sources,
            [[result] for result in self.results],
            list(self.operands.values()),
            scalar_values(self.traced, SCALARS),
            **keywords,
        )

    def written(self) -> dict[str, Values]:
        """Give everything that the kernel stores, by name."""
        names = [result.name for result in self.traced.results]
        stored = dict(zip(names, self.results, strict=True))
        for operand in self.traced.operands:
            if operand.node is not None:
                stored[operand.name] = self.operands[operand.name]
        return stored

    def expected(self) -> dict[str, Values]:
        """Give the same in float64."""
        x = np.sum([source.astype(np.float64) for source in self.sources], axis=0)
        if self.spec.op == "avg":
            x = x / self.world_size
        arrays = {name: operand.astype(np.float64) for name, operand in self.operands.items()}
        scalars = dict(
            zip(
                [scalar.name for scalar in self.traced.scalars],
                scalar_values(self.traced, SCALARS),
                strict=True,
            )
        )
        found = REFERENCES[self.traced.name](x, arrays, scalars)
        if self.is_nesterov:
            found["param"] = found["nesterov"]
        if "master" in self.operands:
            found["master"] = found["param"]
        return found

    @property
    def is_nesterov(self) -> bool:
        plain = (
            epilogues.sgd(momentum=0.9).trace(
                self.spec.source_dtype, {o.name: o.dtype for o in self.traced.operands}
            )
            if self.traced.name == "sgd"
            else self.traced
        )
        return plain.digest != self.traced.digest


@pytest.mark.parametrize("spec", FUSED, ids=label)
def test_every_epilogue_against_float64(
    catalogue_loader: Callable[[str], KernelLoader], spec: KernelSpec
) -> None:
    loader = catalogue_loader(BEST)
    assert loader.is_built_in(spec)
    for world_size, size in [(1, 40), (2, 1029), (3, 515)]:
        call = Call(spec, size, world_size, seed=size)
        expected = call.expected()
        call.run(loader)
        for name, found in call.written().items():
            dtype = next(d for d, n in NUMPY_DTYPES.items() if n == found.dtype)
            wanted = expected[name]
            # What is stored is rounded once; what is computed is off by a few roundings of
            # terms that may cancel.
            computed = 2.0**-53 if spec.source_dtype is DType.FLOAT64 else 2.0**-24
            tolerance = EPSILON.get(dtype, 0.0) * np.abs(wanted) + 24 * computed * (
                np.abs(wanted) + np.max(np.abs(wanted)) + 1.0
            )
            if dtype is DType.FLOAT16:
                tolerance = tolerance + 2.0**-25
            wrong = np.abs(found.astype(np.float64) - wanted) > tolerance
            assert not wrong.any(), (name, found[wrong][:3], wanted[wrong][:3])


@pytest.mark.parametrize("spec", ONE_PASS, ids=lambda spec: spec.name()[:28])
def test_every_level_gives_the_same_bits(
    catalogue_loader: Callable[[str], KernelLoader], spec: KernelSpec
) -> None:
    rng = np.random.default_rng(13)
    loaders = [catalogue_loader(level) for level in cpu_levels()]
    stored = []
    for world_size, size, flags in [(2, 1003, 0), (3, 77, STREAMING), (4, 600, ZERO_SOURCES)]:
        if spec.traced is None:
            sources = [random_values(rng, spec.source_dtype, size) for _ in range(world_size)]
            for loader in loaders:
                copies = [source.copy() for source in sources]
                target = np.zeros_like(sources[0])
                run(loader.load(spec), copies, [[target]], flags=flags)
                stored.append(bits(target))
        else:
            call = Call(spec, size, world_size, seed=14)
            for loader in loaders:
                copy = call.copy()
                copy.run(loader, flags=flags)
                written = copy.written().values()
                stored.append(np.concatenate([bits(array).astype(np.uint64) for array in written]))
        for other in stored[1:]:
            np.testing.assert_array_equal(other, stored[0])
        stored.clear()


@pytest.mark.parametrize(
    "spec", [s for s in FUSED if s.source_dtype in (DType.FLOAT32, DType.BFLOAT16)], ids=label
)
def test_chunks_and_aliases_change_nothing(
    catalogue_loader: Callable[[str], KernelLoader], spec: KernelSpec
) -> None:
    loader = catalogue_loader(BEST)
    whole = Call(spec, 1030, 2, seed=15)
    chunked, aliased = whole.copy(), whole.copy()
    whole.run(loader)
    for begin, end in [(0, 1), (1, 18), (18, 530), (530, 1030)]:
        chunked.run(loader, begin=begin, count=end - begin)
    # A result over the operand that it updates, or over a source where there is none.
    for position, result in enumerate(aliased.traced.results):
        over = aliased.operands.get(result.name)
        if over is None and result.dtype is spec.source_dtype:
            over = aliased.sources[0]
        if over is not None:
            aliased.results[position] = over
    aliased.run(loader)
    for other in (chunked, aliased):
        for name, array in other.written().items():
            np.testing.assert_array_equal(bits(array), bits(whole.written()[name]))


# ---- loops -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "specs",
    [
        # One kernel of each kind by default: the whole list compiles for half a minute.
        pytest.param(
            [
                s
                for s in SPECS
                if (s.source_dtype is DType.BFLOAT16 and (s.op != "avg" or s.traced is None))
                or (s.source_dtype is DType.FLOAT32 and (s.op == "avg" or s.traced is None))
            ]
        ),
        # Not every processor multiplies 64-bit integers in vectors, and none divides them.
        pytest.param(
            [
                s
                for s in SPECS
                if s.source_dtype not in (DType.INT64, DType.UINT64) or s.op not in ("prod", "avg")
            ],
            marks=pytest.mark.long,
        ),
    ],
    ids=["some", "all"],
)
def test_every_loop_is_vectorised(tmp_path: Path, specs: list[KernelSpec]) -> None:
    compiler = find_compiler({"PATH": "/usr/local/bin:/usr/bin:/bin"})
    if "Free Software Foundation" not in compiler.version():
        pytest.skip("the vectorisation report is GCC's")
    sources = []
    for part in range(4):
        path = tmp_path / f"part_{part}.cpp"
        path.write_text(render_kernels(specs[part::4]))
        sources.append(path)

    def report(source: Path) -> tuple[Path, str]:
        # -S without assembling: only the report is wanted.
        command = [
            *compiler.command,
            *catalogue.compile_options(BEST),
            "-fopt-info-vec-optimized",
            "-fopt-info-vec-missed",
            "-S",
            str(source),
            "-o",
            "/dev/null",
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        return source, ran.stderr

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(report, sources))
    vectorised: set[tuple[str, int]] = set()
    missed: set[tuple[str, int]] = set()
    for _, text in reports:
        for found, words in (
            (vectorised, "optimized: +loop vectorized"),
            (missed, "missed: +couldn't vectorize loop"),
        ):
            for match in re.finditer(rf"^(\S+?):(\d+):\d+: {words}", text, re.M):
                found.add((Path(match[1]).name, int(match[2])))
    # Loops of the headers are instantiated many times; each must have been vectorised.
    loops = 0
    for header in ("tiles.h", "reduce.h", "plain.h", "layout.h"):
        lines = (ROOT / "cocoll" / "kernels" / header).read_text().splitlines()
        for number, line in enumerate(lines, 1):
            if "COCOLL_LOOP(" in line and "#define" not in line:
                where = f"{header}:{number} {line.strip()}"
                assert (header, number) in vectorised, where
                assert (header, number) not in missed, where
                loops += 1
    assert loops >= 6
    for source, _ in reports:
        assert "for_each_element(" in source.read_text()
