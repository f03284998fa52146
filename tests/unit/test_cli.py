"""The command: what it understands, what it refuses, and that a wrong result is not passed over."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

import cocoll
from cocoll import cli
from cocoll.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", 8),
        ("8B", 8),
        ("32KiB", 32768),
        ("1.5 MiB", 1572864),
        ("64mib", 64 * 2**20),
        ("2GiB", 2**31),
    ],
)
def test_parse_bytes(text: str, expected: int) -> None:
    assert cli.parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "KiB", "8x", "1.3", "-1", "1e3", "8 8", "32KB"])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(text))):
        cli.parse_bytes(text)


def test_info(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOLL_TIMEOUT_SECONDS", "12")
    assert cli.main(["info"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^cocoll +{re.escape(cocoll.__version__)}$", shown, re.MULTILINE)
    for part in ("Python", "NumPy", "MPI", "ISA level", "cross-memory attach", "huge pages"):
        assert re.search(rf"^{part}  +\S", shown, re.MULTILINE), part
    assert re.search(r"COCOLL_TIMEOUT_SECONDS +12 +\(environment\)", shown)


def test_info_refuses_a_bad_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOLL_LOG", "loud")
    assert cli.main(["info"]) == cli.EXIT_USAGE
    assert "COCOLL_LOG" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--in-place"],
        ["--memory", "ordinary"],
        ["--memory", "ordinary", "--in-place"],
        ["--dtype", "uint8"],
        ["--dtype", "float16", "--in-place"],
        ["--fused"],
        ["--fused", "--memory", "ordinary"],
    ],
)
def test_bench_on_one_rank(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    words = ["bench", "allreduce", "--sizes", "8,1KiB,100KiB", "--iterations", "2", *options]
    assert cli.main(words) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.endswith("ok")]
    assert [int(row[0]) for row in rows] == [8, 1024, 102400]
    assert {float(row[4]) for row in rows} == {0.0}  # one rank: nothing crosses a bus


@pytest.mark.parametrize(
    "words",
    [
        ["--sizes", "8x"],
        ["--iterations", "0"],
        ["--fused", "--dtype", "float64"],
    ],
)
def test_bench_refuses(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert cli.main(["bench", "allreduce", *words]) == cli.EXIT_USAGE
    assert "wanted" in capsys.readouterr().err


def test_a_wrong_result_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cocoll.allreduce

    def damaged(x: np.ndarray, *arguments: object, **options: object) -> object:
        work = real(x, *arguments, **options)
        out = options.get("out")
        if isinstance(out, np.ndarray):
            out[-1] += 1
        return work

    monkeypatch.setattr(cocoll, "allreduce", damaged)
    words = ["bench", "allreduce", "--sizes", "64", "--iterations", "1"]
    assert cli.main(words) == cli.EXIT_FAILED
    assert "WRONG" in capsys.readouterr().out


def test_dump_shows_the_ranks_of_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    with cocoll.init() as comm:
        comm.barrier()
        assert cli.main(["dump", str(os.getpid())]) == 0
    assert f"rank 0 of 1 (pid {os.getpid()})" in capsys.readouterr().out


def test_dump_refuses_a_process_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dump", str(2**22 + 1)]) == cli.EXIT_USAGE
    assert str(2**22 + 1) in capsys.readouterr().err
