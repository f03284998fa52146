"""The driver: starts one job per implementation, keeps all alive, hands out turns in rounds."""

from __future__ import annotations

import functools
import json
import math
import os
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from benchmarks.common.cases import Entry, Group
from benchmarks.common.samples import (
    MIXED,
    NEAR_BELOW_NANOSECONDS,
    Sample,
    label_state,
)
from benchmarks.common.tracks import GroupResult, Track, hopeless
from benchmarks.common.turns import Message, TurnError

if TYPE_CHECKING:
    from benchmarks.common.streams import LimitSpec
    from benchmarks.common.suite import External
    from benchmarks.peers.launch import JobSpec

__all__ = ["Settings", "Turns", "measure_group"]

_LOOP_SECONDS = 0.02  # what a back-to-back loop should last
_MAX_LOOP_CALLS = 20_000
_CALIBRATION_CALLS = 4
_SLOW_CALL_SECONDS = 0.02  # no warming up: so long a call has emptied the caches by itself
# Ranks that wake up find their caches filled by the job before, and their cores slow.
_WARM_SECONDS, _MOST_WARM_CALLS = 0.01, 10
_UNCHECKED = ("limit", "torch_adam")


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure.

    Attributes
    ----------
    rounds : int
        Samples of every form.
    budget_seconds : float
        What one peer may take of a group's time; one that has used it up after the rounds of trial
        sits the rest out, and its ``rounds`` say so.
    near_below_nanoseconds : float
        The limit between the states.
    trial_rounds : int
        Before a form or an implementation may be left out.
    first_warm : int
        Calls before the first sample that are not recorded.
    """

    rounds: int = 15
    budget_seconds: float = 4.0
    near_below_nanoseconds: float = NEAR_BELOW_NANOSECONDS
    trial_rounds: int = 3
    first_warm: int = 1


class Turns(Protocol):
    """What the driver needs of a job: :class:`~benchmarks.common.jobs.Job`, or one like it."""

    spec: JobSpec

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not been stopped."""

    def turn(self, command: Message, timeout_seconds: float = 120.0) -> list[Message]:
        """Give every rank `command`; gives their replies in rank order."""

    def clear_pool(self) -> None:
        """Give the limit loops' shared memory back."""

    def stop(self, *, ask: bool = True) -> None:
        """End the job."""


Report = Callable[[str], None]


def measure_group(
    group: Group,
    jobs: Sequence[Turns],
    limits: Sequence[LimitSpec],
    externals: Sequence[External],
    settings: Settings,
    report: Report,
) -> GroupResult:
    """Prepare, check and time one group on all `jobs`, in interleaved rounds.

    Parameters
    ----------
    group : Group
        What to measure.
    jobs : sequence of Job
        Running. A job that fails is stopped, and the rest go on without it.
    limits : sequence of LimitSpec
        Bare loops; run by the first job that can (put cocoll's first).
    externals : sequence of External
        Programs that time themselves.
    settings : Settings
        Rounds and budget.
    report : callable
        Takes one line about where the work stands.

    Returns
    -------
    GroupResult
        Samples, wrong results, failures.
    """
    return _Measurement(group, list(jobs), limits, externals, settings, report).run()


