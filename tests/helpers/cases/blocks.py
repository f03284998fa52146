"""reduce, gather, scatter, alltoall, and blocks of uneven lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

import cocoll
from tests.helpers.arrays import assert_same_bits, hold, itemsize_of, numpy_dtype, symmetric_pool
from tests.helpers.cases import case
from tests.helpers.cases.reductions import PLACES, place, telling_counts
from tests.helpers.references import check_reduced, contributions

Comm = cocoll.Communicator
LABELS = ("float32", "bfloat16", "uint8", "int64")


def block_lengths(comm: Comm, label: str) -> list[int]:
    """Give lengths of a block: none, one, primes, a chunk of the staging more and less."""
    tuning = comm.tuning
    peers = max(1, comm.world_size - 1)
    chunks = {
        min(tuning.chunk_bytes, tuning.staging_bytes // areas // 64 * 64) // itemsize_of(label)
        for areas in (tuning.slots, tuning.slots * peers)
    }
    around = {chunk + step for chunk in chunks for step in (-1, 0, 1)}
    return sorted(count for count in {0, 1, 7, 1_021} | around if count <= 20_000)


def check_total(
    comm: Comm, got: np.ndarray[Any, Any], parts: list[np.ndarray[Any, Any]], op: str, message: str
) -> None:
    """Want the bits of rank order on one host, and what hosts' sums may differ by on several."""
    label = str(parts[0].dtype)
    if comm.hosts is None or label not in ("float32", "bfloat16") or op == "max":
        check_reduced(got, parts, op, message)
        return
    exact = [part.astype(np.float64) for part in parts]
    eps = 2.0**-8 if label == "bfloat16" else 2.0**-23
    share = len(parts) if op == "avg" else 1
    bound = (len(parts) + 1) * eps * np.sum(np.abs(exact), axis=0) / share
    error = np.abs(got.astype(np.float64) - np.sum(exact, axis=0) / share)
    assert (error <= bound).all(), f"{message}: off by {float((error - bound).max())}"


def check_reduce(comm: Comm, label: str, op: str, count: int, root: int, how: str) -> None:
    """Reduce in place and out of place; only the root's arrays change."""
    message = f"count={count} root={root} {how} rank={comm.rank}"
    parts = contributions(comm.world_size, count, label, op, count)
    symmetric_pool(comm)
    x = place(comm, how, parts[comm.rank], turn=count)
    out = place(comm, how, np.zeros_like(parts[0]), turn=count + 1)
    at_root = comm.rank == root
    made = cocoll.reduce(x.array, op, root, out=out.array, comm=comm).result()
    assert made is (out.array if at_root else None)
    assert_same_bits(x.view, parts[comm.rank], f"the input, {message}")
    if at_root:
        check_total(comm, out.view, parts, op, message)
    else:
        assert_same_bits(out.view, np.zeros_like(parts[0]), f"not the root's, {message}")
    assert cocoll.reduce(x.array, op, root, comm=comm) is cocoll.DONE
    assert_same_bits(x.view, out.view if at_root else parts[comm.rank], f"in place, {message}")
    x.check_around()
    out.check_around()


@case(
    op=("sum", "avg", "max"),
    label=LABELS,
    how=PLACES,
    under_mpi=lambda label, **_: label == "float32",
)
def reduces(comm: Comm, op: str, label: str, how: str) -> None:
    for number, count in enumerate(telling_counts(comm, label)):
        check_reduce(comm, label, op, count, number % comm.world_size, how)


def check_gather(comm: Comm, label: str, count: int, root: int, how: str) -> None:
    """Gather with the output made, given, and holding the root's block."""
    size, rank, at_root = comm.world_size, comm.rank, comm.rank == root
    message = f"count={count} root={root} {how} rank={rank}"
    parts = contributions(size, count, label, "sum", count)
    wanted = np.concatenate(parts)
    symmetric_pool(comm)
    x = place(comm, how, parts[rank], turn=count)
    out = place(comm, how, np.zeros_like(wanted), turn=count + 1)
    made = cocoll.gather(x.array, root, comm=comm).result()
    assert (made is None) == (not at_root)
    given = cocoll.gather(x.array, root, out=out.array if at_root else None, comm=comm).result()
    if at_root:
        assert_same_bits(made, wanted, f"made, {message}")
        assert given is out.array
        assert_same_bits(out.view, wanted, f"given, {message}")
        out.view[...] = 0
        out.view[rank * count : (rank + 1) * count] = parts[rank]
    inside = out.view[rank * count : (rank + 1) * count]
    cocoll.gather(inside if at_root else x.array, root, out=out.array, comm=comm)
    assert_same_bits(out.view, wanted if at_root else np.zeros_like(wanted), f"inside, {message}")
    assert_same_bits(x.view, parts[rank], f"the input, {message}")
    x.check_around()
    out.check_around()


