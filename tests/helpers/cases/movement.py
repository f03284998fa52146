"""allgather, broadcast and barrier."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import cocoll
from tests.helpers.arrays import DTYPES, assert_same_bits, hold, symmetric_pool
from tests.helpers.cases import case
from tests.helpers.cases.reductions import PLACES, place, telling_counts
from tests.helpers.references import contribution, contributions, shard_of

Comm = cocoll.Communicator


def check_allgather(comm: Comm, label: str, count: int, how: str) -> None:
    """Gather blocks of `count` with the output made, given, and holding the input."""
    size, rank = comm.world_size, comm.rank
    message = f"count={count} {how} rank={rank}"
    parts = contributions(size, count, label, "sum", count)
    wanted = np.concatenate(parts)
    symmetric_pool(comm)
    source = place(comm, how, parts[rank], turn=count)
    made = cocoll.allgather(source.array, comm=comm).result()
    assert_same_bits(made, wanted, f"made, {message}")
    result = place(comm, how, np.zeros_like(wanted), turn=count + 1)
    assert cocoll.allgather(source.array, out=result.array, comm=comm).result() is result.array
    assert_same_bits(result.view, wanted, f"given, {message}")
    result.view[...] = 0
    inside = result.view[rank * count : (rank + 1) * count]
    inside[...] = parts[rank]
    cocoll.allgather(inside, out=result.array, comm=comm)
    assert_same_bits(result.view, wanted, f"inside, {message}")
    assert_same_bits(source.view, parts[rank], f"the input, {message}")
    source.check_around()
    result.check_around()


@case(label=DTYPES, how=PLACES, under_mpi=lambda label, how: label in ("float32", "uint8"))
def allgather(comm: Comm, label: str, how: str) -> None:
    for count in (0, 1, 7, 16, 257, 1_021):
        check_allgather(comm, label, count, how)


@case(how=PLACES, tuning=("one_slot", "default"))
def allgather_by_memory(comm: Comm, how: str) -> None:
    for count in (1, 255, 256, 257, 4_099):
        check_allgather(comm, "float32", count, how)


@case(shape=((), (3,), (2, 3), (0, 4)))
def allgather_shapes(comm: Comm, shape: tuple[int, ...]) -> None:
    parts = contributions(comm.world_size, shape, "int64", "sum")
    made = cocoll.allgather(parts[comm.rank], comm=comm).result()
    wanted = np.stack(parts) if shape == () else np.concatenate(parts)
    assert_same_bits(made, wanted)


@case(count=(0, 1, 2, 3, 15, 16, 17, 33, 1_021), how=PLACES)
def allgather_of_shards(comm: Comm, count: int, how: str) -> None:
    size, rank = comm.world_size, comm.rank
    whole = contribution(99, count, "float32", "sum")
    symmetric_pool(comm)
    # All ranks take the same room of the pool, whatever their own shard needs.
    out = place(comm, how, np.zeros_like(whole), turn=count)
    mine = hold(comm, "ordinary", shard_of(whole, rank, size))
    cocoll.allgather(mine.array, out=out.array, layout="shard", comm=comm)
    assert_same_bits(out.view, whole, f"given {how}")
    out.view[...] = 0
    inside = shard_of(out.view, rank, size)
    inside[...] = shard_of(whole, rank, size)
    cocoll.allgather(inside, out=out.array, layout="shard", comm=comm)
    assert_same_bits(out.view, whole, f"inside {how}")
    out.check_around()


@case(count=(0, 1, 40, 1_021))
def allgather_into_replicated(comm: Comm, count: int) -> None:
    parts = contributions(comm.world_size, count, "float32", "sum", 3)
    target = comm.empty(count * comm.world_size, "float32", replicated=True)
    for kind in ("ordinary", "symmetric", "strided"):
        symmetric_pool(comm)
        cocoll.allgather(hold(comm, kind, parts[comm.rank]).array, out=target, comm=comm)
        assert_same_bits(target, np.concatenate(parts), kind)
        # Nobody writes the one copy again before everyone has looked at it.
        comm.barrier()
    assert not target.flags.writeable


def check_broadcast(comm: Comm, label: str, count: int, root: int, how: str) -> None:
    """Broadcast in place, out of place, and with nothing brought but on the root."""
    message = f"count={count} root={root} {how} rank={comm.rank}"
    wanted = contribution(root, count, label, "sum", count)
    symmetric_pool(comm)
    own = wanted if comm.rank == root else np.zeros_like(wanted)
    x = place(comm, how, own, turn=count)
    out = place(comm, how, np.zeros_like(wanted), turn=count + 1)
    assert cocoll.broadcast(x.array, root, out=out.array, comm=comm).result() is out.array
    assert_same_bits(out.view, wanted, f"out of place, {message}")
    assert_same_bits(x.view, own, f"the input, {message}")
    assert cocoll.broadcast(x.array, root, comm=comm) is cocoll.DONE
    assert_same_bits(x.view, wanted, f"in place, {message}")
    out.view[...] = 0
    cocoll.broadcast(x.array if comm.rank == root else None, root, out=out.array, comm=comm)
    assert_same_bits(out.view, wanted, f"nothing brought, {message}")
    x.check_around()
    out.check_around()


@case(label=DTYPES, how=PLACES, under_mpi=lambda label, how: label == "float32")
def broadcast(comm: Comm, label: str, how: str) -> None:
    for root in range(comm.world_size):
        for count in (0, 1, 33, 1_021):
            check_broadcast(comm, label, count, root, how)


@case(how=PLACES, tuning=("small", "one_slot", "default"))
def broadcast_by_memory(comm: Comm, how: str) -> None:
    for count in telling_counts(comm, "float64"):
        check_broadcast(comm, "float64", count, count % comm.world_size, how)


@case(count=(0, 1, 17, 2_003))
def broadcast_fills_replicated(comm: Comm, count: int) -> None:
    target = comm.empty(count, "float32", replicated=True)
    for root in range(comm.world_size):
        for kind in ("ordinary", "symmetric", "reversed"):
            symmetric_pool(comm)
            wanted = contribution(root, count, "float32", "sum", 7)
            held = hold(comm, kind, wanted)
            x = held.array if comm.rank == root else None
            cocoll.broadcast(x, root, out=target, comm=comm)
            assert_same_bits(target, wanted, f"{root} {kind}")
            comm.barrier()


@case(count=(5, 700))
def broadcast_of_what_the_root_may_only_read(comm: Comm, count: int) -> None:
    # The root's array is read, not written; on the others it receives.
    for root in range(comm.world_size):
        wanted = contribution(root, count, "float32", "sum")
        x = np.array(wanted) if comm.rank == root else np.zeros_like(wanted)
        x.flags.writeable = comm.rank != root
        cocoll.broadcast(x, root, comm=comm)
        assert_same_bits(x, wanted)


@case(label=("float32",))
def barrier_separates(comm: Comm, label: str) -> None:
    # What a rank wrote to its host's copy before the barrier is there for all of that after it.
    hosts = comm.hosts or (0,) * comm.world_size
    here = [rank for rank, host in enumerate(hosts) if host == hosts[comm.rank]]
    shared = comm.empty(comm.world_size, "int64", replicated=True)
    writable = np.ndarray(shared.shape, np.int64, buffer=_memory_of(shared))
    for turn in range(50):
        writable[comm.rank] = turn * 100 + comm.rank
        comm.barrier()
        assert list(shared[here]) == [turn * 100 + rank for rank in here]
        cocoll.barrier(comm=comm)


def _memory_of(array: np.ndarray[Any, Any]) -> Any:
    """Give the writable memory below a read-only array."""
    address = array.__array_interface__["data"][0]
    return (ctypes.c_char * array.nbytes).from_address(address)
