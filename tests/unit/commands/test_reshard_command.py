"""``cocoll plan reshard``: what it prints and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cocoll import cli
from cocoll.commands import resharding_plans
from cocoll.resharding.solvers import SOLVERS

WORDS = ["plan", "reshard", "--shape", "1024,1024,512", "--topology", "p3.8xlarge:4"]
CASE3 = ["--src", "2x4:R,S0,R", "--dst", "2x4:S0,R,R"]


@pytest.fixture(autouse=True)
def _without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    # SciPy takes a second to import.
    monkeypatch.setattr(
        resharding_plans, "SOLVERS", {name: SOLVERS[name] for name in SOLVERS if name != "exact"}
    )


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*WORDS, *CASE3]) == 0
    shown = capsys.readouterr().out
    assert "4 unit tasks of 2147483648 bytes on p3.8xlarge:4" in shown
    assert "[0:512,512:1024,0:512] 536870912 bytes, from 4-7 to 8-11" in shown
    assert (
        "lower bound 859.023 ms (1073741824 bytes: what host h2 lacks, through its NICs)" in shown
    )
    gaps = dict(re.findall(r"^(\S+)(?:: \S+)? +[\d.]+ ms +([\d.]+)%", shown, re.MULTILINE))
    assert float(gaps["auto"]) < 2
    assert float(gaps["load_balance"]) == pytest.approx(50, abs=1)
    assert float(gaps["send_recv"]) == pytest.approx(300, abs=1)


def test_json_and_overlapping_meshes(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, *CASE3, "--dst-first-rank", "4", "--json", "--solver", "relay"]
    assert cli.main(words) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [task["keepers"] for task in shown["tasks"]] == [[], [4, 5, 6, 7], [], []]
    assert shown["schedule"]["solver"] == "relay"
    assert shown["solvers"]["auto"]["makespan_nanoseconds"] >= shown["bound_nanoseconds"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--src", "2x4", "--dst", "2x4:R,R,R"], "--src: wanted MESH:SPEC"),
        (["--src", "2y4:R,R,R", "--dst", "2x4:R,R,R"], "--src: wanted numbers with 'x'"),
        (
            ["--src", "2x4:R,S2,R", "--dst", "2x4:R,R,R"],
            "src: spec R,S2,R, dim 1: there is no mesh",
        ),
        (["--src", "2x4:R,R", "--dst", "2x4:R,R,R"], "wanted a spec for the 3 dims"),
        (["--src", "2x4:R,R,R", "--dst", "4x4:R,R,R"], "which has 16; got rank 23"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*WORDS, *words]) == 2
    assert message in capsys.readouterr().err


def test_the_schedule_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "schedule.png"
    assert cli.main([*WORDS, *CASE3, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    # What is there already needs no schedule.
    same = ["--src", "2x4:S0,R,R", "--dst", "2x4:S0,R,R", "--dst-first-rank", "0"]
    assert cli.main([*WORDS, *same, "--plot", str(path)]) == 2
    assert "nothing moves" in capsys.readouterr().err
