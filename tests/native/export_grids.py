"""Writes the kernels that ``grids.cpp`` launches, and the host's kernels that it compares with.

Like ``export_plans.py`` it takes the sources beside it, or a changed copy of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from export_plans import register_package


def render() -> str:
    """Give the C++ source."""
    from cocoll import epilogues
    from cocoll.dtypes import DType
    from cocoll.kernels.grid_spec import grid_kernel_name, render_grid_kernels
    from cocoll.kernels.spec import KernelSpec, render_kernels

    f32 = DType.FLOAT32
    sgd = epilogues.sgd(momentum=0.5).trace(f32, {"param": f32, "momentum_buffer": f32})
    specs = {"plain": KernelSpec("sum", f32), "fused": KernelSpec("sum", f32, sgd)}
    parts = [render_kernels(list(specs.values())), render_grid_kernels(list(specs.values()))]
    for name, spec in specs.items():
        parts += [
            f'extern "C" void grid_{name}(const cocoll_grid_call& call, '
            "const cocoll::Place& place) {",
            f"  {grid_kernel_name(spec)}(call, place);",
            "}",
            f'extern "C" void host_{name}(const cocoll_reduce_args* args) {{',
            f"  cocoll_{spec.name()}(args);",
            "}",
        ]
    # Nothing to derive: the scalars are passed on as they are.
    copied = f"for (int i = 0; i < {specs['fused'].derived_count}; ++i) derived[i] = scalars[i];"
    derive = f"cocoll_{specs['fused'].name()}_prepare(scalars, derived);"
    parts += [
        'extern "C" void prepare_fused(const double* scalars, double* derived) {',
        f"  {derive if specs['fused'].prepares else copied}",
        "}",
    ]
    return "\n".join(parts)


def main() -> None:
    """Write to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    arguments = parser.parse_args()
    register_package(arguments.root)
    arguments.file.write_text(render())


if __name__ == "__main__":
    main()
