"""Sizes as people write them: ``8``, ``1KiB``, ``64MiB``."""

from __future__ import annotations

import re

__all__ = ["format_bytes", "parse_bytes"]

_UNITS_BYTES = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Give the bytes that `text` names.

    Parameters
    ----------
    text : str
        A number with B, KiB, MiB or GiB, or none for bytes; ``1.5MiB`` is allowed.

    Returns
    -------
    int
        Bytes, above zero.

    Raises
    ------
    ValueError
        `text` is no size, is zero, or is no whole number of bytes.
    """
    match = _PATTERN.fullmatch(text)
    unit_bytes = _UNITS_BYTES.get(match.group(2).upper()) if match else None
    if match is None or unit_bytes is None:
        raise ValueError(f"wanted a size such as 8, 32KiB, 16MiB or 1GiB; got {text!r}")
    size_bytes = float(match.group(1)) * unit_bytes
    if size_bytes < 1 or size_bytes != int(size_bytes):
        raise ValueError(f"wanted a whole number of bytes above zero; got {text!r}")
    return int(size_bytes)


def format_bytes(size_bytes: int) -> str:
    """Write `size_bytes` in the largest unit that divides it: ``format_bytes(1 << 20)`` is 1MiB."""
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= unit_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return f"{size_bytes}B"
