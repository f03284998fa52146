"""allreduce and reduce_scatter: values, dtypes, ops, lengths, algorithms, kinds of memory."""

from __future__ import annotations

from typing import Any

import numpy as np

import cocoll
from tests.helpers.arrays import (
    DTYPES,
    FLOATS,
    Held,
    assert_same_bits,
    hold,
    itemsize_of,
    numpy_dtype,
    symmetric_pool,
)
from tests.helpers.cases import case
from tests.helpers.references import (
    OPS,
    check_reduced,
    contributions,
    reduce_in_rank_order,
    shard_of,
)

Comm = cocoll.Communicator

#: How source and result lie. "mixed": one rank has symmetric memory and the others have not.
PLACES = ("ordinary", "symmetric", "mixed")


def telling_counts(comm: Comm, label: str) -> list[int]:
    """Give lengths around every limit: nothing, one, primes, blocks, algorithms, chunks."""
    itemsize, size = itemsize_of(label), comm.world_size
    tuning = comm.tuning
    chunk = max(16, tuning.chunk_bytes // (size * itemsize) // 16 * 16) * size
    limits = (tuning.inline_bytes // itemsize, tuning.one_shot_bytes // itemsize, chunk)
    around = {limit + step for limit in limits for step in (0, 1)}
    chosen = {0, 1, size - 1, size, 15, 16 * size + 1, 1021, 3 * chunk - 1, 5 * chunk + 7} | around
    return sorted(count for count in chosen if count <= 40_000)


def place(comm: Comm, how: str, values: np.ndarray[Any, Any], *, turn: int = 0) -> Held:
    """Hold values in memory of a kind; ranks take the same room of the pool in any case."""
    symmetric = hold(comm, "symmetric", values)
    if how == "symmetric" or (how == "mixed" and comm.rank == turn % comm.world_size):
        return symmetric
    return hold(comm, "ordinary", values)


def check_allreduce(
    comm: Comm, label: str, op: str, count: int, how: str, *, in_place: bool, seed: int = 0
) -> None:
    """Run one all-reduce and check everything that it may have touched."""
    symmetric_pool(comm)
    message = f"count={count} {how} in_place={in_place} rank={comm.rank}"
    parts = contributions(comm.world_size, count, label, op, seed + count)
    source = place(comm, how, parts[comm.rank], turn=count)
    if in_place:
        work = cocoll.allreduce(source.array, op, comm=comm)
        assert work is cocoll.DONE
        check_reduced(source.view, parts, op, message)
    else:
        result = place(comm, how, np.zeros_like(parts[0]), turn=count + 1)
        work = cocoll.allreduce(source.array, op, out=result.array, comm=comm)
        assert work.result() is result.array
        check_reduced(result.view, parts, op, message)
        assert_same_bits(source.view, parts[comm.rank], f"the input, {message}")
        result.check_around()
    source.check_around()


@case(label=DTYPES, op=OPS)
def allreduce(comm: Comm, label: str, op: str) -> None:
    for turn, count in enumerate(telling_counts(comm, label)):
        how = PLACES[turn % 3]
        check_allreduce(comm, label, op, count, how, in_place=turn // 3 % 2 == 0)


@case(
    how=PLACES,
    in_place=(True, False),
    label=("float32", "bfloat16", "uint8"),
    tuning=("small", "one_shot", "two_shot", "one_slot"),
    under_mpi=lambda how, in_place, label: label == "float32" or how == "mixed",
)
def allreduce_by_algorithm(comm: Comm, how: str, in_place: bool, label: str) -> None:
    for count in telling_counts(comm, label):
        check_allreduce(comm, label, "sum", count, how, in_place=in_place)


@case(
    count=(1, 16, 17, 1_000, 5_000, 70_001, 1_048_579),
    how=PLACES,
    tuning="default",
    only=lambda count, how: count < 1_000_000 or how == "mixed",
)
def allreduce_with_default_tuning(comm: Comm, count: int, how: str) -> None:
    check_allreduce(comm, "float32", "sum", count, how, in_place=True)
    if count < 1_000_000:
        check_allreduce(comm, "float64", "avg", count, how, in_place=False)


@case(shape=((), (1,), (3, 1, 4), (2, 3, 2, 1, 2, 1, 2, 2), (0, 5), (7, 0)))
def allreduce_of_any_shape(comm: Comm, shape: tuple[int, ...]) -> None:
    parts = contributions(comm.world_size, shape, "float64", "sum")
    x = np.array(parts[comm.rank])
    cocoll.allreduce(x, comm=comm)
    check_reduced(x, parts, "sum")
    out = np.empty(shape)
    cocoll.allreduce(parts[comm.rank], out=out, comm=comm)
    check_reduced(out, parts, "sum")


@case(label=("float32",))
def allreduce_with_out_of_another_shape(comm: Comm, label: str) -> None:
    # Element i in C order is element i: the shapes need not be equal, the counts must be.
    parts = contributions(comm.world_size, 24, label, "sum")
    out = np.empty((4, 6), label)[:, ::-1]
    cocoll.allreduce(parts[comm.rank].reshape(2, 3, 4), out=out, comm=comm)
    check_reduced(np.ascontiguousarray(out).reshape(-1), parts, "sum")


@case(label=("float32",), tuning=("small", "one_shot", "two_shot"))
def allreduce_into_itself_by_name(comm: Comm, label: str) -> None:
    for count in (3, 100, 5_000):
        for kind in ("ordinary", "symmetric", "strided"):
            symmetric_pool(comm)
            parts = contributions(comm.world_size, count, label, "sum", count)
            held = hold(comm, kind, parts[comm.rank])
            cocoll.allreduce(held.array, out=held.array, comm=comm)
            check_reduced(held.view, parts, "sum", f"{count} {kind}")


@case(label=("float32", "bfloat16"), op=("sum", "prod", "avg"), under_mpi=False)
def algorithms_agree_in_bits(comm: Comm, label: str, op: str) -> Any:
    # Communicators of other limits run other algorithms; each must give the bits of rank order.
    count = 48
    parts = contributions(comm.world_size, count, label, op, seed=5)
    wanted = reduce_in_rank_order(parts, op)
    found = []
    symmetric_pool(comm)
    for kind in ("ordinary", "symmetric"):
        held = hold(comm, kind, parts[comm.rank])
        cocoll.allreduce(held.array, op, comm=comm)
        found.append(np.array(held.view))
        bound = comm.bind(cocoll.allreduce, held.array, op)
        held.view[...] = parts[comm.rank]
        bound()
        found.append(np.array(held.view))
        bound.close()
    padded = [np.pad(part, (0, 4_096 - count)) for part in parts]
    long = np.array(padded[comm.rank])
    cocoll.allreduce(long, op, comm=comm)
    found.append(long[:count])
    for got in found:
        assert_same_bits(got, wanted, f"{label} {op}")
    return found


@case(op=OPS)
def reductions_of_special_values(comm: Comm, op: str) -> Any:
    # Infinities, NaN, zeros of both signs and numbers that underflow, in every dtype.
    if op in ("min", "max"):
        # Zeros of both signs are equal: which one is left is not said, only that all ranks agree.
        specials = [np.inf, -np.inf, np.nan, 0.0, 1e-8, -1e-8, 60_000.0]
    else:
        specials = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-8, 60_000.0]
    found = []
    for label in FLOATS:
        dtype = numpy_dtype(label)
        parts = [
            np.array([specials[(index + rank * 3) % 7] for index in range(7 * 40)]).astype(dtype)
            for rank in range(comm.world_size)
        ]
        x = np.array(parts[comm.rank])
        cocoll.allreduce(x, op, comm=comm)
        wanted = reduce_in_rank_order(parts, op)
        nan = np.isnan(wanted.astype(np.float64))
        assert (np.isnan(x.astype(np.float64)) == nan).all(), label
        assert (x[~nan] == wanted[~nan]).all(), label
        found.append(x)
    return found


# ---- reduce_scatter -----------------------------------------------------------------------------


def check_reduce_scatter(
    comm: Comm, label: str, op: str, count: int, how: str, layout: str, seed: int = 0
) -> None:
    """Run a reduce_scatter with `out` made, given, and given as this rank's part of the input."""
    size, rank = comm.world_size, comm.rank
    message = f"count={count} {how} {layout} rank={rank}"
    parts = contributions(size, count, label, op, seed + count)
    block = count // size

    def mine(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if layout == "shard":
            return shard_of(values, rank, size)
        return values[rank * block : (rank + 1) * block]

    wanted = [mine(part) for part in parts]
    symmetric_pool(comm)
    source = place(comm, how, parts[rank], turn=count)
    made = cocoll.reduce_scatter(source.array, op, layout=layout, comm=comm).result()
    check_reduced(made, wanted, op, f"made, {message}")
    assert_same_bits(source.view, parts[rank], f"the input, {message}")
    result = place(comm, how, np.zeros_like(wanted[0]))
    given = cocoll.reduce_scatter(source.array, op, out=result.array, layout=layout, comm=comm)
    assert given.result() is result.array
    check_reduced(result.view, wanted, op, f"given, {message}")
    result.check_around()
    assert_same_bits(source.view, parts[rank], f"the input, {message}")
    inside = mine(source.view)
    cocoll.reduce_scatter(source.array, op, out=inside, layout=layout, comm=comm)
    check_reduced(inside, wanted, op, f"inside, {message}")
    untouched = np.array(parts[rank])
    mine(untouched)[...] = inside
    assert_same_bits(source.view, untouched, f"the rest of the input, {message}")
    source.check_around()


@case(
    label=DTYPES, op=OPS, layout=("block", "shard"), under_mpi=lambda label, op, layout: op == "sum"
)
def reduce_scatter(comm: Comm, label: str, op: str, layout: str) -> None:
    for turn, count in enumerate((0, 1, 15, 17, 300, 2_003)):
        length = count * comm.world_size if layout == "block" else count
        check_reduce_scatter(comm, label, op, length, PLACES[turn % 3], layout)


@case(how=PLACES, layout=("block", "shard"), tuning=("small", "one_slot"))
def reduce_scatter_by_memory(comm: Comm, how: str, layout: str) -> None:
    for count in telling_counts(comm, "float32"):
        length = count // comm.world_size * comm.world_size if layout == "block" else count
        check_reduce_scatter(comm, "float32", "sum", length, how, layout)


@case(shape=((8, 3), (1, 8), (16,), (0, 2)))
def reduce_scatter_shapes(comm: Comm, shape: tuple[int, ...]) -> None:
    # Where the first dimension divides, the output made is a stack of rows.
    shape = (shape[0] * comm.world_size, *shape[1:])
    parts = contributions(comm.world_size, shape, "float32", "sum")
    made = cocoll.reduce_scatter(parts[comm.rank], comm=comm).result()
    rows = shape[0] // comm.world_size
    check_reduced(made, [part[comm.rank * rows :][:rows] for part in parts], "sum")


@case(count=(0, 1, 15, 16, 17, 33, 100, 2_003))
def reduce_scatter_into_shard(comm: Comm, count: int) -> None:
    # An output from shard_zeros says by itself that shards are meant, an empty one too.
    parts = contributions(comm.world_size, count, "float32", "sum")
    shard = comm.shard_zeros(count)
    cocoll.reduce_scatter(parts[comm.rank], out=shard, comm=comm)
    check_reduced(shard, [shard_of(part, comm.rank, comm.world_size) for part in parts], "sum")
    whole = np.zeros(count, np.float32)
    cocoll.allgather(shard, out=whole, comm=comm)
    check_reduced(whole, parts, "sum")
