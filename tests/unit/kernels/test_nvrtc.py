"""NVRTC compiles every kernel of the catalogue; the loader keeps what it made on disk."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from cocoll.dtypes import DType
from cocoll.errors import CompileError, CompilerNotFoundError, KernelError
from cocoll.kernels.catalogue import grid_specs
from cocoll.kernels.grid_compiler import GPU_TARGETS, read_report
from cocoll.kernels.grid_loader import GridLoader
from cocoll.kernels.grid_spec import COMMON_KERNELS, grid_kernel_name, render_grid_kernels
from cocoll.kernels.nvrtc import Nvrtc, find_nvrtc, grid_headers
from cocoll.kernels.spec import KernelSpec
from tests.unit.kernels.test_grid_kernels import one_of_each_family

# Of one source: the compiler reads the headers once for them.
OF_A_SOURCE = 8
SPECS = grid_specs()
PARTS = [SPECS[first : first + OF_A_SOURCE] for first in range(0, len(SPECS), OF_A_SOURCE)]
SUM = KernelSpec("sum", DType.FLOAT32)


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    return find_nvrtc()


def check(nvrtc: Nvrtc, kernels: list[KernelSpec], target: str) -> None:
    """Compile, and see that registers suffice."""
    compiled = nvrtc.compile(render_grid_kernels(kernels), target, grid_headers())
    assert compiled.cubin.startswith(b"\x7fELF")
    found = read_report(compiled.log)
    assert set(found) == {*COMMON_KERNELS, *(grid_kernel_name(spec) for spec in kernels)}
    for name, resources in found.items():
        assert (resources.stack_bytes, resources.spill_bytes) == (0, 0), (target, name)
        assert resources.registers <= 128, (target, name)


# One part each time, for the time that CI has; all of them in the long run.
@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=pytest.mark.long if part else ()) for part in range(len(PARTS))],
)
def test_every_kernel_compiles_for_hopper(part: int, nvrtc: Nvrtc) -> None:
    check(nvrtc, PARTS[part], "sm_90")


OTHERS = [target for target in GPU_TARGETS if target != "sm_90"]


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, marks=() if target == "sm_80" else pytest.mark.long)
        for target in OTHERS
    ],
)
def test_one_of_each_way_compiles_for(target: str, nvrtc: Nvrtc) -> None:
    families = {spec.traced.name: spec for spec in one_of_each_family() if spec.traced is not None}
    check(nvrtc, [SUM, families["adam"], families["bias_dropout_residual"]], target)


@pytest.mark.long
@pytest.mark.parametrize("target", OTHERS)
def test_every_family_compiles_for(target: str, nvrtc: Nvrtc) -> None:
    check(nvrtc, one_of_each_family(), target)


def test_it_says_what_it_is(nvrtc: Nvrtc) -> None:
    major, minor = nvrtc.version()
    assert major >= 12
    assert f"{major}.{minor}" in nvrtc.fingerprint()
    assert "--fmad=false" in nvrtc.fingerprint()
    assert set(GPU_TARGETS) <= set(nvrtc.targets())


def test_what_it_refuses(nvrtc: Nvrtc) -> None:
    with pytest.raises(CompileError, match="sm_90") as caught:
        nvrtc.compile("this is no kernel;", "sm_90", {})
    assert "grids.cu" in caught.value.log
    assert caught.value.source == "this is no kernel;"
    with pytest.raises(CompileError):
        nvrtc.compile(render_grid_kernels([SUM]), "sm_1", grid_headers())


def test_where_there_is_none() -> None:
    # In a process that has loaded none, on a path that has none.
    script = (
        "from cocoll.kernels.nvrtc import find_nvrtc\n"
        "from cocoll.errors import CompilerNotFoundError\n"
        "try:\n"
        "    print(find_nvrtc(['/nowhere']).version())\n"
        "except CompilerNotFoundError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    # The system may have one.
    assert "cocoll[cuda13]" in ran.stdout or ran.stdout.startswith("(1")


@dataclass
class FakeCompiler:
    """Counts what it is asked."""

    name: str = "fake 1"
    made: int = 0

    def fingerprint(self) -> str:
        return self.name

    def make(self, source: Path, image: Path, target: str) -> None:
        self.made += 1
        image.write_text(f"{target}: {len(source.read_text())}")

    def read(self, image: Path) -> bytes:
        return image.read_bytes()


def load(directory: Path, compiler: FakeCompiler, target: str = "sm_90") -> bytes:
    loader = GridLoader(directory, False, lambda: compiler, target)
    name, image = loader.load(SUM)
    assert name == "cocoll_grid_sum_float32"
    return image


def test_made_once_for_each_compiler_and_gpu(tmp_path: Path) -> None:
    compiler = FakeCompiler()
    first = load(tmp_path, compiler)
    assert load(tmp_path, compiler) == first
    assert compiler.made == 1
    assert load(tmp_path, compiler, "sm_80") != first
    assert compiler.made == 2
    other = FakeCompiler("fake 2")
    load(tmp_path, other)
    assert other.made == 1


def test_nothing_is_compiled_where_that_is_forbidden(tmp_path: Path) -> None:
    compiler = FakeCompiler()
    loader = GridLoader(tmp_path, True, lambda: compiler, "sm_90")
    with pytest.raises(CompilerNotFoundError, match="COCOLL_NO_COMPILE"):
        loader.load(SUM)
    first = load(tmp_path, compiler)
    assert loader.load(SUM)[1] == first


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "grids").write_text("in the way")
    with pytest.raises(KernelError, match="COCOLL_CACHE_DIR"):
        load(tmp_path, FakeCompiler())


def test_the_loader_compiles_for_real(tmp_path: Path, nvrtc: Nvrtc) -> None:
    _, image = GridLoader(tmp_path, False, lambda: nvrtc, "sm_80").load(SUM)
    assert image.startswith(b"\x7fELF")
    assert [path.name for path in tmp_path.iterdir()] == ["grids"]
