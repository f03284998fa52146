"""NVRTC, the CUDA compiler as a library: what compiles a user's own epilogue for a GPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cocoll.errors import CompileError, CompilerNotFoundError

__all__ = ["Compiled", "Nvrtc", "find_nvrtc", "grid_headers"]

_PACKAGE_DIRECTORY = Path(__file__).resolve().parent
_ENTRY_HEADER = "grid.h"
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
# dlopen gives a library only if it is loaded already (Linux).
_RTLD_NOLOAD = 4

# The bits of a result depend on these: no contraction, IEEE division and roots.
_OPTIONS = (
    "--std=c++17",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ptxas-options=-v",
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code for one GPU.

    Attributes
    ----------
    cubin : bytes
        What the driver loads.
    log : str
        What the compiler and the assembler said.
    """

    cubin: bytes
    log: str


class Nvrtc:
    """One loaded NVRTC.

    Parameters
    ----------
    library : ctypes.CDLL
        libnvrtc, of CUDA 12 or later.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> tuple[int, int]:
        """Give the version of CUDA that it belongs to."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "")
        return major.value, minor.value

    def fingerprint(self) -> str:
        """Say what the machine code of a source depends on, besides the source."""
        major, minor = self.version()
        return f"nvrtc {major}.{minor} {' '.join(_OPTIONS)}"

    def make(self, source: Path, image: Path, target: str) -> None:
        """Compile a file of grid kernels into what `read` gives.

        Parameters
        ----------
        source, image : Path
            What `render_grid_kernels` gave, and where the machine code goes.
        target : str
            The GPU, such as ``"sm_90"``.

        Raises
        ------
        CompileError
            The compiler refuses.
        """
        compiled = self.compile(source.read_text(encoding="utf-8"), target, grid_headers())
        image.write_bytes(compiled.cubin)

    def read(self, image: Path) -> bytes:
        """Give what the driver loads."""
        return image.read_bytes()

    def targets(self) -> list[str]:
        """Give the GPUs that it can compile for, such as ``"sm_90"``."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "")
        found = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(found), "")
        return [f"sm_{architecture}" for architecture in found]

    def compile(self, source: str, target: str, headers: dict[str, bytes]) -> Compiled:
        """Compile a source of grid kernels.

        Parameters
        ----------
        source : str
            What `render_grid_kernels` gave.
        target : str
            The GPU, such as ``"sm_90"``.
        headers : dict of str to bytes
            By the names that they are included by: the compiler opens no file.

        Returns
        -------
        Compiled
            The machine code.

        Raises
        ------
        CompileError
            The compiler refuses.
        """
        options = [*_OPTIONS, f"--gpu-architecture={target}"]
        program = ctypes.c_void_p()
        names, texts = list(headers), list(headers.values())
        created = self._library.nvrtcCreateProgram(
            ctypes.byref(program),
            source.encode(),
            b"grids.cu",
            len(headers),
            _strings(texts),
            _strings(name.encode() for name in names),
        )
        self._check(created, source)
        try:
            status = self._library.nvrtcCompileProgram(
                program, len(options), _strings(option.encode() for option in options)
            )
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status != 0:
                raise CompileError(
                    f"NVRTC refused grid kernels for {target}: {self._describe(status)}\n{log}",
                    source=source,
                    options=options,
                    log=log,
                )
            return Compiled(self._read(program, "CUBIN"), log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(
            getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what
        )
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer), what)
        return buffer.raw

    def _describe(self, status: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(status)
        return text.decode()

    def _check(self, status: int, source: str) -> None:
        if status != 0:
            raise CompileError(f"NVRTC failed: {self._describe(status)}", source=source)


def _strings(values: Iterable[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    every: Sequence[bytes] = list(values)
    return (ctypes.c_char_p * len(every))(*every)


def grid_headers() -> dict[str, bytes]:
    """Give what a rendered source of grid kernels includes.

    Returns
    -------
    dict of str to bytes
        By name: one header is included by its path in the package, and the others by those beside
        them, by bare names.
    """
    return {
        f"cocoll/kernels/{path.name}"
        if path.name == _ENTRY_HEADER
        else path.name: path.read_bytes()
        for path in sorted(_PACKAGE_DIRECTORY.glob("*.h"))
    }


def find_nvrtc(search: Sequence[str] | None = None) -> Nvrtc:
    """Find NVRTC: what the process has loaded, then NVIDIA's wheels, then the system's.

    Parameters
    ----------
    search : sequence of str, optional
        Where packages lie. Default: ``sys.path``.

    Returns
    -------
    Nvrtc
        Ready to compile.

    Raises
    ------
    CompilerNotFoundError
        There is none.
    """
    for name in _NAMES:
        try:
            # RTLD_NOLOAD: torch and CuPy may have brought one, and two of them do not mix well.
            return Nvrtc(ctypes.CDLL(name, mode=_RTLD_NOLOAD))
        except OSError:
            continue
    for folder in sys.path if search is None else search:
        for library in sorted(Path(folder).glob("nvidia/**/libnvrtc.so.1[0-9]"), reverse=True):
            # The wheel's library opens its companion by name alone.
            for companion in library.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(companion), mode=ctypes.RTLD_GLOBAL)
            return Nvrtc(ctypes.CDLL(str(library)))
    for name in _NAMES:
        try:
            return Nvrtc(ctypes.CDLL(name))
        except OSError:
            continue
    raise CompilerNotFoundError(
        "wanted NVRTC to compile a kernel for a GPU; it is not installed: install cocoll[cuda13] "
        "or cocoll[cuda12]"
    )
