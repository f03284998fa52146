"""Ranks that end with much still alive; no pytest here, for every rank imports it."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np

import cocoll
from cocoll.bootstrap import DerivedBootstrap
from tests.helpers.deaths import report

#: What lives until the interpreter clears its modules.
kept: list[Any] = []


def _outlive(comm: cocoll.Communicator) -> cocoll.Communicator:
    """Give a communicator that the caller's block does not close."""

    def exchange(data: bytes) -> list[bytes]:
        length = np.array([len(data)], np.int64)
        lengths = cocoll.allgather(length, comm=comm).result()
        padded = np.zeros(int(lengths.max()) + 1, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        everything = cocoll.allgather(padded, comm=comm).result().reshape(len(lengths), -1)
        return [bytes(row[:count]) for row, count in zip(everything, lengths, strict=True)]

    meeting = DerivedBootstrap(exchange, list(range(comm.world_size)), comm.rank)
    return cocoll.Communicator(meeting, timeout_seconds=comm.timeout_seconds)


def leave_everything(comm: cocoll.Communicator, order: str) -> None:
    """Keep arrays, streams and works until the interpreter ends, dropped in different orders."""
    own = _outlive(comm)
    arrays = [own.empty(1 << 20) for _ in range(3)] + [own.empty(100, replicated=True)]
    stream = cocoll.Stream()
    works = [cocoll.allreduce(np.ones(1000, np.float32), comm=own, stream=stream) for _ in range(9)]
    everything: list[Any] = [own, stream, works, *arrays]
    if order == "opposite" and comm.rank % 2:
        everything.reverse()
    cycle: list[Any] = [everything]
    cycle.append(cycle)
    kept.append(cycle)
    if order == "one rank early" and comm.rank == 1:
        works[-1].wait()
        sys.stdout.flush()
        del arrays[:], everything[:]
        gc.collect()


def end_before_the_peer_comes(comm: cocoll.Communicator) -> float | None:
    """Rank 0 issues an operation and ends; rank 1 comes only then, and finds it done."""
    own = _outlive(comm)
    kept.append(own)
    x = np.full(70_001, comm.rank + 1, np.float32)
    if comm.rank == 0:
        stream = cocoll.Stream()
        kept.extend([stream, cocoll.allreduce(x, comm=own, stream=stream)])
        kept.append(x)
        return None
    while not comm._inspect(0)["left"]:
        threading.Event().wait(0.005)
    # Rank 0 has left its block; now it waits at exit for what it has issued.
    cocoll.allreduce(x, comm=own)
    return float(x[-1])


def drop_the_communicator(comm: cocoll.Communicator) -> Any:
    """Rank 1 drops its end without closing it."""
    own = _outlive(comm)
    if comm.rank == 1:
        del own
        gc.collect()
        comm.barrier()
        return None
    found = report(own.barrier)
    comm.barrier()
    return found


def end_by_an_exception(comm: cocoll.Communicator) -> Any:
    """Rank 1's script ends by an exception, which only the interpreter sees."""
    own = _outlive(comm)
    kept.append(own)
    if comm.rank == 0:
        return report(own.barrier)
    # As the interpreter does before it runs the handlers at exit.
    sys.last_value = RuntimeError("nobody catches this")
    return None
