"""The suite of several hosts: bounds, sizes, records, and a rank's checks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.common import checks
from benchmarks.common.cases import Entry, Group
from benchmarks.common.driver import Settings
from benchmarks.common.fused_check import check_fused
from benchmarks.common.records import Context, make_records
from benchmarks.common.runner import ADAM, FusedBuffers
from benchmarks.common.samples import MIXED, Sample
from benchmarks.common.tracks import GroupResult, Track
from benchmarks.common.turns import RankError, TurnError
from benchmarks.hosts import job as jobs
from benchmarks.hosts.collectives import NumpyAdam
from benchmarks.hosts.rank import HostsRank
from benchmarks.hosts.records import HostsRecord, find_miscounts
from benchmarks.hosts.runner import HostsRunner
from benchmarks.hosts.setting import OPERATIONS, HostsSetting, vector_bytes, vector_elements
from benchmarks.suites import SUITES

_MIB = 1 << 20
_SUITE = SUITES["hosts"]


def _cluster(ranks_of_hosts: list[list[int]], nics: int = 1, core: int | None = None) -> str:
    hosts = [
        {
            "name": f"h{number}",
            "addresses": [f"10.0.{number}.{nic + 1}" for nic in range(nics)],
            "nics": [f"e{nic}" for nic in range(nics)],
            "ranks": ranks,
        }
        for number, ranks in enumerate(ranks_of_hosts)
    ]
    fields = {"hosts": hosts, "nic_bits_per_second": 400_000_000, "core_bits_per_second": core}
    return json.dumps(fields)


def _setting(ranks_of_hosts: list[list[int]], nics: int = 1) -> HostsSetting:
    return HostsSetting.from_environment({"COCOLL_CLUSTER": _cluster(ranks_of_hosts, nics)})


_THREE = [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("operation", "three_hosts", "two_nics"),
    [
        # By hand, for 3 hosts and 12 bytes: one host lacks 12 bytes of a broadcast, 8 of an
        # allgather; it sends the 8 of others' blocks to be reduced, and both in an all-reduce.
        ("broadcast", 12, 6),
        ("allgather", 8, 4),
        ("reduce_scatter", 8, 4),
        ("allreduce", 16, 8),
        ("allreduce_fused", 16, 8),
    ],
)
def test_what_a_port_must_carry(operation: str, three_hosts: int, two_nics: int) -> None:
    assert _setting(_THREE).port_bytes(operation, 12) == three_hosts
    assert _setting(_THREE, nics=2).port_bytes(operation, 12) == two_nics
    # A NIC that no rank uses carries nothing.
    assert _setting([[0], [1], [2]], nics=2).port_bytes(operation, 12) == three_hosts


def test_where_ranks_are() -> None:
    setting = _setting([[0, 3], [1, 4], [2, 5]], nics=2)
    assert setting.place(4) == (1, 1)
    assert setting.address(4) == "10.0.1.2"
    assert setting.describe() == "--hosts 3 --ranks-per-host 2 --nic 400mbit --nics-per-host 2"
    assert "--ranks-per-host 1 2 " in _setting([[0], [1, 2]]).describe()


def test_without_a_cluster_it_says_how_to_start_one() -> None:
    with pytest.raises(ValueError, match=r"benchmarks/cluster/run\.py"):
        HostsSetting.from_environment({})
    with pytest.raises(ValueError, match="at least 2 hosts"):
        HostsSetting.from_environment({"COCOLL_CLUSTER": _cluster([[0, 1]])})


@pytest.mark.parametrize("ranks_per_host", [1, 2, 7])
def test_cases(monkeypatch: pytest.MonkeyPatch, ranks_per_host: int) -> None:
    ranks = 3 * ranks_per_host
    places = [list(range(h * ranks_per_host, (h + 1) * ranks_per_host)) for h in range(3)]
    monkeypatch.setenv("COCOLL_CLUSTER", _cluster(places))
    groups = _SUITE.groups(ranks, None, None)
    cases = [_SUITE.views(group)[0].case for group in groups]
    assert cases == [f"{op}/{size}MiB" for size in (1, 8, 64) for op in OPERATIONS]
    for group in groups:
        size_bytes = int(_SUITE.views(group)[0].case.split("/")[1][:-3]) * _MIB
        assert group.hosts == 3
        assert vector_bytes(group) // 4 % (16 * ranks) == 0
        assert size_bytes <= vector_bytes(group) < size_bytes + 64 * ranks
    with pytest.raises(ValueError, match="ranks"):
        _SUITE.groups(ranks + 1, None, None)


def test_large_sizes_have_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOLL_CLUSTER", _cluster(_THREE))
    groups = {size: _SUITE.groups(6, [size * _MIB], None)[0] for size in (1, 8, 64)}
    rounds = [_SUITE.settings(group, Settings()).rounds for group in groups.values()]
    assert rounds == [15, 7, 5]
    assert _SUITE.settings(groups[64], Settings(rounds=2)).rounds == 2


def _records(monkeypatch: pytest.MonkeyPatch, counted_bytes: int, nics: int) -> list[Any]:
    monkeypatch.setenv("COCOLL_CLUSTER", _cluster(_THREE, nics))
    group = _SUITE.groups(6, [3 * _MIB], None)[OPERATIONS.index("allreduce")]
    result = GroupResult(group)
    seconds = {"cocoll": 0.1, "openmpi": 0.5, "openmpi_tuned": 0.2, "gloo": 0.3, "limit": 0.09}
    for implementation, value in seconds.items():
        row = {"cocoll": "symmetric", "limit": "port"}.get(implementation, "peer")
        track = Track(implementation, Entry("f", implementation, row))
        track.samples = [Sample(value, 0.01, MIXED, counted_bytes)] * 5
        result.tracks.append(track)
    result.tracks[0].predicted_seconds = 0.095
    (view,) = _SUITE.views(group)
    context = Context("python", "abc", "machine")
    return _SUITE.complete(result, make_records(result, view, context))


def test_records(monkeypatch: pytest.MonkeyPatch) -> None:
    records = _records(monkeypatch, counted_bytes=4_300_000, nics=2)
    cocoll = records[0]
    assert isinstance(cocoll, HostsRecord)
    fields = json.loads(json.dumps(cocoll.to_json()))
    assert fields["hosts"] == 3
    assert fields["nics"] == 2
    assert fields["port_bytes"] == pytest.approx(2 * 3 * _MIB * 2 / 3 / 2, rel=1e-3)
    assert fields["counted_port_bytes"] == 2_150_000
    assert fields["predicted_seconds"] == 0.095
    assert fields["limit_seconds"] == 0.09
    assert fields["fastest_peer"] == "openmpi_tuned"
    assert fields["ratio_to_fastest_peer"] == pytest.approx(2.0)
    assert fields["command"].startswith("python benchmarks/cluster/run.py --hosts 3 --ranks-per")
    assert fields["command"].endswith("-- python benchmarks/run.py hosts --sizes 3MiB")
    assert records[1].predicted_seconds is None


def test_ports_that_carry_too_much_or_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    records = _records(monkeypatch, counted_bytes=0, nics=1)
    right = records[0].port_bytes
    for factor, count in ((1.0, 0), (1.05, 0), (0.95, 0), (1.07, 1), (0.93, 1)):
        counted = replace(records[0], counted_port_bytes=int(factor * right))
        # Peers may send what they like.
        peer = replace(records[1], counted_port_bytes=9 * right)
        assert len(find_miscounts([counted, peer])) == count


class _FakeRunner(HostsRunner):
    """One rank of two, whose result is what a test makes it."""

    def __init__(self, operation: str, rank: int, spoil: Callable[[NDArray[Any]], None]) -> None:
        self.rank, self.world_size = rank, 2
        self._operation = operation
        self._spoil = spoil
        self._adam: NumpyAdam | None = None

    def open(self) -> None: ...

    def close(self) -> None: ...

    def release(self) -> None: ...

    def barrier(self) -> None: ...

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        yield

    def prepare(self, group: Group) -> list[Entry]:
        n = group.elements
        self._input = np.zeros(n, np.float32)
        self._param, m, v = (np.zeros(n, np.float32) for _ in range(3))
        self._sum = np.zeros(n, np.float32)
        self._adam = NumpyAdam(self._param, self._sum, m, v, ADAM)
        return [Entry("f", "fake", "peer")]

    def inputs(self, form: str) -> list[NDArray[Any]]:
        return [] if self._operation == "broadcast" and self.rank else [self._input]

    def call(self, form: str) -> Callable[[], object]:
        return self._run

    def result(self, form: str) -> NDArray[Any]:
        return self._result

    def fused_buffers(self, form: str) -> FusedBuffers:
        return FusedBuffers(self._input, self._param)

    def reset(self, form: str, param: NDArray[np.float32]) -> None:
        assert self._adam is not None
        self._param[:] = param
        self._adam.reset()

    def _run(self) -> None:
        n = self._input.size

        def of(rank: int) -> NDArray[np.float32]:
            array = np.empty(n, np.float32)
            checks.fill_random(array, 1, rank)
            return array

        if self._operation == "allreduce_fused":
            assert self._adam is not None
            # Both ranks' gradients are multiples of 1/32: their sum is exact.
            other = np.empty(n, np.float32)
            seed = next(
                s for s in (901, 902) if np.array_equal(self._input, _quantized(n, s, self.rank))
            )
            other[:] = _quantized(n, seed, 1 - self.rank)
            self._sum[:] = self._input + other
            self._adam.step()
            self._result = self._param
        elif self._operation == "broadcast":
            self._result = of(0)
        elif self._operation == "allgather":
            self._result = np.concatenate([of(0), of(1)])
        else:
            self._result = of(0) + of(1)
            if self._operation == "reduce_scatter":
                self._result = np.split(self._result, 2)[self.rank].copy()
        self._spoil(self._result)


def _quantized(n: int, seed: int, rank: int) -> NDArray[np.float32]:
    array = np.empty(n, np.float32)
    checks.fill_quantized(array, seed, rank)
    return array


def _check(operation: str, rank: int, spoil: Callable[[NDArray[Any]], None]) -> dict[str, Any]:
    service = HostsRank({"fake": _FakeRunner(operation, rank, spoil)}, _setting([[0], [1]]))
    group = Group("hosts", operation, "float32", 2, vector_elements(4096, 2), hosts=2)
    service.prepare({"job": "fake", "group": group.to_json()})
    return service.check({"job": "fake", "form": "f"})


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("rank", [0, 1])
def test_right_results_pass_and_wrong_ones_do_not(operation: str, rank: int) -> None:
    right = _check(operation, rank, lambda result: None)
    assert right["wrong"] is None

    def spoil(result: NDArray[np.float32]) -> None:
        # In every quarter one: whichever part of it a rank looks at.
        result[result.size // 8 :: result.size // 4] += 1e-3

    wrong = _check(operation, rank, spoil)
    assert "element" in wrong["wrong"]
    if operation != "reduce_scatter":
        assert right["digest"] == _check(operation, 1 - rank, lambda result: None)["digest"]
        assert wrong["digest"] != right["digest"]


def test_adam_of_numpy_is_held_to_float64() -> None:
    runner = _FakeRunner("allreduce_fused", 0, lambda result: None)
    elements = 40_000  # more than a block
    runner.prepare(Group("hosts", "allreduce_fused", "float32", 2, elements))
    wrong, _, _ = check_fused(runner, "f", elements, lambda: None)
    assert wrong is None


class _FakeExchange:
    """Answers as told, once for each turn."""

    def __init__(self, *answers: Exception | list[dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.commands: list[dict[str, Any]] = []

    def __call__(self, channels: object, command: dict[str, Any], timeout: float) -> Any:
        self.commands.append(command)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_jobs_share_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _FakeExchange(
        [{"versions": {"a": "1"}}],
        RankError("rank 0: no"),
        [{"versions": {}}],
        TurnError("ranks [1] did not answer"),
    )
    monkeypatch.setattr(jobs, "exchange", fake)
    workers = jobs.Workers("ranks", [])
    one, other = jobs.SharedJob("one", workers), jobs.SharedJob("other", workers)
    one.start()
    assert one.is_running
    assert one.versions == {"a": "1"}
    # All have answered: the processes can serve others.
    with pytest.raises(RankError):
        other.start()
    assert not other.is_running
    other.start()
    with pytest.raises(TurnError, match="did not answer"):
        one.turn({"do": "sample"})
    assert [command["job"] for command in fake.commands] == ["one", "other", "other", "one"]
    # Somebody hangs there: nobody is asked again.
    with pytest.raises(TurnError, match="hang"):
        other.turn({"do": "sample"})
    assert workers.is_broken
    workers.stop()
    assert not fake.answers
