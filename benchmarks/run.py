#!/usr/bin/env python3
"""Measure cocoll against its peers: ``python benchmarks/run.py SUITE``; see benchmarks/README.md.

Exit status: 0 all went well; 1 cocoll failed, gave a wrong result, or beat a limit that cannot be
beaten; 2 a peer of the suite did not run with equal results, so no ratio is given.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

_ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(_ROOT)

from benchmarks.common.driver import Settings, measure_group  # noqa: E402
from benchmarks.common.jobs import Job, adopt_orphans, end_descendants  # noqa: E402
from benchmarks.common.machine import commit_of, describe_machine  # noqa: E402
from benchmarks.common.plotting import PlotError, draw, load_pyplot  # noqa: E402
from benchmarks.common.records import (  # noqa: E402
    Context,
    Record,
    make_records,
    missing_peers,
    too_fast,
)
from benchmarks.common.samples import NEAR_BELOW_NANOSECONDS  # noqa: E402
from benchmarks.common.sizes import format_bytes, parse_bytes  # noqa: E402
from benchmarks.common.terminal import Progress, case_lines  # noqa: E402
from benchmarks.common.turns import Listener, TurnError  # noqa: E402
from benchmarks.peers.launch import JobSpec, cocoll_job, peer_jobs  # noqa: E402
from benchmarks.suites import SUITES  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from benchmarks.common.cases import Group
    from benchmarks.common.suite import External, Suite

_EXIT_COCOLL, _EXIT_PEERS = 1, 2


@dataclass
class _Outcome:
    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    peer_problems: list[str] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)

    def status(self) -> int:
        if self.peer_problems or self.missing:
            return _EXIT_PEERS
        return _EXIT_COCOLL if self.problems else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one suite and give the exit status."""
    options = _parse(arguments)
    suite = SUITES[options.suite]
    if options.plot:
        load_pyplot()  # a missing package is told now, not after ten minutes
    adopt_orphans()
    signal.signal(signal.SIGTERM, _end_by_signal)
    outcome = _Outcome()
    progress = Progress()
    try:
        with _json_file(options.json) as json_file:
            for ranks in options.ranks or suite.default_ranks:
                _run_ranks(suite, ranks, options, progress, json_file, outcome)
    finally:
        end_descendants()
    if options.plot and outcome.records:
        draw(outcome.records, options.plot)
        progress.say(f"drew {options.plot}")
    for problem in [*outcome.problems, *outcome.peer_problems]:
        progress.say(problem)
    for peer, cases in outcome.missing.items():
        progress.say(f"{peer}: no equal results in {cases} cases, which have no ratio for that")
    status = outcome.status()
    progress.say("done" if status == 0 else f"done, exit status {status}")
    return status


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--ranks", type=int, nargs="+", metavar="N")
    parser.add_argument(
        "--sizes",
        type=_size,
        nargs="+",
        metavar="SIZE",
        help="bytes of one rank's input, with KiB, MiB or GiB; default: the suite's cases",
    )
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=Settings().rounds)
    parser.add_argument("--json", type=Path, metavar="FILE", help="one object a line")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="needs matplotlib")
    parser.add_argument(
        "--peers",
        nargs="*",
        metavar="NAME",
        help="only these peers; no ratio is given then, unless they are all of the suite's",
    )
    parser.add_argument(
        "--budget-seconds",
        type=float,
        default=Settings().budget_seconds,
        help="what one peer may take of a case's time before it sits out the last rounds",
    )
    parser.add_argument(
        "--near-below-ns",
        type=float,
        default=NEAR_BELOW_NANOSECONDS,
        help="a ping-pong faster than this, one way, means that the cores share a cache",
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1 or any(ranks < 1 for ranks in options.ranks or ()):
        parser.error("--rounds and --ranks must be at least 1")
    suite = SUITES[options.suite]
    unknown = set(options.peers or ()) - set(suite.peers)
    if unknown:
        parser.error(f"--peers: {sorted(unknown)} are no peers of the suite {suite.name}")
    try:
        for ranks in options.ranks or suite.default_ranks:
            suite.groups(ranks, options.sizes, options.dtypes)
    except ValueError as error:
        parser.error(str(error))
    return options


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@contextlib.contextmanager
def _json_file(path: Path | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    with path.open("w", encoding="utf-8") as file:
        yield file


def _run_ranks(
    suite: Suite,
    ranks: int,
    options: argparse.Namespace,
    progress: Progress,
    json_file: TextIO | None,
    outcome: _Outcome,
) -> None:
    settings = Settings(options.rounds, options.budget_seconds, options.near_below_ns)
    context = Context(
        python=os.path.relpath(sys.executable, _ROOT)
        if Path(sys.executable).is_relative_to(_ROOT)
        else sys.executable,
        commit=commit_of(_ROOT),
        machine=describe_machine(),
    )
    listener = Listener()
    jobs: list[Job] = []
    try:
        groups = suite.groups(ranks, options.sizes, options.dtypes)
        specs = [cocoll_job(ranks)]
        for peer in suite.peers if options.peers is None else options.peers:
            specs += peer_jobs(peer, ranks, fused=suite.uses_adam)
        for spec in specs:
            if any(spec.takes_part(group.input_bytes) for group in groups):
                _start(spec, ranks, listener, jobs, progress, outcome)
        for group in groups:
            title = f"{group.dtype} {format_bytes(group.input_bytes)}, {ranks} ranks"
            result = measure_group(
                group,
                [job for job in jobs if job.spec.takes_part(group.input_bytes)],
                suite.limits(group),
                _externals(suite, group, progress, outcome),
                settings,
                functools.partial(progress.step, prefix=title),
            )
            for implementation, reason in result.failures.items():
                _note(implementation, reason, outcome)
                progress.say(f"{implementation} broke off: {reason}")
            jobs = [job for job in jobs if job.is_running]
            for view in suite.views(group):
                records = make_records(result, view, context)
                outcome.records += records
                for line in case_lines(records):
                    progress.say(line)
                for record in records:
                    if json_file is not None:
                        json_file.write(json.dumps(record.to_json()) + "\n")
                        json_file.flush()
                _judge(records, missing_peers(result, view), outcome)
            for track in result.tracks:
                if track.wrong is not None:
                    progress.say(f"{track.job} {track.entry.form}: wrong result: {track.wrong}")
        for job in jobs:
            progress.step(f"end {job.spec.name}")
            job.stop()
    finally:
        for job in jobs:
            job.stop(ask=False)  # those that are left after an error or a signal
        listener.close()


def _externals(suite: Suite, group: Group, progress: Progress, outcome: _Outcome) -> list[External]:
    try:
        return suite.externals(group)
    except (ImportError, OSError, RuntimeError) as error:
        progress.say(f"a yardstick of the suite {suite.name} cannot be built: {error}")
        outcome.problems.append(f"{suite.name}: a yardstick cannot be built")
        return []


def _start(
    spec: JobSpec,
    ranks: int,
    listener: Listener,
    jobs: list[Job],
    progress: Progress,
    outcome: _Outcome,
) -> None:
    job = Job(spec, ranks, listener)
    jobs.append(job)  # before it starts: whatever happens, it is stopped
    progress.step(f"start {spec.name} on {ranks} ranks")
    try:
        job.start()
    except TurnError as error:
        job.stop(ask=False)
        jobs.remove(job)
        progress.say(f"{spec.implementation} does not run: {error}")
        _note(spec.implementation, str(error).splitlines()[0], outcome)
        return
    versions = ", ".join(f"{name} {version}" for name, version in job.versions.items())
    progress.say(f"{spec.name} runs on {ranks} ranks ({versions or 'no version known'})")


def _note(implementation: str, reason: str, outcome: _Outcome) -> None:
    problems = outcome.problems if implementation == "cocoll" else outcome.peer_problems
    problems.append(f"{implementation}: {reason.splitlines()[0]}")


def _judge(records: Sequence[Record], missing: Sequence[str], outcome: _Outcome) -> None:
    first = records[0]
    case = f"{first.suite} {first.case}, {first.ranks} ranks"
    for peer in missing:
        outcome.missing[peer] = outcome.missing.get(peer, 0) + 1
    if not all(r.results_equal for r in records if r.implementation == "cocoll"):
        outcome.problems.append(f"{case}: no equal results from cocoll")
    for record in too_fast(records):
        outcome.problems.append(
            f"{case}, {record.state}: {record.fraction_of_limit:.2f} of the limit: the limit loop "
            "is no limit"
        )


def _end_by_signal(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PlotError as error:
        sys.exit(f"benchmarks/run.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
