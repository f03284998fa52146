"""``cocoll info``: versions, what the machine allows and the settings in force."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

import cocoll
from cocoll import kernels
from cocoll.config import Settings
from cocoll.kernels.isa import cpu_levels, isa_levels, select_levels
from cocoll.topology.facts import Probe, probe_cross_memory_attach, probe_huge_pages

__all__ = ["add_info"]


def add_info(commands: Any) -> None:
    """Add the words of ``cocoll info`` to the parser's commands."""
    info = commands.add_parser("info", help="show versions, the machine and the settings")
    info.set_defaults(run=_run_info)


def _run_info(options: argparse.Namespace) -> int:
    del options
    settings = Settings.from_environment(os.environ)
    rows = [
        ("cocoll", cocoll.__version__),
        ("Python", f"{platform.python_version()} ({sys.executable})"),
        ("NumPy", np.__version__),
        ("MPI", _mpi_library()),
        ("ISA level", _isa_level(settings)),
        ("cross-memory attach", f"{_shown(probe_cross_memory_attach())}; not used by this release"),
        ("huge pages", _shown(probe_huge_pages())),
        ("kernel cache", _cache_usage(settings.cache_dir)),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    print("\nsettings")
    described = settings.describe()
    widths = [max(len(row.variable) for row in described), max(len(row.value) for row in described)]
    for row in described:
        note = "; reserved, without effect in this release" if row.reserved else ""
        print(f"  {row.variable:<{widths[0]}}  {row.value:<{widths[1]}}  ({row.origin}){note}")
    return 0


def _mpi_library() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        return "none: mpi4py is not installed (pip install 'cocoll[mpi]')"
    mpi4py = importlib.import_module("mpi4py")
    # Only a question: this process joins no job.
    mpi4py.rc.initialize = False
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        return f"none: mpi4py {mpi4py.__version__} finds no MPI library ({error})"
    version = mpi.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
    return f"{version} (mpi4py {mpi4py.__version__})"


def _isa_level(settings: Settings) -> str:
    able = cpu_levels()
    built = [level for level in isa_levels() if _catalogue_path(level).exists()]
    # A level that was asked for and cannot be had raises, as it would in a communicator.
    chosen = [level for level in select_levels(settings.isa, able) if level in built]
    return (
        f"{chosen[0] if chosen else 'none'} (this processor runs {', '.join(able)}; "
        f"built: {', '.join(built) or 'none'})"
    )


def _catalogue_path(level: str) -> Path:
    return Path(kernels.__file__).with_name(f"_catalogue_{level}.so")


def _shown(probe: Probe) -> str:
    return f"{'works' if probe.works else 'not available'} ({probe.detail})"


def _cache_usage(directory: Path) -> str:
    files = [path for path in directory.rglob("*") if path.is_file()] if directory.exists() else []
    size_bytes = 0
    for path in files:
        # Another process may be replacing an entry right now.
        with contextlib.suppress(FileNotFoundError):
            size_bytes += path.stat().st_size
    return f"{directory} ({len(files)} files, {size_bytes / 2**20:.1f} MiB)"
