"""Who holds whom up, from control pages that are made up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from cocoll.waits import describe_pages, find_roots, name_ranks, observe_process

ARRIVAL, HOST, VERDICT, READY = -1, -2, -3, 0


def place(flight: tuple[int, ...], sequence: int) -> str:
    return f"operation {sequence}"


def page(rank: int, last: int, state: str = "done", waiting: Any = None) -> dict[str, Any]:
    operations = [
        {"sequence": number, "state": "done" if number < last else state, "flight": (number,)}
        for number in range(max(0, last - 2), last + 1)
    ]
    return {"rank": rank, "world_size": 4, "pid": 100 + rank, "left": False, "round": 0,
            "waiting": waiting, "operations": operations}  # fmt: skip


def inside(
    rank: int, operation: int, peer: int, flag: int = ARRIVAL, state: str = "running"
) -> Any:
    return page(rank, operation, state, (peer, flag, operation))


JOBS = {
    "one has not arrived": ([inside(0, 7, 1), page(1, 6), inside(2, 7, 1)], (1,)),
    "two have not arrived": ([inside(0, 7, 1), page(1, 6), page(2, 4)], (1, 2)),
    "one has called nothing": ([inside(0, 0, 1), page(1, -1)], (1,)),
    "a chain of signals": (
        [inside(0, 7, 1, READY), inside(1, 7, 2, READY), page(2, 7, "running")], (2,)
    ),
    "one is an operation ahead": (
        [inside(0, 8, 1), inside(1, 7, 2, READY), inside(2, 7, 3, READY), page(3, 7, "running")],
        (3,),
    ),
    "all have given up": (
        [inside(0, 7, 2, READY, "failed"), page(1, 6), inside(2, 7, 1, ARRIVAL, "failed")], (1,)
    ),
    "it has arrived meanwhile": ([inside(0, 7, 1), page(1, 7, "running")], (0,)),
    "another host": ([inside(0, 7, 2, HOST), inside(1, 7, 0, VERDICT)], (2,)),
    "in a circle": ([inside(0, 7, 1, READY), inside(1, 7, 0, READY)], (0, 1)),
    "what is on record is old": (
        [inside(0, 7, 1), page(1, 7, "running", (0, ARRIVAL, 6)), page(2, 6)], (2,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(JOBS))
def test_roots(name: str) -> None:
    pages, roots = JOBS[name]
    assert find_roots(pages, [0]) == roots


def test_a_process_that_is_stopped_waits_for_nobody() -> None:
    pages = JOBS["in a circle"][0]
    assert find_roots([pages[0], {**pages[1], "process": "is stopped"}], [0]) == (1,)


def describe(name: str, **processes: str) -> list[str]:
    pages = JOBS[name][0]
    told = [{**one, "process": processes.get(f"rank{one['rank']}", "")} for one in pages]
    return describe_pages(told, lambda flight: f"call {flight[0]}", place).splitlines()


def test_who_is_held_up() -> None:
    lines = describe("one is an operation ahead", rank3="is stopped")
    assert lines[0] == (
        "  rank 0 (pid 100) is in call 8, operation 8, waiting for rank 1 to arrive; the last that "
        "it finished was call 7, operation 7"
    )
    assert lines[3].startswith("  rank 3 (pid 103) is stopped; it is in call 7, operation 7")
    assert lines[4:] == ["  rank 3 holds up ranks 0, 1 and 2: it is stopped"]


def test_who_is_on_another_host() -> None:
    assert describe("another host")[2:] == [
        "  rank 2 holds up ranks 0 and 1 and is on another host, whose ranks tell more"
    ]


def test_a_circle_is_told() -> None:
    assert describe("in a circle")[2:] == ["  ranks 0 and 1 wait for each other"]


def test_nobody_waits() -> None:
    assert len(describe_pages([page(0, 3), page(1, 3)], str, place).splitlines()) == 2


def test_names() -> None:
    assert [name_ranks(range(count)) for count in (1, 2, 3)] == [
        "rank 0", "ranks 0 and 1", "ranks 0, 1 and 2"
    ]  # fmt: skip


def test_what_a_process_does() -> None:
    assert observe_process(os.getpid()) == ""
    assert observe_process(1 << 22) == "has died"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        os.kill(child.pid, signal.SIGSTOP)
        while observe_process(child.pid) == "":
            time.sleep(0.001)
        assert observe_process(child.pid) == "is stopped"
        os.kill(child.pid, signal.SIGKILL)
        # Long before it is waited for.
        while observe_process(child.pid) != "has died":
            time.sleep(0.001)
    finally:
        child.kill()
        child.communicate()
