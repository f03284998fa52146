"""Reduce, gather, scatter, all-to-all and uneven blocks on the emulated device, by every way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import cocoll
from cocoll.testing import run_ranks
from tests.helpers.on_device import TUNING, fill, make_array, put, same_bits

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit

#: Mapped memory, and messages of NCCL's alone.
WAYS = {"mapped": TUNING, "wire": replace(TUNING, gpu_map_peers=0)}


@pytest.fixture(autouse=True)
def _a_device_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_DEVICES", "4")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world_size", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_as_on_the_host(world_size: int, way: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        rank, size = comm.rank, comm.world_size
        for number, block in enumerate((0, 1, 17, 4_099)):
            dtype, root = ("float32", "bfloat16", "int64")[number % 3], number % size
            at_root = rank == root
            values = fill(rank, (size * block,), dtype, number)
            x = put(comm, values, "ordinary")
            wanted = cocoll.alltoall(values, dtype=None).result()
            same_bits(cocoll.alltoall(x).result().get(), wanted)
            mine = np.zeros(block, values.dtype)
            cocoll.scatter(values, root, out=mine)
            own = make_array(comm, (block,), dtype, "ordinary")
            cocoll.scatter(x if at_root else None, root, out=own).wait()
            same_bits(own.get(), mine)
            whole = cocoll.gather(mine, root).result()
            found = cocoll.gather(own, root).result()
            assert (found is None) == (not at_root)
            if at_root:
                same_bits(found.get(), whole)
            total = values.copy()
            op = ("sum", "avg", "max")[number % 3]
            cocoll.reduce(total, op, root)
            out = make_array(comm, values.shape, dtype, "ordinary")
            cocoll.reduce(x, op, root, out=out if at_root else None).wait()
            same_bits(x.get(), values)
            cocoll.reduce(x, op, root).wait()
            same_bits(x.get(), total)
            if at_root:
                same_bits(out.get(), total)

    run_ranks(world_size, body, toolkit=toolkit, tuning=WAYS[way])


def test_bound_and_uneven(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        rank, size = comm.rank, comm.world_size
        send = [(rank + 2 * peer) % 4 for peer in range(size)]
        receive = [(peer + 2 * rank) % 4 for peer in range(size)]
        values = np.arange(3 * sum(send), dtype=np.float32).reshape(-1, 3) + 100 * rank
        wanted = cocoll.alltoallv(values, send).result()
        x = put(comm, values, "ordinary")
        bound = comm.bind(cocoll.alltoallv, x, send, receive)
        for _ in range(2):
            same_bits(bound().result().get(), wanted)
        counts = [3 * peer for peer in range(size)]
        mine = np.full(counts[rank], rank, np.float32)
        everything = cocoll.allgather(put(comm, mine, "ordinary"), counts=counts).result()
        same_bits(everything.get(), np.repeat(np.arange(size, dtype=np.float32), counts))
        exchange = comm.bind(cocoll.alltoall, put(comm, np.full(size, rank, "f4"), "ordinary"))
        for _ in range(2):
            same_bits(exchange().result().get(), np.arange(size, dtype=np.float32))

    run_ranks(3, body, toolkit=toolkit, tuning=WAYS["wire"])
