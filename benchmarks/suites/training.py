"""A whole training step in torch, fused, beside DDP with torch's fused Adam."""

from __future__ import annotations

import importlib.util
import json
import signal
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common.jobs import adopt_orphans, end_descendants
from benchmarks.common.machine import commit_of, describe_machine, python_below
from benchmarks.common.terminal import Progress, format_seconds
from benchmarks.peers.launch import base_environment

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["NAME", "Step", "check_options", "make_records", "run"]

NAME = "training"

_ROOT = Path(__file__).resolve().parents[2]
_DEFAULT_RANKS = (2,)
_MICRO_BATCHES = (1, 4, 16, 64)
_CASE_SECONDS = 120.0
_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the JSON; fields that other suites have too mean the same.

    ``outside_seconds`` is what a step takes beyond forward and backward alone, of which
    ``forward_backward_seconds`` is the median in the same rounds; ``outside_ratio`` is the peer's
    divided by this one's.
    """

    suite: str
    case: str
    operation: str
    dtype: str
    ranks: int
    hosts: int
    elements: int
    bytes: int
    memory: str
    implementation: str
    setting: str
    median_seconds: float
    q1_seconds: float
    q3_seconds: float
    rounds: int
    forward_backward_seconds: float
    outside_seconds: float
    outside_fraction: float
    fastest_peer: str | None
    ratio_to_fastest_peer: float | None
    outside_ratio: float | None
    state_bytes: int
    state: str
    results_equal: bool
    command: str
    commit: str | None
    machine: str

    def to_json(self) -> dict[str, Any]:
        """Give the fields in their order."""
        return asdict(self)


def check_options(options: argparse.Namespace) -> str | None:
    """Say what is wrong with the command line; None: nothing."""
    for name in ("sizes", "dtypes", "peers", "plot"):
        if getattr(options, name):
            return f"--{name}: the suite {NAME} has one size, one type, one peer and no plot"
    for case in options.cases or ():
        if case not in map(str, _MICRO_BATCHES):
            return f"--cases: micro-batches of the suite {NAME} are {_MICRO_BATCHES}; got {case!r}"
    if importlib.util.find_spec("torch") is None:
        return f"the suite {NAME} runs with torch beside cocoll: install cocoll[torch]"
    return None


def run(options: argparse.Namespace) -> int:
    """Measure all cases, print and write them; give the exit status.

    Parameters
    ----------
    options : argparse.Namespace
        Of the command line, checked.
    """
    progress = Progress()
    adopt_orphans()
    signal.signal(signal.SIGTERM, _end_by_signal)
    micro_batches = [int(case) for case in options.cases or _MICRO_BATCHES]
    records: list[Step] = []
    status = 0
    try:
        for ranks in options.ranks or _DEFAULT_RANKS:
            progress.step(f"{ranks} ranks")
            status = max(status, _run_ranks(ranks, micro_batches, options, progress, records))
    finally:
        end_descendants()
    progress.say("done" if status == 0 else f"done, exit status {status}")
    return status


def _run_ranks(
    ranks: int,
    micro_batches: Sequence[int],
    options: argparse.Namespace,
    progress: Progress,
    records: list[Step],
) -> int:
    command = [
        sys.executable, str(_ROOT / "benchmarks/peers/spawn.py"), "-n", str(ranks), "--bind", "--",
        sys.executable, str(_ROOT / "benchmarks/training/rank.py"),
        "--micro-batches", *map(str, micro_batches),
        "--rounds", str(options.rounds), "--case-seconds", str(_CASE_SECONDS),
    ]  # fmt: skip
    status = 0
    # What ranks have to say goes to the terminal.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=base_environment()
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            made = make_records(json.loads(line), ranks)
            records += made
            for record in made:
                progress.say(_line(record))
            if options.json:
                # Written as they come, so that a run that is stopped leaves what it has.
                lines = [json.dumps(record.to_json()) for record in records]
                options.json.write_text("\n".join(lines) + "\n", encoding="utf-8")
            if not all(record.results_equal for record in made):
                wrong = {r.implementation for r in made if not r.results_equal}
                progress.say(f"no equal results from {', '.join(sorted(wrong))}")
                status = max(status, 2 if wrong == {"ddp"} else 1)
    if process.returncode:
        progress.say(f"the ranks ended with status {process.returncode}")
        return 1
    return status


def make_records(found: dict[str, Any], ranks: int) -> list[Step]:
    """Give the records of a micro-batch: of cocoll's best setting, and of DDP's.

    Parameters
    ----------
    found : dict
        What rank 0 printed.
    ranks : int
        World size.
    """
    ways = {(way["implementation"], way["setting"]): way for way in found["ways"]}
    medians = {key: statistics.median(way["seconds"]) for key, way in ways.items()}
    kept = [key for key in ways if not ways[key]["dropped"]]
    mine, peer = (
        min((key for key in kept if key[0] == name), key=lambda key: medians[key])
        for name in ("cocoll", "ddp")
    )
    alone = medians["forward_backward", ""]
    equal = found["results_equal"]
    outside = {key: max(median - alone, 0.0) for key, median in medians.items()}
    records = []
    for key in (mine, peer):
        implementation, setting = key
        seconds = ways[key]["seconds"]
        quartiles = statistics.quantiles(seconds, method="inclusive") if len(seconds) > 1 else None
        compares = implementation == "cocoll" and equal[peer[1]]
        records.append(
            Step(
                suite=NAME,
                case=f"micro_batch_{found['micro_batch']}",
                operation="training_step",
                dtype="float32",
                ranks=ranks,
                hosts=1,
                elements=_ELEMENTS,
                bytes=4 * _ELEMENTS,
                memory="symmetric" if implementation == "cocoll" else "ordinary",
                implementation=implementation,
                setting=setting,
                median_seconds=medians[key],
                q1_seconds=quartiles[0] if quartiles else medians[key],
                q3_seconds=quartiles[2] if quartiles else medians[key],
                rounds=len(seconds),
                forward_backward_seconds=alone,
                outside_seconds=outside[key],
                outside_fraction=outside[key] / medians[key],
                fastest_peer="ddp" if compares else None,
                ratio_to_fastest_peer=medians[peer] / medians[key] if compares else None,
                # Of a time that is not above that of the rounds' own changes nothing is said.
                outside_ratio=outside[peer] / outside[key] if compares and outside[key] else None,
                state_bytes=ways[key]["state_bytes"],
                state="mixed",
                results_equal=equal[setting],
                command=f"{python_below(_ROOT)} benchmarks/run.py {NAME} --ranks {ranks}",
                commit=commit_of(_ROOT),
                machine=describe_machine(),
            )
        )
    return records


def _end_by_signal(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)


def _line(record: Step) -> str:
    words = [
        f"{record.case:15} {record.ranks} ranks {record.implementation:6}",
        f"step {format_seconds(record.median_seconds)},",
        f"outside forward and backward {format_seconds(record.outside_seconds)}",
        f"({record.outside_fraction:.0%}), state {record.state_bytes >> 20} MiB",
    ]
    if record.setting:
        words.append(record.setting)
    if record.ratio_to_fastest_peer is not None:
        words.append(f"- {record.ratio_to_fastest_peer:.2f}x the speed of {record.fastest_peer}")
    if record.outside_ratio is not None:
        words.append(f"(outside {record.outside_ratio:.1f}x)")
    return " ".join(words)
