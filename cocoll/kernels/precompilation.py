"""Compiles the grid kernels of the whole catalogue for every GPU: ``make cuda``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from cocoll.kernels.catalogue import grid_specs
from cocoll.kernels.grid_compiler import GPU_TARGETS, GridResources, compile_grids, find_nvcc
from cocoll.kernels.grid_spec import COMMON_KERNELS, render_grid_kernels

if TYPE_CHECKING:
    from cocoll.kernels.spec import KernelSpec

__all__ = ["main", "precompile"]

# Of one source: the compiler starts once for them, and both cores stay busy to the end.
_KERNELS_OF_A_SOURCE = 4


def precompile(
    kernels: list[KernelSpec], targets: tuple[str, ...], directory: Path
) -> dict[tuple[str, str], GridResources]:
    """Compile kernels for several GPUs, on all processors of this machine.

    Parameters
    ----------
    kernels : list of KernelSpec
        What to compile.
    targets : tuple of str
        Of `GPU_TARGETS`.
    directory : Path
        Where sources and machine code go: ``TARGET/grids_N.cubin``.

    Returns
    -------
    dict of (str, str) to GridResources
        By target and name of the kernel.

    Raises
    ------
    CompilerNotFoundError
        There is no nvcc.
    CompileError
        It refuses a kernel.
    """
    nvcc = find_nvcc(os.environ)
    sources = []
    for number, first in enumerate(range(0, len(kernels), _KERNELS_OF_A_SOURCE)):
        source = directory / f"grids_{number}.cu"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(
            render_grid_kernels(kernels[first : first + _KERNELS_OF_A_SOURCE]), encoding="utf-8"
        )
        sources.append(source)
    tasks = [(target, source) for target in targets for source in sources]

    def compile_one(task: tuple[str, Path]) -> dict[tuple[str, str], GridResources]:
        target, source = task
        cubin = directory / target / f"{source.stem}.cubin"
        cubin.parent.mkdir(exist_ok=True)
        found = compile_grids(nvcc, source, target, cubin)
        return {(target, name): resources for name, resources in found.items()}

    found: dict[tuple[str, str], GridResources] = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done, part in enumerate(pool.map(compile_one, tasks), 1):
            found |= part
            print(f"\r{done} of {len(tasks)} sources", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Compile everything, and give 1 if any kernel uses local memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--targets", nargs="+", default=GPU_TARGETS, choices=GPU_TARGETS)
    options = parser.parse_args(arguments)
    started = time.monotonic()
    kernels = grid_specs()
    found = precompile(kernels, tuple(options.targets), options.directory)
    seconds = time.monotonic() - started
    local = {key: r for key, r in found.items() if r.stack_bytes or r.spill_bytes}
    for (target, name), resources in sorted(local.items()):
        print(
            f"{target} {name}: {resources.registers} registers, {resources.stack_bytes} bytes of "
            f"stack, {resources.spill_bytes} bytes spilled"
        )
    most = max(resources.registers for resources in found.values())
    print(
        f"{len(found)} kernels ({len(kernels)} and {len(COMMON_KERNELS)} more for each of "
        f"{', '.join(options.targets)}) in {seconds:.0f} s, at most {most} registers, "
        f"{len(local)} with local memory"
    )
    wanted = (len(kernels) + len(COMMON_KERNELS)) * len(options.targets)
    return 1 if local or len(found) != wanted else 0


if __name__ == "__main__":
    sys.exit(main())
