"""What is left of a communicator goes on: comm.shrink."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import cocoll
from cocoll.bootstrap import ThreadBootstrap
from cocoll.errors import AbortedError, UnsupportedError
from cocoll.testing import run_processes
from tests.helpers import shrinking
from tests.helpers.scripts import MPIRUN, run_script
from tests.helpers.threads import run_threads

LONG = {"timeout_seconds": 300.0, "limit_seconds": 200.0}


def test_one_after_the_other() -> None:
    outcomes = run_processes(4, shrinking.one_after_the_other, **LONG)
    assert [outcome.exit_code for outcome in outcomes] == [0, -9, -9, -9]
    assert outcomes[0].error is None, outcomes[0].error
    assert outcomes[0].value == [(0, 3, 3.0), (0, 2, 1.0), (0, 1, 0.0)]


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("before", marks=pytest.mark.long),
        pytest.param("announced", marks=pytest.mark.long),
        pytest.param("decided", marks=pytest.mark.long),
        "1",
        *[pytest.param(str(place), marks=pytest.mark.long) for place in (0, 2, 3, 4, 5, 6)],
    ],
)
def test_more_are_lost_meanwhile(where: str) -> None:
    outcomes = run_processes(4, shrinking.lose_more_meanwhile, where, **LONG)
    assert [outcome.exit_code for outcome in outcomes] == [0, -9, 0, -9]
    for place, rank in enumerate((0, 2)):
        assert outcomes[rank].error is None, outcomes[rank].error
        assert outcomes[rank].value == (place, 2, 2.0)


@pytest.mark.long
def test_one_is_stopped_meanwhile() -> None:
    outcomes = run_processes(4, shrinking.stop_meanwhile, **LONG)
    for place, rank in enumerate((0, 2)):
        assert outcomes[rank].error is None, outcomes[rank].error
        assert outcomes[rank].value == (place, 2, 2.0)
    assert outcomes[1].value["kind"] == "ClosedError"
    assert "the others have gone on without it" in outcomes[1].value["message"]


def test_whoever_closes_its_end_is_not_waited_for() -> None:
    outcomes = run_processes(3, shrinking.close_instead, **LONG)
    assert [outcomes[rank].error for rank in (0, 1)] == [None, None]
    assert outcomes[0].value == (0, 1, 0.0)


@pytest.mark.long
def test_a_failure_on_a_stream() -> None:
    outcomes = run_processes(3, shrinking.on_a_stream, **LONG)
    for rank in (0, 1):
        assert outcomes[rank].error is None, outcomes[rank].error
        assert outcomes[rank].value == (rank, 2, 1.0)


def test_where_there_is_nothing_to_shrink() -> None:
    def body(rank: int) -> list[str]:
        comm = cocoll.Communicator(made[rank], timeout_seconds=60.0)
        with comm:
            return shrinking.refuse(comm)

    made = ThreadBootstrap.create(2, 60.0)
    for ended in run_threads(2, body):
        assert ended.error is None, ended.error
        told = ended.value
        assert "UsageError: the communicator of rank" in told[0]
        assert all("timeout_seconds must be above 0" in text for text in told[1:3])
        assert told[3].startswith("ClosedError: rank")


def test_letters_longer_than_a_page() -> None:
    def body(rank: int) -> bool:
        with cocoll.Communicator(made[rank], timeout_seconds=60.0) as comm:
            return shrinking.long_letters(comm)

    made = ThreadBootstrap.create(3, 60.0)
    assert [ended.value for ended in run_threads(3, body)] == [True] * 3


def test_threads_go_on_without_one() -> None:
    def body(rank: int) -> object:
        comm = cocoll.Communicator(made[rank], timeout_seconds=60.0)
        if rank == 1:
            comm.abort()
            return None
        with pytest.raises(AbortedError):
            comm.barrier()
        with comm.shrink() as rest:
            found = rest.rank, rest.world_size, shrinking.sum_of_old_ranks(rest, rank)
            part = rest.split(rest.rank)
            assert part is not None
            part.close()
        comm.close()
        return found

    made = ThreadBootstrap.create(4, 60.0)
    ends = run_threads(4, body)
    assert [ended.error for ended in ends] == [None] * 4
    assert [ends[rank].value for rank in (0, 2, 3)] == [(place, 3, 5.0) for place in range(3)]
    del ends
    gc.collect()


def test_several_hosts_without_mpi() -> None:
    told = threading.Barrier(2)

    def body(rank: int) -> None:
        comm = cocoll.Communicator(made[rank], timeout_seconds=60.0)
        try:
            if rank == 0:
                comm.abort()
                return
            with pytest.raises(AbortedError):
                cocoll.allreduce(np.ones(3, np.float32), comm=comm)
            with pytest.raises(UnsupportedError, match="needs MPI"):
                comm.shrink()
        finally:
            told.wait()
            comm.close()

    made = ThreadBootstrap.create(2, 60.0, hosts=(0, 1))
    ends = run_threads(2, body)
    assert [ended.error for ended in ends] == [None, None]
    del ends
    gc.collect()


ULFM = """
    import os, signal, sys
    import numpy as np
    import cocoll
    from cocoll.bootstrap import MpiBootstrap
    from cocoll.errors import CocollError, TransportError
    from mpi4py import MPI

    class Meeting(MpiBootstrap):
        def shares_host(self, peer):
            return sys.argv[1] == "one" or peer % 2 == self.rank % 2

    comm = cocoll.Communicator(Meeting(MPI.COMM_WORLD), timeout_seconds=100.0)
    x = np.full(100_001, comm.rank, np.float64)
    me = comm.rank
    cocoll.allreduce(x, comm=comm)
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            comm.barrier()
    except TransportError as error:
        pass
    rest = comm.shrink()
    x = np.full(100_001, me, np.float64)
    cocoll.allreduce(x, comm=rest)
    hosts = None if rest.hosts is None else len(set(rest.hosts))
    os.write(1, f"{me}: {rest.rank} of {rest.world_size} on {hosts}, {x[0]:g}\\n".encode())
    rest.barrier()
    # In MPI_Finalize Open MPI may wait for the dead rank for ever; that is not what is tested.
    os._exit(0)
"""


@pytest.mark.parametrize("hosts", [pytest.param("one", marks=pytest.mark.long), "two"])
def test_with_ulfm(hosts: str) -> None:
    ran = run_script(ULFM, hosts, launcher=(MPIRUN, "--with-ft", "ulfm", "-n", "4"))
    found = sorted(line for line in ran.out.splitlines() if " of 3" in line)
    number = None if hosts == "one" else 2
    assert found == [f"{old}: {new} of 3 on {number}, 5" for new, old in enumerate((0, 2, 3))], ran
