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
        Times in microseconds, as the format has them; a lane's thread is its number plus one, for
        the opening comes first.
    """
    spans = list(spans)
    lanes = lanes or {}
    for rank, lane in sorted({(span.rank, span.lane) for span in spans}):
        names = lanes.get(rank, ())
        process = {"ph": "M", "pid": first_process + rank, "tid": lane + 1}
        title = f"rank {rank} ({note})" if note else f"rank {rank}"
        name = "opening" if lane < 0 else names[lane] if lane < len(names) else f"lane {lane}"
        yield {**process, "name": "process_name", "args": {"name": title}}
        yield {**process, "name": "process_sort_index", "args": {"sort_index": rank}}
        yield {**process, "name": "thread_name", "args": {"name": name}}
        yield {**process, "name": "thread_sort_index", "args": {"sort_index": lane + 1}}
    for span in spans:
        yield {
            "ph": "X",
            "pid": first_process + span.rank,
            "tid": span.lane + 1,
            "ts": span.begin_nanoseconds / 1000,
            "dur": (span.end_nanoseconds - span.begin_nanoseconds) / 1000,
            "name": span.text,
            "cat": kind_of(span),
            "args": {"iteration": span.iteration, "bytes": span.bytes},
        }


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
