"""From a :class:`~cocoll.kernels.spec.KernelSpec` to addresses that an executor can call.

A kernel is looked for in the catalogue that the wheel carries, then in the disk cache, and is
compiled if it is in neither.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cocoll.errors import CompilerNotFoundError, InternalError, KernelError, UnsupportedError
from cocoll.kernels.cache import KernelCache
from cocoll.kernels.compiler import Compiler, find_compiler
from cocoll.kernels.isa import compile_options, cpu_levels, isa_levels, select_levels
from cocoll.kernels.library import Entry, Kernel, make_kernel, read_table
from cocoll.kernels.settings import BuildSettings
from cocoll.kernels.spec import KernelSpec

if TYPE_CHECKING:
    from cocoll.config import Settings

__all__ = ["BuildSettings", "Kernel", "KernelLoader", "KernelSpec", "load"]

_PACKAGE_DIRECTORY = Path(__file__).resolve().parent
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


class KernelLoader:
    """Loads kernels and keeps what it has loaded; usable from several threads.

    Parameters
    ----------
    settings : BuildSettings, optional
        From the environment if not given.
    """

    def __init__(self, settings: BuildSettings | None = None) -> None:
        self.settings = settings or BuildSettings.from_environment()
        self._cache = KernelCache(self.settings.cache_dir / "kernels")
        self._lock = threading.Lock()
        self._kernels: dict[str, Kernel] = {}
        self._levels = select_levels(self.settings.isa, cpu_levels())
        self._catalogue: tuple[str, dict[str, Entry]] | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> KernelLoader:
        """Give a loader for a communicator's settings.

        Parameters
        ----------
        settings : Settings
            Of which ``cache_dir``, ``no_compile`` and ``isa`` are read.

        Returns
        -------
        KernelLoader
            The loader.
        """
        return cls(
            BuildSettings(
                cache_dir=settings.cache_dir, no_compile=settings.no_compile, isa=settings.isa
            )
        )

    @property
    def isa(self) -> str:
        """The ISA level that kernels are compiled for."""
        return self._levels[0]

    def restrict(self, levels: Sequence[str]) -> None:
        """Use no level above the lowest of `levels`: what all ranks can run.

        Parameters
        ----------
        levels : sequence of str
            The level of every rank.

        Raises
        ------
        UnsupportedError
            The ranks' machines have no level in common.
        """
        with self._lock:
            order = self._levels[::-1]
            unknown = [level for level in levels if level not in order]
            # A level above all of this CPU's is no limit to it.
            if any(level not in isa_levels() for level in unknown):
                raise UnsupportedError(
                    f"this rank's kernels are of level {self._levels[0]}, another rank's of "
                    f"{unknown[0]}: one communicator wants one architecture"
                )
            known = [level for level in levels if level in order]
            if not known:
                raise UnsupportedError(
                    f"this rank can run the levels {', '.join(order)}, the others want "
                    f"{', '.join(sorted(set(levels)))}"
                )
            lowest = min(order.index(level) for level in known)
            allowed = order[: lowest + 1][::-1]
            if allowed != self._levels:
                self._levels = allowed
                self._kernels.clear()
                self._catalogue = None

    def is_built_in(self, spec: KernelSpec) -> bool:
        """Whether the catalogue has a kernel, so that no rank needs a compiler for it.

        Parameters
        ----------
        spec : KernelSpec
            What the kernel computes.

        Returns
        -------
        bool
            The same on all ranks of one installation.
        """
        with self._lock:
            return spec.name() in self._open_catalogue()[1]

    @functools.cached_property
    def compiler(self) -> Compiler:
        """The compiler, looked for when it is first needed."""
        return find_compiler(self.settings.environment)

    def load(self, spec: KernelSpec) -> Kernel:
        """Give a kernel's addresses, which stay valid for the life of the process.

        Parameters
        ----------
        spec : KernelSpec
            What the kernel computes.

        Returns
        -------
        Kernel
            Its addresses, and where it came from.

        Raises
        ------
        CompilerNotFoundError
            It must be compiled, and no compiler is there or may be used.
        CompileError
            The compiler refuses it; carries the source path, the options and the log.
        KernelError
            The library cannot be stored or loaded.
        """
        name = spec.name()
        with self._lock:
            kernel = self._kernels.get(name)
            if kernel is None:
                kernel = self._from_catalogue(name) or self._from_cache_or_compiler(spec)
                if kernel.derived_count != spec.derived_count:
                    raise InternalError(
                        f"kernel {name} reads {kernel.derived_count} numbers, "
                        f"its specification {spec.derived_count}"
                    )
                self._kernels[name] = kernel
            return kernel

    def _open_catalogue(self) -> tuple[str, dict[str, Entry]]:
        """Give the best level of the catalogue that is built, and its kernels."""
        if self._catalogue is None:
            self._catalogue = (self._levels[0], {})
            for level in self._levels:
                library = self.settings.catalogue_dir / f"_catalogue_{level}.so"
                if library.exists():
                    self._catalogue = (level, read_table(library))
                    break
        return self._catalogue

    def _from_catalogue(self, name: str) -> Kernel | None:
        level, entries = self._open_catalogue()
        entry = entries.get(name)
        return None if entry is None else make_kernel(entry, "catalogue", level)

    def _from_cache_or_compiler(self, spec: KernelSpec) -> Kernel:
        level = self._levels[0]
        source = spec.render()
        options = compile_options(level)
        if self.settings.no_compile:
            what = (
                f"kernel {spec.name()} is not in the catalogue and must be compiled, which "
                "COCOLL_NO_COMPILE forbids"
            )
            try:
                library = self._cache.find(self._key(source, options))
            except CompilerNotFoundError as error:
                raise CompilerNotFoundError(what) from error
            if library is None:
                raise CompilerNotFoundError(what)
            built = False
        else:
            try:
                library, built = self._cache.find_or_build(
                    self._key(source, options),
                    source,
                    lambda made, to: self.compiler.compile(
                        made, to, [*options, "-iquote", str(_PACKAGE_DIRECTORY.parent.parent)]
                    ),
                )
            except OSError as error:
                raise KernelError(
                    f"kernel {spec.name()} cannot be stored in {self.settings.cache_dir}: {error}; "
                    "COCOLL_CACHE_DIR names another folder"
                ) from error
        entry = read_table(library).get(spec.name())
        if entry is None:
            raise InternalError(f"{library} lacks the kernel {spec.name()}")
        return make_kernel(entry, "compiled" if built else "cache", level)

    def _key(self, source: str, options: list[str]) -> str:
        headers = [part for header in sorted(self._headers.items()) for part in header]
        return KernelCache.digest([self._compiler_version(), *options, source, *headers])

    @functools.cached_property
    def _headers(self) -> dict[str, bytes]:
        """Every header that a rendered source includes, directly or not."""
        found: dict[str, bytes] = {}
        pending = ["plain.h"]
        while pending:
            name = pending.pop()
            if name not in found:
                found[name] = (_PACKAGE_DIRECTORY / name).read_bytes()
                pending += _INCLUDE.findall(found[name].decode())
        return found

    def _compiler_version(self) -> str:
        """Give the compiler's version: noted beside the cache, as asking costs milliseconds."""
        fingerprint = self.compiler.fingerprint()
        note = self.settings.cache_dir / "compilers" / f"{fingerprint}.json"
        try:
            version = json.loads(note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            version = None
        if isinstance(version, str):
            return version
        version = self.compiler.version()
        _write_note(note, json.dumps(version))
        return version


def _write_note(note: Path, text: str) -> None:
    temporary = note.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(note)
    except OSError as error:
        raise KernelError(
            f"{note.parent} cannot be written: {error}; COCOLL_CACHE_DIR names another folder"
        ) from error


def load(spec: KernelSpec, settings: BuildSettings | None = None) -> Kernel:
    """Load one kernel with a loader of its own; see :meth:`KernelLoader.load`.

    Parameters
    ----------
    spec : KernelSpec
        What the kernel computes.
    settings : BuildSettings, optional
        From the environment if not given.

    Returns
    -------
    Kernel
        Its addresses.

    Raises
    ------
    KernelError
        It cannot be found, compiled or loaded.
    """
    return KernelLoader(settings).load(spec)
