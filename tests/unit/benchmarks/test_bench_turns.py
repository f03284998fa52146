"""The turn protocol, with ranks that are threads of the test."""

import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.common.turns import (
    Channel,
    Listener,
    Message,
    RankError,
    TurnError,
    connect,
    exchange,
    serve,
)


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


def _ranks(
    listener: Listener, handlers: list[dict[str, object]], job: str = "job"
) -> tuple[list[Channel], list[threading.Thread]]:
    def run(rank: int) -> None:
        channel = connect(listener.name, {"job": job, "rank": rank})
        serve(channel, handlers[rank])  # type: ignore[arg-type]
        channel.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(handlers))]
    for thread in reversed(threads):  # ranks report in any order
        thread.start()
    channels = [channel for channel, _ in listener.accept(job, len(handlers), 10)]
    return channels, threads


def _stop(channels: list[Channel], threads: list[threading.Thread]) -> None:
    for channel in channels:
        channel.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_replies_come_in_rank_order(listener: Listener) -> None:
    handlers = [{"ask": lambda command, r=rank: {"got": command["x"] * r}} for rank in range(3)]
    channels, threads = _ranks(listener, handlers)  # type: ignore[arg-type]
    assert [r["got"] for r in exchange(channels, {"do": "ask", "x": 7}, 10)] == [0, 7, 14]
    assert exchange(channels, {"do": "stop"}, 10) == [{}, {}, {}]
    _stop(channels, threads)


def test_over_tcp() -> None:
    listener = Listener("127.0.0.1")
    handlers = [{"ask": lambda command, r=rank: {"got": r}} for rank in range(2)]
    channels, threads = _ranks(listener, handlers)  # type: ignore[arg-type]
    assert listener.name.startswith("127.0.0.1:")
    assert [reply["got"] for reply in exchange(channels, {"do": "ask"}, 10)] == [0, 1]
    _stop(channels, threads)
    listener.close()


def test_equal_errors_are_told_once(listener: Listener) -> None:
    def fail(command: Message) -> Message:
        raise ValueError("no")

    channels, threads = _ranks(listener, [{"ask": fail}] * 3)
    with pytest.raises(RankError, match=r"^ranks \[0, 1, 2\]: ValueError: no$"):
        exchange(channels, {"do": "ask"}, 10)
    _stop(channels, threads)


def test_an_exception_reaches_the_driver_and_the_rank_goes_on(listener: Listener) -> None:
    def fail(command: Message) -> Message:
        raise ValueError(f"planted {command['do']}")

    handlers = [{"ask": lambda command: {}}, {"ask": fail, "again": lambda command: {"ok": 1}}]
    handlers[0]["again"] = lambda command: {"ok": 1}
    channels, threads = _ranks(listener, handlers)  # type: ignore[arg-type]
    with pytest.raises(RankError, match="rank 1: ValueError: planted ask"):
        exchange(channels, {"do": "ask"}, 10)
    assert exchange(channels, {"do": "again"}, 10) == [{"ok": 1}, {"ok": 1}]
    _stop(channels, threads)


@pytest.mark.long
def test_the_failing_rank_is_named_though_others_hang(listener: Listener) -> None:
    release = threading.Event()

    def hang(command: Message) -> Message:
        del command
        release.wait(30)
        return {}

    def fail(command: Message) -> Message:
        raise ValueError("planted")

    channels, threads = _ranks(listener, [{"ask": hang}, {"ask": fail}])
    start = time.monotonic()
    with pytest.raises(TurnError, match=r"rank 1: ValueError: planted.*ranks \[0\] did not"):
        exchange(channels, {"do": "ask"}, 60)
    assert time.monotonic() - start < 30
    release.set()
    _stop(channels, threads)


def test_a_rank_that_leaves_is_noticed(listener: Listener) -> None:
    channels, threads = _ranks(listener, [{"ask": lambda command: {}}] * 2)
    exchange(channels[:1], {"do": "stop"}, 10)
    threads[0].join(10)
    with pytest.raises(TurnError, match="the other end is gone"):
        exchange(channels, {"do": "ask"}, 10)
    _stop(channels, threads)


def test_a_rank_that_does_not_answer_is_named(listener: Listener) -> None:
    release = threading.Event()
    handlers = [{"ask": lambda command: {}}, {"ask": lambda command: {"w": release.wait(30)}}]
    channels, threads = _ranks(listener, handlers)
    with pytest.raises(TurnError, match=r"ranks \[1\] did not answer 'ask'"):
        exchange(channels, {"do": "ask"}, 2.0)
    release.set()
    _stop(channels, threads)


def test_ranks_of_another_job_are_turned_away(listener: Listener) -> None:
    stranger = connect(listener.name, {"job": "other", "rank": 0})
    channels, threads = _ranks(listener, [{"ask": lambda command: {"me": 1}}])
    assert exchange(channels, {"do": "ask"}, 10) == [{"me": 1}]
    with pytest.raises(TurnError):
        stranger.receive(time.monotonic() + 10)
    stranger.close()
    _stop(channels, threads)


def test_a_launcher_that_ended_is_noticed(listener: Listener) -> None:
    with pytest.raises(TurnError, match=r"ended before ranks \[0\]"):
        listener.accept("job", 1, 10, lambda: True)


def test_missing_ranks_are_named(listener: Listener) -> None:
    only = connect(listener.name, {"job": "job", "rank": 1})
    with pytest.raises(TurnError, match=r"ranks \[0, 2\] did not report"):
        listener.accept("job", 3, 0.5)
    only.close()


def test_serve_ends_with_the_driver(listener: Listener) -> None:
    channels, threads = _ranks(listener, [{}])
    channels[0].close()
    threads[0].join(10)
    assert not threads[0].is_alive()
