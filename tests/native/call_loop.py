"""The command that times "the same call from C": what a benchmark compares a bound call with."""

from __future__ import annotations

from pathlib import Path

from tests.native import building

__all__ = ["build_command"]


def build_command(ranks: int, calls: int, *, kernel: tuple[Path, str] | None = None) -> list[str]:
    """Build ``call_loop`` with the options of ``_core``, and give the command that runs it.

    The program starts all ranks itself, pins each to a core of its own if there are enough, runs
    an 8-byte float32 all-reduce in place over the inline plan, and prints one JSON object: ranks,
    calls, bytes, median_nanoseconds, q1_nanoseconds, q3_nanoseconds (of rank 0, one reading of the
    clock a call included), pinned.

    Parameters
    ----------
    ranks : int
        How many processes; 1 to 64.
    calls : int
        How many calls are timed.
    kernel : tuple of Path and str, optional
        A library of kernels and a name in its table. Default: the one of the installed catalogue
        that `cocoll.allreduce` would run here, or a kernel compiled into the program where there is
        no catalogue.

    Returns
    -------
    list of str
        Program and arguments.

    Raises
    ------
    BuildError
        The compiler refuses, or there is none.
    """
    program = building.build_plain(building.NATIVE / "call_loop.cpp", building.core_options())
    prefix = building.inline_plans(ranks)
    command = [str(program), "--ranks", str(ranks), "--calls", str(calls)]
    command += ["--plan-prefix", str(prefix)]
    kernel = kernel or building.catalogue_kernel()
    if kernel is not None:
        command += ["--kernel", str(kernel[0]), kernel[1]]
    return command
