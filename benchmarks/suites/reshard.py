"""Tensors from one mesh to another: every solver and strategy, simulated or on a cluster."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.common.machine import commit_of, describe_machine, python_below
from benchmarks.common.records import Record
from benchmarks.common.reshard_cases import (
    CASES,
    MODELS,
    Entry,
    ModelCase,
    ReshardCase,
    plan_case,
    plan_entries,
)
from benchmarks.common.sizes import format_bytes
from benchmarks.common.terminal import Progress, format_seconds
from benchmarks.hosts.setting import is_on_cluster
from cocoll.dtypes import DType
from cocoll.resharding import plan_reshards
from cocoll.topology import load_topology

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    import cocoll
    from benchmarks.hosts.dtensor import DTensorPeer

__all__ = ["NAME", "ReshardRecord", "check_options", "run"]

NAME = "reshard"

_ROOT = Path(__file__).resolve().parents[2]
_PRESET = "p3.8xlarge"
_CLUSTER = "benchmarks/cluster/run.py --hosts 5 --ranks-per-host 4 --nic 400mbit --"
_MEASURED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ReshardRecord(Record):
    """One line of the JSON; `implementation` is a solver, a strategy, or a peer."""

    predicted_seconds: float | None
    messages: int | None
    planning_seconds: float | None
    version: str | None


class _Facts(NamedTuple):
    """What a record says of its case."""

    case: str
    dtype: str
    ranks: int
    hosts: int
    elements: int
    bytes: int
    command: str


def check_options(options: argparse.Namespace) -> str | None:
    """Say what is wrong with the command line; None: nothing."""
    if options.ranks or options.dtypes or options.peers:
        return f"the suite {NAME} has its own ranks, dtypes and strategies: leave them out"
    known = {**CASES, **MODELS} if options.simulate else CASES
    unknown = set(options.cases or ()) - set(known)
    if unknown:
        return f"--cases: {sorted(unknown)} are none of {', '.join(known)}"
    if not options.simulate and not is_on_cluster():
        return f"the suite {NAME} wants --simulate, or a cluster: {_CLUSTER} COMMAND"
    return None


def run(options: argparse.Namespace) -> int:
    """Run the cases, print and write them; give the exit status.

    Parameters
    ----------
    options : argparse.Namespace
        Of the command line, checked.
    """
    cases = [CASES[name] for name in options.cases or CASES if name in CASES]
    if options.simulate:
        models = [MODELS[name] for name in options.cases or MODELS if name in MODELS]
        return _Report(options, Progress()).simulate(cases, models)
    return _run_rank(options, cases)


class _Report:
    """Prints and writes what comes."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._records: list[ReshardRecord] = []
        self._is_right = True
        self._lacks_peer = False
        self._commit = commit_of(_ROOT)
        self._machine = describe_machine()

    def simulate(self, cases: Sequence[ReshardCase], models: Sequence[ModelCase]) -> int:
        """Predict the cases on a preset with as many hosts as each needs; then plan the models."""
        for case in cases:
            for size in self._options.sizes or (None,):
                sized = case if size is None else case.scaled(size)
                topology = load_topology(f"{_PRESET}:{case.hosts}")
                self._progress.step(case.name)
                entries = plan_entries(
                    lambda solver, sized=sized, topology=topology: plan_case(  # type: ignore[misc]
                        sized, topology, solver=solver
                    )
                )
                self.add(sized, entries, 1.0)
        for model in models:
            self._progress.step(model.name)
            self._add_model(model)
        return self.end()

    def _add_model(self, model: ModelCase) -> None:
        moves, topology = model.moves(), load_topology(f"{model.preset}:{model.hosts}")
        begin = time.perf_counter()
        planned = plan_reshards(moves, topology)
        entry = Entry(["auto"], planned, time.perf_counter() - begin, [])
        itemsize_bytes = DType.parse(model.dtype).itemsize_bytes
        elements = sum(int(np.prod(move.shape)) for move in moves)
        case = _Facts(
            model.name,
            model.dtype,
            model.ranks,
            model.hosts,
            elements,
            elements * itemsize_bytes,
            f"{python_below(_ROOT)} benchmarks/run.py {NAME} --cases {model.name} --simulate",
        )
        self._take(case, [entry], 1.0)

    def add(self, case: ReshardCase, entries: Sequence[Entry], slowness: float) -> None:
        """Take the entries of a case; the bound is `slowness` times as long as planned."""
        measured = any(entry.samples for entry in entries)
        nbytes = 4 * int(np.prod(case.shape))
        name = f"{case.name}/{format_bytes(nbytes)}"
        command = _command(case, measured=measured)
        facts = _Facts(name, case.dtype, case.ranks, case.hosts, nbytes // 4, nbytes, command)
        self._take(facts, entries, slowness)

    def _take(self, case: _Facts, entries: Sequence[Entry], slowness: float) -> None:
        measured = any(entry.samples for entry in entries)
        nanoseconds = next(one.planned.bound.nanoseconds for one in entries if one.planned)
        limit = nanoseconds / 1e9 * slowness
        # Beside a peer solvers are none: the ratio is to what others have.
        of_peers = [entry for entry in entries if entry.planned is None] or entries
        peers = {
            name: seconds
            for entry in of_peers
            for name in entry.names
            if name != "auto" and (seconds := _seconds_of(entry)) is not None
        }
        complete = all(entry.is_right for entry in entries) and bool(peers)
        fastest = min(peers, key=lambda name: peers[name]) if complete else None
        words = []
        for entry in entries:
            planned, seconds = entry.planned, _seconds_of(entry)
            quartiles = _quartiles(entry.samples)
            for name in entry.names:
                self._records.append(
                    ReshardRecord(
                        suite=NAME,
                        operation="reshard",
                        **case._asdict(),
                        memory="ordinary" if measured else "simulated",
                        implementation=name,
                        median_seconds=seconds,
                        q1_seconds=quartiles[0],
                        q3_seconds=quartiles[1],
                        rounds=len(entry.samples),
                        limit_seconds=limit,
                        fraction_of_limit=limit / seconds if seconds else None,
                        fastest_peer=fastest,
                        ratio_to_fastest_peer=peers[fastest] / seconds
                        if fastest and seconds
                        else None,
                        state="mixed",
                        rewrite_seconds=None,
                        results_equal=entry.is_right,
                        predicted_seconds=planned.makespan_nanoseconds / 1e9 if planned else None,
                        messages=planned.schedule.messages if planned else None,
                        planning_seconds=entry.planning_seconds,
                        version=entry.version,
                        commit=self._commit,
                        machine=self._machine,
                    )
                )
            words.append(_cell(entry, seconds, limit))
        if fastest and len(of_peers) < len(entries):
            auto = _seconds_of(entries[0])
            words[-1] += f" => {peers[fastest] / auto:.2f}x {fastest}" if auto else ""
        for entry in entries:
            if entry.planned is not None:
                self._is_right = self._is_right and entry.is_right
            else:
                self._lacks_peer = self._lacks_peer or not entry.is_right
        how = "measured" if measured else "simulated"
        self._progress.say(f"{NAME} {case.case}, {how}: {' | '.join(words)}")
        if self._options.json:
            # Written as they come, so that a run that is stopped leaves what it has.
            lines = [json.dumps(one.to_json()) for one in self._records]
            self._options.json.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def leave_out(self, case: ReshardCase) -> None:
        """Say that a case is not for this cluster."""
        wanted = "as many ranks on each host" if case.is_one_mesh else f"{case.hosts} hosts"
        self._progress.say(f"{NAME} {case.name} wants {wanted}: left out")

    def end(self) -> int:
        """Say that it is over, and how long it took; give the exit status."""
        seconds = self._progress.elapsed_seconds
        if not self._is_right:
            self._progress.say(f"there were wrong results; {seconds:.0f} s in all")
            return 1
        lacks = ": a peer did not run with equal results" if self._lacks_peer else ""
        self._progress.say(f"done in {seconds:.0f} s{lacks}")
        return 2 if self._lacks_peer else 0


def _cell(entry: Entry, seconds: float | None, limit: float) -> str:
    spread = over = ""
    first, third = _quartiles(entry.samples)
    if seconds and first is not None and third is not None:
        spread = f" ±{100 * (third - first) / 2 / seconds:.0f}%"
    if seconds and limit:
        over = f" ({seconds / limit:.3f}x the bound)"
    wrong = "" if entry.is_right else " WRONG" if entry.samples else " does not run"
    planning = ""
    if entry.planned is not None and entry.planning_seconds is not None and "auto" in entry.names:
        tasks = len(entry.planned.tasks)
        planning = f", {tasks} tasks in {format_seconds(entry.planning_seconds)}"
    return f"{', '.join(entry.names)} {format_seconds(seconds)}{spread}{over}{wrong}{planning}"


def _seconds_of(entry: Entry) -> float | None:
    if entry.samples:
        return statistics.median(entry.samples)
    return None if entry.planned is None else entry.planned.makespan_nanoseconds / 1e9


def _quartiles(samples: Sequence[float]) -> tuple[float | None, float | None]:
    if not samples:
        return None, None
    return float(np.quantile(samples, 0.25)), float(np.quantile(samples, 0.75))


def _command(case: ReshardCase, *, measured: bool) -> str:
    python = python_below(_ROOT)
    size = format_bytes(4 * int(np.prod(case.shape)))
    words = f"{python} benchmarks/run.py {NAME} --cases {case.name} --sizes {size}"
    return f"{python} {_CLUSTER} {words}" if measured else f"{words} --simulate"


# ---- on a cluster: each rank runs this ----


def _run_rank(options: argparse.Namespace, cases: Sequence[ReshardCase]) -> int:
    # Needs MPI, which predictions do not.
    import cocoll
    from benchmarks.hosts.dtensor import DTensorPeer
    from benchmarks.hosts.reshard_measurement import measure_case, measure_slowness

    comm = cocoll.init()
    report = _Report(options, Progress(has_steps=False)) if comm.rank == 0 else None
    slowness = measure_slowness(comm)
    peer: DTensorPeer | None = None
    status = 0
    for listed in cases:
        case = _on_cluster(listed, comm)
        if case is None:
            if report is not None:
                report.leave_out(listed)
            continue
        if case.is_one_mesh and peer is None:
            peer = DTensorPeer(comm)
        for size in options.sizes or (_MEASURED_BYTES,):
            sized = case.scaled(size)
            beside = peer if case.is_one_mesh else None
            entries = measure_case(comm, sized, options.rounds, beside)
            if report is not None:
                report.add(sized, entries, slowness)
    if peer is not None:
        peer.close()
    if report is not None:
        status = report.end()
    comm.close()
    return status


def _on_cluster(case: ReshardCase, comm: cocoll.Communicator) -> ReshardCase | None:
    """Give the case as this cluster can run it; None where it has too few hosts, or uneven ones."""
    topology = comm.topology
    counts = [len(topology.members(host)) for host in range(len(topology.hosts))]
    if case.is_one_mesh:
        return case.on_all_of(len(counts), counts[0]) if len(set(counts)) == 1 else None
    return case if case.hosts <= len(counts) else None
