"""Messages between two ranks that never meet: who waited for whom, and for what."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cocoll
from cocoll.errors import ClosedError, CommTimeoutError, PeerLostError, UsageError
from cocoll.failure import describe_waits
from cocoll.testing import run_ranks
from tests.helpers.cases.points import run_graph
from tests.helpers.cases.streams import raises

HOSTS = [None, (0, 1)]
TIMEOUT_SECONDS = 0.5


@pytest.mark.parametrize("hosts", HOSTS, ids=["one host", "two hosts"])
@pytest.mark.parametrize("streamed", [False, True], ids=["blocking", "streamed"])
def test_both_send_first(hosts: tuple[int, ...] | None, streamed: bool) -> None:
    def body(comm: cocoll.Communicator) -> BaseException:
        peer = 1 - comm.rank
        x, y = np.ones(70_001, np.float32), np.zeros(70_001, np.float32)
        with cocoll.Stream() as stream:
            using = stream if streamed else None

            def exchange() -> None:
                work = cocoll.send(x, peer, comm=comm, stream=using)
                cocoll.recv(y, peer, comm=comm, stream=using)
                work.wait()

            error = raises(CommTimeoutError, exchange)
        assert comm.closed
        assert not y.any()
        return error

    errors = run_ranks(2, body, timeout_seconds=TIMEOUT_SECONDS, hosts=hosts)
    # The first one to give up says for whom it waited; the other is told of that.
    for rank, error in enumerate(errors):
        # Where both pages are seen, the circle is.
        assert error.ranks in ((0, 1), (0,), (1,))
        assert f"send(count=70001, dtype=float32, to rank {1 - rank}), message 1" in str(error)
        if hosts is None:
            assert "ranks 0 and 1 wait for each other" in str(error)
            assert f"waiting for rank {1 - rank} to receive from it" in str(error)


@pytest.mark.parametrize("hosts", HOSTS, ids=["one host", "two hosts"])
def test_a_group_that_lacks_one_message(hosts: tuple[int, ...] | None) -> None:
    def body(comm: cocoll.Communicator) -> BaseException | None:
        x, outs = np.ones(300, np.float32), [np.zeros(300, np.float32) for _ in range(2)]
        peer = 1 - comm.rank

        def exchange() -> None:
            with cocoll.group(comm):
                cocoll.send(x, peer)
                cocoll.recv(outs[0], peer)
                if comm.rank == 0:
                    cocoll.recv(outs[1], peer)
            assert comm.rank == 1
            comm.barrier()

        error = raises(CommTimeoutError, exchange)
        # What has met has moved.
        assert (outs[0] == 1).all()
        return error

    error, _ = run_ranks(2, body, timeout_seconds=TIMEOUT_SECONDS, hosts=hosts)
    assert error.ranks in ((0, 1), (0,), (1,))
    assert "recv(count=300, dtype=float32, from rank 1), message 2 of this pair" in str(error)
    assert "issued with 2 others" in str(error)


def test_a_rank_that_has_left() -> None:
    def body(comm: cocoll.Communicator) -> BaseException | None:
        x = np.ones(300, np.float32)
        if comm.rank == 1:
            cocoll.recv(x, 0, comm=comm)
            comm.close()
            return None
        cocoll.send(x, 1, comm=comm)
        return raises(PeerLostError, lambda: cocoll.send(x, 1, comm=comm))

    error, _ = run_ranks(2, body)
    assert error.rank == 1
    assert "send(count=300, dtype=float32, to rank 1), message 2 of this pair" in str(error)


def test_what_the_flight_recorder_says() -> None:
    def body(comm: cocoll.Communicator) -> str:
        x = np.ones(3, np.float32)
        comm.barrier()
        text = ""
        if comm.rank == 0:
            cocoll.sendrecv(x, 0, source=0, out=np.zeros(3, np.float32), comm=comm)
            with cocoll.group(comm):
                cocoll.send(x, 1)
                cocoll.send(x[:2], 1)
        else:
            while comm._inspect(0)["waiting"] is None:
                time.sleep(0.001)
            text = describe_waits([comm._inspect(rank) for rank in range(2)])
            cocoll.recv(x, 0, comm=comm)
            cocoll.recv(x[:2], 0, comm=comm)
        kinds = [entry["flight"][0] for entry in comm._inspect(comm.rank)["operations"]]
        assert kinds == ([5, 16, 17, 16, 16, 18] if comm.rank == 0 else [5, 17, 17])
        assert {entry["state"] for entry in comm._inspect(comm.rank)["operations"]} == {"done"}
        comm.barrier()
        return text

    _, text = run_ranks(2, body)
    assert "is in group of 2 messages" in text
    assert "waiting for rank 1 to receive from it" in text
    assert "is outside cocoll; its last was barrier(), operation 0" in text


@pytest.mark.parametrize("size", [2, 5])
def test_random_graphs(thread_worlds, size: int) -> None:
    @given(seed=st.integers(0, 1 << 30), edges=st.integers(1, 60))
    @settings(max_examples=10)
    def check(seed: int, edges: int) -> None:
        thread_worlds(size, "small").run(run_graph, seed, edges)

    check()


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_many_random_graphs(thread_worlds, size: int) -> None:
    @given(seed=st.integers(0, 1 << 30), edges=st.integers(1, 120))
    @settings(max_examples=300)
    def check(seed: int, edges: int) -> None:
        thread_worlds(size, "small").run(run_graph, seed, edges)

    check()


@pytest.mark.long
@pytest.mark.parametrize("hosts", HOSTS, ids=["one host", "two hosts"])
def test_more_than_two_gibibytes(hosts: tuple[int, ...] | None) -> None:
    count = (1 << 31) + 12_345

    def body(comm: cocoll.Communicator) -> None:
        x = np.empty(count, np.uint8)
        places = (0, 1, 1 << 30, (1 << 31) - 1, 1 << 31, count - 1)
        if comm.rank == 0:
            x[:] = 7
            for number, place in enumerate(places):
                x[place] = number + 10
            cocoll.send(x, 1, comm=comm)
            return
        cocoll.recv(x, 0, comm=comm)
        assert [int(x[place]) for place in places] == list(range(10, 16))
        # Without an array as large again.
        assert sum(int(part.sum()) for part in np.array_split(x, 64)) == 7 * (count - 6) + 75

    run_ranks(2, body, hosts=hosts, timeout_seconds=300.0)


def test_a_second_thread_is_refused() -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = np.ones(300, np.float32)
        if comm.rank == 1:
            while comm._inspect(0)["waiting"] is None:
                time.sleep(0.001)
            cocoll.recv(x, 0, comm=comm)
            return
        first = threading.Thread(target=lambda: cocoll.send(x, 1, comm=comm))
        first.start()
        while not comm._is_entered():
            time.sleep(0.001)
        error = raises(UsageError, lambda: cocoll.send(x, 1, comm=comm))
        assert "two threads are inside one communicator" in str(error)
        first.join()

    run_ranks(2, body)


def test_a_communicator_that_is_closed() -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = np.ones(3, np.float32)
        block = cocoll.group(comm)

        def close_inside() -> None:
            with block:
                work = cocoll.send(x, 1 - comm.rank)
                works.append(work)
                comm.close()

        works: list[cocoll.Work] = []
        raises(ClosedError, close_inside)
        assert isinstance(works[0].exception(), ClosedError)
        raises(ClosedError, lambda: cocoll.send(x, 1 - comm.rank, comm=comm))
        raises(UsageError, block.__enter__)

    run_ranks(2, body)
