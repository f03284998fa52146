"""Facts about this host that decide which paths are open; each is tried, not guessed.

Containers, seccomp filters and kernel settings all take features away without any trace that could
be read, so the only honest answer comes from doing it once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Probe", "probe_cross_memory_attach", "probe_huge_pages"]

# <linux/mman.h>; Python's mmap module has no name for it.
MADV_COLLAPSE = 25
HUGE_PAGE_BYTES = 2**21
MAP_FIXED = 0x10
MAP_FAILED = ctypes.c_void_p(-1).value

# Run by a child, as one rank would read another's memory; prints what it read, or the reason.
_READER = """
import ctypes, os, sys
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
process, address, length = map(int, sys.argv[1:])
here = ctypes.create_string_buffer(length)
library = ctypes.CDLL(None, use_errno=True)
read = getattr(library, "process_vm_readv", None)
if read is None:
    sys.exit("the C library has no process_vm_readv")
read.restype = ctypes.c_ssize_t
read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong,
                 ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
local, remote = Piece(ctypes.addressof(here), length), Piece(address, length)
if read(process, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) != length:
    sys.exit(os.strerror(ctypes.get_errno()))
print(here.raw.hex())
"""


@dataclass(frozen=True)
class Probe:
    """Whether something works here, and what was seen.

    Parameters
    ----------
    works : bool
        Whether it did.
    detail : str
        The reason, or the circumstances.
    """

    works: bool
    detail: str


def probe_cross_memory_attach() -> Probe:
    """Let a child process read a few bytes of this one.

    Returns
    -------
    Probe
        Whether ``process_vm_readv`` is allowed between processes of this user.
    """
    secret = ctypes.create_string_buffer(os.urandom(16), 16)
    words = [str(os.getpid()), str(ctypes.addressof(secret)), str(len(secret))]
    child = subprocess.run(
        [sys.executable, "-I", "-c", _READER, *words], check=False, capture_output=True, text=True
    )
    if child.stdout.strip() == secret.raw.hex():
        return Probe(True, "a child process read this one")
    return Probe(False, (child.stderr.strip() or "no answer").splitlines()[-1])


def probe_huge_pages() -> Probe:
    """Collapse shared memory into one 2 MiB page.

    Returns
    -------
    Probe
        Whether the arena gets 2 MiB pages, with the kernel's transparent huge page modes.
    """
    modes = ", ".join(f"{name}={_mode(name)}" for name in ("enabled", "shmem_enabled"))
    try:
        _collapse_one_page()
    except OSError as error:
        return Probe(False, f"MADV_COLLAPSE: {os.strerror(error.errno or 0)}; {modes}")
    return Probe(True, f"MADV_COLLAPSE on shared memory; {modes}")


def _collapse_one_page() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    map_memory = library.mmap
    map_memory.restype = ctypes.c_void_p
    map_memory.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    descriptor = os.memfd_create("cocoll-probe")
    try:
        os.ftruncate(descriptor, HUGE_PAGE_BYTES)
        # A huge page needs an aligned address: reserve twice as much and map over the middle.
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        reserved = map_memory(None, 2 * HUGE_PAGE_BYTES, protection, anonymous, -1, 0)
        if reserved == MAP_FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        try:
            aligned = -(-reserved // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
            shared = mmap.MAP_SHARED | MAP_FIXED
            if map_memory(aligned, HUGE_PAGE_BYTES, protection, shared, descriptor, 0) != aligned:
                raise OSError(ctypes.get_errno(), "mmap")
            ctypes.memset(aligned, 0, HUGE_PAGE_BYTES)
            if library.madvise(aligned, HUGE_PAGE_BYTES, MADV_COLLAPSE) != 0:
                raise OSError(ctypes.get_errno(), "madvise")
        finally:
            library.munmap(reserved, 2 * HUGE_PAGE_BYTES)
    finally:
        os.close(descriptor)


def _mode(name: str) -> str:
    path = Path("/sys/kernel/mm/transparent_hugepage") / name
    try:
        match = re.search(r"\[(\w+)\]", path.read_text())
    except OSError:
        return "unknown"
    return match[1] if match else "unknown"
