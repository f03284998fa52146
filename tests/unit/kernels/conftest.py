"""Kernels for the tests: a loader with a cache of its own, and the headers compiled for probing."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cocoll.kernels.build import BuildSettings, KernelLoader
from cocoll.kernels.compiler import find_compiler
from cocoll.kernels.isa import compile_options, cpu_levels

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
LEVELS = cpu_levels()


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk cache that no other run shares."""
    return tmp_path_factory.mktemp("kernel_cache")


@pytest.fixture(scope="session")
def loader(kernel_cache: Path) -> KernelLoader:
    """A loader of the best level of this CPU."""
    return KernelLoader(BuildSettings(kernel_cache))


@pytest.fixture(scope="session")
def catalogue_loader(kernel_cache: Path) -> Callable[[str], KernelLoader]:
    """Gives loaders of one level whose catalogue is built."""
    loaders: dict[str, KernelLoader] = {}

    def give(level: str) -> KernelLoader:
        if not (ROOT / f"cocoll/kernels/_catalogue_{level}.so").exists():
            pytest.skip(f"the catalogue of {level} is not built: run make build")
        if level not in loaders:
            loaders[level] = KernelLoader(BuildSettings(kernel_cache, isa=level, no_compile=True))
        return loaders[level]

    return give


@pytest.fixture(scope="session", params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    """Every ISA level that this CPU has."""
    return str(request.param)


@pytest.fixture(scope="session")
def probes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """The functions of the headers, by level."""
    directory = tmp_path_factory.mktemp("probes")
    compiler = find_compiler({"PATH": "/usr/local/bin:/usr/bin:/bin"})
    source = Path(__file__).with_name("probe.cpp")
    libraries = {}
    for name in LEVELS:
        folder = directory / name
        folder.mkdir()
        options = [*compile_options(name), "-iquote", str(ROOT)]
        compiler.compile(source, folder / "probe.so", options)
        libraries[name] = ctypes.CDLL(str(folder / "probe.so"))
    return libraries


@pytest.fixture
def probe(probes: dict[str, ctypes.CDLL], level: str) -> ctypes.CDLL:
    """The functions of the headers at one level."""
    return probes[level]
