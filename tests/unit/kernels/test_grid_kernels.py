"""Grid kernels: what is rendered, and what compilers for GPUs say of it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

import cocoll
from cocoll import epilogues
from cocoll.dtypes import DType
from cocoll.errors import CompileError, CompilerNotFoundError, UnsupportedError
from cocoll.kernels import grid_spec
from cocoll.kernels.catalogue import grid_specs
from cocoll.kernels.grid_compiler import (
    GPU_TARGETS,
    GridResources,
    compile_grids,
    find_nvcc,
    read_report,
)
from cocoll.kernels.grid_spec import (
    COMMON_KERNELS,
    check_grid_limits,
    grid_kernel_name,
    render_grid_kernels,
)
from cocoll.kernels.precompilation import precompile
from cocoll.kernels.spec import KernelSpec

KERNELS = Path(cocoll.__file__).parent / "kernels"
SPECS = grid_specs()
F32 = DType.FLOAT32

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")


def one_of_each_family() -> list[KernelSpec]:
    """Give the kernels that differ most: every epilogue once, and the widest plain ones."""
    chosen: dict[str, KernelSpec] = {}
    for spec in SPECS:
        if spec.traced is not None and spec.source_dtype in (DType.BFLOAT16, DType.FLOAT64):
            chosen.setdefault(f"{spec.traced.name} {spec.source_dtype.label}", spec)
    plain = [
        KernelSpec("avg", DType.INT64),
        KernelSpec("max", DType.FLOAT16),
        KernelSpec("avg", DType.UINT8),
    ]
    return [*chosen.values(), *plain]


def test_every_specification_has_a_kernel() -> None:
    text = render_grid_kernels(SPECS)
    names = re.findall(r"COCOLL_GRID_KERNEL\((\w+)\)", text)
    assert names == [*COMMON_KERNELS, *(grid_kernel_name(spec) for spec in SPECS)]
    assert len(set(names)) == len(SPECS) + len(COMMON_KERNELS)


@pytest.mark.parametrize(
    ("source", "param", "elements"),
    [("float32", "float32", 4), ("float64", "float64", 2), ("bfloat16", "bfloat16", 4)],
)
def test_packs_are_of_the_widest_array(source: str, param: str, elements: int) -> None:
    arrays = {"param": DType.parse(param), "m": F32, "v": F32}
    if source == "float64":
        arrays = dict.fromkeys(arrays, DType.FLOAT64)
    traced = epilogues.adam().trace(DType.parse(source), arrays)
    text = render_grid_kernels([KernelSpec("sum", DType.parse(source), traced)])
    assert f"kElements = {elements};" in text


def test_narrow_arrays_make_long_packs() -> None:
    assert "kElements = 8;" in render_grid_kernels([KernelSpec("max", DType.UINT8)])
    assert "kElements = 8;" in render_grid_kernels([KernelSpec("sum", DType.BFLOAT16)])


def test_limits_are_those_of_the_header() -> None:
    text = (KERNELS / "grid_abi.h").read_text()
    for name in ("RESULTS", "OPERANDS", "DERIVED"):
        found = re.search(rf"COCOLL_GRID_MAX_{name} = (\d+)", text)
        assert found is not None
        assert int(found[1]) == getattr(grid_spec, f"_MAX_{name}")


def test_more_arrays_than_a_launch_hands_over() -> None:
    names = [f"a{i}" for i in range(9)]
    namespace: dict[str, object] = {}
    source = f"def many(x, {', '.join(names)}):\n    return x + {' + '.join(names)}\n"
    exec(source, namespace)  # tracing reads the signature
    many = cocoll.epilogue(namespace["many"])  # type: ignore[arg-type]
    spec = KernelSpec("sum", F32, many.trace(F32, dict.fromkeys(names, F32)))
    with pytest.raises(UnsupportedError, match="at most 8 arrays; epilogue 'many' has 9"):
        check_grid_limits(spec)
    with pytest.raises(UnsupportedError):
        render_grid_kernels([spec])


REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'cocoll_grid_a' for 'sm_90'
ptxas info    : Function properties for cocoll_grid_a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 100 registers, used 1 barriers
ptxas info    : Compiling entry function 'cocoll_grid_b' for 'sm_90'
ptxas info    : Function properties for cocoll_grid_b
    96 bytes stack frame, 120 bytes spill stores, 144 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 96 bytes cumulative stack size
"""


def test_the_assembler_s_report() -> None:
    assert read_report(REPORT) == {
        "cocoll_grid_a": GridResources(100, 0, 0),
        "cocoll_grid_b": GridResources(80, 96, 264),
    }
    assert read_report("") == {}


def test_no_nvcc() -> None:
    with pytest.raises(CompilerNotFoundError, match="nvidia-cuda-nvcc"):
        find_nvcc({"PATH": "/nowhere"}, [])


def test_nvcc_of_a_package(tmp_path: Path) -> None:
    packaged = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    packaged.parent.mkdir(parents=True)
    packaged.write_text("#!/bin/sh\n")
    packaged.chmod(0o755)
    assert find_nvcc({"PATH": "/nowhere"}, [str(tmp_path)]) == packaged
    on_path = shutil.which("nvcc")
    if on_path is not None:
        assert find_nvcc(os.environ, [str(tmp_path)]) == Path(on_path)


@needs_nvcc
def test_what_nvcc_refuses(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("this is no kernel;")
    with pytest.raises(CompileError) as caught:
        compile_grids(find_nvcc(os.environ), source, "sm_90", tmp_path / "wrong.cubin")
    assert "no kernel" in caught.value.source
    assert caught.value.log


@needs_nvcc
@pytest.mark.parametrize(
    ("kernels", "targets"),
    [
        # NVRTC compiles them all (test_nvrtc.py): here it is the other compiler that counts.
        pytest.param([KernelSpec("sum", F32)], GPU_TARGETS, id="one_for_every_target"),
        pytest.param(one_of_each_family()[::8], ("sm_90",), id="some"),
        pytest.param(one_of_each_family(), GPU_TARGETS, id="families", marks=pytest.mark.long),
    ],
)
def test_nothing_lies_in_local_memory(
    kernels: list[KernelSpec], targets: tuple[str, ...], tmp_path: Path
) -> None:
    found = precompile(kernels, targets, tmp_path)
    names = [*COMMON_KERNELS, *(grid_kernel_name(spec) for spec in kernels)]
    assert set(found) == {(target, name) for target in targets for name in names}
    for (target, name), resources in found.items():
        assert (resources.stack_bytes, resources.spill_bytes) == (0, 0), (target, name)
        assert resources.registers <= 128, (target, name)
