"""Programs that tests start as users would: as scripts, alone or under mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MPIRUN = Path(sys.executable).with_name("mpirun")


@dataclass(frozen=True)
class Ran:
    """What became of a program: its exit code (negative: a signal), its words, its time."""

    code: int
    out: str
    err: str
    seconds: float


def run_script(
    script: str,
    *arguments: str,
    launcher: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    limit_seconds: float = 250.0,
) -> Ran:
    """Run a Python script to its end.

    Parameters
    ----------
    script : str
        Its text; indentation that all lines share is taken off.
    *arguments : str
        Its arguments.
    launcher : sequence of str
        What comes before the interpreter's name: ``(MPIRUN, "-n", "2")``.
    environ : Mapping of str to str, optional
        Variables added to this process's own.
    limit_seconds : float, default 250
        A program that lives longer is killed, and the test fails.
    """
    command = [*map(str, launcher), sys.executable, "-c", textwrap.dedent(script), *arguments]
    started = time.monotonic()
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_seconds,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr, time.monotonic() - started)
