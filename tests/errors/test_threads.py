"""Two threads inside one communicator at the same time."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import cocoll
from cocoll.errors import UsageError
from cocoll.testing import run_ranks
from tests.helpers.misuse import check_usable, refuse

CALLS = {
    "allreduce": lambda comm, x: cocoll.allreduce(x, comm=comm),
    "barrier": lambda comm, _: comm.barrier(),
    "empty": lambda comm, _: comm.empty(4),
    "bind": lambda comm, x: comm.bind(cocoll.allreduce, x),
    "duplicate": lambda comm, _: comm.duplicate(),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_second_thread_is_refused(name: str) -> None:
    inside, refused = threading.Event(), threading.Event()

    def body(comm):
        if comm.rank == 1:
            # Rank 0's first thread waits inside its call until this rank comes.
            assert refused.wait(60)
            comm.barrier()
            check_usable(comm)
            return
        first = threading.Thread(target=comm.barrier)
        first.start()
        while comm._inspect(0)["operations"][-1:] == [] and first.is_alive():
            inside.wait(0.001)
        x = np.ones(4, np.float32)
        refuse(
            lambda: CALLS[name](comm, x),
            UsageError,
            "two threads are inside one communicator",
            "rank 0",
            "comm.duplicate()",
            arrays=[x],
        )
        refused.set()
        first.join()
        check_usable(comm)

    run_ranks(2, body)


def test_one_thread_after_another_is_allowed() -> None:
    def body(comm):
        for _ in range(3):
            thread = threading.Thread(target=check_usable, args=(comm,))
            thread.start()
            thread.join()
        check_usable(comm)

    run_ranks(2, body)


def test_threads_of_their_own_communicators_are_allowed() -> None:
    def body(comm):
        children = [comm.duplicate() for _ in range(3)]
        threads = [threading.Thread(target=check_usable, args=(child,)) for child in children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check_usable(comm)

    run_ranks(2, body)
