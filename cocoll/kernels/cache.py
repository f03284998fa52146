"""The disk cache of compiled kernels.

An entry is a folder, made beside its place and renamed into it, so that a reader sees all of it or
nothing. It holds the library, its source for people, and a digest of the library; an entry whose
digest does not match is a miss. One process compiles an entry while others wait for its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

__all__ = ["KernelCache"]

_LIBRARY = "kernel.so"
_SOURCE = "kernel.cpp"
_DIGEST = "digest"


class KernelCache:
    """Compiled kernels in a folder that processes and users may share.

    Parameters
    ----------
    directory : Path
        The folder; made when the first entry is stored.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @staticmethod
    def digest(parts: Sequence[str | bytes]) -> str:
        """Give the key of all that a library depends on.

        Parameters
        ----------
        parts : sequence of str or bytes
            Compiler, options, sources.

        Returns
        -------
        str
            Different where any of them differs.
        """
        digest = hashlib.sha256()
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            digest.update(f"{len(data)}\n".encode())
            digest.update(data)
        return digest.hexdigest()

    def find(self, key: str) -> Path | None:
        """Give the library of an entry.

        Parameters
        ----------
        key : str
            The digest of everything that the library depends on.

        Returns
        -------
        Path or None
            None if there is no entry, or a damaged one.
        """
        entry = self._entry(key)
        try:
            wanted = (entry / _DIGEST).read_text(encoding="ascii")
            found = hashlib.sha256((entry / _LIBRARY).read_bytes()).hexdigest()
        except (OSError, UnicodeDecodeError):
            return None
        return entry / _LIBRARY if wanted == found else None

    def find_or_build(
        self, key: str, source: str, build: Callable[[Path, Path], None]
    ) -> tuple[Path, bool]:
        """Give the library of an entry, built by one process if there is none.

        Parameters
        ----------
        key : str
            The digest of everything that the library depends on.
        source : str
            The source, kept in the entry.
        build : callable
            Takes the path of the source and that of the library, and makes the library.

        Returns
        -------
        tuple of Path and bool
            The library, and whether this call built it.

        Raises
        ------
        OSError
            The folder cannot be written.
        """
        library = self.find(key)
        if library is not None:
            return library, False
        with self._lock(key):
            library = self.find(key)
            if library is not None:
                return library, False
            return self._store(key, source, build), True

    def _entry(self, key: str) -> Path:
        return self.directory / key[:2] / key

    @contextlib.contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        locks = self.directory / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        # A lock file stays: removing it would let two processes hold locks of one name.
        with (locks / key).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _store(self, key: str, source: str, build: Callable[[Path, Path], None]) -> Path:
        entry = self._entry(key)
        entry.parent.mkdir(parents=True, exist_ok=True)
        # We hold the lock: what another process left of this entry was left by its death.
        for leftover in entry.parent.glob(f".{key}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{key}-", dir=entry.parent) as made:
            work = Path(made) / "entry"
            work.mkdir()
            (work / _SOURCE).write_text(source, encoding="utf-8")
            build(work / _SOURCE, work / _LIBRARY)
            digest = hashlib.sha256((work / _LIBRARY).read_bytes()).hexdigest()
            (work / _DIGEST).write_text(digest, encoding="ascii")
            for path in (*work.iterdir(), work):
                _sync(path)
            if entry.exists():
                # Damaged, or `find` would have given it. Renaming it away keeps readers that have
                # it open unharmed.
                entry.rename(Path(made) / "damaged")
            work.rename(entry)
        _sync(entry.parent)
        return entry / _LIBRARY


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
