"""The suite of reshardings: what it predicts, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.common.reshard_cases import CASES
from benchmarks.suites import reshard
from cocoll.resharding.solvers import SOLVERS


def test_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    words = ["reshard", "--simulate", "--cases", "case4", "case7", "--sizes", "64MiB"]
    assert run.main([*words, "--json", str(path)]) == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert {record["case"] for record in records} == {"case4/64MiB", "case7/64MiB"}
    for case in ("case4", "case7"):
        mine = {
            record["implementation"]: record
            for record in records
            if record["case"].startswith(case)
        }
        # Of the exact one there may be no SciPy, or too many tasks.
        assert set(mine) | {"exact"} == set(SOLVERS)
        auto = mine["auto"]
        assert auto["memory"] == "simulated"
        assert auto["median_seconds"] <= 1.02 * auto["limit_seconds"]
        for record in mine.values():
            assert record["median_seconds"] == record["predicted_seconds"]
            assert record["results_equal"]
            assert record["fraction_of_limit"] <= 1
            assert "--simulate" in record["command"]
    assert mine["send_recv"]["ratio_to_fastest_peer"] < 1 / 6.9
    assert "reshard case7/64MiB, simulated: auto" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "wants --simulate, or a cluster"),
        (["--simulate", "--cases", "case0"], "case0"),
        (["--simulate", "--ranks", "4"], "has its own ranks"),
        (["--simulate", "--dtypes", "float32"], "has its own ranks"),
    ],
)
def test_options(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("COCOLL_CLUSTER", raising=False)
    with pytest.raises(SystemExit) as caught:
        run.main(["reshard", *words])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_all_cases_of_the_paper_are_there() -> None:
    assert [f"case{number}" for number in range(1, 10)] == list(CASES)[:9]
    assert reshard.NAME == "reshard"
