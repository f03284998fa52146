"""The commands that the README shows do what it says, as they are installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cocoll.topology import load_topology
from tests.repo.layout import ROOT

BIN = Path(sys.executable).parent


def mpirun(ranks: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [BIN / "mpirun", "-n", str(ranks), "--oversubscribe", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("options", [[], ["--in-place"], ["--fused"]])
def test_bench_under_mpirun(options: list[str]) -> None:
    run = mpirun(
        2, BIN / "cocoll", "bench", "allreduce", "--sizes", "8,64KiB", "--iterations", "3", *options
    )
    assert run.returncode == 0, run.stdout + run.stderr
    # Rank 0 alone prints, one line a size.
    rows = [line.split() for line in run.stdout.splitlines() if line.endswith("ok")]
    assert [int(row[0]) for row in rows] == [8, 65536]
    for row in rows:
        assert float(row[4]) == pytest.approx(float(row[3]), abs=0.02)  # 2 (N - 1) / N is 1


def test_topo_under_mpirun(tmp_path: Path) -> None:
    # Two hosts by name alone: what is measured is this machine, by way of MPI.
    given, saved = tmp_path / "given.json", tmp_path / "saved.json"
    nic = {"name": "e0", "bandwidth_bytes_per_second": 1}
    given.write_text(json.dumps({"hosts": [{"name": "h", "count": 2, "nics": [nic], "ranks": 1}]}))
    run = mpirun(2, BIN / "cocoll", "topo", given, "--probe", "--save", saved)
    assert run.returncode == 0, run.stdout + run.stderr
    # Rank 0 alone prints.
    (first,) = [line for line in run.stdout.splitlines() if "2 hosts, 2 ranks" in line]
    assert first.endswith("(measured by cocoll topo --probe)")
    measured = load_topology(saved)
    assert measured.hosts_by_rank == (0, 1)
    for host in measured.hosts:
        assert host.nics[0].port.bandwidth_bytes_per_second > 10**6
        assert host.nics[0].port.latency_nanoseconds > 0


def test_example_of_the_readme_runs(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "train.py"
    script.write_text(source)
    run = mpirun(2, BIN / "python", script)
    assert run.returncode == 0, run.stderr
    (loss,) = re.findall(r"^loss ([\d.]+)$", run.stdout, re.MULTILINE)
    # Two targets drawn from N(0, 1): at their mean each of two losses is 1/2 a component.
    assert float(loss) == pytest.approx(1.0, abs=0.05)


def test_first_example_of_the_quickstart_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text()
    (source,) = re.findall(r"```python\n(# sum.py.*?)```", page, re.DOTALL)
    script = tmp_path / "sum.py"
    script.write_text(source)
    run = mpirun(3, BIN / "python", script)
    assert run.returncode == 0, run.stderr


@pytest.mark.long
def test_demo() -> None:
    run = mpirun(4, BIN / "python", "examples/train_digits.py")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "speed-up of a whole step" in run.stdout


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["alone", "mpirun", "torchrun"])
def test_torch_example(launcher: str) -> None:
    pytest.importorskip("torch")
    example = "examples/torch_ddp.py"
    if launcher == "mpirun":
        run = mpirun(4, BIN / "python", example)
    else:
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command = [BIN / "python", *(torchrun if launcher == "torchrun" else []), example]
        run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "the parameters differ by" in run.stdout
