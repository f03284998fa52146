"""Tensors from one mesh to another: every solver and strategy, simulated or on a cluster."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.common.machine import commit_of, describe_machine, python_below
from benchmarks.common.records import Record
from benchmarks.common.reshard_cases import CASES, MODELS, ModelCase, ReshardCase, plan_case
from benchmarks.common.sizes import format_bytes
from benchmarks.common.terminal import Progress, format_seconds
from benchmarks.hosts.setting import is_on_cluster
from cocoll.dtypes import DType
from cocoll.errors import UnsupportedError
from cocoll.resharding import plan_reshards
from cocoll.resharding.solvers import SOLVERS
from cocoll.topology import load_topology

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    import cocoll
    from cocoll.resharding import Layout, MulticastPlan

__all__ = ["NAME", "ReshardRecord", "check_options", "run"]

NAME = "reshard"

_ROOT = Path(__file__).resolve().parents[2]
_PRESET = "p3.8xlarge"
_CLUSTER = "benchmarks/cluster/run.py --hosts 5 --ranks-per-host 4 --nic 400mbit --"
_MEASURED_BYTES = 64 << 20
# What the samples of one case may take; a solver gets its share of it, and one sample at least.
_CASE_SECONDS = 4.0
_LEAST_SAMPLES_OF_AUTO = 3
# So long that what every call costs does not count.
_PORT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ReshardRecord(Record):
    """One line of the JSON; `implementation` is a solver or a strategy."""

    predicted_seconds: float
    messages: int
    planning_seconds: float


@dataclass(slots=True)
class _Entry:
    """A solver's schedule of a case; solvers whose schedules are equal share one."""

    names: list[str]
    planned: MulticastPlan
    planning_seconds: float
    samples: list[float]
    is_right: bool = True


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


def _entries(plan: Callable[[str], MulticastPlan]) -> list[_Entry]:
    """Plan a case with every solver that serves it."""
    found: dict[object, _Entry] = {}
    for solver in SOLVERS:
        begin = time.perf_counter()
        try:
            planned = plan(solver)
        except UnsupportedError:
            continue
        seconds = time.perf_counter() - begin
        key = planned.schedule.groups
        if key in found:
            found[key].names.append(solver)
        else:
            found[key] = _Entry([solver], planned, seconds, [])
    return list(found.values())


