"""What the terminal shows while something takes its time."""

from __future__ import annotations

import sys
from typing import TextIO

__all__ = ["ProgressBar"]

_WIDTH = 40


class ProgressBar:
    """A bar that grows on standard error; nothing where that is no terminal.

    Parameters
    ----------
    title : str
        What is being done.
    stream : file, optional
        Where to show it. Default: standard error, so that output can be redirected.
    """

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self._shown = 0

    def show(self, done: int, total: int) -> None:
        """Show how much is done; when all is, the line is wiped."""
        if not self._stream.isatty():
            return
        line = ""
        if done < total:
            filled = _WIDTH * done // total
            line = f"{self._title} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total}"
        self._stream.write(f"\r{line.ljust(self._shown)}{'' if line else chr(13)}")
        self._stream.flush()
        self._shown = len(line)
