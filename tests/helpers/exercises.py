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
def reduce(comm: Comm, draws: Draws) -> None:
    """Sum, to a drawn root."""
    given = draw(comm, draws)
    root = int(draws.integers(comm.world_size))
    out = np.zeros_like(given[0])
    cocoll.reduce(given[comm.rank].copy(), root=root, out=out, comm=comm)
    if comm.rank == root:
        check(out, np.sum(given, axis=0), "reduce")


def gather(comm: Comm, draws: Draws) -> None:
    """Gather to a drawn root, and scatter from it again."""
    given = draw(comm, draws)
    root = int(draws.integers(comm.world_size))
    whole = np.zeros(comm.world_size * given[0].size, np.float32)
    cocoll.gather(given[comm.rank], root, out=whole, comm=comm)
    if comm.rank == root:
        check(whole, np.concatenate(given), "gather")
    back = np.zeros_like(given[0])
    cocoll.scatter(whole, root, out=back, comm=comm)
    check(back, given[comm.rank], "scatter")


def alltoall(comm: Comm, draws: Draws) -> None:
    """Every rank's block of every rank."""
    given = draw(comm, draws, comm.world_size)
    out = np.zeros_like(given[0])
    cocoll.alltoall(given[comm.rank], out=out, comm=comm)
    blocks = [np.split(one, comm.world_size)[comm.rank] for one in given]
    check(out, np.concatenate(blocks), "alltoall")


def sendrecv(comm: Comm, draws: Draws) -> None:
    """A ring of messages."""
    given = draw(comm, draws)
    after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    out = np.zeros_like(given[0])
    cocoll.sendrecv(given[comm.rank], after, source=before, out=out, comm=comm)
    check(out, given[before], "sendrecv")


def lists(comm: Comm, draws: Draws) -> None:
    """Sum a list of tensors."""
    given = draw(comm, draws, 3)
    cuts = [given[0].size // 5, given[0].size // 2]
    mine = [part.copy() for part in np.split(given[comm.rank], cuts)]
    cocoll.allreduce(mine, comm=comm)
    check(np.concatenate(mine), np.sum(given, axis=0), "allreduce of a list")


def totals(comm: Comm, draws: Draws) -> None:
    """Scale by a sum over all ranks."""
    given = draw(comm, draws)
    mine = given[comm.rank].copy()
    found = cocoll.allreduce_fused(mine, measure, comm=comm).totals()
    total = np.sum(given, axis=0)
    check(np.array([found["all"]]), np.array([np.sum(total, dtype=np.float64)]), "totals")
    check(mine, total + np.float32(np.sum(total, dtype=np.float64)), "an epilogue with totals")


@cocoll.epilogue
def measure(x: Any) -> Any:
    """Add the sum of all elements to each."""
    return x + cocoll.sum(x, name="all")


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
    "reduce": reduce,
    "gather": gather,
    "alltoall": alltoall,
    "sendrecv": sendrecv,
    "lists": lists,
    "totals": totals,
}
