"""A run of a suite: its groups one after the other, what is said and written, how it went."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from benchmarks.common.driver import Settings, measure_group
from benchmarks.common.records import Context, Record, make_records, missing_peers, too_fast
from benchmarks.common.sizes import format_bytes
from benchmarks.common.terminal import Progress, case_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.common.cases import Group
    from benchmarks.common.driver import Turns
    from benchmarks.common.suite import External, Suite

__all__ = ["Outcome", "Session"]

_EXIT_COCOLL, _EXIT_PEERS = 1, 2


@dataclass
class Outcome:
    """What went wrong, and for whom.

    Attributes
    ----------
    records : list of Record
        All that were written.
    problems, peer_problems : list of str
        Of cocoll and the yardsticks; of the peers.
    missing : dict of str to int
        By peer, how many cases lack it.
    """

    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    peer_problems: list[str] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)

    def status(self) -> int:
        """Give the exit status."""
        if self.peer_problems or self.missing:
            return _EXIT_PEERS
        return _EXIT_COCOLL if self.problems else 0

    def note(self, implementation: str, reason: str, *, is_peer: bool) -> None:
        """Take down that an implementation did not run, or broke off."""
        problems = self.peer_problems if is_peer else self.problems
        problems.append(f"{implementation}: {reason.splitlines()[0]}")

    def judge(self, records: Sequence[Record], missing: Sequence[str]) -> None:
        """Judge the records of one case, for which the peers `missing` gave no equal results."""
        first = records[0]
        case = f"{first.suite} {first.case}, {first.ranks} ranks"
        for peer in missing:
            self.missing[peer] = self.missing.get(peer, 0) + 1
        if not all(r.results_equal for r in records if r.implementation == "cocoll"):
            self.problems.append(f"{case}: no equal results from cocoll")
        for record in too_fast(records):
            self.problems.append(
                f"{case}, {record.state}: {record.fraction_of_limit:.2f} of the limit: the limit "
                "loop is no limit"
            )

    def tell(self, progress: Progress) -> int:
        """Say what went wrong, and give the exit status."""
        for problem in [*self.problems, *self.peer_problems]:
            progress.say(problem)
        for peer, cases in self.missing.items():
            progress.say(f"{peer}: no equal results in {cases} cases, which have no ratio for that")
        status = self.status()
        progress.say("done" if status == 0 else f"done, exit status {status}")
        return status


@dataclass(frozen=True)
class Session:
    """What all groups of a run share.

    Attributes
    ----------
    suite : Suite
        What is measured.
    settings : Settings
        For how long, unless the suite knows better for a group.
    context : Context
        For the records.
    progress : Progress
        What the terminal shows.
    json_file : TextIO or None
        Where records go, one a line.
    outcome : Outcome
        Is filled.
    """

    suite: Suite
    settings: Settings
    context: Context
    progress: Progress
    json_file: TextIO | None
    outcome: Outcome

    def measure(self, groups: Sequence[Group], jobs: Sequence[Turns]) -> None:
        """Measure all groups with the jobs, cocoll's first, that are running and take part."""
        for group in groups:
            taking_part = [
                job for job in jobs if job.is_running and job.spec.takes_part(group.input_bytes)
            ]
            self._measure_group(group, taking_part)

    def _measure_group(self, group: Group, jobs: Sequence[Turns]) -> None:
        suite, progress = self.suite, self.progress
        title = f"{group.dtype} {format_bytes(group.input_bytes)}, {group.ranks} ranks"
        result = measure_group(
            group,
            jobs,
            suite.limits(group),
            self._externals(group),
            suite.settings(group, self.settings),
            functools.partial(progress.step, prefix=title),
        )
        for implementation, reason in result.failures.items():
            self.outcome.note(implementation, reason, is_peer=implementation in suite.peers)
            progress.say(f"{implementation} broke off: {reason}")
        for view in suite.views(group):
            records = suite.complete(result, make_records(result, view, self.context))
            self.outcome.records += records
            for line in case_lines(records):
                progress.say(line)
            for record in records:
                if self.json_file is not None:
                    self.json_file.write(json.dumps(record.to_json()) + "\n")
                    self.json_file.flush()
            self.outcome.judge(records, missing_peers(result, view))
            self.outcome.problems += suite.problems(records)
        for track in result.tracks:
            if track.wrong is not None:
                progress.say(f"{track.job} {track.entry.form}: wrong result: {track.wrong}")

    def _externals(self, group: Group) -> list[External]:
        try:
            return self.suite.externals(group)
        except (ImportError, OSError, RuntimeError) as error:
            self.progress.say(
                f"a yardstick of the suite {self.suite.name} cannot be built: {error}"
            )
            self.outcome.problems.append(f"{self.suite.name}: a yardstick cannot be built")
            return []
