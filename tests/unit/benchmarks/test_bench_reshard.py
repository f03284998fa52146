"""The suite of reshardings: what it predicts, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.common.reshard_cases import CASES, Entry, plan_case, plan_entries
from benchmarks.common.terminal import Progress
from benchmarks.suites import reshard
from cocoll.resharding import Layout
from cocoll.resharding.solvers import SOLVERS
from cocoll.topology import load_topology


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


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        # A host of five has a fifth of the rows; it needs a fifth of the columns, or everything.
        ("dtensor_S0_to_S1", 4 / 25),
        ("dtensor_S0_to_R", 4 / 5),
    ],
)
def test_cases_inside_one_mesh(name: str, lacking: float) -> None:
    case = CASES[name]
    assert (case.hosts, case.ranks) == (5, 20)
    topology = load_topology("p3.8xlarge:5")
    src, dst = case.meshes(topology)
    assert src == dst
    assert src.shape == (20,)
    nbytes = 4 * case.shape[0] * case.shape[1]
    assert nbytes == pytest.approx(64 << 20, rel=0.01)
    assert all(length % 20 == 0 for length in case.shape)
    # Rank 7 of Shard(0) has its twentieth of the rows, and of Shard(1) of the columns.
    rows, columns = case.shape[0] // 20, case.shape[1] // 20
    assert Layout(case.shape, src, "S0,R").box_of(7)[0] == (7 * rows, 8 * rows)
    assert Layout(case.shape, src, "R,S0").box_of(7)[1] == (7 * columns, 8 * columns)
    plan = plan_case(case, topology)
    # And a latency.
    assert plan.bound.nanoseconds == pytest.approx(lacking * nbytes / 1.25, rel=0.01)
    assert plan.gap <= 0.02


def test_one_mesh_takes_the_whole_cluster() -> None:
    case = CASES["dtensor_S0_to_R"].on_all_of(3, 2)
    assert (case.hosts, case.ranks) == (3, 6)
    sized = case.scaled(1 << 20)
    assert sized.dtype == "float32"
    assert all(length % 6 == 0 for length in sized.shape)
    assert 4 * sized.shape[0] * sized.shape[1] == pytest.approx(1 << 20, rel=0.1)
    # The command of a record has the size that came of it.
    assert sized.scaled(4 * sized.shape[0] * sized.shape[1]) == sized


@pytest.mark.parametrize(
    ("samples", "is_right", "status", "ratio", "word"),
    [
        ([4.0, 5.0, 6.0], True, 0, 2.5, "=> 2.50x dtensor"),
        ([4.0, 5.0, 6.0], False, 2, None, "dtensor 5 s ±10%"),
        ([], False, 2, None, "dtensor - does not run"),
    ],
)
def test_a_peer_beside_auto(
    samples: list[float], is_right: bool, status: int, ratio: float | None, word: str,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "d.json"
    options = run._parse(["reshard", "--simulate", "--json", str(path)])
    case = CASES["dtensor_S0_to_S1"]
    topology = load_topology("p3.8xlarge:5")
    entries = plan_entries(lambda solver: plan_case(case, topology, solver=solver), ("auto",))
    entries[0].samples = [1.0, 2.0, 2.0, 3.0]
    entries.append(Entry(["dtensor"], None, None, samples, is_right, "torch 2, gloo"))
    report = reshard._Report(options, Progress(has_steps=False))
    report.add(case, entries, 2.0)
    assert report.end() == status
    auto, peer = (json.loads(line) for line in path.read_text().splitlines())
    assert (auto["implementation"], peer["implementation"]) == ("auto", "dtensor")
    assert auto["median_seconds"] == 2.0
    assert (auto["q1_seconds"], auto["q3_seconds"]) == (1.75, 2.25)
    assert auto["ratio_to_fastest_peer"] == ratio
    assert auto["fastest_peer"] == (None if ratio is None else "dtensor")
    # The bound was planned for ports twice as fast.
    assert auto["limit_seconds"] == pytest.approx(2 * 0.008562, rel=0.01)
    assert peer["limit_seconds"] == auto["limit_seconds"]
    assert peer["version"] == "torch 2, gloo"
    assert peer["predicted_seconds"] is None
    assert peer["rounds"] == len(samples)
    assert peer["results_equal"] is is_right
    told = capsys.readouterr().out
    assert word in told
    assert "done in " in told