class _Report:
    """Prints and writes what comes."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._records: list[ReshardRecord] = []
        self._is_right = True
        self._commit = commit_of(_ROOT)
        self._machine = describe_machine()

    def simulate(self, cases: Sequence[ReshardCase], models: Sequence[ModelCase]) -> int:
        """Predict the cases on a preset with as many hosts as each needs; then plan the models."""
        for case in cases:
            for size in self._options.sizes or (None,):
                sized = case if size is None else case.scaled(size)
                topology = load_topology(f"{_PRESET}:{_hosts_of(case)}")
                self._progress.step(case.name)
                entries = _entries(
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
        entry = _Entry(["auto"], planned, time.perf_counter() - begin, [])
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

    def add(self, case: ReshardCase, entries: Sequence[_Entry], slowness: float) -> None:
        """Take the entries of a case; the bound is `slowness` times as long as planned."""
        measured = any(entry.samples for entry in entries)
        nbytes = 4 * int(np.prod(case.shape))
        name = f"{case.name}/{format_bytes(nbytes)}"
        command = _command(case, measured=measured)
        facts = _Facts(
            name, case.dtype, _ranks_of(case), _hosts_of(case), nbytes // 4, nbytes, command
        )
        self._take(facts, entries, slowness)

    def _take(self, case: _Facts, entries: Sequence[_Entry], slowness: float) -> None:
        measured = any(entry.samples for entry in entries)
        peers = {
            name: _seconds_of(entry) for entry in entries for name in entry.names if name != "auto"
        }
        fastest = min(peers, key=lambda name: peers[name], default=None)
        complete = all(entry.is_right for entry in entries)
        words = []
        for entry in entries:
            limit = entry.planned.bound.nanoseconds / 1e9 * slowness
            seconds = _seconds_of(entry)
            quartiles = _quartiles(entry.samples)
            ratio = peers[fastest] / seconds if fastest and complete else None
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
                        ratio_to_fastest_peer=ratio,
                        state="mixed",
                        rewrite_seconds=None,
                        results_equal=entry.is_right,
                        predicted_seconds=entry.planned.makespan_nanoseconds / 1e9,
                        messages=entry.planned.schedule.messages,
                        planning_seconds=entry.planning_seconds,
                        commit=self._commit,
                        machine=self._machine,
                    )
                )
            over = f" ({seconds / limit:.3f}x the bound)" if limit else ""
            wrong = "" if entry.is_right else " WRONG"
            words.append(f"{', '.join(entry.names)} {format_seconds(seconds)}{over}{wrong}")
            if "auto" in entry.names:
                tasks = len(entry.planned.tasks)
                words[-1] += f", {tasks} tasks in {format_seconds(entry.planning_seconds)}"
        self._is_right = self._is_right and complete
        how = "measured" if measured else "simulated"
        self._progress.say(f"{NAME} {case.case}, {how}: {' | '.join(words)}")
        if self._options.json:
            # Written as they come, so that a run that is stopped leaves what it has.
            lines = [json.dumps(one.to_json()) for one in self._records]
            self._options.json.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def end(self) -> int:
        """Say that it is over; give the exit status."""
        self._progress.say("done" if self._is_right else "there were wrong results")
        return 0 if self._is_right else 1


def _seconds_of(entry: _Entry) -> float:
    if entry.samples:
        return statistics.median(entry.samples)
    return entry.planned.makespan_nanoseconds / 1e9


def _quartiles(samples: Sequence[float]) -> tuple[float | None, float | None]:
    if not samples:
        return None, None
    return float(np.quantile(samples, 0.25)), float(np.quantile(samples, 0.75))


def _hosts_of(case: ReshardCase) -> int:
    return case.src_mesh[0] + case.dst_mesh[0]


def _ranks_of(case: ReshardCase) -> int:
    return int(np.prod(case.src_mesh) + np.prod(case.dst_mesh))


def _command(case: ReshardCase, *, measured: bool) -> str:
    python = python_below(_ROOT)
    size = format_bytes(4 * int(np.prod(case.shape)))
    words = f"{python} benchmarks/run.py {NAME} --cases {case.name} --sizes {size}"
    return f"{python} {_CLUSTER} {words}" if measured else f"{words} --simulate"


# ---- on a cluster: each rank runs this ----


def _run_rank(options: argparse.Namespace, cases: Sequence[ReshardCase]) -> int:
    import cocoll

    comm = cocoll.init()
    report = _Report(options, Progress(has_steps=False)) if comm.rank == 0 else None
    slowness = _slowness(comm)
    status = 0
    for case in cases:
        for size in options.sizes or (_MEASURED_BYTES,):
            if _hosts_of(case) > len(set(comm.topology.hosts_by_rank)):
                if report is not None:
                    print(f"{NAME} {case.name} wants {_hosts_of(case)} hosts: left out")
                continue
            sized = case.scaled(size)
            entries = _Measurement(comm, sized, options.rounds).run()
            if report is not None:
                report.add(sized, entries, slowness)
    if report is not None:
        status = report.end()
    comm.close()
    return status


class _Measurement:
    """One case on a cluster, as one of its ranks."""

    def __init__(self, comm: cocoll.Communicator, case: ReshardCase, rounds: int) -> None:
        self._comm = comm
        self._case = case
        self._rounds = rounds

    def run(self) -> list[_Entry]:
        """Check and time every schedule in turn."""
        import cocoll

        comm, case = self._comm, self._case
        src, dst = case.meshes(comm.topology)
        move = cocoll.TensorMove(case.shape, (src, case.src_spec), (dst, case.dst_spec), case.dtype)
        source, target = move.layouts()
        x = _indices(source, comm.rank)
        out = None if comm.rank not in dst else np.empty(target.shape_of(comm.rank), np.int32)
        entries = _entries(
            lambda solver: cocoll.plan_reshard(move, solver=solver, comm=comm).planned
        )
        runs = []
        for entry in entries:
            planned = cocoll.plan_reshard(move, solver=entry.names[0], comm=comm)
            runs.append(planned.bind(x, out=out))
        budget = _CASE_SECONDS / len(entries)
        for turn in range(self._rounds + 1):
            for entry, bound in zip(entries, runs, strict=True):
                enough = turn > (_LEAST_SAMPLES_OF_AUTO if "auto" in entry.names else 0)
                if enough and sum(entry.samples) + entry.samples[-1] > budget:
                    continue
                if turn == 0 and out is not None:
                    out.fill(-1)
                seconds = _time(comm, bound)
                if turn == 0:
                    # What comes first also finds out whether it is right, and is slower.
                    entry.is_right = self._all(out is None or _is_right(target, comm.rank, out))
                    entry.samples = [seconds]
                    continue
                if turn == 1:
                    entry.samples.clear()
                entry.samples.append(seconds)
        return entries

    def _all(self, value: bool) -> bool:
        import cocoll

        least = np.array([int(value)], np.int32)
        cocoll.allreduce(least, "min", comm=self._comm)
        return bool(least[0])


def _time(comm: cocoll.Communicator, call: Callable[[], object]) -> float:
    """Give the slowest rank's seconds."""
    import cocoll

    cocoll.barrier(comm=comm)
    begin = time.perf_counter()
    call()
    seconds = np.array([time.perf_counter() - begin])
    cocoll.allreduce(seconds, "max", comm=comm)
    return float(seconds[0])


def _slowness(comm: cocoll.Communicator) -> float:
    """Measure how long a port takes for a byte, in units of what its topology says."""
    import cocoll

    hosts = comm.topology.hosts_by_rank
    first, other = hosts.index(0), hosts.index(1)
    sides = (cocoll.Mesh([first]), "R"), (cocoll.Mesh([other]), "R")
    move = cocoll.TensorMove((_PORT_BYTES,), *sides, "uint8")
    planned = cocoll.plan_reshard(move, solver="send_recv", comm=comm)
    bound = planned.bind(np.zeros(_PORT_BYTES, np.uint8) if comm.rank == first else None)
    seconds = statistics.median(_time(comm, bound) for _ in range(3))
    return seconds / planned.bound_seconds


def _indices(layout: Layout, rank: int) -> NDArray[Any] | None:
    """Give a shard whose elements are their own places in the whole tensor."""
    if rank not in layout.mesh:
        return None
    total: NDArray[Any] = np.zeros((), np.int32)
    for length, (start, stop) in zip(layout.shape, layout.box_of(rank), strict=True):
        total = total[..., None] * np.int32(length) + np.arange(start, stop, dtype=np.int32)
    return np.ascontiguousarray(total)


def _is_right(layout: Layout, rank: int, got: NDArray[Any]) -> bool:
    wanted = _indices(layout, rank)
    return wanted is not None and bool(np.array_equal(wanted, got))
