"""The JSON's fields, the terminal's lines, the picture's curves, the command line."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.common import plotting, terminal
from benchmarks.common.cases import Entry, Group, View
from benchmarks.common.records import FIELDS, Context, Record, make_records, too_fast
from benchmarks.common.samples import FAR, NEAR, Sample
from benchmarks.common.tracks import GroupResult, Track
from benchmarks.peers import launch
from benchmarks.suites import SUITES, call_overhead

_ROOT = Path(__file__).resolve().parents[3]

_WANTED_FIELDS = """
suite case operation dtype ranks hosts elements bytes memory implementation median_seconds
q1_seconds q3_seconds rounds limit_seconds fraction_of_limit fastest_peer ratio_to_fastest_peer
state rewrite_seconds results_equal command commit machine
""".split()  # noqa: SIM905 - as the design writes them


def _record(context: Context) -> Record:
    group = Group("allreduce", "allreduce", "float32", 2, 1 << 18)
    result = GroupResult(group)
    for implementation, row, seconds in (("cocoll", "sym", 1e-4), ("a", "peer", 3e-4)):
        track = Track(implementation, Entry("f", implementation, row))
        track.samples = [Sample(seconds, 1e-5, NEAR)] * 6
        result.tracks.append(track)
    return make_records(result, View("1MiB/x", "symmetric", "sym", None, ("a",)), context)[0]


def test_fields_are_the_agreed_ones(context: Context) -> None:
    assert list(FIELDS) == _WANTED_FIELDS
    fields = json.loads(json.dumps(_record(context).to_json()))
    assert list(fields) == _WANTED_FIELDS
    assert fields["bytes"] == 1 << 20
    assert fields["ratio_to_fastest_peer"] == pytest.approx(3.0)
    assert "--ranks 2 --sizes 1MiB" in fields["command"]


def test_a_limit_that_is_beaten_fails_the_run(context: Context) -> None:
    record = replace(_record(context), fraction_of_limit=1.06)
    assert too_fast([record]) == [record]
    assert not too_fast([replace(record, fraction_of_limit=1.05)])
    assert not too_fast([replace(record, rounds=4)])
    assert not too_fast([replace(record, implementation="mpich")])


def test_case_line_holds_medians_rounds_and_ratio(context: Context) -> None:
    record = _record(context)
    peer = replace(record, implementation="a", median_seconds=3e-4)
    (line,) = terminal.case_lines([record, peer])
    for part in ("near", "6 rounds", "cocoll 100 us", "rewrite 10 us", "a 300 us", "3.00x a"):
        assert part in line
    (few,) = terminal.case_lines([replace(record, rounds=4)])
    assert "too few to judge" in few
    lines = terminal.case_lines([record, replace(peer, results_equal=False)])
    assert "no equal results from a" in lines[-1]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 us"), (7.1e-8, "71 ns")],
)
def test_times(seconds: float | None, expected: str) -> None:
    assert terminal.format_seconds(seconds) == expected


def test_panels(context: Context) -> None:
    record = _record(context)
    small = replace(record, bytes=8, case="8B/x", median_seconds=1e-7)
    other = replace(record, ranks=4, implementation="a")
    far = replace(record, state=FAR, median_seconds=9.0)
    panels = plotting.series([record, small, other, far])
    assert panels[2, NEAR, "symmetric", "x"] == {"cocoll": [(8, 1e-7), (1 << 20, 1e-4)]}
    assert panels[2, FAR, "symmetric", "x"] == {"cocoll": [(1 << 20, 9.0)]}
    assert panels[4, NEAR, "symmetric", "x"] == {"a": [(1 << 20, 1e-4)]}


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plotting.PlotError, match=r"cocoll\[plot\]"):
        plotting.load_pyplot()


@pytest.fixture(scope="module")
def run_module() -> ModuleType:
    path = _ROOT / "benchmarks" / "run.py"
    spec = importlib.util.spec_from_file_location("bench_run", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    saved = list(sys.path)
    try:
        sys.modules["bench_run"] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = saved
    return module


def test_command_line(run_module: ModuleType) -> None:
    options = run_module._parse(["allreduce", "--ranks", "2", "4", "--sizes", "8", "1MiB"])
    assert options.ranks == [2, 4]
    assert options.sizes == [8, 1 << 20]
    assert options.rounds == 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "invalid choice"),
        (["allreduce", "--sizes", "1KB"], "wanted a size"),
        (["allreduce", "--sizes", "7"], "whole float32"),
        (["allreduce", "--dtypes", "bfloat16"], "float32 alone"),
        (["fused", "--sizes", "36"], "wanted a multiple of"),
        (["allreduce", "--peers", "zero"], "no peers of the suite"),
        (["allreduce", "--rounds", "0"], "at least 1"),
    ],
)
def test_bad_command_lines(
    run_module: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        run_module._parse(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_default_cases() -> None:
    sizes = [group.input_bytes for group in SUITES["allreduce"].groups(2, None, None)]
    assert sizes == [8, 1 << 10, 32 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20]
    fused = SUITES["fused"].groups(4, None, None)
    assert [(g.dtype, g.elements) for g in fused] == [
        ("float32", 1 << 20),
        ("float32", 1 << 24),
        ("bfloat16", 1 << 24),
    ]
    for suite in SUITES.values():
        for ranks in suite.default_ranks:
            for group in suite.groups(ranks, None, None):
                cases = [view.case for view in suite.views(group)]
                assert len(set(cases)) == len(cases)
                rows = {spec.row for spec in suite.limits(group)}
                wanted = {view.limit_row for view in suite.views(group)} - {None}
                assert not rows or wanted <= rows


def test_limits_move_the_bytes_they_should() -> None:
    n = 1 << 20
    (group,) = SUITES["allreduce"].groups(2, [4 * n], None)
    in_place, out_of_place = SUITES["allreduce"].limits(group)
    assert in_place.bytes_moved(n) == out_of_place.bytes_moved(n) == 2 * 2 * 4 * n
    (group,) = SUITES["fused"].groups(2, [4 * n], None)
    symmetric, ordinary = SUITES["fused"].limits(group)
    # two gradients read; param, m and v read and written; privately, one more copy written
    assert symmetric.bytes_moved(n) == (2 + 6) * 4 * n
    assert ordinary.bytes_moved(n) == (2 + 6 + 1) * 4 * n
    (group,) = SUITES["fused"].groups(2, [2 * n], ["bfloat16"])
    (half,) = SUITES["fused"].limits(group)
    # two 2-byte gradients read; master, m and v read and written; 2-byte parameters written
    assert half.bytes_moved(n) == (2 * 2 + 6 * 4 + 2) * n


def test_every_peer_has_jobs_with_names_of_their_own() -> None:
    for ranks in (2, 64):
        for fused in (False, True):
            names = [
                job.name
                for peer in launch.FUSED_PEERS
                for job in launch.peer_jobs(peer, ranks, fused=fused)
            ]
            assert len(set(names)) == len(names)
    with pytest.raises(ValueError, match="wanted a peer"):
        launch.peer_jobs("nccl", 2, fused=False)


def test_every_size_has_a_setting_of_every_peer() -> None:
    for ranks in (2, 64):
        for peer in launch.ALLREDUCE_PEERS:
            jobs = launch.peer_jobs(peer, ranks, fused=False)
            for size_bytes in (8, 32 << 10, 1 << 20, 3 << 20, 64 << 20, 1 << 30):
                assert any(job.takes_part(size_bytes) for job in jobs), (peer, size_bytes)


def test_surroundings_do_not_reach_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_CORETYPE", "OMPI_COMM_WORLD_RANK", "I_MPI_FABRICS", "RANK"):
        monkeypatch.setenv(name, "1")
    environment = launch.base_environment()
    assert not {"OPENBLAS_CORETYPE", "OMPI_COMM_WORLD_RANK", "I_MPI_FABRICS", "RANK"} & set(
        environment
    )
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["OMPI_ALLOW_RUN_AS_ROOT"] == "1"


def test_c_loop_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def build_command(ranks: int, calls: int) -> list[str]:
        asked.append((ranks, calls))
        return ["program", "--ranks", str(ranks)]

    fake = ModuleType("tests.native.call_loop")
    fake.build_command = build_command  # type: ignore[attr-defined]
    monkeypatch.setattr("importlib.import_module", lambda name: fake)
    (group,) = SUITES["call_overhead"].groups(2, None, None)
    (external,) = SUITES["call_overhead"].externals(group)
    assert external.command == ("program", "--ranks", "2")
    assert (external.implementation, external.row) == ("c_loop", "yardstick")
    assert asked == [(2, call_overhead.CALLS)]
    assert call_overhead.c_loop_command(2, 16, 100) is None
