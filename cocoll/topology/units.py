"""Rates and latencies as people write them, to and from whole numbers."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = [
    "RATE_FORMS",
    "TIME_FORMS",
    "format_bits_per_second",
    "format_bytes_per_second",
    "format_nanoseconds",
    "parse_rate",
    "parse_time",
]

#: What `parse_rate` and `parse_time` take, for messages.
RATE_FORMS = 'a number above 0 (bytes per second), or a text like "400mbit", "25 GB/s"'
TIME_FORMS = 'a number from 0 to 3600 (seconds), or a text like "30 us", "250ns"'

_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d{1,2})?)"
_RATE = re.compile(rf"{_NUMBER}\s*([kKmMgGtT]i?)?(bit|b|B)(?:/s|ps)?")
_TIME = re.compile(rf"{_NUMBER}\s*(ns|us|ms|s)")
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}

_MOST_BYTES_PER_SECOND = 10**18
_MOST_NANOSECONDS = 3600 * 10**9


def parse_rate(value: object) -> int | None:
    """Give the bytes per second that a rate means.

    Parameters
    ----------
    value : object
        A number of bytes per second, or a text: a number, a prefix (k, M, G, T are powers of
        1000 in either case, Ki, Mi, Gi, Ti of 1024), ``bit`` or ``b`` for bits or ``B`` for bytes,
        and ``/s``, ``ps`` or nothing.

    Returns
    -------
    int or None
        Rounded to whole bytes; None where it is no rate, or none from 1 to 10**18.
    """
    if isinstance(value, str):
        match = _RATE.fullmatch(value.strip())
        if not match:
            return None
        scale = {**_DECIMAL, **_BINARY}[(match[2] or "").lower()]
        exact = Fraction(match[1]) * scale / (1 if match[3] == "B" else 8)
    else:
        number = _exact(value)
        if number is None:
            return None
        exact = number
    rate = round(exact)
    return rate if 1 <= rate <= _MOST_BYTES_PER_SECOND else None


def parse_time(value: object) -> int | None:
    """Give the nanoseconds that a time means.

    Parameters
    ----------
    value : object
        A number of seconds, or a text: a number with ns, us, ms or s.

    Returns
    -------
    int or None
        Rounded to whole nanoseconds; None where it is no time, or none from 0 to an hour.
    """
    if isinstance(value, str):
        match = _TIME.fullmatch(value.strip())
        if not match:
            return None
        exact = Fraction(match[1]) * _NANOSECONDS[match[2]]
    else:
        number = _exact(value)
        if number is None:
            return None
        exact = number * 10**9
    return round(exact) if 0 <= exact <= _MOST_NANOSECONDS else None


def _exact(value: object) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return Fraction(value)
    except (OverflowError, ValueError):  # infinite, or not a number
        return None


def format_bytes_per_second(rate: int) -> str:
    """Write a rate of memory: ``"25 GB/s"``."""
    return _scaled(Fraction(rate), "B/s")


def format_bits_per_second(rate: int) -> str:
    """Write a rate of a network, given in bytes per second: ``"400 Mbit/s"``."""
    return _scaled(Fraction(rate * 8), "bit/s")


def format_nanoseconds(time: int) -> str:
    """Write a latency: ``"1.5 us"``."""
    for unit in ("s", "ms", "us"):
        if time >= _NANOSECONDS[unit]:
            return f"{float(Fraction(time, _NANOSECONDS[unit])):.4g} {unit}"
    return f"{time} ns"


def _scaled(number: Fraction, unit: str) -> str:
    for prefix in ("T", "G", "M", "k"):
        scale = _DECIMAL[prefix.lower()]
        if number >= scale:
            return f"{float(number / scale):.4g} {prefix}{unit}"
    return f"{int(number)} {unit}"
