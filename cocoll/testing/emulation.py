"""A GPU without one: the emulated driver, and kernels built by g++ from the very same sources."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from cocoll.cuda.toolkit import Toolkit
from cocoll.kernels.cache import KernelCache
from cocoll.kernels.compiler import Compiler, find_compiler
from cocoll.kernels.isa import compile_options, cpu_levels

__all__ = ["EmulatedCompiler", "emulate_device"]

_PACKAGE = Path(__file__).resolve().parents[1]
_ROOT = _PACKAGE.parent
_SOURCES = sorted(Path(__file__).parent.glob("emulated_*.cpp"))


class EmulatedCompiler:
    """Compiles grid kernels for the emulated device.

    Parameters
    ----------
    compiler : Compiler
        Of C++.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        # Compiled quickly: the bits do not depend on the level of optimisation.
        self._options = [*compile_options(cpu_levels()[0]), "-O1", "-I", str(_ROOT)]

    def fingerprint(self) -> str:
        """Say what the result depends on, besides source and target."""
        return "\0".join([self._compiler.version(), *self._options])

    def make(self, source: Path, image: Path, target: str) -> None:
        """Compile a file into a library; the target makes no difference."""
        self._compiler.compile(source, image, self._options)

    def read(self, image: Path) -> bytes:
        """Give the library's path, which is what the emulated driver loads."""
        return os.fsencode(image) + b"\0"


def emulate_device(cache_dir: Path) -> Toolkit:
    """Build the emulated driver, with the emulated NCCL in the same library.

    Parameters
    ----------
    cache_dir : Path
        Where what is built is kept.

    Returns
    -------
    Toolkit
        For ``cocoll.init(toolkit=...)``: every rank then has the same emulated GPU.

    Raises
    ------
    CompilerNotFoundError
        There is no C++ compiler.
    """
    compiler = find_compiler(os.environ)
    options = ["-std=c++17", "-O1", "-fPIC", "-pthread", "-I", str(_ROOT), *map(str, _SOURCES[1:])]
    headers = [path for name in ("cuda", "kernels", "testing") for path in _headers(name)]
    texts = [path.read_text(encoding="utf-8") for path in (*_SOURCES, *headers)]
    cache = KernelCache(cache_dir / "emulation")
    key = KernelCache.digest([compiler.version(), *options, *texts])
    library, _ = cache.find_or_build(
        key, texts[0], lambda made, to: compiler.compile(made, to, options)
    )
    path = str(library)
    return Toolkit(
        path, functools.partial(EmulatedCompiler, compiler), functools.partial(str, path)
    )


def _headers(folder: str) -> list[Path]:
    return sorted((_PACKAGE / folder).glob("*.h"))
