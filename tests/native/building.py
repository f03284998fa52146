"""Builds the native programs, and keeps what it has built by what it was built from."""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "BUILD",
    "BUILDS",
    "MEMORY_STATUS",
    "NATIVE",
    "RACE_STATUS",
    "ROOT",
    "Build",
    "BuildError",
    "build_emulated_device",
    "build_grid_kernels",
    "build_library",
    "build_plain",
    "build_program",
    "catalogue_kernel",
    "compile_object",
    "core_options",
    "export_grids",
    "export_plans",
    "inline_plans",
    "kernel_options",
    "plans_directory",
]

NATIVE = Path(__file__).resolve().parent
ROOT = NATIVE.parents[1]
BUILD = NATIVE / "build"

_EXPORTER = NATIVE / "export_plans.py"
_KEPT_SECONDS = 3 * 24 * 3600
_WARNINGS = ("-Wall", "-Wextra", "-Werror")


class BuildError(RuntimeError):
    """The compiler refused a program, or a plan could not be written."""


@dataclass(frozen=True)
class Build:
    """A way to compile and to run the programs."""

    name: str
    options: tuple[str, ...]
    runner: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def lacks(self) -> str:
        """What this machine would have to have installed; empty where nothing is missing."""
        missing = self.runner and shutil.which(self.runner[0]) is None
        return f"{self.runner[0]} is not installed" if missing else ""

    def run(
        self, command: Sequence[str | Path], *, timeout_seconds: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of this build; nothing waits for the limit to pass."""
        return subprocess.run(
            [*self.runner, *map(str, command)],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, **dict(self.environment)},
            timeout=timeout_seconds,
        )


#: The exit statuses of the sanitizers, which differ from those of the programs (checks.h).
RACE_STATUS = 66
MEMORY_STATUS = 67

BUILDS = {
    build.name: build
    for build in (
        Build("plain", ("-O2",)),
        Build(
            "thread",
            ("-O1", "-g1", "-fsanitize=thread"),
            # ThreadSanitizer of older compilers cannot place its shadow under the randomisation
            # of newer kernels.
            runner=("setarch", "-R"),
            environment=(("TSAN_OPTIONS", f"exitcode={RACE_STATUS}:halt_on_error=1"),),
        ),
        Build(
            "address",
            ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
            environment=(
                ("ASAN_OPTIONS", f"exitcode={MEMORY_STATUS}:detect_stack_use_after_return=1"),
                ("UBSAN_OPTIONS", f"exitcode={MEMORY_STATUS}:print_stacktrace=1"),
            ),
        ),
    )
}


@functools.cache
def compiler() -> tuple[str, ...]:
    """Give the command of the C++ compiler, chosen as ``setup.py`` does."""
    command = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    return tuple(shlex.split(command))


@functools.cache
def _compiler_version() -> str:
    return subprocess.run(
        [*compiler(), "--version"], check=True, capture_output=True, text=True
    ).stdout


@functools.cache
def core_options() -> tuple[str, ...]:
    """Give the options that ``setup.py`` compiles ``_core`` with, read from it."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CORE_OPTIONS":
            return tuple(ast.literal_eval(node.value))
    raise BuildError("setup.py has no CORE_OPTIONS")


def compile_object(source: Path, options: Sequence[str], *, root: Path = ROOT) -> Path:
    """Compile one source against the headers of a tree, unless that has been done.

    Parameters
    ----------
    source : Path
        C++.
    options : sequence of str
        All but the include path.
    root : Path
        The folder that holds ``cocoll/``.

    Returns
    -------
    Path
        The object file, named after everything that it depends on.

    Raises
    ------
    BuildError
        The compiler refuses.
    """
    headers = [*(root / "cocoll").rglob("*.h"), *NATIVE.glob("*.h")]
    digest = _digest([source, *sorted(headers)], [*compiler(), *options])
    target = BUILD / f"{source.stem}-{digest}.o"
    command = ["-std=c++17", "-pthread", *options, "-iquote", str(root), "-iquote", str(NATIVE)]
    with _made_once(target) as temporary:
        if temporary is not None:
            _run([*compiler(), *command, "-x", "c++", "-c", str(source), "-o", str(temporary)])
    return target


def build_program(
    source: Path, kernels: Path, build: Build, *, root: Path = ROOT, kernel_root: Path | None = None
) -> Path:
    """Compile and link one program with generated kernels.

    Parameters
    ----------
    source, kernels : Path
        The program, and what `export_plans` wrote.
    build : Build
        How.
    root : Path
        The folder that holds ``cocoll/``, for the program.
    kernel_root : Path, optional
        The same for the kernels. Default: `root`.

    Returns
    -------
    Path
        The program.
    """
    options = (*build.options, *_WARNINGS)
    objects = [
        compile_object(source, options, root=root),
        compile_object(kernels, options, root=kernel_root or root),
    ]
    digest = _digest(objects, build.options)
    target = BUILD / f"{source.stem}-{build.name}-{digest}"
    with _made_once(target) as temporary:
        if temporary is not None:
            names = [str(path) for path in objects]
            _run([*compiler(), *build.options, "-pthread", *names, "-ldl", "-o", str(temporary)])
    return target


def build_plain(source: Path, options: Sequence[str], *, root: Path = ROOT) -> Path:
    """Compile and link a program of one source, without generated kernels.

    Parameters
    ----------
    source : Path
        C++.
    options : sequence of str
        For the compiler.
    root : Path
        The folder that holds ``cocoll/``.

    Returns
    -------
    Path
        The program.
    """
    compiled = compile_object(source, options, root=root)
    target = BUILD / f"{source.stem}-{_digest([compiled], options)}"
    with _made_once(target) as temporary:
        if temporary is not None:
            command = [*compiler(), *options, "-pthread", str(compiled), "-ldl"]
            _run([*command, "-o", str(temporary)])
    return target


def build_library(source: Path, options: Sequence[str], *, root: Path = ROOT) -> Path:
    """Compile and link a shared library of one source.

    Parameters
    ----------
    source : Path
        C++.
    options : sequence of str
        For the compiler.
    root : Path
        The folder that holds ``cocoll/``.

    Returns
    -------
    Path
        The library.
    """
    return _link_library([compile_object(source, options, root=root)], source.stem, options)


def build_emulated_device(build: Build) -> Path:
    """Compile and link the emulated device of the sources as they are; gives the library."""
    options = (*build.options, *_WARNINGS, "-fPIC")
    sources = sorted((ROOT / "cocoll" / "testing").glob("emulated_*.cpp"))
    objects = [compile_object(source, options) for source in sources]
    return _link_library(objects, "emulated_device", options)


def _link_library(objects: Sequence[Path], name: str, options: Sequence[str]) -> Path:
    target = BUILD / f"{name}-{_digest(objects, options)}.so"
    with _made_once(target) as temporary:
        if temporary is not None:
            names = [str(path) for path in objects]
            _run([*compiler(), "-shared", *names, "-o", str(temporary)])
    return target


def build_grid_kernels(build: Build, directory: Path, *, root: Path = ROOT) -> Path:
    """Write the grid kernels of a tree, and compile them as a library for the emulated device.

    Parameters
    ----------
    build : Build
        How.
    directory : Path
        Where the source goes.
    root : Path
        The folder that holds ``cocoll/``.

    Returns
    -------
    Path
        The library.
    """
    source = export_grids(directory, root=root)
    return build_library(source, (*build.options, *_WARNINGS, "-fPIC"), root=root)


def export_grids(directory: Path, *, root: Path = ROOT) -> Path:
    """Write the source of the grid kernels that the programs launch; gives the file."""
    source = directory / "grid_kernels.cc"
    exporter = NATIVE / "export_grids.py"
    _run([sys.executable, str(exporter), "--root", str(root), "--file", str(source)])
    return source


def kernel_options(isa: str) -> tuple[str, ...]:
    """Give the options that kernels of an ISA level are compiled with."""
    from cocoll.kernels.isa import compile_options

    return tuple(compile_options(isa))


def inline_plans(world_size: int) -> Path:
    """Write the plans of an 8-byte all-reduce, and give their common prefix."""
    target = BUILD / f"inline-{_planners_digest()}-{world_size}"
    with _made_once(target) as temporary:
        if temporary is not None:
            temporary.mkdir()
            words = ["--inline", str(temporary / "plan"), "--world-size", str(world_size)]
            _run([sys.executable, str(_EXPORTER), "--root", str(ROOT), *words])
    return target / "plan"


def catalogue_kernel() -> tuple[Path, str] | None:
    """Give the float32 sum that the package has for this CPU, or None where it is not built."""
    from cocoll.kernels.isa import cpu_levels

    library = ROOT / "cocoll" / "kernels" / f"_catalogue_{cpu_levels()[-1]}.so"
    return (library, "sum_float32") if library.exists() else None


def export_plans(directory: Path, *, root: Path = ROOT) -> Path:
    """Write the plans and kernels of a tree, in a process of their own.

    Parameters
    ----------
    directory : Path
        Where to.
    root : Path
        The folder that holds ``cocoll/``.

    Returns
    -------
    Path
        `directory`.
    """
    _run([sys.executable, str(_EXPORTER), "--root", str(root), "--directory", str(directory)])
    return directory


@functools.cache
def plans_directory() -> Path:
    """Give the plans of the sources as they are."""
    target = BUILD / f"plans-{_planners_digest()}"
    with _made_once(target) as temporary:
        if temporary is not None:
            export_plans(temporary)
    return target


@functools.cache
def _planners_digest() -> str:
    folders = ("algorithms", "plan", "epilogues", "kernels")
    sources = [path for folder in folders for path in (ROOT / "cocoll" / folder).rglob("*.py")]
    return _digest([_EXPORTER, *sorted(sources)], [sys.version])


def _digest(files: Sequence[Path], words: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join([*words, _compiler_version()]).encode())
    for path in files:
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


@functools.cache
def _prepare_build_folder() -> None:
    """Make the folder, and drop what no run has used for days: every edit leaves old things."""
    BUILD.mkdir(exist_ok=True)
    oldest = time.time() - _KEPT_SECONDS
    for path in BUILD.iterdir():
        if path.stat().st_mtime < oldest:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


@contextmanager
def _made_once(target: Path) -> Iterator[Path | None]:
    """Give where to make `target`, or None if it exists; two makers may meet."""
    _prepare_build_folder()
    if target.exists():
        os.utime(target)
        yield None
        return
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        temporary = Path(folder) / target.name
        yield temporary
        try:
            temporary.replace(target)
        except OSError:
            # The other maker was first: a folder is not replaced by one, a file by its equal is.
            if not target.exists():
                raise


def _run(command: list[str]) -> None:
    # A build in the background of a test run must not starve it.
    nice = shutil.which("nice")
    ran = subprocess.run(
        [*([nice] if nice else []), *command],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if ran.returncode != 0:
        raise BuildError(f"{shlex.join(command)} failed:\n{ran.stdout}{ran.stderr}")
