"""Loading: catalogue, cache and compiler; damage, races, absence, refusal."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cocoll import epilogues
from cocoll.config import Settings
from cocoll.dtypes import DType
from cocoll.epilogues import functions
from cocoll.epilogues.trace import epilogue
from cocoll.errors import (
    CompileError,
    CompilerNotFoundError,
    KernelError,
    UnsupportedError,
    UsageError,
)
from cocoll.kernels import build, isa
from cocoll.kernels.build import BuildSettings, KernelLoader
from cocoll.kernels.compiler import find_compiler
from cocoll.kernels.spec import KernelSpec
from tests.helpers.kernel_runner import run, scalar_values

F32 = DType.FLOAT32


@epilogue
def shifted(x: Any, *, offset: Any) -> Any:
    """Add a number."""
    return x + offset


SPEC = KernelSpec("sum", F32, shifted.trace(F32, {}))


@pytest.fixture
def counting(tmp_path: Path) -> BuildSettings:
    """Settings with an empty cache, no catalogue, and a compiler that notes its runs."""
    real = find_compiler({"PATH": os.environ["PATH"]}).command[0]
    wrapper = tmp_path / "c++"
    log = tmp_path / "runs"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *-shared*) echo run >> "{log}";; esac\nexec "{real}" "$@" -O0\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    # The cheapest compilation: what is tested here is not the code.
    return BuildSettings(
        tmp_path / "cache",
        isa=isa.cpu_levels()[0],
        environment={"PATH": os.environ["PATH"], "CXX": str(wrapper)},
        catalogue_dir=tmp_path / "no_catalogue",
    )


def runs(settings: BuildSettings) -> int:
    log = settings.cache_dir.parent / "runs"
    return len(log.read_text().splitlines()) if log.exists() else 0


def library_of(settings: BuildSettings) -> Path:
    (library,) = settings.cache_dir.glob("kernels/*/*/kernel.so")
    return library


def check(loader: KernelLoader, offset: float) -> None:
    source, target = np.arange(600, dtype=np.float32), np.zeros(600, np.float32)
    run(loader.load(SPEC), [source], [[target]], scalars=[offset])
    np.testing.assert_array_equal(target, source + np.float32(offset))


def test_compiled_once_then_found(counting: BuildSettings) -> None:
    loader = KernelLoader(counting)
    assert loader.load(SPEC).origin == "compiled"
    assert loader.load(SPEC) is loader.load(SPEC)
    again = KernelLoader(counting)
    assert again.load(SPEC).origin == "cache"
    assert runs(counting) == 1
    for offset in (1.0, -2.5):
        # Other scalars need no other kernel.
        check(again, offset)
    assert runs(counting) == 1
    # Nothing but entries, locks and notes is left behind.
    left = {path.name for path in counting.cache_dir.rglob("*") if path.is_file()}
    assert {name for name in left if name.startswith(".")} == set()
    assert {"kernel.so", "kernel.cpp", "digest"} <= left
    assert counting.cache_dir.rglob(".*").__next__ is not None
    assert not list(counting.cache_dir.glob("kernels/*/.*"))


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "digest"])
def test_a_damaged_entry_is_a_miss(counting: BuildSettings, damage: str) -> None:
    KernelLoader(counting).load(SPEC)
    library = library_of(counting)
    data = bytearray(library.read_bytes())
    # A copy: the running process has the old file mapped.
    library.unlink()
    if damage == "truncate":
        library.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[len(data) // 2] ^= 1
        library.write_bytes(data)
    elif damage == "digest":
        library.write_bytes(data)
        library.with_name("digest").write_bytes(b"\xff\xfe")
    loader = KernelLoader(counting)
    assert loader.load(SPEC).origin == "compiled"
    assert runs(counting) == 2
    check(loader, 3.0)
    assert KernelLoader(counting).load(SPEC).origin == "cache"


def test_one_of_many_compiles_and_the_others_wait(counting: BuildSettings) -> None:
    origins: list[str] = []
    start = threading.Barrier(4)

    def load() -> None:
        start.wait()
        origins.append(KernelLoader(counting).load(SPEC).origin)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(origins) == ["cache", "cache", "cache", "compiled"]
    assert runs(counting) == 1


def test_what_a_killed_compilation_left_is_removed(counting: BuildSettings) -> None:
    KernelLoader(counting).load(SPEC)
    entry = library_of(counting).parent
    leftover = entry.parent / f".{entry.name}-abc"
    leftover.mkdir()
    (leftover / "kernel.cpp").write_text("half")
    shutil.rmtree(entry)
    assert KernelLoader(counting).load(SPEC).origin == "compiled"
    assert not leftover.exists()


def test_the_key_covers_headers_options_and_compiler(
    counting: BuildSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(settings: BuildSettings = counting) -> str:
        loader = KernelLoader(settings)
        return loader._key(SPEC.render(), isa.compile_options(loader.isa))

    base = key()
    assert base == key()
    # Another compiler, by its version.
    wrapper = Path(counting.environment["CXX"])
    other = wrapper.with_name("other")
    other.write_text('#!/bin/sh\necho "other 1.0"\n')
    other.chmod(0o755)
    changed = dict(counting.environment, CXX=str(other))
    assert key(replace(counting, environment=changed)) != base
    # Another ISA level.
    for level in isa.cpu_levels()[1:]:
        assert key(replace(counting, isa=level)) != base
    # A change of any header, also of one that is included by another.
    copied = counting.cache_dir.parent / "headers"
    shutil.copytree(Path(build.__file__).parent, copied)
    monkeypatch.setattr(build, "_PACKAGE_DIRECTORY", copied)
    assert key() == base
    for name in ("plain.h", "reduce.h", "math.h", "abi.h"):
        header = copied / name
        text = header.read_text()
        header.write_text(f"{text}// changed\n")
        assert key() != base
        header.write_text(text)
    assert key() == base


def test_no_compile(counting: BuildSettings) -> None:
    forbidden = replace(counting, no_compile=True)
    with pytest.raises(CompilerNotFoundError, match="COCOLL_NO_COMPILE forbids"):
        KernelLoader(forbidden).load(SPEC)
    assert runs(counting) == 0
    KernelLoader(counting).load(SPEC)
    assert KernelLoader(forbidden).load(SPEC).origin == "cache"


def test_no_compiler(counting: BuildSettings) -> None:
    nowhere = {"PATH": str(counting.cache_dir)}
    with pytest.raises(CompilerNotFoundError, match="install one"):
        KernelLoader(replace(counting, environment=nowhere)).load(SPEC)
    named = {**nowhere, "CXX": "no-such-compiler -v"}
    with pytest.raises(CompilerNotFoundError, match="CXX='no-such-compiler -v'"):
        KernelLoader(replace(counting, environment=named)).load(SPEC)


def test_a_refusing_compiler(counting: BuildSettings) -> None:
    wrapper = Path(counting.environment["CXX"])
    wrapper.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo "broken 1";; '
        '*) echo "bad option" >&2; exit 3;; esac\n'
    )
    with pytest.raises(CompileError, match="exited with 3") as caught:
        KernelLoader(counting).load(SPEC)
    assert caught.value.fields["log"].strip() == "bad option"
    assert caught.value.fields["source_path"].endswith("kernel.cpp")
    assert caught.value.fields["source"] == SPEC.render()
    assert "-ffp-contract=off" in caught.value.fields["options"]
    assert not list(counting.cache_dir.glob("kernels/??/*"))


def test_a_cache_that_cannot_be_written(counting: BuildSettings) -> None:
    counting.cache_dir.write_text("a file where the folder should be")
    with pytest.raises(KernelError, match="COCOLL_CACHE_DIR names another folder"):
        KernelLoader(counting).load(SPEC)


def test_a_library_that_is_none(counting: BuildSettings) -> None:
    counting.catalogue_dir.mkdir()
    (counting.catalogue_dir / f"_catalogue_{counting.isa}.so").write_text("not a library")
    with pytest.raises(KernelError, match="cannot be loaded"):
        KernelLoader(counting).load(SPEC)


def test_settings_from_the_environment() -> None:
    settings = BuildSettings.from_environment(
        {"COCOLL_CACHE_DIR": "/a/b", "COCOLL_NO_COMPILE": "1", "COCOLL_ISA": "v3"}
    )
    assert (settings.cache_dir, settings.no_compile, settings.isa) == (Path("/a/b"), True, "v3")
    assert BuildSettings.from_environment({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/cocoll")
    default = BuildSettings.from_environment({})
    assert default.cache_dir == Path.home() / ".cache/cocoll"
    assert (default.no_compile, default.isa) == (False, None)


def test_loaders_of_a_communicator(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {"COCOLL_CACHE_DIR": str(tmp_path), "COCOLL_NO_COMPILE": "1"}
    )
    loader = KernelLoader.from_settings(settings)
    assert loader.settings.cache_dir == tmp_path
    assert loader.settings.no_compile
    assert loader.isa == isa.cpu_levels()[-1]
    assert not loader.is_built_in(SPEC)


def test_ranks_agree_on_a_level(counting: BuildSettings) -> None:
    levels = isa.cpu_levels()
    loader = KernelLoader(replace(counting, isa=None))
    loader.restrict([levels[-1], isa.isa_levels()[-1]])
    assert loader.isa == levels[-1]
    loader.restrict([levels[-1], levels[0]])
    assert loader.isa == levels[0]
    with pytest.raises(UnsupportedError, match="one communicator wants one architecture"):
        loader.restrict([levels[0], "riscv"])


# ---- ISA levels --------------------------------------------------------------------------------


def cpuinfo(*flags: str) -> str:
    return f"processor : 0\nflags\t\t: fpu {' '.join(flags)}\n\nprocessor : 1\nflags : none\n"


@pytest.mark.skipif(isa.isa_levels()[0] != "v2", reason="the levels are those of x86-64")
def test_levels_of_a_cpu() -> None:
    v2 = ("sse4_2", "ssse3", "popcnt")
    v3 = (*v2, "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe")
    v4 = (*v3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
    assert isa.cpu_levels(cpuinfo(*v2)) == ("v2",)
    assert isa.cpu_levels(cpuinfo(*v3)) == ("v2", "v3")
    assert isa.cpu_levels(cpuinfo(*v3[:-1], *v4[len(v3) :])) == ("v2",)
    assert isa.cpu_levels(cpuinfo(*v4)) == ("v2", "v3", "v4")
    with pytest.raises(UnsupportedError, match="sse4_2"):
        isa.cpu_levels(cpuinfo("ssse3", "popcnt"))


def test_selection_of_levels() -> None:
    assert isa.select_levels(None, ("v2", "v3")) == ("v3", "v2")
    assert isa.select_levels("v2", ("v2", "v3")) == ("v2",)
    with pytest.raises(UnsupportedError, match="COCOLL_ISA"):
        isa.select_levels("v4", ("v2", "v3"))
    assert isa.isa_levels("aarch64") == ("armv8",)
    with pytest.raises(UnsupportedError, match="not for sparc"):
        isa.isa_levels("sparc")


# ---- specifications ----------------------------------------------------------------------------


def test_specifications() -> None:
    assert KernelSpec("sum", F32).name() == "sum_float32"
    assert SPEC.name() == f"sum_float32_{shifted.trace(F32, {}).digest[:32]}"
    assert KernelSpec("avg", F32, SPEC.traced).name() != SPEC.name()
    with pytest.raises(UsageError, match="wanted an op out of sum, prod"):
        KernelSpec("mean", F32)
    with pytest.raises(UsageError, match="traced for sources of float32"):
        KernelSpec("sum", DType.FLOAT64, SPEC.traced)


def test_scalars_that_are_passed_on_need_no_preparation(loader: KernelLoader) -> None:
    assert not SPEC.prepares
    assert loader.load(SPEC).prepare_address == 0
    adam = epilogues.adam().trace(F32, {"param": F32, "m": F32, "v": F32})
    assert KernelSpec("sum", F32, adam).prepares


@epilogue(sharded=("state", "written"))
def everything(x: Any, a: Any, mask: Any, state: Any, written: Any, *, s: Any, t: Any = 2.0) -> Any:
    """Use every operator and function once."""
    positive = abs(a) + 0.5
    chosen = functions.where(
        ((x > a) & (mask != 0)) | ~(x <= 1.0), functions.sqrt(positive), -x / positive
    )
    powers = positive**t + positive**3 + positive**-0.5 + positive**2.5 + 2.0**a + positive**-2
    series = functions.exp(-positive) + functions.log(positive) + functions.tanh(x)
    limited = functions.minimum(functions.maximum(x, -s), functions.where(s > 0.0, s, 1.0))
    return {
        "out": chosen + 0.1 * powers + series + functions.erf(a) + limited,
        "state": functions.cast(state + s**2, "float16") + 1.0,
        "written": a * mask,
    }


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda d: d.label)
def test_every_operator_against_float64(loader: KernelLoader, dtype: DType) -> None:
    from math import erf

    traced = everything.trace(
        dtype, {"a": dtype, "mask": DType.UINT8, "state": F32, "written": DType.BFLOAT16}
    )
    kernel = loader.load(KernelSpec("sum", dtype, traced))
    rng = np.random.default_rng(16)
    wide = np.float32 if dtype is F32 else np.float64
    sources = [rng.normal(size=700).astype(wide) for _ in range(2)]
    a = rng.normal(size=700).astype(wide)
    mask = rng.integers(0, 2, 700).astype(np.uint8)
    state = rng.normal(size=700).astype(np.float32)
    import ml_dtypes

    written = np.zeros(700, ml_dtypes.bfloat16)
    target = np.zeros(700, wide)
    s, t = 0.75, 2.0
    x = (sources[0] + sources[1]).astype(np.float64)
    b = a.astype(np.float64)
    positive = np.abs(b) + 0.5
    chosen = np.where(((x > b) & (mask != 0)) | (x > 1.0), np.sqrt(positive), -x / positive)
    powers = positive**t + positive**3 + positive**-0.5 + positive**2.5 + 2.0**b + positive**-2.0
    series = np.exp(-positive) + np.log(positive) + np.tanh(x)
    expected = chosen + 0.1 * powers + series + np.vectorize(erf)(b) + np.clip(x, -s, s)
    expected_state = (state + np.float32(s * s)).astype(np.float16).astype(np.float32) + 1
    run(kernel, sources, [[target]], [a, mask, state, written], scalar_values(traced, {"s": s}))
    tolerance = 4e-6 if dtype is F32 else 1e-14
    np.testing.assert_allclose(target, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(state, expected_state)
    np.testing.assert_array_equal(written, (a * mask).astype(ml_dtypes.bfloat16))
