"""``cocoll topo`` on one rank: what it shows, saves and refuses."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from cocoll import cli
from cocoll.commands import topo
from cocoll.commands.terminal import ProgressBar
from cocoll.errors import TopologyError
from cocoll.topology import Topology, load_preset, load_topology


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topo"]) == 0
    shown = capsys.readouterr().out
    assert "1 host, 1 rank (gathered" in shown
    assert socket.gethostname() in shown


def test_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topo", "dgx2:2"]) == 0
    assert "h0, h1 (2 equal hosts)" in capsys.readouterr().out


def test_the_setting(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOLL_TOPOLOGY", "laptop:7")
    assert cli.main(["topo"]) == 0
    assert "laptop:7: 1 host, 7 ranks" in capsys.readouterr().out
    assert cli.main(["topo", "laptop:2"]) == 0
    assert "laptop:2: 1 host, 2 ranks" in capsys.readouterr().out


def test_json_is_what_the_setting_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert cli.main(["topo", "dgx-h100:3", "--json", "--save", str(path)]) == 0
    assert Topology.from_json(capsys.readouterr().out) == load_preset("dgx-h100:3")
    assert load_topology(path) == load_preset("dgx-h100:3")
    assert cli.main(["topo", str(path)]) == 0
    assert f"(file {path} (preset dgx-h100:3))" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dgx9:2"], "wanted a topology file or a preset"),
        (["laptop:0"], "wanted a number from 1"),
        (["--probe"], "--probe measures between the ranks of a job: start it with mpirun"),
        (
            ["laptop", "--save", "/nonexistent/t.json"],
            "--save: /nonexistent/t.json cannot be written",
        ),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert cli.main(["topo", *words]) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err


def test_a_bad_file_names_line_and_field(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"hosts": [\n{"ranks": "two"}]}')
    assert cli.main(["topo", str(path)]) == cli.EXIT_USAGE
    assert f"{path}, line 2, hosts[0].ranks: wanted" in capsys.readouterr().err


class Told:
    """A bootstrap of rank 1, with what rank 0 says."""

    rank, world_size = 1, 2

    def __init__(self, answer: dict[str, str]) -> None:
        self.answer = answer

    def allgather(self, data: bytes) -> list[bytes]:
        return [json.dumps(self.answer).encode(), data]

    def barrier(self) -> None:
        """Wait for nobody."""


def never() -> Topology:
    raise AssertionError("rank 1 has no file")


def test_rank_zero_reads_for_all() -> None:
    told = Told({"text": load_preset("laptop:2").to_json(), "error": ""})
    assert topo._from_rank_zero(told, never) == load_preset("laptop:2")


def test_others_end_where_rank_zero_cannot_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        topo._from_rank_zero(Told({"text": "", "error": "no such file"}), never)
    assert caught.value.code == cli.EXIT_USAGE
    # Rank 0 alone says why.
    assert capsys.readouterr() == ("", "")


def test_rank_zero_tells_and_raises() -> None:
    told: list[Any] = []

    class First(Told):
        rank = 0

        def allgather(self, data: bytes) -> list[bytes]:
            told.append(json.loads(data))
            return [data, data]

    with pytest.raises(TopologyError, match="no such"):
        topo._from_rank_zero(First({}), lambda: load_topology("no such"))
    assert "no such" in told[0]["error"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal() -> None:
    stream = Terminal()
    bar = ProgressBar("measuring", stream)
    bar.show(1, 4)
    assert stream.getvalue() == "\rmeasuring [" + "#" * 10 + "." * 30 + "] 1/4"
    bar.show(4, 4)
    # Nothing is left of it.
    assert stream.getvalue().endswith("\r" + " " * len("measuring [] 1/4" + "." * 40) + "\r")


def test_no_progress_elsewhere() -> None:
    stream = io.StringIO()
    ProgressBar("measuring", stream).show(1, 4)
    assert stream.getvalue() == ""