@case(label=LABELS, how=PLACES, under_mpi=lambda label, **_: label == "float32")
def gathers(comm: Comm, label: str, how: str) -> None:
    for number, count in enumerate(block_lengths(comm, label)):
        check_gather(comm, label, count, number % comm.world_size, how)


def check_scatter(comm: Comm, label: str, count: int, root: int, how: str) -> None:
    """Scatter with the output made, given, and inside the root's input."""
    size, rank, at_root = comm.world_size, comm.rank, comm.rank == root
    message = f"count={count} root={root} {how} rank={rank}"
    parts = contributions(size, count, label, "sum", count)
    whole = np.concatenate(parts)
    symmetric_pool(comm)
    x = place(comm, how, whole, turn=count)
    out = place(comm, how, np.zeros_like(parts[0]), turn=count + 1)
    given = cocoll.scatter(x.array if at_root else None, root, out=out.array, comm=comm).result()
    assert given is out.array
    assert_same_bits(out.view, parts[rank], f"given, {message}")
    out.view[...] = 0
    made = cocoll.scatter(x.array, root, out=None if at_root else out.array, comm=comm).result()
    assert_same_bits(made if at_root else out.view, parts[rank], f"made, {message}")
    out.view[...] = 0
    inside = x.view[rank * count : (rank + 1) * count]
    cocoll.scatter(x.array, root, out=inside if at_root else out.array, comm=comm)
    assert_same_bits(inside if at_root else out.view, parts[rank], f"inside, {message}")
    assert_same_bits(x.view, whole, f"the input, {message}")
    x.check_around()
    out.check_around()


@case(label=LABELS, how=PLACES, under_mpi=lambda label, **_: label == "float32")
def scatters(comm: Comm, label: str, how: str) -> None:
    for number, count in enumerate(block_lengths(comm, label)):
        check_scatter(comm, label, count, number % comm.world_size, how)


def blocks_of(comm: Comm, count: int, label: str) -> tuple[np.ndarray[Any, Any], ...]:
    """Give what a rank sends in an all-to-all, and what it gets."""
    size, rank = comm.world_size, comm.rank
    parts = contributions(size, size * count, label, "sum", count)
    wanted = [part[rank * count : (rank + 1) * count] for part in parts]
    return parts[rank], np.concatenate(wanted)


@case(label=LABELS, how=PLACES, under_mpi=lambda label, **_: label == "float32")
def all_to_all(comm: Comm, label: str, how: str) -> None:
    for count in block_lengths(comm, label):
        message = f"count={count} {how} rank={comm.rank}"
        sent, wanted = blocks_of(comm, count, label)
        symmetric_pool(comm)
        x = place(comm, how, sent, turn=count)
        out = place(comm, how, np.zeros_like(wanted), turn=count + 1)
        assert_same_bits(cocoll.alltoall(x.array, comm=comm).result(), wanted, f"made, {message}")
        assert cocoll.alltoall(x.array, out=out.array, comm=comm).result() is out.array
        assert_same_bits(out.view, wanted, f"given, {message}")
        assert_same_bits(x.view, sent, f"the input, {message}")
        x.check_around()
        out.check_around()


@case(kind=("strided", "reversed", "unaligned", "transposed"))
def blocks_in_odd_memory(comm: Comm, kind: str) -> None:
    size, rank, count = comm.world_size, comm.rank, 24
    sent, wanted = blocks_of(comm, count, "float32")
    x, out = hold(comm, kind, sent), hold(comm, kind, np.zeros_like(wanted))
    cocoll.alltoall(x.array, out=out.array, comm=comm)
    assert_same_bits(out.view, wanted, kind)
    root = size - 1
    cocoll.scatter(x.array, root, out=(mine := np.empty(count, np.float32)), comm=comm)
    parts = contributions(size, size * count, "float32", "sum", count)
    assert_same_bits(mine, parts[root][rank * count : (rank + 1) * count], kind)
    cocoll.gather(mine, root, out=out.array, comm=comm)
    assert_same_bits(out.view, parts[root] if rank == root else wanted, kind)
    cocoll.reduce(x.array, "max", root, comm=comm)
    assert_same_bits(x.view, np.max(parts, axis=0) if rank == root else sent, kind)


