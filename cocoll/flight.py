"""Reads the flight recorders of a running process, from outside: ``cocoll dump PID``.

Every rank keeps its last operations, and what it waits for, in shared memory; a process that hangs
need not help to have them read.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

from cocoll import _core
from cocoll.errors import UsageError
from cocoll.failure import describe_operation, describe_waits
from cocoll.waits import observe_process

__all__ = ["dump", "read_pages"]

# More than a control page has, of thousands of ranks.
_MAPPED_BYTES = 16 << 20


def read_pages(pid: int) -> list[dict[str, Any]]:
    """Read the control pages that a process has open.

    Parameters
    ----------
    pid : int
        A process of this user.

    Returns
    -------
    list of dict
        One per rank of each of its communicators; see `_core.inspect_control`.

    Raises
    ------
    UsageError
        There is no such process, or it is another user's.
    """
    folder = Path(f"/proc/{pid}/fd")
    try:
        names = sorted(folder.iterdir(), key=lambda path: int(path.name))
    except OSError as error:
        raise UsageError(f"cannot read process {pid}: {error}") from None
    pages: dict[int, dict[str, Any]] = {}
    for name in names:
        page = _read_page(name)
        if page is not None:
            inode, content = page
            pages[inode] = {**content, "process": observe_process(content["pid"])}
    return list(pages.values())


def _read_page(path: Path) -> tuple[int, dict[str, Any]] | None:
    try:
        if not str(path.readlink()).startswith("/memfd:cocoll"):
            return None
        with path.open("r+b") as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:
                return None
            length = min(_MAPPED_BYTES, status.st_size)
            with mmap.mmap(file.fileno(), length) as memory:
                view = ctypes.c_char.from_buffer(memory)
                content = _core.inspect_control(ctypes.addressof(view), length)
                del view
    except OSError:
        # The process closed the file, or ended, since it was listed.
        return None
    return None if content is None else (status.st_ino, content)


def dump(pid: int, *, operations: int = 8) -> str:
    """Describe what the ranks that a process shares memory with are doing.

    Parameters
    ----------
    pid : int
        A rank, of this user.
    operations : int, default 8
        How many of each rank's last operations to list.

    Returns
    -------
    str
        Who waits for whom, then the last operations of each rank.

    Raises
    ------
    UsageError
        The process does not exist, is another user's, or has no communicator.
    """
    pages = read_pages(pid)
    if not pages:
        raise UsageError(f"process {pid} has no communicator of cocoll")
    # A process may have several: no rank of one waits for a rank of another.
    groups: dict[int, list[dict[str, Any]]] = {}
    for page in sorted(pages, key=lambda page: int(page["rank"])):
        groups.setdefault(page["token"], []).append(page)
    lines = [describe_waits(group) for group in groups.values()]
    for page in (page for group in groups.values() for page in group):
        lines.append(f"rank {page['rank']} of {page['world_size']} (pid {page['pid']}):")
        lines += [
            f"  {entry['sequence']:>8} {entry['state']:<8} {describe_operation(entry['flight'])}"
            for entry in page["operations"][-operations:]
        ]
    return "\n".join(lines)
