"""Ranks that use memory of every kind; no pytest here, for every rank imports it."""

from __future__ import annotations

import os
import signal

import numpy as np

import cocoll


def use_memory(comm: cocoll.Communicator) -> None:
    """Use symmetric, replicated and private memory, and a stream."""
    arrays = [comm.empty(1 << 20), comm.empty(1000, replicated=True), comm.shard_zeros(1 << 20)]
    arrays[0][:] = comm.rank
    cocoll.allreduce(arrays[0], comm=comm)
    assert (arrays[0] == comm.world_size * (comm.world_size - 1) / 2).all()
    cocoll.broadcast(np.arange(1000, dtype=np.float32), out=arrays[1], comm=comm)
    with cocoll.Stream() as stream:
        cocoll.barrier(comm=comm, stream=stream).wait()


def use_memory_and_die(comm: cocoll.Communicator) -> None:
    """Use memory, then be killed: all ranks at once."""
    kept = comm.empty(1 << 24)
    kept[:] = 1.0
    use_memory(comm)
    with cocoll.Stream() as stream:
        cocoll.barrier(comm=comm, stream=stream).wait()
        os.kill(os.getpid(), signal.SIGKILL)
