"""Traces are what Chrome's format says, with predicted and measured ranks apart."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from cocoll.simulation.simulator import simulate
from cocoll.simulation.timeline import Span, kind_of, trace_events, write_trace
from tests.helpers.simulated import all_plans, chain, wired_hosts

LANES = {0: ("send", "receive")}


def span(rank: int, lane: int, begin: int, end: int, text: str = "send block 1") -> Span:
    return Span(rank, lane, 0, 0, 3, begin, end, 4096, text)


def names(events: list[dict[str, Any]], what: str) -> dict[tuple[int, int], str]:
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == what
    }


def test_a_span_is_a_complete_event() -> None:
    events = list(trace_events([span(0, 0, 1500, 4000)], lanes=LANES))
    (complete,) = [event for event in events if event["ph"] == "X"]
    assert complete["ts"] == 1.5
    assert complete["dur"] == 2.5
    assert complete["name"] == "send block 1"
    assert complete["cat"] == "send"
    assert complete["args"] == {"iteration": 3, "bytes": 4096}
    place = (complete["pid"], complete["tid"])
    assert names(events, "thread_name") == {place: "send"}
    assert set(names(events, "process_name").values()) == {"rank 0"}


def test_ranks_are_processes_and_lanes_threads_in_their_order() -> None:
    spans = [span(1, 2, 0, 5), span(0, 1, 0, 5), span(0, 0, 0, 5), span(0, -1, 0, 5)]
    events = list(trace_events(spans, lanes=LANES))
    threads = names(events, "thread_name")
    assert [threads[place] for place in sorted(threads)] == ["opening", "send", "receive", "lane 2"]
    processes = names(events, "process_name")
    assert {place[0]: title for place, title in processes.items()} == {0: "rank 0", 1: "rank 1"}
    order = {
        (event["pid"], event["tid"]): event["args"]["sort_index"]
        for event in events
        if event["name"] == "thread_sort_index"
    }
    assert sorted(threads, key=order.__getitem__)[0] == next(
        place for place, title in threads.items() if title == "opening"
    )


def overlaps(events: list[dict[str, Any]]) -> int:
    """Count events of one thread that overlap without one lying within the other."""
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            end = event["ts"] + event["dur"]
            rows[event["pid"], event["tid"]].append((event["ts"], end))
    return sum(
        a[0] < b[0] < a[1] < b[1] for row in rows.values() for a in row for b in row if a != b
    )


def test_steps_in_flight_get_a_row_each() -> None:
    """Viewers draw no two events of a thread side by side."""
    spans = [span(0, 0, 0, 10), span(0, 0, 5, 15), span(0, 0, 10, 20), span(0, 0, 16, 18)]
    events = list(trace_events(spans, lanes=LANES))
    assert overlaps(events) == 0
    assert sorted(names(events, "thread_name").values()) == ["send", "send (2)"]


def test_a_span_within_another_stays_in_its_row() -> None:
    spans = [span(0, 0, 0, 10, "operation"), span(0, 0, 2, 6), span(0, 0, 6, 10), span(0, 0, 0, 2)]
    events = list(trace_events(spans, lanes=LANES))
    assert list(names(events, "thread_name").values()) == ["send"]


def test_predicted_and_measured_lie_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    measured = [span(rank, 0, 10, 20) for rank in range(2)]
    predicted = [span(rank, 0, 11, 19) for rank in range(2)]
    write_trace(path, measured=measured, predicted=predicted, lanes=LANES)
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    titles = {place[0]: title for place, title in names(events, "process_name").items()}
    assert sorted(titles.values()) == [
        "rank 0",
        "rank 0 (predicted)",
        "rank 1",
        "rank 1 (predicted)",
    ]
    begins = {titles[event["pid"]]: event["ts"] for event in events if event["ph"] == "X"}
    assert begins["rank 1"] == 0.010
    assert begins["rank 1 (predicted)"] == 0.011


def test_a_simulation_can_be_written(tmp_path: Path) -> None:
    hosts = wired_hosts(3)
    simulation = simulate(all_plans(chain(hosts, 100, 3), hosts), hosts, 1000)
    path = tmp_path / "trace.json"
    write_trace(path, predicted=simulation.spans, lanes=simulation.lanes)
    events = json.loads(path.read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == simulation.steps
    assert overlaps(events) == 0
    last = max(event["ts"] + event["dur"] for event in complete)
    assert round(last * 1000) == simulation.makespan_nanoseconds
    assert {event["cat"] for event in complete} == {"send", "receive"}


def test_kinds_are_first_words() -> None:
    assert kind_of(span(0, 0, 0, 1, "reduce partly block 3: ...")) == "reduce"
