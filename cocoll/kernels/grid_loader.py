"""From a specification to machine code of a GPU: what the cache has, else what a compiler makes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cocoll.errors import CompilerNotFoundError, KernelError
from cocoll.kernels.cache import KernelCache
from cocoll.kernels.grid_spec import grid_kernel_name, render_grid_kernels
from cocoll.kernels.nvrtc import grid_headers

if TYPE_CHECKING:
    from cocoll.kernels.spec import KernelSpec

__all__ = ["GridCompiler", "GridLoader"]


class GridCompiler(Protocol):
    """What turns grid kernels into something that a driver loads."""

    def fingerprint(self) -> str:
        """Say what the result depends on, besides source and target."""
        ...

    def make(self, source: Path, image: Path, target: str) -> None:
        """Compile a file."""
        ...

    def read(self, image: Path) -> bytes:
        """Give what the driver takes for a compiled file."""
        ...


class GridLoader:
    """Finds or compiles grid kernels for one GPU.

    Parameters
    ----------
    cache_dir : Path
        The folder of the disk cache.
    no_compile : bool
        Never compile.
    find_compiler : callable
        Gives the compiler, when it is first needed.
    target : str
        The GPU, such as ``"sm_90"``.
    """

    def __init__(
        self,
        cache_dir: Path,
        no_compile: bool,
        find_compiler: Callable[[], GridCompiler],
        target: str,
    ) -> None:
        self._cache = KernelCache(cache_dir / "grids")
        self._no_compile = no_compile
        self._find_compiler = find_compiler
        self._target = target

    @functools.cached_property
    def _compiler(self) -> GridCompiler:
        return self._find_compiler()

    def load(self, spec: KernelSpec) -> tuple[str, bytes]:
        """Give a kernel's symbol and the image that holds it.

        Parameters
        ----------
        spec : KernelSpec
            What it computes.

        Returns
        -------
        tuple of str and bytes
            For the driver.

        Raises
        ------
        UnsupportedError
            The epilogue has more arrays or scalars than a launch can hand over.
        CompilerNotFoundError
            It must be compiled, and no compiler is there or may be used.
        CompileError
            The compiler refuses it.
        KernelError
            It cannot be stored.
        """
        source = render_grid_kernels([spec])
        key = self._key(source)
        name = grid_kernel_name(spec)
        if self._no_compile:
            image = self._cache.find(key)
            if image is None:
                raise CompilerNotFoundError(
                    f"kernel {name} must be compiled for {self._target}, which COCOLL_NO_COMPILE "
                    f"forbids"
                )
            return name, self._compiler.read(image)
        try:
            image, _ = self._cache.find_or_build(
                key, source, lambda made, to: self._compiler.make(made, to, self._target)
            )
        except OSError as error:
            raise KernelError(
                f"kernel {name} cannot be stored: {error}; COCOLL_CACHE_DIR names another folder"
            ) from error
        return name, self._compiler.read(image)

    def _key(self, source: str) -> str:
        headers = [part for header in sorted(grid_headers().items()) for part in header]
        parts = [self._compiler.fingerprint(), self._target, source, *headers]
        return KernelCache.digest(parts)
