#!/usr/bin/env python3
"""Check cocoll on one GPU in less than five minutes: ``python benchmarks/gpu_check.py``.

It builds the package where it is not built, needs no network and no MPI, and gives every step a
process and a time of its own: a kernel that hangs ends its step alone. ``--emulated`` runs the same
steps without a GPU. The results go to ``benchmarks/results/gpu_NAME.json``.

Exit status: 0 all steps passed; 1 one failed or took too long.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / "benchmarks" / "results"
_MARK = "result: "

# Step, function, seconds it may take.
_STEPS = (
    ("versions", "benchmarks.gpu.versions:find_versions", 60),
    ("collectives", "benchmarks.gpu.correctness:check_collectives", 120),
    ("epilogues", "benchmarks.gpu.correctness:check_epilogues", 90),
    ("graphs", "benchmarks.gpu.correctness:check_graphs", 60),
    ("launches", "benchmarks.gpu.speed:measure_launches", 60),
    ("small", "benchmarks.gpu.speed:measure_small", 60),
    ("fused", "benchmarks.gpu.speed:measure_fused", 90),
    ("cupy", "benchmarks.gpu.peers:check_cupy", 60),
    ("torch", "benchmarks.gpu.peers:check_torch", 60),
    ("processes", "benchmarks.gpu.correctness:check_processes", 120),
    ("nccl", "benchmarks.gpu.wires:check_nccl", 90),
    ("symmetric_memory", "benchmarks.gpu.symmetric:check_symmetric_memory", 100),
)


def _build() -> None:
    """Build in place with what this Python has, unless that has been done."""
    probe = [sys.executable, "-c", "import cocoll.cuda.binding"]
    if subprocess.run(probe, cwd=_ROOT, capture_output=True, check=False).returncode == 0:
        return
    print("building cocoll in place", flush=True)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=_ROOT, check=True
    )


def _run_step(name: str, emulated: bool) -> int:
    sys.path[0] = str(_ROOT)
    from benchmarks.gpu.setting import Setting

    module, _, function = next(entry[1] for entry in _STEPS if entry[0] == name).partition(":")
    found = getattr(importlib.import_module(module), function)(Setting(emulated))
    print(f"{_MARK}{json.dumps(found)}", flush=True)
    return 0


def _start_step(name: str, limit_seconds: int, emulated: bool) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__)), "--step", name]
    command += ["--emulated"] if emulated else []
    start = time.monotonic()
    row: dict[str, Any] = {"step": name, "status": "passed"}
    try:
        ran = subprocess.run(
            command,
            cwd=_ROOT,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        row["status"] = "timeout"
        row["log"] = _tail(error.stderr)
    else:
        lines = [line for line in ran.stdout.splitlines() if line.startswith(_MARK)]
        if ran.returncode == 0 and lines:
            row |= json.loads(lines[-1].removeprefix(_MARK))
        else:
            row["status"] = "failed"
            row["log"] = _tail(ran.stderr)
    if "absent" in row:
        row["status"] = "absent"
    row["step_seconds"] = round(time.monotonic() - start, 1)
    return row


def _tail(text: str | bytes | None) -> str:
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return (text or "")[-3000:]


def _commit() -> str:
    ran = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return ran.stdout.strip()


def main() -> int:
    """Run all steps, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulated", action="store_true", help="without a GPU")
    parser.add_argument("--step", choices=[entry[0] for entry in _STEPS], help="only this one")
    parser.add_argument("--json", type=Path, help="where results go, instead of the usual place")
    options = parser.parse_args()
    if options.step:
        return _run_step(options.step, options.emulated)
    _build()
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("COCOLL_CACHE_DIR", cache)
        rows = []
        for name, _, limit_seconds in _STEPS:
            rows.append(_start_step(name, limit_seconds, options.emulated))
            print(json.dumps(rows[-1]), flush=True)
    device = rows[0].get("device", "none")
    target = options.json
    if target is None:
        _RESULTS.mkdir(exist_ok=True)
        target = _RESULTS / f"gpu_{re.sub('[^a-z0-9]+', '_', device.lower())}.json"
    report = {
        "emulated": options.emulated,
        "device": device,
        "commit": _commit(),
        "python": platform.python_version(),
        "steps": rows,
    }
    target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"results: {target}")
    return 0 if all(row["status"] in ("passed", "absent") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
