"""Rates and times as people write them."""

from __future__ import annotations

import pytest

from cocoll.topology.units import (
    format_bits_per_second,
    format_bytes_per_second,
    format_nanoseconds,
    parse_rate,
    parse_time,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (1.25e9, 1_250_000_000),
        ("400mbit", 50_000_000),
        ("400 Mbit/s", 50_000_000),
        ("400Mb/s", 50_000_000),
        ("10gbit", 1_250_000_000),
        ("10 Gbps", 1_250_000_000),
        ("25 GB/s", 25_000_000_000),
        ("25GB", 25_000_000_000),
        ("1.5 TB/s", 1_500_000_000_000),
        ("1 GiB/s", 2**30),
        ("8Kib/s", 1024),
        ("64kbit", 8_000),
        ("8 bit", 1),
        ("3B/s", 3),
        ("1e3 MB/s", 10**9),
        (" 5 kB/s ", 5_000),
        (10**18, 10**18),
    ],
)
def test_rates(value: object, expected: int) -> None:
    assert parse_rate(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "fast", "", "400", "400 m", "mbit", "-1 GB/s", "1 GB/h", "1 XB/s", "1,5 GB/s", "0 GB/s",
        "1bit", "GB/s 1", 0, -5, True, None, [1], float("inf"), float("nan"), 10**18 + 1,
        0.2, "1e99 GB/s",
    ],
)  # fmt: skip
def test_no_rates(value: object) -> None:
    assert parse_rate(value) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (1e-9, 1),
        (3e-05, 30_000),
        (1, 10**9),
        (3600, 3600 * 10**9),
        ("30us", 30_000),
        ("1.5 us", 1_500),
        ("2 ms", 2_000_000),
        ("250ns", 250),
        ("0.5 s", 500_000_000),
        ("0 ns", 0),
    ],
)
def test_times(value: object, expected: int) -> None:
    assert parse_time(value) == expected


@pytest.mark.parametrize(
    "value", ["soon", "", "30", "-1 us", "1 h", "1us2", -1e-9, 3601, True, None, float("nan")]
)
def test_no_times(value: object) -> None:
    assert parse_time(value) is None


def test_formats() -> None:
    assert format_bytes_per_second(614_400_000_000) == "614.4 GB/s"
    assert format_bytes_per_second(3_350 * 10**9) == "3.35 TB/s"
    assert format_bytes_per_second(999) == "999 B/s"
    assert format_bits_per_second(50_000_000) == "400 Mbit/s"
    assert format_bits_per_second(1_250_000_000) == "10 Gbit/s"
    assert format_bits_per_second(1) == "8 bit/s"
    assert format_nanoseconds(0) == "0 ns"
    assert format_nanoseconds(999) == "999 ns"
    assert format_nanoseconds(1_500) == "1.5 us"
    assert format_nanoseconds(2_000_000_000) == "2 s"