@case(stream=(False, True))
def blocks_bound(comm: Comm, stream: bool) -> None:
    size, rank, root = comm.world_size, comm.rank, comm.world_size // 2
    with cocoll.Stream() as queue:
        more = {"stream": queue} if stream else {}
        x, out = np.zeros((size, 3), np.float32), np.zeros((size, 3), np.float32)
        mine, total = np.zeros(3, np.float32), np.zeros((size, 3), np.float32)
        exchange = comm.bind(cocoll.alltoall, x, out=out, **more)
        spread = comm.bind(cocoll.scatter, x, root, out=mine, **more)
        collect = comm.bind(cocoll.gather, mine, root, out=out, **more)
        add = comm.bind(cocoll.reduce, x, root=root, out=total, **more)
        for turn in range(3):
            x[...] = np.arange(size)[:, None] + 10 * rank + 100 * turn
            exchange().wait()
            assert_same_bits(
                out, np.float32(rank + 10 * np.arange(size)[:, None] + 100 * turn).repeat(3, axis=1)
            )
            spread().wait()
            assert_same_bits(mine, np.full(3, rank + 10 * root + 100 * turn, np.float32))
            collect().wait()
            if rank == root:
                assert_same_bits(out, x)
            add().wait()
            if rank == root:
                ranks = 10 * size * (size - 1) // 2 + 100 * turn * size
                assert_same_bits(
                    total, np.float32(size * np.arange(size)[:, None] + ranks).repeat(3, axis=1)
                )


def lengths_of(size: int, seed: int) -> list[int]:
    """Give a length for each rank, some of them none."""
    return [(rank * 5 + seed * 3) % 7 * (rank % 3 != seed % 3) for rank in range(size)]


@case(label=("float32", "uint8"), width=(None, 3))
def uneven_blocks(comm: Comm, label: str, width: int | None) -> None:
    size, rank = comm.world_size, comm.rank
    tail = () if width is None else (width,)
    for seed in range(4):
        counts, root = lengths_of(size, seed), seed % size
        random = np.random.default_rng(seed)
        whole = random.integers(0, 100, (sum(counts), *tail)).astype(numpy_dtype(label))
        stops = np.cumsum(counts)
        mine = whole[stops[rank] - counts[rank] : stops[rank]].copy()
        for _ in range(2):
            everything = cocoll.allgather(mine, counts=counts, comm=comm).result()
            assert_same_bits(everything, whole, f"allgather {counts}")
            made = cocoll.gather(mine, root, counts=counts, comm=comm).result()
            assert (made is None) == (rank != root)
            if made is not None:
                assert_same_bits(made, whole, f"gather {counts}")
            out = np.zeros_like(mine)
            given = whole if rank == root else None
            cocoll.scatter(given, root, out=out, counts=counts, comm=comm)
            assert_same_bits(out, mine, f"scatter {counts}")


@case(label=("float32", "int64"), width=(None, 2))
def uneven_all_to_all(comm: Comm, label: str, width: int | None) -> None:
    size, rank = comm.world_size, comm.rank
    tail = () if width is None else (width,)

    def count(sender: int, receiver: int, seed: int) -> int:
        return (sender * 3 + receiver * 5 + seed) % 6 * ((sender + receiver + seed) % 4 != 0)

    def block(sender: int, receiver: int, seed: int) -> np.ndarray[Any, Any]:
        values = np.full((count(sender, receiver, seed), *tail), 10 * sender + receiver)
        return (values + np.arange(len(values)).reshape(-1, *[1] * len(tail)) * 100).astype(label)

    for seed in range(4):
        send = [count(rank, peer, seed) for peer in range(size)]
        receive = [count(peer, rank, seed) for peer in range(size)]
        x = np.concatenate([block(rank, peer, seed) for peer in range(size)])
        wanted = np.concatenate([block(peer, rank, seed) for peer in range(size)])
        made = cocoll.alltoallv(x, send, comm=comm).result()
        assert_same_bits(made, wanted, f"made {send}")
        out = np.zeros_like(wanted)
        assert cocoll.alltoallv(x, send, receive, out=out, comm=comm).result() is out
        assert_same_bits(out, wanted, f"given {send}")
        bound = comm.bind(cocoll.alltoallv, x, send, receive)
        for _ in range(2):
            assert_same_bits(bound().result(), wanted, f"bound {send}")
