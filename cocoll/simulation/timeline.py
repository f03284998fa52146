"""When what happened, predicted or measured, and as a file that trace viewers open.

The file is Chrome's trace format, JSON object form: every span is a complete event, every rank a
process and every lane a thread of it. Perfetto (ui.perfetto.dev) and chrome://tracing open it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# How far the thread numbers of two lanes are apart.
_ROWS_OF_A_LANE = 10_000

__all__ = ["Span", "kind_of", "trace_events", "write_trace"]


class Span(NamedTuple):
    """One step of one iteration, from its beginning to its end.

    Attributes
    ----------
    rank : int
        Whose.
    lane : int
        Which of the plan's lanes; -1 for the opening.
    loop, step : int
        Where the step stands in the lane.
    iteration : int
        Of the loop.
    begin_nanoseconds, end_nanoseconds : int
        Since the operation began.
    bytes : int
        What the step read and wrote, sent or received.
    text : str
        The step in one line.
    """

    rank: int
    lane: int
    loop: int
    step: int
    iteration: int
    begin_nanoseconds: int
    end_nanoseconds: int
    bytes: int
    text: str


def kind_of(span: Span) -> str:
    """Give what kind of step a span is: the first word of its text, such as ``"reduce"``."""
    return span.text.partition(" ")[0]


def trace_events(
    spans: Iterable[Span],
    *,
    lanes: Mapping[int, Sequence[str]] | None = None,
    note: str = "",
    first_process: int = 0,
) -> Iterator[dict[str, Any]]:
    """Give the events of a trace: names of processes and threads, then one for each span.

    Parameters
    ----------
    spans : iterable of Span
        In any order.
    lanes : mapping of int to sequence of str, optional
        For each rank, the names of its lanes.
    note : str, default ""
        What to add to the name of every process, as in ``"rank 3 (predicted)"``.
    first_process : int, default 0
        The process number of rank 0; those of the other ranks follow.

    Returns
    -------
    iterator of dict
        Times in microseconds, as the format has them. A lane is a thread; one with several steps in
        flight is as many as overlap, for viewers show no two events of a thread side by side.
    """
    lanes = lanes or {}
    rows: dict[tuple[int, int], list[list[int]]] = {}
    placed: list[tuple[Span, int]] = []
    for span in sorted(spans, key=lambda one: (one.begin_nanoseconds, -one.end_nanoseconds)):
        depth = _place(rows.setdefault((span.rank, span.lane), []), span)
        placed.append((span, _thread(span.lane, depth)))
    for rank in sorted({rank for rank, _ in rows}):
        title = f"rank {rank} ({note})" if note else f"rank {rank}"
        process = {"ph": "M", "pid": first_process + rank, "tid": 0}
        yield {**process, "name": "process_name", "args": {"name": title}}
        sort_index = first_process + rank
        yield {**process, "name": "process_sort_index", "args": {"sort_index": sort_index}}
    for (rank, lane), depths in sorted(rows.items(), key=lambda item: item[0]):
        names = lanes.get(rank, ())
        name = "opening" if lane < 0 else names[lane] if lane < len(names) else f"lane {lane}"
        for depth in range(len(depths)):
            title = f"{name} ({depth + 1})" if depth else name
            number = _thread(lane, depth)
            thread = {"ph": "M", "pid": first_process + rank, "tid": number}
            yield {**thread, "name": "thread_name", "args": {"name": title}}
            yield {**thread, "name": "thread_sort_index", "args": {"sort_index": number}}
    for span, thread_number in placed:
        yield {
            "ph": "X",
            "pid": first_process + span.rank,
            "tid": thread_number,
            "ts": span.begin_nanoseconds / 1000,
            "dur": (span.end_nanoseconds - span.begin_nanoseconds) / 1000,
            "name": span.text,
            "cat": kind_of(span),
            "args": {"iteration": span.iteration, "bytes": span.bytes},
        }


def _place(rows: list[list[int]], span: Span) -> int:
    """Give the first row where a span overlaps nothing, or lies within what it overlaps.

    A row is the stack of the ends of what is open there; spans come in the order of their begins.
    """
    for depth, open_ends in enumerate(rows):
        while open_ends and open_ends[-1] <= span.begin_nanoseconds:
            open_ends.pop()
        if not open_ends or span.end_nanoseconds <= open_ends[-1]:
            open_ends.append(span.end_nanoseconds)
            return depth
    rows.append([span.end_nanoseconds])
    return len(rows) - 1


def _thread(lane: int, depth: int) -> int:
    """Give the number of a thread: those of a lane in sequence, the opening's first."""
    return (lane + 1) * _ROWS_OF_A_LANE + depth + 1


def write_trace(
    path: str | os.PathLike[str],
    *,
    measured: Iterable[Span] = (),
    predicted: Iterable[Span] = (),
    lanes: Mapping[int, Sequence[str]] | None = None,
) -> None:
    """Write spans to a file, the predicted ones as processes of their own below the measured.

    Parameters
    ----------
    path : str or path-like
        The file; it is replaced.
    measured, predicted : iterable of Span
        Either may be empty; both begin at the time 0 of the operation.
    lanes : mapping of int to sequence of str, optional
        For each rank, the names of its lanes.
    """
    measured, predicted = list(measured), list(predicted)
    after = 1 + max((span.rank for span in (*measured, *predicted)), default=0)
    events = [
        *trace_events(measured, lanes=lanes),
        *trace_events(predicted, lanes=lanes, note="predicted", first_process=after),
    ]
    document = {"traceEvents": events, "displayTimeUnit": "ns"}
    with Path(path).open("w", encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))
