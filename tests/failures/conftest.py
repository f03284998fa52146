"""Nothing of cocoll's may stay behind: compared before and after every test."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.leftovers import MARK, wait_for_end


def shared_files() -> set[str]:
    """Give what lies in shared memory under the name of cocoll."""
    return {path.name for path in Path("/dev/shm").iterdir() if "cocoll" in path.name}


def open_files() -> list[str]:
    """Give the shared memory that this process has open."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(path.readlink()))
        except OSError:
            # The listing's own descriptor.
            continue
    return sorted(name for name in found if "cocoll" in name)


@pytest.fixture(scope="session", autouse=True)
def _resource_tracker() -> None:
    # A process that multiprocessing starts once and keeps for as long as the tests run.
    multiprocessing.resource_tracker.ensure_running()


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Short, for the path of a Unix socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="ck"))
    mark = uuid.uuid4().hex
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv(MARK, mark)
    before = shared_files(), open_files()
    yield
    names = wait_for_end(mark)
    for pid in names:
        os.kill(pid, 9)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*cocoll*"))
    shutil.rmtree(folder)
    assert not names, f"processes are left: {names}"
    assert not files, f"temporary files are left: {files}"
    assert (shared_files(), open_files()) == before
