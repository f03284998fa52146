#!/usr/bin/env python3
"""Measure cocoll against its peers: ``python benchmarks/run.py SUITE``; see benchmarks/README.md.

Exit status: 0 all went well; 1 cocoll failed, gave a wrong result, or beat a limit that cannot be
beaten; 2 a peer of the suite did not run with equal results, so no ratio is given.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

_ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(_ROOT)

from benchmarks.common.driver import Settings  # noqa: E402
from benchmarks.common.jobs import Job, adopt_orphans, end_descendants  # noqa: E402
from benchmarks.common.machine import commit_of, describe_machine, python_below  # noqa: E402
from benchmarks.common.plotting import PlotError, draw, load_pyplot  # noqa: E402
from benchmarks.common.records import Context  # noqa: E402
from benchmarks.common.samples import NEAR_BELOW_NANOSECONDS  # noqa: E402
from benchmarks.common.session import Outcome, Session  # noqa: E402
from benchmarks.common.sizes import parse_bytes  # noqa: E402
from benchmarks.common.terminal import Progress  # noqa: E402
from benchmarks.common.turns import Listener, TurnError  # noqa: E402
from benchmarks.hosts.setting import HostsSetting, is_on_cluster  # noqa: E402
from benchmarks.peers.launch import JobSpec, cocoll_job, peer_jobs  # noqa: E402
from benchmarks.suites import SUITES, reshard, scale, training  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from benchmarks.common.suite import Suite
    from benchmarks.hosts.job import SharedJob


# Suites whose times are of one implementation, or whose ways take turns in the same processes.
_OTHERS: dict[str, Any] = {suite.NAME: suite for suite in (scale, reshard, training)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one suite and give the exit status."""
    options = _parse(arguments)
    if options.plot:
        load_pyplot()  # a missing package is told now, not after ten minutes
    if options.suite in _OTHERS:
        status: int = _OTHERS[options.suite].run(options)
        return status
    suite = SUITES[options.suite]
    if is_on_cluster():
        return _run_on_cluster(suite, options)
    adopt_orphans()
    signal.signal(signal.SIGTERM, _end_by_signal)
    outcome = Outcome()
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
    return outcome.tell(progress)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=sorted([*SUITES, *_OTHERS]))
    parser.add_argument("--ranks", type=int, nargs="+", metavar="N")
    parser.add_argument(
        "--sizes",
        type=_size,
        nargs="+",
        metavar="SIZE",
        help="bytes of one rank's input, with KiB, MiB or GiB; default: the suite's cases",
    )
    parser.add_argument(
        "--simulate", action="store_true", help="of reshard: predict, on a preset, and run nothing"
    )
    parser.add_argument(
        "--cases", nargs="+", metavar="NAME", help="of reshard and training: only these"
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
    if options.suite in _OTHERS:
        problem = _OTHERS[options.suite].check_options(options)
        if problem is not None:
            parser.error(problem)
        return options
    suite = SUITES[options.suite]
    unknown = set(options.peers or ()) - set(suite.peers)
    if unknown:
        parser.error(f"--peers: {sorted(unknown)} are no peers of the suite {suite.name}")
    try:
        if suite.name == "hosts":
            options.ranks = options.ranks or [HostsSetting.from_environment().world_size]
        elif is_on_cluster():
            parser.error(f"the suite {suite.name} starts its own jobs: run it without a cluster")
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


def _context() -> Context:
    return Context(
        python=python_below(_ROOT),
        commit=commit_of(_ROOT),
        machine=describe_machine(),
    )


def _run_on_cluster(suite: Suite, options: argparse.Namespace) -> int:
    # Needs MPI, which nothing else of this program does.
    from benchmarks.hosts.session import Jobs, run_rank

    setting = HostsSetting.from_environment()
    peers = suite.peers if options.peers is None else options.peers

    def drive(jobs: Jobs) -> int:
        outcome, progress = Outcome(), Progress(has_steps=False)
        settings = Settings(options.rounds, options.budget_seconds, options.near_below_ns)
        running: list[SharedJob] = []
        with _json_file(options.json) as json_file:
            for name in ("cocoll", "port", *peers):
                try:
                    job = jobs.make(name)
                    job.start()
                except TurnError as error:
                    progress.say(f"{name} does not run: {error}")
                    outcome.note(name, str(error), is_peer=name in suite.peers)
                    continue
                running.append(job)
                versions = ", ".join(f"{key} {value}" for key, value in job.versions.items())
                progress.say(f"{name} runs on {setting.world_size} ranks ({versions})")
            for ranks in options.ranks:
                groups = suite.groups(ranks, options.sizes, options.dtypes)
                session = Session(suite, settings, _context(), progress, json_file, outcome)
                session.measure(groups, running)
        if options.plot and outcome.records:
            draw(outcome.records, options.plot)
            progress.say(f"drew {options.plot}")
        return outcome.tell(progress)

    return run_rank(setting, drive)


def _run_ranks(
    suite: Suite,
    ranks: int,
    options: argparse.Namespace,
    progress: Progress,
    json_file: TextIO | None,
    outcome: Outcome,
) -> None:
    settings = Settings(options.rounds, options.budget_seconds, options.near_below_ns)
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
        Session(suite, settings, _context(), progress, json_file, outcome).measure(groups, jobs)
        for job in jobs:
            if job.is_running:
                progress.step(f"end {job.spec.name}")
                job.stop()
    finally:
        for job in jobs:
            job.stop(ask=False)  # those that are left after an error or a signal
        listener.close()


def _start(
    spec: JobSpec,
    ranks: int,
    listener: Listener,
    jobs: list[Job],
    progress: Progress,
    outcome: Outcome,
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
        is_peer = spec.implementation != "cocoll"
        outcome.note(spec.implementation, str(error), is_peer=is_peer)
        return
    versions = ", ".join(f"{name} {version}" for name, version in job.versions.items())
    progress.say(f"{spec.name} runs on {ranks} ranks ({versions or 'no version known'})")


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
