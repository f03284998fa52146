"""What ranks do in tests of comm.shrink; no pytest here, for every rank imports it."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np

import cocoll
from cocoll import _core, shrinking
from tests.helpers.deaths import PATIENCE_SECONDS, report
from tests.helpers.faults import state_of, wait_until


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def sum_of_old_ranks(comm: cocoll.Communicator, old_rank: int) -> float:
    """Reduce over what is left."""
    x = np.full(70_001, old_rank, np.float64)
    cocoll.allreduce(x, comm=comm)
    assert (x == x[0]).all()
    return float(x[0])


def one_after_the_other(comm: cocoll.Communicator) -> Any:
    """The last rank dies, again and again, until one is left."""
    me, sums = comm.rank, []
    while comm.world_size > 1:
        if comm.rank == comm.world_size - 1:
            die()
        assert report(comm.barrier)["kind"] == "PeerLostError"
        comm = comm.shrink()
        sums.append((comm.rank, comm.world_size, sum_of_old_ranks(comm, me)))
    comm.close()
    return sums


def lose_more_meanwhile(comm: cocoll.Communicator, where: str) -> Any:
    """Rank 3 dies; then rank 1, at a place inside shrink."""
    me = comm.rank
    if me == 3:
        die()
    assert report(comm.barrier)["kind"] == "PeerLostError"
    if me == 1:
        _plant_death(where)
    rest = comm.shrink()
    found = (rest.rank, rest.world_size, sum_of_old_ranks(rest, me))
    rest.close()
    return found


def _plant_death(where: str) -> None:
    if where == "before":
        die()
    elif where == "announced":
        propose = shrinking._propose

        def announce_and_die(survivors: Any, comm: Any, number: int, seconds: float) -> None:
            survivors.announce(number)
            if number == 1:
                time.sleep(0.05)
                die()
            propose(survivors, comm, number, seconds)

        shrinking._propose = announce_and_die  # type: ignore[assignment]
    elif where == "decided":
        shrinking._make = lambda *rest: die()  # type: ignore[assignment]
    else:
        exchanges = int(where)
        allgather = shrinking.LetterBootstrap.allgather

        def count_and_die(self: Any, data: bytes) -> list[bytes]:
            nonlocal exchanges
            exchanges -= 1
            if exchanges < 0:
                die()
            return allgather(self, data)

        shrinking.LetterBootstrap.allgather = count_and_die  # type: ignore[method-assign]


def stop_meanwhile(comm: cocoll.Communicator) -> Any:
    """Rank 1 is stopped once it has come to shrink with the others: they go on without it."""
    pids = [int(pid) for pid in cocoll.allgather(np.array([os.getpid()]), comm=comm).result()]
    me = comm.rank
    if me == 3:
        die()
    assert report(comm.barrier)["kind"] == "PeerLostError"
    if me == 1:
        shrinking._make = _stop_and_make  # type: ignore[assignment]
        return report(lambda: comm.shrink(2.0))
    rest = comm.shrink(2.0)
    found = (rest.rank, rest.world_size, sum_of_old_ranks(rest, me))
    if rest.rank == 0:
        wait_until(lambda: state_of(pids[1]) == "T")
        os.kill(pids[1], signal.SIGCONT)
    rest.close()
    return found


_make = shrinking._make


def _stop_and_make(*arguments: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)
    return _make(*arguments)


def refuse(comm: cocoll.Communicator) -> list[str]:
    """Give what shrink says where there is nothing to shrink."""
    told = [report(comm.shrink), report(lambda: comm.shrink(0)), report(lambda: comm.shrink("1"))]  # type: ignore[arg-type]
    # Nobody leaves before all have been refused.
    comm.barrier()
    other = comm.duplicate()
    if comm.rank == 1:
        other.abort()
        told.append(report(other.shrink))
        comm.barrier()
        return [f"{one['kind']}: {one['message']}" for one in told]
    assert report(other.barrier)["kind"] == "AbortedError"
    rest = other.shrink()
    assert rest.world_size == 1
    told.append(report(other.shrink))
    comm.barrier()
    return [f"{one['kind']}: {one['message']}" for one in told]


def close_instead(comm: cocoll.Communicator) -> Any:
    """Rank 2 dies; rank 1 closes its end and lives on: the others do not wait for it."""
    me = comm.rank
    if me == 2:
        die()
    assert report(comm.barrier)["kind"] == "PeerLostError"
    if me == 1:
        comm.close()
        time.sleep(0.5)
        return None
    started = time.monotonic()
    rest = comm.shrink()
    assert time.monotonic() - started < PATIENCE_SECONDS
    return rest.rank, rest.world_size, sum_of_old_ranks(rest, me)


def long_letters(comm: cocoll.Communicator) -> bool:
    """Exchange more than a letter holds, unevenly."""
    survivors = _core.Survivors(comm)
    members = list(range(comm.world_size))
    meeting = shrinking.LetterBootstrap(survivors, 1, members, comm.rank, 30.0)
    size = survivors.letter_bytes
    for lengths in ((0, 0, 0), (1, 0, size), (size + 1, 3 * size, 5), (0, size, 2 * size - 1)):
        data = [bytes([rank + 65]) * lengths[rank] for rank in members]
        if meeting.allgather(data[comm.rank]) != data:
            return False
    comm.barrier()
    return True


def on_a_stream(comm: cocoll.Communicator) -> Any:
    """The failure is met on a stream, and nobody has waited for the operation yet."""
    me = comm.rank
    if me == 2:
        die()
    stream = cocoll.Stream()
    work = cocoll.barrier(comm=comm, stream=stream)
    while comm._abort_word() is None:
        threading.Event().wait(0.005)
    rest = comm.shrink()
    found = (rest.rank, rest.world_size, sum_of_old_ranks(rest, me))
    assert type(work.exception()).__name__ == "PeerLostError"
    stream.close()
    return found
