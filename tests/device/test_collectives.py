"""Collectives on the emulated device: the same bits as on the host, by every way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import cocoll
from cocoll.testing import run_ranks
from tests.helpers.on_device import (
    MEMORIES,
    TUNING,
    fill,
    gpu_stream,
    make_array,
    put,
    same_bits,
)

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8")
# Nothing, one, a prime, one-shot's last and first beyond, several chunks and a ragged last one; the
# least of them with low latency.
COUNTS = (0, 1, 17, 255, 257, 4099, 50021)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_allreduce(world_size: int, memory: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for number, count in enumerate(COUNTS):
            for in_place in (True, False):
                dtype = DTYPES[number % len(DTYPES)]
                op = ("sum", "avg", "max", "min", "prod")[number % 5]
                values = fill(comm.rank, (count,), dtype, number)
                wanted = values.copy()
                cocoll.allreduce(wanted, op, dtype=None)
                x = put(comm, values, memory)
                out = None if in_place else make_array(comm, (count,), dtype, memory)
                work = cocoll.allreduce(x, op, out=out)
                work.wait()
                same_bits((x if out is None else out).get(), wanted)
                if out is not None:
                    same_bits(x.get(), values)

    run_ranks(world_size, body, toolkit=toolkit, tuning=TUNING)


# Every dtype and every operation each time, and all pairs of them in the long run.
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        pytest.param(op, dtype, marks=() if (row + column) % 5 < 2 else pytest.mark.long)
        for row, op in enumerate(("sum", "prod", "min", "max", "avg"))
        for column, dtype in enumerate(DTYPES)
    ],
)
def test_every_reduction(op: str, dtype: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for count, memory in ((100, "ordinary"), (3001, "symmetric"), (3001, "ordinary")):
            values = fill(comm.rank, (count,), dtype)
            wanted = values.copy()
            cocoll.allreduce(wanted, op)
            x = put(comm, values, memory)
            cocoll.allreduce(x, op).wait()
            same_bits(x.get(), wanted)

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("layout", ["block", "shard"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_reduce_scatter_and_allgather(
    world_size: int, layout: Any, memory: str, toolkit: Toolkit
) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for count in (0, 6, 66, 24 * 1000 + 6):
            values = fill(comm.rank, (count,), "float32")
            wanted = cocoll.reduce_scatter(values, layout=layout).result()
            x = put(comm, values, memory)
            found = cocoll.reduce_scatter(x, layout=layout).result()
            same_bits(found.get(), wanted)
            whole = make_array(comm, (count,), "float32", memory)
            own = put(comm, wanted, "ordinary")
            cocoll.allgather(own, out=whole, layout=layout).wait()
            gathered = np.empty(count, np.float32)
            cocoll.allgather(wanted, out=gathered, layout=layout)
            same_bits(whole.get(), gathered)

    run_ranks(world_size, body, toolkit=toolkit, tuning=TUNING)


def test_allgather_of_symmetric_blocks(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        values = fill(comm.rank, (40, 50), "int32")
        x = put(comm, values, "symmetric")
        found = cocoll.allgather(x).result()
        wanted = np.concatenate([fill(rank, (40, 50), "int32") for rank in range(3)])
        same_bits(found.get().reshape(120, 50), wanted)

    run_ranks(3, body, toolkit=toolkit, tuning=TUNING)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("count", [0, 5, 70001])
def test_broadcast(count: int, memory: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for root in range(comm.world_size):
            x = put(comm, fill(comm.rank, (count,), "float64", root), memory)
            out = make_array(comm, (count,), "float64", memory) if root == 1 else None
            cocoll.broadcast(x, root, out=out).wait()
            wanted = fill(root, (count,), "float64", root)
            same_bits((x if out is None else out).get(), wanted)

    run_ranks(3, body, toolkit=toolkit, tuning=TUNING)


def test_operations_on_several_streams_keep_their_order(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        with gpu_stream(comm) as first, gpu_stream(comm) as second:
            x = put(comm, np.ones(5000, np.float32), "symmetric")
            y = put(comm, np.ones(100, np.float32), "ordinary")
            for number in range(20):
                stream = (first, second)[(number * 7 + comm.rank) % 2]
                cocoll.allreduce(x, "avg", stream=stream)
                work = cocoll.allreduce(y, stream=stream)
            cocoll.barrier(stream=first)
            work.wait()
            same_bits(x.get(first), np.ones(5000, np.float32))
            same_bits(y.get(second), np.full(100, 2.0**20, np.float32))

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_symmetric_memory_is_used_again(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> set[int]:
        seen = set()
        for number in range(30):
            x = put(comm, fill(comm.rank, (60000,), "float32", number), "symmetric")
            seen.add(x._address)
            cocoll.allreduce(x)
            del x
        return seen

    for seen in run_ranks(2, body, toolkit=toolkit, tuning=TUNING):
        assert len(seen) <= 3


def test_arrays_outlive_their_communicator(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> Any:
        x = put(comm, fill(comm.rank, (500,), "float32"), "symmetric")
        cocoll.allreduce(x).wait()
        wanted = x.get()
        comm.close()
        same_bits(x.get(), wanted)

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_shards_say_what_they_are(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        count = 1003
        values = fill(comm.rank, (count,), "float32")
        x = put(comm, values, "ordinary")
        shard = comm.shard_zeros(count, device="cuda")
        whole = make_array(comm, (count,), "float32", "ordinary")
        cocoll.reduce_scatter(x, out=shard)
        cocoll.allgather(shard, out=whole).wait()
        cocoll.allreduce(values)
        same_bits(whole.get(), values)

    run_ranks(3, body, toolkit=toolkit, tuning=TUNING)
