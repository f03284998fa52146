"""The benchmarks' C library: built once for this machine, loaded by every rank."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["Stream", "build", "load"]


_SOURCE = Path(__file__).with_name("loops.c")
_OPTIONS = ("-O3", "-march=native", "-fPIC", "-shared")


class Stream(ctypes.Structure):
    """One memory stream of a limit loop, as ``loops.c`` declares it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("tile_bytes", ctypes.c_uint64),
        ("mode", ctypes.c_int32),
    )


def build(cache_dir: Path | None = None) -> Path:
    """Compile ``loops.c`` unless it has been, and give the library's path.

    Parameters
    ----------
    cache_dir : Path, optional
        Where libraries are kept; default ``$XDG_CACHE_HOME/cocoll/benchmarks``.

    Returns
    -------
    Path
        A library named after the source's digest, so that an edit is never missed.

    Raises
    ------
    RuntimeError
        No C compiler was found, or it refused the source (its message is in the error).
    """
    if cache_dir is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache_dir = home / "cocoll" / "benchmarks"
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise RuntimeError("the benchmarks need a C compiler: none of $CC, cc and gcc was found")
    key = hashlib.sha256(_SOURCE.read_bytes() + repr((compiler, _OPTIONS)).encode())
    key.update(_processor().encode())
    library = cache_dir / f"loops-{key.hexdigest()[:16]}.so"
    if library.exists():
        return library
    cache_dir.mkdir(parents=True, exist_ok=True)
    temporary = library.with_suffix(f".{os.getpid()}.tmp")
    command = [compiler, *_OPTIONS, "-o", str(temporary), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    temporary.replace(library)
    return library


@functools.cache
def load() -> ctypes.CDLL:
    """Build and load the library, with the types of its functions declared."""
    library = ctypes.CDLL(str(build()))
    pointer, u64, i32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32
    signatures: dict[str, tuple[object, list[object]]] = {
        "bench_control_bytes": (u64, []),
        "bench_use_huge_pages": (i32, [pointer, u64]),
        "bench_map_shared": (pointer, [i32, u64, ctypes.POINTER(i32)]),
        "bench_unmap": (None, [pointer, u64]),
        "bench_barrier": (None, [pointer, ctypes.c_uint32, i32]),
        "bench_probe": (ctypes.c_double, [pointer, i32]),
        "bench_rewrite": (ctypes.c_double, [pointer, u64, ctypes.c_uint32]),
        "bench_fill_random": (None, [pointer, u64, u64, u64]),
        "bench_fill_quantized": (None, [pointer, u64, u64, u64]),
        "bench_fill_quantized_bfloat16": (None, [pointer, u64, u64, u64]),
        "bench_limit": (ctypes.c_double, [ctypes.POINTER(Stream), i32, u64, i32, i32, i32, u64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def _processor() -> str:
    # -march=native makes a library that only this processor model may run.
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(("flags", "Features")):
            return line
    return ""
