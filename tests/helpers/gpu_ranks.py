"""What ranks that are processes do on a GPU; at module level, as processes need it."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

import cocoll
from cocoll import epilogues
from cocoll.errors import CocollError
from tests.helpers.on_device import MEMORIES, fill, put

__all__ = ["die_in_an_operation", "explain", "train"]


def train(comm: cocoll.Communicator) -> list[bytes]:
    """Take steps of Adam through every kind of memory; give all parameters."""
    found = []
    for memory in MEMORIES:
        for count in (100, 20001):
            start, stop = comm.shard_range(count)
            arrays = {"param": put(comm, fill(9, (count,), "float32"), memory)}
            for name in ("m", "v"):
                arrays[name] = put(comm, np.zeros(stop - start, np.float32), "ordinary")
            x = put(comm, fill(comm.rank, (count,), "float32"), memory)
            step = comm.bind(cocoll.allreduce_fused, x, epilogues.adam(), **arrays)
            for number in range(1, 6):
                work = step(lr=1e-2, step=number)
            work.wait()
            found.append(arrays["param"].get().tobytes())
    return found


def explain(comm: cocoll.Communicator) -> tuple[str, str]:
    """Sum the ranks, and say how that was done."""
    x = put(comm, np.full(5000, comm.rank, np.float32), "symmetric")
    run = comm.bind(cocoll.allreduce, x, "max")
    run().wait()
    assert (x.get() == comm.world_size - 1).all()
    return run.algorithm, run.explain()


def die_in_an_operation(comm: cocoll.Communicator) -> Any:
    """Rank 1 is killed; give what the others get."""
    x = put(comm, np.ones(5000, np.float32), "symmetric")
    cocoll.allreduce(x).wait()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        cocoll.allreduce(x).wait()
    except CocollError as error:
        return type(error).__name__
    return None
