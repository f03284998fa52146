"""Several hosts, emulated: one stops, leaves, gives up or is cut off, and the others are told."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pytest

import cocoll
from cocoll import _core
from cocoll.bootstrap import ThreadBootstrap
from cocoll.errors import (
    AbortedError,
    ClosedError,
    CocollError,
    CommTimeoutError,
    ForkedProcessError,
    PeerLostError,
)
from tests.helpers.deaths import run_in_a_child
from tests.helpers.misuse import check_usable
from tests.helpers.threads import Ended, run_threads

LAYOUTS = {"pairs": (0, 0, 1, 1), "singles": (0, 1, 2), "two": (0, 1), "uneven": (0, 1, 1, 2)}
LONG_SECONDS = 300.0
TOLD_SECONDS = 30.0
CALLS_BEFORE = 3


@pytest.fixture(autouse=True)
def _errors_go(_nothing_stays: None) -> Iterator[None]:
    # An error keeps the frames it passed through, and they keep communicators.
    yield
    gc.collect()


Body = Callable[[cocoll.Communicator, _core.ThreadNetwork], Any]


def run_hosts(
    hosts: Sequence[int], body: Body, *, timeout_seconds: float = LONG_SECONDS, seed: int = 0
) -> list[Ended]:
    """Call `body` on every rank; give what became of each."""
    made = ThreadBootstrap.create(len(hosts), LONG_SECONDS, hosts=hosts, seed=seed)

    def run(rank: int) -> Any:
        comm = cocoll.Communicator(made[rank], timeout_seconds=timeout_seconds)
        assert made[rank].network is not None
        try:
            return body(comm, made[rank].network)
        finally:
            comm.close()

    return run_threads(len(hosts), run)


def operations(comm: cocoll.Communicator) -> dict[str, Callable[[], object]]:
    """Give calls by name, with arrays of their own."""
    large, symmetric = np.ones(300_001, np.float32), comm.empty(300_001)
    symmetric[...] = 1.0
    tiny = np.ones(5, np.float32)
    stream = cocoll.Stream()
    bound = comm.bind(cocoll.allreduce, large, "max")
    return {
        "large": lambda: cocoll.allreduce(large, "max", comm=comm),
        "tiny": lambda: cocoll.allreduce(tiny, "max", comm=comm),
        "symmetric": lambda: cocoll.allreduce(symmetric, "max", comm=comm),
        "bound": bound,
        "allgather": lambda: cocoll.allgather(large, comm=comm).wait(),
        "broadcast": lambda: cocoll.broadcast(large, comm.world_size - 1, comm=comm),
        "barrier": comm.barrier,
        "empty": lambda: comm.empty(100),
        "duplicate": lambda: comm.duplicate().close(),
        "stream": lambda: cocoll.allreduce(large, "max", comm=comm, stream=stream).wait(),
    }


NAMES = (
    "large", "tiny", "symmetric", "bound", "allgather", "broadcast", "barrier", "empty",
    "duplicate", "stream",
)  # fmt: skip


def repeat(call: Callable[[], object], started: threading.Event | None = None) -> NoReturn:
    """Call until it raises."""
    if started is not None:
        started.set()
    while True:
        call()


def fail_with(
    operation: str, victim: int, act: Callable[[cocoll.Communicator], object]
) -> Callable[[cocoll.Communicator, _core.ThreadNetwork], Any]:
    """Let the victim do `act` where the others go on calling; they give what they got, and when."""

    def body(comm: cocoll.Communicator, network: _core.ThreadNetwork) -> Any:
        call = operations(comm)[operation]
        for _ in range(CALLS_BEFORE):
            call()
        if comm.rank == victim:
            act(comm)
            return None
        started = time.monotonic()
        with pytest.raises(CocollError) as caught:
            repeat(call)
        seconds = time.monotonic() - started
        assert comm.closed
        with pytest.raises(ClosedError):
            comm.barrier()
        return caught.value, seconds

    return body


def give_up(comm: cocoll.Communicator) -> None:
    comm.abort()


def leave_with_an_exception(comm: cocoll.Communicator) -> None:
    with pytest.raises(KeyError), comm:
        raise KeyError("a rank's own mistake")


def matrix(
    short: Sequence[tuple[str, str]], layouts: Sequence[str] = tuple(LAYOUTS)
) -> list[object]:
    """Give all operations on layouts; all but `short` for the long run."""
    return [
        pytest.param(layout, name, marks=() if (layout, name) in short else pytest.mark.long)
        for layout in layouts
        for name in NAMES
    ]


@pytest.mark.parametrize(("layout", "operation"), matrix([("singles", "stream"), ("two", "tiny")]))
@pytest.mark.parametrize("act", [give_up, leave_with_an_exception])
def test_a_rank_that_gives_up(layout: str, operation: str, act: Callable[..., None]) -> None:
    hosts = LAYOUTS[layout]
    victim = len(hosts) - 1
    ends = run_hosts(hosts, fail_with(operation, victim, act), seed=len(operation))
    for rank, ended in enumerate(ends):
        assert ended.error is None, ended.error
        if rank == victim:
            continue
        error, seconds = ended.value
        assert type(error) is AbortedError, error
        assert error.rank == victim
        assert seconds < TOLD_SECONDS


@pytest.mark.parametrize(
    ("layout", "operation"), matrix([("uneven", "barrier")], ["pairs", "uneven"])
)
def test_a_rank_that_leaves_others_of_its_host(layout: str, operation: str) -> None:
    hosts = LAYOUTS[layout]
    victim = next(rank for rank, host in enumerate(hosts) if hosts.count(host) > 1)
    for rank, ended in enumerate(
        run_hosts(hosts, fail_with(operation, victim, cocoll.Communicator.close))
    ):
        assert ended.error is None, ended.error
        if rank == victim:
            continue
        error, seconds = ended.value
        assert type(error) is PeerLostError, error
        assert error.rank == victim
        assert "has died or left" in str(error)
        assert seconds < TOLD_SECONDS


@pytest.mark.parametrize(("layout", "operation"), matrix([("pairs", "large")]))
def test_a_host_that_stops_answering(layout: str, operation: str) -> None:
    hosts = LAYOUTS[layout]
    victim = len(hosts) - 1
    told = threading.Event()
    waiting = threading.Semaphore(0)

    def stop(comm: cocoll.Communicator) -> None:
        assert told.wait(LONG_SECONDS)
        # Waked up, it is told at its next call.
        with pytest.raises(CommTimeoutError) as caught:
            comm.barrier()
        assert caught.value.ranks == (victim,) or len(caught.value.ranks) == 1

    body = fail_with(operation, victim, stop)

    def count_down(comm: cocoll.Communicator, network: _core.ThreadNetwork) -> Any:
        try:
            return body(comm, network)
        finally:
            waiting.release()

    def tell() -> None:
        for _ in range(len(hosts) - 1):
            waiting.acquire()
        told.set()

    threading.Thread(target=tell, daemon=True).start()
    ends = run_hosts(hosts, count_down, timeout_seconds=1.5)
    named: set[int] = set()
    for rank, ended in enumerate(ends):
        assert ended.error is None, ended.error
        if rank == victim:
            continue
        error, seconds = ended.value
        assert type(error) is CommTimeoutError, error
        assert f"rank {error.ranks[0]} did not come within 1.5 s" in str(error)
        assert 1.0 < seconds < TOLD_SECONDS
        named |= set(error.ranks)
    # Whoever waits for the host itself names it; others name the neighbour who asks it.
    assert victim in named


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_host_that_is_cut_off(layout: str) -> None:
    hosts = LAYOUTS[layout]
    cut = len(hosts) - 1

    def body(comm: cocoll.Communicator, network: _core.ThreadNetwork) -> Any:
        call = operations(comm)["large"]
        call()
        if comm.rank == 0:
            network.lose(cut)
        started = time.monotonic()
        with pytest.raises(PeerLostError) as caught:
            repeat(call)
        assert comm.closed
        return caught.value, time.monotonic() - started

    ends = run_hosts(hosts, body)
    assert all(ended.error is None for ended in ends), ends
    assert all(ended.value[1] < TOLD_SECONDS for ended in ends)
    assert any(ended.value[0].rank == cut for ended in ends)
    assert any("the other rank is gone" in str(ended.value[0]) for ended in ends)


@pytest.mark.long
def test_a_new_world_after_a_failure() -> None:
    """What a failed world had under way must not reach the next one on the same network."""
    hosts = (0, 0, 1, 1)
    made = ThreadBootstrap.create(4, LONG_SECONDS, hosts=hosts)

    def run(rank: int) -> None:
        for turn in range(3):
            comm = cocoll.Communicator(made[rank], timeout_seconds=LONG_SECONDS)
            check_usable(comm)
            if rank == turn:
                comm.abort()
            else:
                x = np.ones(70_001, np.float32)
                with pytest.raises(AbortedError):
                    repeat(partial(cocoll.allreduce, x, "max", comm=comm))
        with cocoll.Communicator(made[rank], timeout_seconds=LONG_SECONDS) as last:
            check_usable(last)

    for ended in run_threads(4, run):
        assert ended.error is None, ended.error


@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1, 1)])
def test_ctrl_c_in_the_middle(hosts: tuple[int, ...]) -> None:
    """Rank 0 is the main thread and waits for a host that does not come; arrays go back to it."""
    size = len(hosts)
    made = ThreadBootstrap.create(size, LONG_SECONDS, hosts=hosts)
    interrupted, entered = threading.Event(), threading.Event()
    outcomes: dict[int, BaseException | None] = {}
    x = np.ones(300_001, np.float32)

    def other(rank: int) -> None:
        outcomes[rank] = None
        comm = cocoll.Communicator(made[rank], timeout_seconds=LONG_SECONDS)
        try:
            if rank == size - 1:
                assert entered.wait(LONG_SECONDS)
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGINT)
                assert interrupted.wait(LONG_SECONDS)
            cocoll.allreduce(np.full(300_001, 7, np.float32), comm=comm)
        except BaseException as error:
            outcomes[rank] = error
        finally:
            comm.close()

    threads = [threading.Thread(target=other, args=(rank,)) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        comm = cocoll.Communicator(made[0], timeout_seconds=LONG_SECONDS)
        with pytest.raises(KeyboardInterrupt):
            repeat(partial(cocoll.allreduce, x, comm=comm), entered)
    finally:
        signal.signal(signal.SIGINT, before)
        interrupted.set()
    assert comm.closed
    x[...] = 3.0
    for thread in threads:
        thread.join()
    assert (x == 3.0).all()
    for error in outcomes.values():
        assert type(error) is AbortedError, outcomes
        assert error.rank == 0


@pytest.mark.long
def test_ctrl_c_while_messages_move() -> None:
    """What is under way is taken back: nothing arrives in arrays that have gone back."""
    made = ThreadBootstrap.create(2, LONG_SECONDS, hosts=(0, 1))
    ready, released, outcomes = threading.Event(), threading.Event(), []
    x = np.ones(3_000_001, np.float32)

    def other() -> None:
        comm = cocoll.Communicator(made[1], timeout_seconds=LONG_SECONDS)
        ready.wait()
        threading.Timer(0.0, os.kill, [os.getpid(), signal.SIGINT]).start()
        try:
            repeat(partial(cocoll.allreduce, np.full(3_000_001, 7, np.float32), "max", comm=comm))
        except BaseException as error:
            outcomes.append(error)
        finally:
            comm.close()
        released.set()

    thread = threading.Thread(target=other)
    thread.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        comm = cocoll.Communicator(made[0], timeout_seconds=LONG_SECONDS)
        with pytest.raises(KeyboardInterrupt):
            repeat(partial(cocoll.allreduce, x, "max", comm=comm), ready)
    finally:
        signal.signal(signal.SIGINT, before)
    comm.abort()
    x[...] = 3.0
    assert released.wait(LONG_SECONDS)
    thread.join()
    assert (x == 3.0).all()
    assert type(outcomes[0]) is AbortedError


@pytest.mark.long
def test_a_child_made_by_fork() -> None:
    """It is told that what it inherited is its parent's; the parent's hosts go on."""

    def body(comm: cocoll.Communicator, network: _core.ThreadNetwork) -> list[str]:
        calls = operations(comm)
        for _ in range(CALLS_BEFORE):
            calls["large"]()
        found: list[str] = []
        if comm.rank == 0:

            def child() -> str:
                told = []
                for name, call in calls.items():
                    try:
                        call()
                    except BaseException as error:
                        told.append(f"{name}: {type(error).__name__}")
                comm.close()
                comm.abort()
                return "\n".join(told)

            found = run_in_a_child(child).split("\n")
        for name in ("large", "stream", "empty"):
            calls[name]()
        check_usable(comm)
        return found

    ends = run_hosts((0, 1, 1), body)
    assert all(ended.error is None for ended in ends), ends
    assert ends[0].value == [f"{name}: {ForkedProcessError.__name__}" for name in NAMES]


@pytest.mark.parametrize("slow_host", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_slow_host_costs_the_others_no_time(slow_host: int) -> None:
    """Waiting for another host does not burn the cores."""
    hosts = (0, 1)

    def body(comm: cocoll.Communicator, network: _core.ThreadNetwork) -> float:
        x = np.ones(300_001, np.float32)
        cocoll.allreduce(x, comm=comm)
        if comm.rank == slow_host:
            time.sleep(1.0)
        before = time.thread_time()
        cocoll.allreduce(x, comm=comm)
        return time.thread_time() - before

    for ended in run_hosts(hosts, body):
        assert ended.error is None, ended.error
        assert ended.value < 0.2


@pytest.mark.long
def test_parts_that_span_hosts_beside_parts_that_do_not() -> None:
    """What one part exchanges through the parent, all of the parent's ranks do."""

    def body(comm: cocoll.Communicator, network: _core.ThreadNetwork) -> None:
        for colors in ((0, 1, 0, 1, 0), (0, 0, 1, 0, 2), (0, 1, 1, 1, 1), (0, 1, 2, 3, 4)):
            part = comm.split(colors[comm.rank])
            assert part is not None
            with part:
                check_usable(part)
            check_usable(comm)

    # Ranks 1 and 3 share a host, and so do 0 and 2.
    for ended in run_hosts((0, 1, 0, 1, 2), body):
        assert ended.error is None, ended.error


@pytest.mark.parametrize("times", [2, pytest.param(100, marks=pytest.mark.long)])
def test_many_communicators(times: int) -> None:
    def body(comm: cocoll.Communicator, network: _core.ThreadNetwork) -> None:
        for turn in range(times):
            with comm.duplicate() as child:
                check_usable(child)
            part = comm.split(turn % 2 if comm.rank else 0)
            assert part is not None
            with part:
                part.barrier()

    for ended in run_hosts((0, 1, 1), body):
        assert ended.error is None, ended.error
