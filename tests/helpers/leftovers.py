"""What a test has left behind: processes, known by a variable that only it has set."""

from __future__ import annotations

import os
import time
from pathlib import Path

MARK = "COCOLL_TEST_MARK"


def marked_processes(mark: str) -> set[int]:
    """Give the processes that a test has started, directly or not, except itself."""
    found = set()
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:
            # It ended while it was looked at, or is another user's.
            continue
    return found


def wait_for_end(mark: str, limit_seconds: float = 10.0) -> dict[int, bytes]:
    """Wait until the test's processes have ended; give the command lines of those that do not."""
    deadline = time.monotonic() + limit_seconds
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left}
