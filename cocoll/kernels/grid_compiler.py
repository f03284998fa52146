"""Grid kernels to machine code of a GPU, and what the compiler says of it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cocoll.errors import CompileError, CompilerNotFoundError

__all__ = ["GPU_TARGETS", "GridResources", "compile_grids", "find_nvcc", "read_report"]

#: What wheels are made for: Turing, Ampere, Hopper, Blackwell of data centres and of desks.
GPU_TARGETS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")

# The bits of a result depend on these: no contraction, IEEE division and roots.
_OPTIONS = ("-std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true")

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True, slots=True)
class GridResources:
    """What one kernel needs, as the assembler reports.

    Attributes
    ----------
    registers : int
        Of a thread.
    stack_bytes, spill_bytes : int
        Local memory, which lies in device memory: none is wanted.
    """

    registers: int
    stack_bytes: int
    spill_bytes: int


def find_nvcc(environment: Mapping[str, str], search: Sequence[str] | None = None) -> Path:
    """Find the CUDA compiler: what is on PATH, then NVIDIA's packages.

    Parameters
    ----------
    environment : mapping of str to str
        Of which PATH is read.
    search : sequence of str, optional
        Where packages lie. Default: ``sys.path``.

    Returns
    -------
    Path
        Of nvcc.

    Raises
    ------
    CompilerNotFoundError
        There is none.
    """
    found = shutil.which("nvcc", path=environment.get("PATH", ""))
    if found is not None:
        return Path(found)
    for folder in sys.path if search is None else search:
        for packaged in sorted(Path(folder).glob("nvidia/*/bin/nvcc"), reverse=True):
            return packaged
    raise CompilerNotFoundError(
        "nvcc is not on PATH; install the CUDA toolkit, or the packages nvidia-cuda-nvcc, "
        "nvidia-nvvm and nvidia-cuda-crt"
    )


def compile_grids(nvcc: Path, source: Path, target: str, cubin: Path) -> dict[str, GridResources]:
    """Compile a source of grid kernels for one GPU.

    Parameters
    ----------
    nvcc : Path
        The compiler.
    source : Path
        What `render_grid_kernels` gave.
    target : str
        One of `GPU_TARGETS`.
    cubin : Path
        Where the machine code goes.

    Returns
    -------
    dict of str to GridResources
        By the name of the kernel.

    Raises
    ------
    CompileError
        The compiler refuses.
    """
    root = Path(__file__).resolve().parents[2]
    command = [
        *(str(nvcc), *_OPTIONS, f"-arch={target}", "--cubin", "-Xptxas", "-v"),
        *("-I", str(root), "-x", "cu", str(source), "-o", str(cubin)),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    log = ran.stdout + ran.stderr
    if ran.returncode != 0:
        raise CompileError(
            f"{shlex.join(command)} exited with {ran.returncode}:\n{log}",
            source_path=str(source),
            source=source.read_text(encoding="utf-8"),
            options=command[1:],
            log=log,
        )
    return read_report(log)


def read_report(log: str) -> dict[str, GridResources]:
    """Read what ``ptxas -v`` says of every kernel.

    Parameters
    ----------
    log : str
        Its output.

    Returns
    -------
    dict of str to GridResources
        By the name of the kernel.
    """
    found: dict[str, GridResources] = {}
    for part in log.split("Compiling entry function ")[1:]:
        entry = _ENTRY.search(f"Compiling entry function {part}")
        stack, registers = _STACK.search(part), _REGISTERS.search(part)
        if entry and stack and registers:
            found[entry[1]] = GridResources(
                int(registers[1]), int(stack[1]), int(stack[2]) + int(stack[3])
            )
    return found
