"""Sizes as written on the command line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", 8),
        ("8B", 8),
        ("1KiB", 1024),
        ("32 kib", 32 << 10),
        ("1.5MiB", 3 << 19),
        ("64MiB", 64 << 20),
        ("2GiB", 2 << 30),
    ],
)
def test_parse(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "KiB", "1KB", "-8", "0", "1.3", "0.3KiB", "64 MiB 1", "x"])
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wanted"):
        parse_bytes(text)


@given(st.integers(min_value=1, max_value=1 << 40))
def test_round_trip(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == size_bytes
