"""What the terminal shows: where the work stands, and one line a case and state."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from benchmarks.common.records import MIN_ROUNDS, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Progress", "case_lines", "format_seconds"]


class Progress:
    """Lines with the time since the start; on a terminal, steps overwrite one another.

    Parameters
    ----------
    stream : TextIO, optional
        Default: standard output.
    has_steps : bool, optional
        Default: whether the stream is a terminal. (A rank's is one wherever its launcher writes.)
    """

    def __init__(self, stream: TextIO | None = None, *, has_steps: bool | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._has_steps = self._stream.isatty() if has_steps is None else has_steps
        self._start = time.monotonic()
        self._width = 0

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._clear()
        print(f"[{self._elapsed()}] {text}", file=self._stream, flush=True)

    def step(self, text: str, prefix: str = "") -> None:
        """Show a passing step; nothing where the output is no terminal."""
        if not self._has_steps:
            return
        title = f"{prefix}: " if prefix else ""
        line = f"[{self._elapsed()}] {title}{text}".splitlines()[0][:100]
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)

    @property
    def elapsed_seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def _elapsed(self) -> str:
        seconds = int(self.elapsed_seconds)
        return f"{seconds // 60:2d}:{seconds % 60:02d}"

    def _clear(self) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0


def format_seconds(seconds: float | None) -> str:
    """Write a time in the unit that leaves one to three digits before the point."""
    if seconds is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def case_lines(records: Sequence[Record]) -> list[str]:
    """Give the lines of one case, one for each state: all medians, spread, ratio, rounds.

    Parameters
    ----------
    records : sequence of Record
        Of one case.
    """
    lines: list[str] = []
    for state in dict.fromkeys(record.state for record in records):
        of_state = [record for record in records if record.state == state]
        if not any(record.rounds for record in of_state):
            continue
        first = of_state[0]
        rounds = max(record.rounds for record in of_state)
        few = "" if rounds >= MIN_ROUNDS else ", too few to judge"
        head = f"{first.suite} {first.case}, {first.ranks} ranks, {state} ({rounds} rounds{few})"
        cells = [_cell(record) for record in of_state if record.rounds]
        lines.append(f"{head}: " + " | ".join(cells) + _verdict(of_state))
    # Who was not timed at all has been reported with the reason.
    wrong = [r.implementation for r in records if r.rounds and not r.results_equal]
    if wrong:
        names = ", ".join(dict.fromkeys(wrong))
        lines.append(f"{records[0].suite} {records[0].case}: no equal results from {names}")
    return lines


def _cell(record: Record) -> str:
    spread = ""
    if record.median_seconds and record.q1_seconds is not None and record.q3_seconds is not None:
        half_width = (record.q3_seconds - record.q1_seconds) / 2 / record.median_seconds
        spread = f" ±{100 * half_width:.0f}%"
    rewrite = ""
    if record.implementation == "cocoll" and record.rewrite_seconds is not None:
        rewrite = f" (+ rewrite {format_seconds(record.rewrite_seconds)})"
    times = ""
    if record.hosts > 1 and record.fraction_of_limit:
        times = f" ({1 / record.fraction_of_limit:.2f}x the limit)"
    seconds = format_seconds(record.median_seconds)
    return f"{record.implementation} {seconds}{spread}{times}{rewrite}"


def _verdict(records: Sequence[Record]) -> str:
    cocoll = next((record for record in records if record.implementation == "cocoll"), None)
    if cocoll is None:
        return ""
    parts: list[str] = []
    if cocoll.ratio_to_fastest_peer is not None:
        parts.append(f"{cocoll.ratio_to_fastest_peer:.2f}x {cocoll.fastest_peer}")
    if cocoll.fraction_of_limit is not None:
        parts.append(f"{100 * cocoll.fraction_of_limit:.0f}% of the limit")
    return " => " + ", ".join(parts) if parts else ""
