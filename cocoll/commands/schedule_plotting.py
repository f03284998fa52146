"""Schedules of reshardings as pictures: who sends what to whom, and when."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from cocoll.commands.plotting import load_pyplot
from cocoll.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cocoll.resharding import MulticastPlan

__all__ = ["plot_schedule"]

_INCHES_A_ROW = 0.22
# More rows, or more words, than this are no picture any more.
_MOST_ROWS = 64
_LEAST_WIDTH_OF_WORDS = 1 / 40
_MOST_LINES_OF_WORDS = 2


class _Bar(NamedTuple):
    begin: float
    length: float
    task: int
    words: str


def plot_schedule(path: str | os.PathLike[str], made: MulticastPlan, title: str) -> None:
    """Draw when every hop is under way: two rows a rank, what it sends and what it receives.

    Parameters
    ----------
    path : str or path-like
        The picture; its suffix says of what format.
    made : MulticastPlan
        Whose schedule. A colour stands for a task; the words in a bar are the task and the other
        rank. What is under way at once shares a row.
    title : str
        Above it.

    Raises
    ------
    UsageError
        matplotlib is not installed, nothing moves, or the file cannot be written.
    """
    pyplot = load_pyplot()
    spans = made.spans
    if not spans:
        raise UsageError("--plot: nothing moves between these layouts, so there is no schedule")
    bars: dict[tuple[int, bool], list[_Bar]] = {}
    for span in spans:
        transfer = made.schedule.groups[span.group].transfers[span.transfer]
        source, destination = transfer.hops[span.hop]
        begin = span.begin_nanoseconds / 1e6
        length = (span.end_nanoseconds - span.begin_nanoseconds) / 1e6
        bars.setdefault((source, False), []).append(
            _Bar(begin, length, transfer.task, f"{transfer.task} to {destination}")
        )
        bars.setdefault((destination, True), []).append(
            _Bar(begin, length, transfer.task, f"{transfer.task} from {source}")
        )
    rows = sorted(bars)[:_MOST_ROWS]
    if len(rows) < len(bars):
        title = f"{title}\nthe first {len(rows)} of {len(bars)} rows"
    end = made.makespan_nanoseconds / 1e6
    figure, axis = pyplot.subplots(
        figsize=(12, 1.5 + _INCHES_A_ROW * len(rows)), layout="constrained"
    )
    for place, row in enumerate(rows):
        lines = _place(bars[row])
        height = 0.8 / len(lines)
        for line, members in enumerate(lines):
            low = place - 0.4 + line * height
            for bar in members:
                axis.broken_barh(
                    [(bar.begin, bar.length)],
                    (low, height),
                    facecolors=f"C{bar.task % 10}",
                    edgecolors="white",
                    linewidth=0.3,
                )
                if len(lines) <= _MOST_LINES_OF_WORDS and bar.length > end * _LEAST_WIDTH_OF_WORDS:
                    middle = bar.begin + bar.length / 2
                    axis.text(
                        middle, low + height / 2, bar.words, fontsize=5, ha="center", va="center"
                    )
    axis.axvline(made.bound.nanoseconds / 1e6, color="black", linestyle="--", linewidth=1)
    names = [f"rank {rank} {'receives' if receives else 'sends'}" for rank, receives in rows]
    axis.set_yticks(range(len(rows)), names, fontsize=6)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(0, max(end, made.bound.nanoseconds / 1e6) * 1.02)
    axis.set_xlabel("milliseconds (dashed: the lower bound)")
    axis.set_title(title, fontsize=9)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot: {os.fspath(path)} cannot be drawn: {error}") from None
    finally:
        pyplot.close(figure)


def _place(bars: Iterable[_Bar]) -> list[list[_Bar]]:
    """Divide bars into lines in which none overlaps another."""
    lines: list[list[_Bar]] = []
    for bar in sorted(bars):
        for line in lines:
            if line[-1].begin + line[-1].length <= bar.begin:
                line.append(bar)
                break
        else:
            lines.append([bar])
    return lines
