"""The suite that predicts: its records, its picture, and what its command line refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.suites import scale


def test_predictions_are_written_one_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    words = ["scale", "--ranks", "8", "64", "--sizes", "1MiB", "--json", str(path)]
    assert run.main(words) == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["ranks"] for record in records] == [8, 64]
    assert [record["hosts"] for record in records] == [1, 8]
    for record in records:
        assert record["suite"] == "scale"
        assert record["bytes"] == 1 << 20
        assert 0 < record["limit_seconds"] <= record["predicted_seconds"]
        assert record["fraction_of_limit"] == pytest.approx(
            record["limit_seconds"] / record["predicted_seconds"]
        )
    # Of many equal hosts a rank or two stand for all.
    assert records[1]["simulated_ranks"] <= 8
    assert "64 ranks" in capsys.readouterr().out


@pytest.mark.long
def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "s.png"
    scale.draw([scale.predict(1 << 20, ranks) for ranks in (8, 16)], path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "12"], "multiples of 8, got 12"),
        (["--sizes", "6"], "whole float32 elements"),
        (["--dtypes", "bfloat16"], "float32 alone"),
        (["--peers", "gloo"], "has none"),
    ],
)
def test_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["scale", *words])
    assert message in capsys.readouterr().err


def test_the_default_reaches_65536_ranks() -> None:
    assert scale.DEFAULT_RANKS[0] == 8
    assert scale.DEFAULT_RANKS[-1] == 65_536
