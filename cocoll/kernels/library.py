"""Kernel libraries in memory: their tables and the addresses of their kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cocoll.errors import KernelError

__all__ = ["Entry", "Kernel", "make_kernel", "read_table"]

_ABI_VERSION = 2
_TABLE_SYMBOL = "cocoll_kernel_table"


@dataclass(frozen=True)
class Kernel:
    """A kernel in memory.

    Parameters
    ----------
    reduce_address : int
        A ``cocoll_reduce_fn``.
    prepare_address : int
        A ``cocoll_prepare_fn``; 0 if the kernel reads the scalars of the call unchanged.
    derived_count : int
        How many doubles the kernel reads.
    origin : str
        ``"catalogue"``, ``"cache"`` or ``"compiled"``.
    isa : str
        The ISA level it is built for.
    """

    reduce_address: int
    prepare_address: int
    derived_count: int
    origin: Literal["catalogue", "cache", "compiled"]
    isa: str


class Entry(ctypes.Structure):
    """``cocoll_kernel_entry``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("reduce", ctypes.c_void_p),
        ("prepare", ctypes.c_void_p),
        ("derived_count", ctypes.c_int32),
    )


class _Table(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_int32),
        ("entry_count", ctypes.c_int32),
        ("entries", ctypes.POINTER(Entry)),
    )


def read_table(library: Path) -> dict[str, Entry]:
    """Load a kernel library for the rest of the process and give its entries by name."""
    try:
        table = _Table.in_dll(ctypes.CDLL(str(library)), _TABLE_SYMBOL)
    except (OSError, ValueError) as error:
        raise KernelError(f"{library} cannot be loaded: {error}") from error
    if table.abi_version != _ABI_VERSION:
        raise KernelError(
            f"{library} has kernel interface {table.abi_version}, this cocoll has {_ABI_VERSION}; "
            "reinstall cocoll"
        )
    return {table.entries[i].name.decode(): table.entries[i] for i in range(table.entry_count)}


def make_kernel(
    entry: Entry, origin: Literal["catalogue", "cache", "compiled"], isa: str
) -> Kernel:
    """Give a kernel for an entry of a library."""
    return Kernel(
        reduce_address=int(entry.reduce),
        prepare_address=int(entry.prepare or 0),
        derived_count=int(entry.derived_count),
        origin=origin,
        isa=isa,
    )
