"""Every collective as an exercise: drawn sizes, a call, and its result compared with NumPy.

Tests of failures and ``make soak`` go through this table: an operation more is a line more in it.
No pytest here, for every rank imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cocoll
from cocoll import epilogues

Comm = cocoll.Communicator
#: Draws what the ranks must agree on; equal on all ranks.
Draws = np.random.Generator
Array = np.ndarray[Any, Any]

#: Elements, from the arrival line to several chunks.
SIZES = (1, 5, 16, 17, 1000, 4096, 40_003, 120_000)


def draw(comm: Comm, draws: Draws, multiple: int = 1) -> list[Array]:
    """Draw what every rank contributes: whole numbers, whose sums are exact in float32."""
    count = int(draws.choice(SIZES)) * multiple
    return [draws.integers(-50, 50, count).astype(np.float32) for _ in range(comm.world_size)]


def check(found: Any, wanted: Array, what: str) -> None:
    """Compare element by element."""
    if not np.array_equal(np.asarray(found), wanted):
        raise AssertionError(f"{what}: wanted {wanted[:4]}...; got {np.asarray(found)[:4]}...")


def allreduce(comm: Comm, draws: Draws) -> None:
    """Sum, in place."""
    given = draw(comm, draws)
    x = given[comm.rank].copy()
    cocoll.allreduce(x, comm=comm)
    check(x, sum(given), "allreduce")


def reduce_scatter(comm: Comm, draws: Draws) -> None:
    """Maximum, a block a rank."""
    given = draw(comm, draws, comm.world_size)
    found = cocoll.reduce_scatter(given[comm.rank].copy(), "max", comm=comm).result()
    blocks = np.maximum.reduce(given).reshape(comm.world_size, -1)
    check(found, blocks[comm.rank], "reduce_scatter")


def allgather(comm: Comm, draws: Draws) -> None:
    """Everyone's block to everyone."""
    given = draw(comm, draws)
    found = cocoll.allgather(given[comm.rank].copy(), comm=comm).result()
    check(found, np.concatenate(given), "allgather")


def broadcast(comm: Comm, draws: Draws) -> None:
    """From a drawn root."""
    given, root = draw(comm, draws), int(draws.integers(comm.world_size))
    x = given[comm.rank].copy()
    cocoll.broadcast(x, root, comm=comm)
    check(x, given[root], "broadcast")


def barrier(comm: Comm, draws: Draws) -> None:
    """Meet."""
    del draws
    comm.barrier()


def allreduce_fused(comm: Comm, draws: Draws) -> None:
    """A step of SGD: of whole numbers with rate 1 it is exact."""
    given = draw(comm, draws)
    param = np.full(len(given[0]), 3, np.float32)
    cocoll.allreduce_fused(given[comm.rank].copy(), epilogues.sgd(lr=1.0), param=param, comm=comm)
    check(param, 3 - sum(given), "allreduce_fused")


def reduce_scatter_fused(comm: Comm, draws: Draws) -> None:
    """A step of SGD on shards."""
    given = draw(comm, draws)
    start, stop = comm.shard_range(len(given[0]))
    param = comm.shard_zeros(len(given[0]))
    x = given[comm.rank].copy()
    cocoll.reduce_scatter_fused(x, epilogues.cast("float32"), out=param, comm=comm)
    check(param, np.asarray(sum(given))[start:stop], "reduce_scatter_fused")


def reshard(comm: Comm, draws: Draws) -> None:
    """Rows to columns; of few shapes, for each is planned anew."""
    side = int(draws.choice((1, 8))) * comm.world_size
    whole = draws.integers(-50, 50, (side, side)).astype(np.float32)
    mesh, part = cocoll.Mesh(range(comm.world_size)), side // comm.world_size
    mine = slice(comm.rank * part, (comm.rank + 1) * part)
    found = cocoll.reshard(
        whole[mine].copy(), src=(mesh, "S0,R"), dst=(mesh, "R,S0"), shape=whole.shape,
        dtype="float32", comm=comm,
    ).result()  # fmt: skip
    check(found, whole[:, mine], "reshard")


def multicast(comm: Comm, draws: Draws) -> None:
    """From a drawn rank to all."""
    whole = draws.integers(-50, 50, 1000).astype(np.float32)
    holder = int(draws.integers(comm.world_size))
    found = cocoll.multicast(
        whole.copy() if comm.rank == holder else None, holders=[holder],
        needers=list(range(comm.world_size)), shape=whole.shape, dtype="float32", comm=comm,
    ).result()  # fmt: skip
    check(found, whole, "multicast")


#: By the name of the public call.
EXERCISES: dict[str, Callable[[Comm, Draws], None]] = {
    "allreduce": allreduce,
    "reduce_scatter": reduce_scatter,
    "allgather": allgather,
    "broadcast": broadcast,
    "barrier": barrier,
    "allreduce_fused": allreduce_fused,
    "reduce_scatter_fused": reduce_scatter_fused,
    "reshard": reshard,
    "multicast": multicast,
}
