"""What commands have in common: sizes as people write them, and exit statuses."""

from __future__ import annotations

import re

from cocoll.errors import UsageError

__all__ = ["EXIT_FAILED", "EXIT_USAGE", "parse_bytes"]

#: A check or an operation failed.
EXIT_FAILED = 1
#: A mistake of the caller.
EXIT_USAGE = 2

UNITS_BYTES = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(text: str) -> int:
    """Give the number of bytes that a size like ``"64"``, ``"32KiB"`` or ``"1.5MiB"`` means.

    Parameters
    ----------
    text : str
        A number with no unit, B, KiB, MiB or GiB.

    Returns
    -------
    int
        The size, in bytes.

    Raises
    ------
    UsageError
        It is not a size, or not a whole number of bytes.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = UNITS_BYTES.get(match[2].upper()) if match else None
    size = float(match[1]) * unit if match and unit else -1.0
    if size < 0 or size != int(size):
        raise UsageError(f"wanted a size like 8, 32KiB or 16MiB; got {text!r}")
    return int(size)
