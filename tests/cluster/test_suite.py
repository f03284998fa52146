"""The suite of several hosts, on a cluster, with the peers that need nothing installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hosts.setting import OPERATIONS
from tests.cluster.conftest import LIMIT_SECONDS, Cluster
from tests.repo.layout import ROOT


@pytest.mark.long
def test_peers_are_measured(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    results = tmp_path_factory.mktemp("results") / "h.json"
    words = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "hosts", "--sizes", "192KiB"]
    words += ["--rounds", "2", "--peers", "openmpi", "openmpi_tuned", "--json", str(results)]
    ran = subprocess.run(
        cluster.command("--hosts 3 --ranks-per-host 2 --nic 1gbit", *words),
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * LIMIT_SECONDS,
    )
    # Gloo is missing, so there is no ratio; cocoll may say something of its own besides.
    assert ran.returncode == 2, ran.stdout + ran.stderr
    records = _peers(results)
    assert [(r["operation"], r["implementation"]) for r in records] == [
        (operation, peer) for operation in OPERATIONS for peer in ("openmpi", "openmpi_tuned")
    ]
    for record in records:
        assert record["results_equal"], record["case"]
        assert record["rounds"] >= 1
        assert record["hosts"] == 3
        assert record["limit_seconds"] > 0
        # Nobody can send less than what must be sent.
        assert record["counted_port_bytes"] >= record["port_bytes"]
    # Rank 0 alone prints.
    for operation in OPERATIONS:
        assert ran.stdout.count(f"hosts {operation}/192KiB, 6 ranks, mixed") == 1, ran.stdout


def _peers(results: Path) -> list[dict[str, object]]:
    records = [json.loads(line) for line in results.read_text().splitlines()]
    return [r for r in records if r["implementation"] in ("openmpi", "openmpi_tuned")]
