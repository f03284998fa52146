"""Where in the user's code an epilogue went wrong."""

from __future__ import annotations

import linecache
import sysconfig
from pathlib import Path
from types import TracebackType

__all__ = ["find_offending_place", "quote_line"]

_LIBRARY_ROOTS = (
    str(Path(__file__).parent),
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)


def find_offending_place(
    traceback: TracebackType | None, own_file: str
) -> tuple[str, int, str] | None:
    """Give file, line and function of the deepest frame that is the user's own."""
    place = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == own_file or not code.co_filename.startswith(_LIBRARY_ROOTS):
            place = (code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return place


def quote_line(message: str, filename: str, line_number: int, function: str) -> str:
    """Give a message with the place and the text of a line of source."""
    line = linecache.getline(filename, line_number).strip()
    quoted = line or "(its source is not available)"
    return f'{message}\n  File "{filename}", line {line_number}, in {function}\n    {quoted}'
