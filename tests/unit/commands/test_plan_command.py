"""``cocoll plan``: what it answers, in text, JSON, pictures and traces, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from cocoll import cli
from cocoll.commands.arguments import EXIT_USAGE
from cocoll.commands.plotting import plot_timeline
from cocoll.commands.questions import FUSED, Question, explain_question, reduce_spec
from cocoll.errors import UsageError
from cocoll.simulation.timeline import Span
from cocoll.topology.presets import load_preset
from tests.helpers.simulated import wired_hosts

HOSTS = "p3.8xlarge:2"


def plan(*words: str) -> int:
    return cli.main(["plan", *words])


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "allgather", "reduce_scatter"])
@pytest.mark.parametrize("topology", [HOSTS, "laptop:3", "dgx-h100"])
def test_text(capsys: pytest.CaptureFixture[str], collective: str, topology: str) -> None:
    assert plan(collective, "--bytes", "256KiB", "--topology", topology) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{collective} of 262144 bytes on {load_preset(topology).name}: ")
    for part in ("algorithm", "lower bound", "predicted", "alternatives", "ports", "messages"):
        assert re.search(rf"^  {part}", shown, re.MULTILINE), part


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert plan(*words, "--json") == 0
    read: dict[str, object] = json.loads(capsys.readouterr().out)
    return read


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    read = answer(capsys, "allreduce", "--bytes", "1MiB", "--topology", HOSTS)
    # Each of two hosts has to send what all its ranks have, 1 MiB at 1.25 GB/s, and to receive it.
    assert read["ranks"] == 8
    bound = read["lower_bound"]
    assert isinstance(bound, dict)
    assert bound["bytes"] == 1 << 20
    assert bound["bandwidth_bytes_per_second"] == 1_250_000_000
    predicted = read["predicted_nanoseconds"]
    assert isinstance(predicted, int)
    assert predicted >= bound["nanoseconds"] > 838_860
    ports = read["port_bytes"]
    assert isinstance(ports, dict)
    assert ports["h0 eth0 out"] == ports["h1 eth0 in"] == 1 << 20


def test_dtype_root_and_memory_shape_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("broadcast", "--bytes", "64KiB", "--topology", HOSTS, "--root", "5")
    read = answer(capsys, *words)
    ports = read["port_bytes"]
    assert isinstance(ports, dict)
    assert (ports["h0 eth0 out"], ports["h1 eth0 out"]) == (0, 65536)
    ordinary = answer(capsys, *words, "--memory", "ordinary", "--dtype", "float64")
    assert ordinary["steps"] != read["steps"]


def test_the_topology_may_come_from_the_environment_or_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "two.json"
    file.write_text(wired_hosts(2).to_json())
    monkeypatch.setenv("COCOLL_TOPOLOGY", str(file))
    assert plan("allreduce", "--bytes", "64KiB") == 0
    assert "on wired: 2 ranks on 2 hosts" in capsys.readouterr().out


def test_the_trace_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    words = ("allreduce", "--bytes", "64KiB", "--topology", HOSTS, "--trace", str(path))
    read = answer(capsys, *words)
    events = json.loads(path.read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == read["steps"]
    assert "rank 7 (predicted)" in {event["args"].get("name") for event in events}


def test_the_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "timeline.png"
    assert plan("allreduce", "--bytes", "64KiB", "--topology", HOSTS, "--plot", str(path)) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    words = ("allreduce", "--bytes", "8", "--topology", HOSTS, "--plot")
    assert plan(*words, str(tmp_path / "missing" / "t.png")) == EXIT_USAGE
    assert "cannot be drawn" in capsys.readouterr().err


def test_a_missing_matplotlib_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ("allreduce", "--bytes", "8", "--topology", HOSTS, "--plot", "t.png")
    assert plan(*words) == EXIT_USAGE
    assert "pip install 'cocoll[plot]'" in capsys.readouterr().err


def test_an_empty_timeline_is_not_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match="no steps"):
        plot_timeline(tmp_path / "t.png", [])


@pytest.mark.long
def test_whole_ranks_are_left_out_of_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    spans = [
        Span(rank, lane, 0, 0, 0, 0, 10, 4, "send block 0") for rank in range(40) for lane in (0, 1)
    ]
    plot_timeline(tmp_path / "t.svg", spans, title="many")
    assert "32 of 40 ranks" in (tmp_path / "t.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("allreduce", "--bytes", "6", "--topology", HOSTS), "whole elements of float32, got 6"),
        (("allreduce", "--bytes", "0", "--topology", HOSTS), "whole elements"),
        (("allreduce", "--bytes", "8x", "--topology", HOSTS), "wanted a size like"),
        (("broadcast", "--bytes", "8", "--topology", HOSTS, "--root", "8"), "in [0, 8), got 8"),
        (("broadcast", "--bytes", "8", "--topology", HOSTS, "--fused", "adam"), "wanted allreduce"),
        (("allreduce", "--bytes", "8"), "wanted --topology FILE|PRESET, or COCOLL_TOPOLOGY"),
        (("allreduce", "--bytes", "8", "--topology", HOSTS, "--trace", "/no/t.json"), "/no/t.json"),
        (("allreduce", "--bytes", "1MiB", "--topology", HOSTS, "--staging", "8"), "give more"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str) -> None:
    assert plan(*words) == EXIT_USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("optimizer", FUSED)
def test_optimizers_ride_in_the_plan(optimizer: str) -> None:
    """The owner of a block reads its parameters and updates its part of the state."""
    spec = reduce_spec("bfloat16", optimizer)
    assert spec.source_itemsize_bytes == 2
    assert spec.result_itemsizes_bytes == (2,)  # the parameters go to all ranks
    state = [operand for operand in spec.operands if operand.sharded]
    assert [operand.itemsize_bytes for operand in state] == [4] * (1 if optimizer == "sgd" else 2)
    assert all(operand.updated for operand in state)
    hosts = wired_hosts(2)
    fused = explain_question(Question("allreduce", spec, 1 << 16, hosts))
    plain = explain_question(Question("allreduce", reduce_spec("bfloat16"), 1 << 16, hosts))
    assert "wired" in fused.topology

    def memory_bytes(ports: tuple[int, ...]) -> int:
        return ports[2] + ports[5]

    # Each element of the state is read and written once in the whole job, each parameter read.
    more = (1 << 16) * (2 + 2 * sum(operand.itemsize_bytes for operand in state))
    assert memory_bytes(fused.port_bytes) - memory_bytes(plain.port_bytes) == more


def test_alternatives_can_be_left_out() -> None:
    question = Question("allreduce", reduce_spec("float32"), 4096, wired_hosts(3))
    assert explain_question(question).alternatives
    assert not explain_question(question, alternatives=False).alternatives


@pytest.mark.parametrize(
    ("count", "topology", "algorithm"),
    [
        (4, "laptop:2", "inline"),
        (1024, "laptop:2", "one_shot"),
        (1 << 20, "laptop:2", "two_shot"),
        (16 << 10, "dgx-h100", "one_shot"),
        (1 << 20, "dgx-h100", "two_shot"),
    ],
)
def test_one_host_has_an_algorithm_for_each_size(count: int, topology: str, algorithm: str) -> None:
    question = Question("allreduce", reduce_spec("float32"), count, load_preset(topology))
    assert explain_question(question).algorithm == algorithm
