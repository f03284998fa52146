"""The driver with fake jobs: interleaving, wrong results, ranks that fail, nothing left behind."""

import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.common.cases import Entry, Group, View
from benchmarks.common.driver import Settings, _spans, measure_group
from benchmarks.common.jobs import Job
from benchmarks.common.records import make_records, missing_peers
from benchmarks.common.samples import FAR, MIXED, NEAR, Sample
from benchmarks.common.streams import FORMS, allreduce
from benchmarks.common.suite import External
from benchmarks.common.tracks import GroupResult, Track, hopeless
from benchmarks.common.turns import Listener, TurnError
from benchmarks.peers.launch import JobSpec

_SPAWN = str(Path(__file__).parents[3] / "benchmarks" / "peers" / "spawn.py")
_HERE = str(Path(__file__).parent)

Make = Callable[..., Job]


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def make_job(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    jobs: list[Job] = []
    descriptors: list[int] = []
    monkeypatch.setattr("benchmarks.common.jobs._START_SECONDS", 60.0)

    def make(name: str, *, fault: str = "", ranks: int = 2) -> Job:
        descriptors.append(os.memfd_create(name))
        environment = {
            "FAKE_FAULT": fault,
            "FAKE_MEMORY": f"/proc/{os.getpid()}/fd/{descriptors[-1]}",
            # base_environment() takes PYTHONPATH away, what a job adds itself stays
            "PYTHONPATH": _HERE,
        }
        spec = JobSpec(
            name,
            "",
            "fake_runner:FakeRunner",
            (sys.executable, _SPAWN, "-n", str(ranks), "--", sys.executable),
            environment,
        )
        job = Job(spec, ranks, listener)
        jobs.append(job)
        job.start()
        return job

    yield make
    for job in jobs:
        job.stop(ask=False)
    for descriptor in descriptors:
        os.close(descriptor)


def _group(operation: str = "allreduce", **changes: object) -> Group:
    fields = {
        "suite": "fake",
        "operation": operation,
        "dtype": "float32",
        "ranks": 2,
        "elements": 1 << 13,
        **changes,
    }
    return Group(**fields)  # type: ignore[arg-type]


def _measure(group: Group, jobs: list[Job], rounds: int = 2, **more: object) -> GroupResult:
    steps: list[str] = []
    return measure_group(
        group,
        jobs,
        more.get("limits", []),  # type: ignore[arg-type]
        more.get("externals", []),  # type: ignore[arg-type]
        # A slow machine must not sit a round out.
        Settings(rounds=rounds, budget_seconds=float(more.get("budget_seconds", math.inf))),  # type: ignore[arg-type]
        steps.append,
    )


def test_every_form_is_sampled_once_a_round(make_job: Make) -> None:
    limits = [allreduce("limit:in_place", 2, 4, in_place=True)]
    result = _measure(_group(), [make_job("fake")], rounds=2, limits=limits)
    assert not result.failures
    forms = [track.entry.form for track in result.tracks]
    assert forms == [
        "in_place",
        "out_of_place",
        *(f"limit:in_place/{form}" for form in FORMS),
    ]
    for track in result.tracks:
        assert track.wrong is None
        assert len(track.samples) == 2
        for sample in track.samples:
            assert sample.seconds > 0
            assert sample.rewrite_seconds is not None
            assert sample.state in (NEAR, FAR)
    assert result.results_equal("fake")


def test_back_to_back_loops(make_job: Make) -> None:
    result = _measure(_group(elements=2, calls_per_sample=0), [make_job("fake")], rounds=1)
    assert not result.failures
    for track in result.tracks:
        assert track.calls > 1
        assert track.samples[0].rewrite_seconds is None


def test_other_rank_counts_have_no_state(make_job: Make) -> None:
    result = _measure(_group(ranks=3), [make_job("fake", ranks=3)], rounds=1)
    assert {s.state for track in result.tracks for s in track.samples} == {MIXED}


@pytest.mark.parametrize("fault", ["wrong_sum", "other_bits"])
def test_wrong_sums_are_not_timed(make_job: Make, fault: str) -> None:
    result = _measure(_group(), [make_job("fake", fault=fault)])
    assert all(track.wrong for track in result.tracks)
    assert not any(track.samples for track in result.tracks)
    assert not result.results_equal("fake")


def test_a_right_step_is_timed_and_a_wrong_one_is_not(make_job: Make) -> None:
    group = _group("allreduce_fused")
    right = _measure(group, [make_job("fake")], rounds=1)
    assert right.results_equal("fake")
    assert right.tracks[0].samples
    wrong = _measure(group, [make_job("faulty", fault="wrong_rate")], rounds=1)
    assert not wrong.results_equal("fake")
    assert wrong.tracks[0].wrong is not None


@pytest.mark.parametrize(
    ("fault", "message"),
    [pytest.param("raises", "planted", marks=pytest.mark.long), ("dies", "gone")],
)
def test_a_job_that_fails_does_not_stop_the_others(
    make_job: Make, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    good, bad = make_job("good"), make_job("bad", fault=fault)
    result = _measure(_group(), [bad, good])
    assert message in result.failures["bad"]
    assert "good" not in result.failures
    assert not bad.is_running
    assert good.is_running
    assert all(t.samples for t in result.tracks if t.job == "good")


def test_a_rank_that_does_not_start_is_reported_with_its_output(make_job: Make) -> None:
    with pytest.raises(TurnError, match="this rank does not report"):
        make_job("fake", fault="no_report")


def _descends(pid: int) -> bool:
    """Whether a process comes from this one: other tests may run beside it, with jobs of theirs."""
    while pid not in (0, 1, os.getpid()):
        fields = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
        pid = int(fields[1]) if fields else 0
    return pid == os.getpid()


def test_jobs_end_with_all_their_processes(make_job: Make) -> None:
    job = make_job("fake")
    pids = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"fake_runner:FakeRunner" in _read(path) and _descends(int(path.parent.name))
    ]
    assert len(pids) == 3  # the launcher and two ranks
    job.stop()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_programs_that_time_themselves(make_job: Make) -> None:
    answer = 'print(\'{"median_nanoseconds": 200, "one_way_nanoseconds": 40}\')'
    externals = [
        External("c_loop", "yardstick", (sys.executable, "-c", answer)),
        External("broken", "yardstick", (sys.executable, "-c", "print('no JSON')")),
    ]
    result = _measure(_group(), [make_job("fake")], rounds=2, externals=externals)
    best = result.best("c_loop", "yardstick", NEAR)
    assert best is not None
    assert best.summary.median_seconds == pytest.approx(2e-7)
    assert best.summary.rounds == 2
    assert "broken" in result.failures


def _result(**seconds: list[tuple[str, str, float, str]]) -> GroupResult:
    """Make a result: implementation to (row, form, seconds, state) samples."""
    result = GroupResult(_group())
    for implementation, samples in seconds.items():
        tracks: dict[tuple[str, str], Track] = {}
        for row, form, value, state in samples:
            entry = Entry(form, implementation, row)
            track = tracks.setdefault((row, form), Track(implementation, entry))
            track.samples.append(Sample(value, None, state))
        result.tracks += tracks.values()
    return result


def _view(peers: tuple[str, ...]) -> View:
    return View("c", "symmetric", "sym", "limit:x", peers)


def test_ratio_is_taken_in_each_state_against_the_fastest_peer_there(context: object) -> None:
    result = _result(
        cocoll=[("sym", "s", 1.0, NEAR), ("sym", "s", 2.0, FAR)],
        a=[("peer", "in", 3.0, NEAR), ("peer", "in", 9.0, FAR), ("peer", "out", 2.0, NEAR)],
        b=[("peer", "in", 4.0, NEAR), ("peer", "in", 5.0, FAR)],
        limit=[("limit:x", "cached", 0.9, NEAR), ("limit:x", "streaming", 0.8, NEAR)],
    )
    records = {
        (r.implementation, r.state): r
        for r in make_records(result, _view(("a", "b")), context)  # type: ignore[arg-type]
    }
    near, far = records["cocoll", NEAR], records["cocoll", FAR]
    assert (near.fastest_peer, near.ratio_to_fastest_peer) == ("a", 2.0)
    assert (far.fastest_peer, far.ratio_to_fastest_peer) == ("b", 2.5)
    assert near.limit_seconds == 0.8
    assert near.fraction_of_limit == pytest.approx(0.8)
    assert far.limit_seconds is None
    assert records["b", NEAR].ratio_to_fastest_peer == 0.5


def test_no_ratio_unless_every_peer_ran_with_equal_results(context: object) -> None:
    result = _result(cocoll=[("sym", "s", 1.0, NEAR)], a=[("peer", "in", 3.0, NEAR)])
    complete = make_records(result, _view(("a",)), context)  # type: ignore[arg-type]
    assert complete[0].ratio_to_fastest_peer == 3.0
    absent = make_records(result, _view(("a", "b")), context)  # type: ignore[arg-type]
    assert {r.ratio_to_fastest_peer for r in absent} == {None}
    (missing,) = [r for r in absent if r.implementation == "b"]
    assert (missing.median_seconds, missing.rounds, missing.results_equal) == (None, 0, False)
    result.tracks[1].wrong = "planted"
    assert missing_peers(result, _view(("a",))) == ["a"]
    result.tracks[1].wrong = None
    result.failures["a"] = "planted"
    assert missing_peers(result, _view(("a",))) == ["a"]


def test_no_limit_below_32_kib(context: object) -> None:
    result = _result(cocoll=[("sym", "s", 1.0, NEAR)], limit=[("limit:x", "cached", 0.5, NEAR)])
    result.group = _group(elements=1 << 10)
    records = make_records(result, _view(()), context)  # type: ignore[arg-type]
    assert records[0].limit_seconds is None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_spans_count_from_the_first_start_to_the_last_end() -> None:
    early = {"start": [10.0, 20.0], "seconds": [1.0, 0.5]}
    late = {"start": [10.5, 20.0], "seconds": [1.0, 0.7]}
    assert _spans([early, late]) == pytest.approx([1.5, 0.7])


def _track(row: str, form: str, seconds: list[float], implementation: str = "a") -> Track:
    track = Track("job", Entry(form, implementation, row))
    track.samples = [Sample(value, None, NEAR) for value in seconds]
    return track


def test_forms_that_never_come_near_the_best_are_left_out() -> None:
    best = _track("peer", "in", [1.0, 1.1, 5.0])  # median 1.1: the limit is 1.43
    lucky = _track("peer", "out", [1.4, 9.0, 9.0])
    far = _track("peer", "half", [1.5, 1.5, 1.5])
    other_row = _track("yardstick", "alone", [7.0])
    other_implementation = _track("peer", "in", [7.0], "b")
    wrong = _track("peer", "wrong", [])
    tracks = [best, lucky, far, other_row, other_implementation, wrong]
    assert hopeless(tracks) == [far]


def test_a_form_that_is_left_out_is_not_sampled_again(
    make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "benchmarks.common.driver.hopeless",
        lambda tracks: [track for track in tracks if track.entry.form == "out_of_place"],
    )
    result = _measure(_group(), [make_job("fake")], rounds=5)
    assert [len(track.samples) for track in result.tracks] == [5, 3]


def test_a_peer_that_has_used_up_its_budget_sits_out_the_rounds_after_the_trial(
    make_job: Make,
) -> None:
    result = _measure(_group(), [make_job("fake")], rounds=5, budget_seconds=0.0)
    assert [len(track.samples) for track in result.tracks] == [3, 3]
