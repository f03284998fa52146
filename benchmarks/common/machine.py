"""Facts that every record carries: the machine, the commit, the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["commit_of", "describe_machine", "python_below"]


def describe_machine() -> str:
    """Name processor, CPUs in the affinity mask, kernel and memory in one line."""
    processor = os.uname().machine
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    memory_gib = 0.0
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            memory_gib = int(line.split()[1]) / (1 << 20)
            break
    cpus = len(os.sched_getaffinity(0))
    return f"{processor}, {cpus} CPUs, {memory_gib:.0f} GiB, Linux {os.uname().release}"


def python_below(directory: Path) -> str:
    """Give this interpreter's path, seen from `directory` where it lies below it."""
    executable = Path(sys.executable)
    below = executable.is_relative_to(directory)
    return os.path.relpath(executable, directory) if below else str(executable)


def commit_of(directory: Path) -> str | None:
    """Give the commit checked out in `directory`, with ``-dirty`` for uncommitted changes.

    Returns
    -------
    str or None
        None outside a Git work tree, or without Git.
    """
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()
