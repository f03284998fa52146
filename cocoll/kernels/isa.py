"""Instruction-set levels: which there are, which this CPU has, and their compiler options.

The levels of x86-64 are those of its psABI, written out feature by feature, as compilers before GCC
11 do not know the level names. Each level is built of plain IEEE operations only, so all give the
same bits.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

from cocoll.errors import UnsupportedError, UsageError

__all__ = ["compile_options", "cpu_levels", "isa_levels", "select_levels"]

# What has no effect on values is switched off (errno, traps); a fused multiply-add would round
# once where other levels round twice.
_COMMON_OPTIONS = (
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fPIC",
)
_V2 = ("-msse4.2", "-mpopcnt")
_V3 = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mmovbe", "-mpopcnt")
_V4 = (*_V3, "-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl")
_OPTIONS = {"v2": _V2, "v3": _V3, "v4": _V4, "armv8": ()}
_X86_LEVELS = ("v2", "v3", "v4")
# The names under which Linux lists what a level needs.
_CPU_FLAGS = {
    "v2": {"sse4_2", "ssse3", "popcnt"},
    "v3": {"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"},
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}


def isa_levels(machine: str | None = None) -> tuple[str, ...]:
    """Give the levels of an architecture, lowest first.

    Parameters
    ----------
    machine : str, optional
        As in ``platform.machine()``; this machine's if not given.

    Returns
    -------
    tuple of str
        Names such as ``"v3"``.

    Raises
    ------
    UnsupportedError
        cocoll has no kernels for the architecture.
    """
    machine = machine or platform.machine()
    if machine in ("x86_64", "AMD64"):
        return _X86_LEVELS
    if machine in ("aarch64", "arm64"):
        return ("armv8",)
    raise UnsupportedError(f"cocoll has kernels for x86-64 and aarch64, not for {machine}")


def compile_options(isa: str) -> list[str]:
    """Give the compiler options of a level, without the include path and the output.

    Parameters
    ----------
    isa : str
        A level of any architecture.

    Returns
    -------
    list of str
        Options for g++ and clang++.

    Raises
    ------
    UsageError
        There is no such level.
    """
    if isa not in _OPTIONS:
        raise UsageError(f"wanted an ISA level out of {', '.join(_OPTIONS)}; got {isa!r}")
    return [*_COMMON_OPTIONS, *_OPTIONS[isa]]


def cpu_levels(cpuinfo: str | None = None) -> tuple[str, ...]:
    """Give the levels that this CPU and its kernel can run, lowest first.

    Parameters
    ----------
    cpuinfo : str, optional
        Text to read in place of ``/proc/cpuinfo``.

    Returns
    -------
    tuple of str
        At least one level.

    Raises
    ------
    UnsupportedError
        The CPU lacks what the lowest level needs.
    """
    levels = isa_levels()
    if levels != _X86_LEVELS:
        return levels
    flags = _cpu_flags() if cpuinfo is None else _parse_flags(cpuinfo.splitlines())
    able: list[str] = []
    for level in levels:
        if not flags >= _CPU_FLAGS[level]:
            break
        able.append(level)
    if not able:
        missing = ", ".join(sorted(_CPU_FLAGS[levels[0]] - flags))
        raise UnsupportedError(f"cocoll's kernels need the CPU features {missing}")
    return tuple(able)


def _cpu_flags() -> set[str]:
    # Only the first processor is read: a large machine lists hundreds, all alike.
    with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
        return _parse_flags(lines)


def _parse_flags(lines: Iterable[str]) -> set[str]:
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return set(value.split())
    return set()


def select_levels(wanted: str | None, able: tuple[str, ...]) -> tuple[str, ...]:
    """Give the levels to look for kernels of, best first.

    Parameters
    ----------
    wanted : str or None
        The level that the user asks for; None for the best.
    able : tuple of str
        What the CPU can run.

    Returns
    -------
    tuple of str
        One level if it was asked for, else all that the CPU has.

    Raises
    ------
    UnsupportedError
        The CPU cannot run the level asked for.
    """
    if wanted is None:
        return able[::-1]
    if wanted not in able:
        raise UnsupportedError(
            f"COCOLL_ISA: wanted a level that this CPU has, out of {', '.join(able)}; "
            f"got {wanted!r}"
        )
    return (wanted,)