class _Measurement:
    def __init__(
        self,
        group: Group,
        jobs: list[Turns],
        limits: Sequence[LimitSpec],
        externals: Sequence[External],
        settings: Settings,
        report: Report,
    ) -> None:
        self._group = group
        self._jobs = jobs
        self._limits = limits
        self._externals = [
            (
                external,
                Track(external.implementation, Entry("", external.implementation, external.row)),
            )
            for external in externals
        ]
        self._settings = settings
        self._report = report
        self._result = GroupResult(group, [track for _, track in self._externals])
        self._by_job: dict[str, list[Track]] = {}
        self._spent_seconds: dict[str, float] = defaultdict(float)
        self._last_state = MIXED

    def run(self) -> GroupResult:
        limits = self._limits
        for job in list(self._jobs):
            if self._prepare(job, limits):
                limits = ()
        for job in list(self._jobs):
            self._check(job)
        for round_index in range(self._settings.rounds):
            self._report(f"round {round_index + 1} of {self._settings.rounds}")
            # Another neighbour every round: what a job leaves in the caches is no one's fate.
            start = round_index % max(1, len(self._jobs))
            for job in self._jobs[start:] + self._jobs[:start]:
                self._turns(job, round_index)
            for external, track in self._externals:
                self._run_external(external, track)
            if round_index + 1 == self._settings.trial_rounds:
                for track in hopeless(self._result.tracks):
                    track.repeat = 0
        for job in list(self._jobs):
            self._guarded(job, functools.partial(self._release, job))
        return self._result

    def _prepare(self, job: Turns, limits: Sequence[LimitSpec]) -> bool:
        self._report(f"prepare {job.spec.name}")
        command = {
            "do": "prepare",
            "group": self._group.to_json(),
            "limits": [spec.to_json() for spec in limits],
        }

        def prepare() -> None:
            reply = job.turn(command)[0]
            entries = [Entry(*fields) for fields in reply["entries"]]
            predicted = reply.get("predicted_seconds", {})
            warm = self._settings.first_warm
            tracks = [
                Track(job.spec.name, e, warm=warm, predicted_seconds=predicted.get(e.form))
                for e in entries
            ]
            self._by_job[job.spec.name] = tracks
            self._result.tracks += tracks

        return self._guarded(job, prepare)

    def _check(self, job: Turns) -> None:
        self._report(f"check {job.spec.name}")

        def check() -> None:
            for track in self._by_job[job.spec.name]:
                if track.entry.implementation in _UNCHECKED:
                    continue
                replies = job.turn({"do": "check", "form": track.entry.form})
                wrong = [r["wrong"] for r in replies if r["wrong"] is not None]
                if not wrong and len({reply["digest"] for reply in replies}) > 1:
                    wrong = ["the ranks hold different bits"]
                if wrong:
                    track.wrong = wrong[0]
                    self._report(f"{job.spec.name} {track.entry.form}: wrong result: {wrong[0]}")
                else:
                    self._take_check(track, [reply.get("seconds") for reply in replies])

        self._guarded(job, check)

    def _take_check(self, track: Track, seconds: Sequence[float | None]) -> None:
        """Let the check be the only sample of a peer that has used up its time by it."""
        known = [value for value in seconds if value is not None]
        slowest = max(known, default=0.0)
        if track.entry.implementation != "cocoll" and slowest > self._settings.budget_seconds:
            track.samples.append(Sample(slowest, None, MIXED))
            track.repeat = 0

    def _turns(self, job: Turns, round_index: int) -> None:
        implementation = job.spec.implementation
        if (
            implementation != "cocoll"
            and round_index >= self._settings.trial_rounds
            and self._spent_seconds[implementation] > self._settings.budget_seconds
        ):
            return

        def take() -> None:
            for track in self._by_job[job.spec.name]:
                if track.wrong is None and track.repeat:
                    self._take_sample(job, track)

        start = time.monotonic()
        self._guarded(job, take)
        self._spent_seconds[implementation] += time.monotonic() - start

    def _take_sample(self, job: Turns, track: Track) -> None:
        group = self._group
        if not track.samples:
            # A fixed number is for cocoll and its yardstick; peers need no more than a steady loop.
            calls = group.calls_per_sample
            if calls > 1 and track.entry.implementation != "cocoll":
                calls = 0
            track.calls = calls or self._calibrate(job, track)
        command = {
            "do": "sample",
            "form": track.entry.form,
            "calls": track.calls,
            "warm": track.warm,
            "repeat": track.repeat,
        }
        replies = job.turn(command)
        seconds = [max(of_ranks) for of_ranks in zip(*(r["seconds"] for r in replies), strict=True)]
        oversubscribed = group.hosts == 1 and group.ranks > len(os.sched_getaffinity(0))
        if track.entry.implementation == "limit" and oversubscribed:
            seconds = _spans(replies)
        rewrites = [
            max(of_ranks) for of_ranks in zip(*(r["rewrite_seconds"] for r in replies), strict=True)
        ]
        probe = replies[0].get("probe")
        state = label_state(
            statistics.median(probe) if probe else None,
            group.ranks,
            self._settings.near_below_nanoseconds,
        )
        counts_bytes = [max(reply["host_bytes"]) for reply in replies if reply.get("host_bytes")]
        self._last_state = state
        median_seconds = statistics.median(seconds)
        track.samples.append(
            Sample(
                median_seconds,
                statistics.median(rewrites) if rewrites else None,
                state,
                max(counts_bytes, default=None),
            )
        )
        track.warm = min(_MOST_WARM_CALLS, math.ceil(_WARM_SECONDS / median_seconds))
        if median_seconds > _SLOW_CALL_SECONDS:
            track.warm = 0
        track.repeat = 1 if median_seconds > 2e-3 else 5

    def _calibrate(self, job: Turns, track: Track) -> int:
        # The first calls of ranks that have just woken up take many times as long as the rest, so a
        # second, longer loop says how many calls fill the time.
        calls = _CALIBRATION_CALLS
        for _ in range(2):
            replies = job.turn({"do": "sample", "form": track.entry.form, "calls": calls})
            call_seconds = max(reply["seconds"][0] for reply in replies)
            calls = max(2, min(_MAX_LOOP_CALLS, int(_LOOP_SECONDS / call_seconds)))
        return calls

    def _run_external(self, external: External, track: Track) -> None:
        if track.entry.implementation in self._result.failures:
            return
        try:
            done = subprocess.run(
                external.command, capture_output=True, text=True, timeout=60, check=True
            )
            answer = json.loads(done.stdout)
            seconds = float(answer["median_nanoseconds"]) * 1e-9
        except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            self._fail(track.entry.implementation, f"{external.command[0]}: {error}")
            return
        one_way = answer.get("one_way_nanoseconds")
        state = self._last_state
        if one_way is not None:
            state = label_state(
                float(one_way), self._group.ranks, self._settings.near_below_nanoseconds
            )
        track.samples.append(Sample(seconds, None, state))

    def _release(self, job: Turns) -> None:
        job.turn({"do": "release"})
        job.clear_pool()

    def _guarded(self, job: Turns, action: Callable[[], None]) -> bool:
        try:
            action()
        except TurnError as error:
            self._fail(job.spec.implementation, str(error))
            self._jobs.remove(job)
            job.stop(ask=False)
            return False
        return True

    def _fail(self, implementation: str, reason: str) -> None:
        self._result.failures[implementation] = reason
        self._report(f"{implementation} broke off: {reason}")


def _spans(replies: Sequence[Message]) -> list[float]:
    """Give first start to last end, for loops that do not wait for one another.

    With more ranks than cores some start late, which each one's own time would leave out.
    """
    starts = zip(*(reply["start"] for reply in replies), strict=True)
    ends = zip(
        *(map(sum, zip(r["start"], r["seconds"], strict=True)) for r in replies), strict=True
    )
    return [max(end) - min(start) for start, end in zip(starts, ends, strict=True)]
