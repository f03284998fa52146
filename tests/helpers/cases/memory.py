"""Arrays of every kind a caller may bring, and the memory that cocoll hands out."""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import mmap
from typing import Any

import numpy as np

import cocoll
from cocoll import epilogues
from cocoll.errors import UsageError
from tests.helpers.arrays import (
    DLPACK_KINDS,
    DTYPES,
    KINDS,
    PLAIN_KINDS,
    OnlyDLPack,
    assert_same_bits,
    hold,
    itemsize_of,
    symmetric_pool,
)
from tests.helpers.cases import case
from tests.helpers.references import (
    check_reduced,
    contribution,
    contributions,
    reduce_in_rank_order,
    shard_of,
)

Comm = cocoll.Communicator

#: Few elements (inline), some (one-shot), many (chunks).
SHAPES = ((2, 3), (9, 17), (31, 33))
_BUFFERS = ("bytearray", "array", "ctypes", "uint16")


def _kind_takes(kind: str, label: str) -> bool:
    if kind == "bytearray":
        return label == "uint8"
    if kind == "uint16":
        return label == "bfloat16"
    if kind == "memoryview" or kind in DLPACK_KINDS:
        return label != "bfloat16"
    if kind in ("array", "ctypes"):
        return label not in ("float16", "bfloat16")
    return True


def _needs(**arguments: Any) -> tuple[str, ...]:
    return ("torch",) if str(arguments["kind"]).startswith("torch") else ()


@case(
    kind=tuple(KINDS),
    label=DTYPES,
    only=_kind_takes,
    needs=_needs,
    under_mpi=lambda kind, label: label in ("float32", "uint8") or kind in _BUFFERS,
)
def calls_on_arrays_of_a_kind(comm: Comm, kind: str, label: str) -> None:
    size, rank = comm.world_size, comm.rank
    dtype = "bfloat16" if kind == "uint16" else None
    symmetric_pool(comm)
    for shape in SHAPES:
        parts = contributions(size, shape, label, "sum", shape[0])
        message = f"{kind} {label} {shape} rank {rank}"

        x = hold(comm, kind, parts[rank])
        assert cocoll.allreduce(x.array, dtype=dtype, comm=comm) is cocoll.DONE
        check_reduced(x.view, parts, "sum", f"in place, {message}")
        x.check_around()

        x, out = hold(comm, kind, parts[rank]), hold(comm, kind, np.zeros_like(parts[0]))
        work = cocoll.allreduce(x.array, "max", out=out.array, dtype=dtype, comm=comm)
        assert work.result() is out.array
        check_reduced(out.view, parts, "max", f"out of place, {message}")
        assert_same_bits(x.view, parts[rank], f"the input, {message}")
        out.check_around()

        root = shape[0] % size
        x = hold(comm, kind, parts[rank])
        cocoll.broadcast(x.array, root, dtype=dtype, comm=comm)
        assert_same_bits(x.view, parts[root], f"broadcast, {message}")
        x.check_around()

        x = hold(comm, kind, parts[rank])
        gathered = hold(comm, kind, np.zeros((size * shape[0], shape[1]), parts[0].dtype))
        cocoll.allgather(x.array, out=gathered.array, dtype=dtype, comm=comm)
        assert_same_bits(gathered.view, np.concatenate(parts), f"allgather, {message}")
        gathered.check_around()

        long = [np.concatenate([part] * size) for part in parts]
        x, block = hold(comm, kind, long[rank]), hold(comm, kind, np.zeros_like(parts[0]))
        cocoll.reduce_scatter(x.array, out=block.array, dtype=dtype, comm=comm)
        check_reduced(block.view, parts, "sum", f"reduce_scatter, {message}")
        block.check_around()


@case(
    kind=(*PLAIN_KINDS, *DLPACK_KINDS, "bytearray", "array", "uint16", "torch"),
    under_mpi=False,
    needs=_needs,
)
def outputs_made_are_of_the_input_s_kind(comm: Comm, kind: str) -> None:
    label = {"bytearray": "uint8", "uint16": "bfloat16"}.get(kind, "float32")
    dtype = "bfloat16" if kind == "uint16" else None
    parts = contributions(comm.world_size, (comm.world_size, 3), label, "sum")
    x = hold(comm, kind, parts[comm.rank])
    gathered = cocoll.allgather(x.array, dtype=dtype, comm=comm).result()
    scattered = cocoll.reduce_scatter(x.array, dtype=dtype, comm=comm).result()
    for made in (gathered, scattered):
        if kind == "torch":
            assert type(made) is type(x.array)
            assert made.dtype == x.array.dtype
        else:
            assert isinstance(made, np.ndarray)
            assert made.dtype == (np.uint16 if kind == "uint16" else x.view.dtype)
    flat = np.asarray(gathered).reshape(-1).view(x.view.dtype)
    assert_same_bits(flat, np.concatenate(parts).reshape(-1))
    mine = [part[comm.rank].reshape(-1) for part in parts]
    check_reduced(np.asarray(scattered).reshape(-1).view(x.view.dtype), mine, "sum")


@case(label=("float32", "bfloat16", "int64"))
def each_rank_brings_another_kind(comm: Comm, label: str) -> Any:
    # What an array is like is a rank's own affair: the results are those of plain arrays.
    size, rank = comm.world_size, comm.rank
    kinds = [kind for kind in (*PLAIN_KINDS, "symmetric") if _kind_takes(kind, label)]
    found = []
    for turn, shape in enumerate(((1, 1), (5, 7), (37, 41)) * 2):
        symmetric_pool(comm)
        kind, out_kind = kinds[(rank + turn) % len(kinds)], kinds[(rank * 3 + turn) % len(kinds)]
        parts = contributions(size, shape, label, "avg", turn)
        x, out = hold(comm, kind, parts[rank]), hold(comm, out_kind, np.zeros_like(parts[0]))
        cocoll.allreduce(x.array, "avg", out=out.array, comm=comm)
        check_reduced(out.view, parts, "avg", f"{kind} to {out_kind}")
        cocoll.broadcast(x.array, turn % size, comm=comm)
        assert_same_bits(x.view, parts[turn % size], kind)
        x.check_around()
        out.check_around()
        found.append(np.array(out.view))
    return found


@case(kind=("ordinary", "strided", "unaligned", "bytes", "memoryview"))
def inputs_that_may_only_be_read(comm: Comm, kind: str) -> None:
    size, rank = comm.world_size, comm.rank
    for count in (3, 100, 3_000):
        parts = contributions(size, count * size, "uint8", "max", count)
        x: Any
        if kind == "bytes":
            x = parts[rank].tobytes()
        elif kind == "memoryview":
            x = memoryview(parts[rank].tobytes())
        else:
            x = hold(comm, kind, parts[rank]).array
            x.flags.writeable = False
        out = np.zeros(count * size, np.uint8)
        cocoll.allreduce(x, "max", out=out, comm=comm)
        check_reduced(out, parts, "max")
        block = cocoll.reduce_scatter(x, "max", comm=comm).result()
        check_reduced(block, [part[rank * count :][:count] for part in parts], "max")
        assert_same_bits(cocoll.allgather(x, comm=comm).result(), np.concatenate(parts))
        cocoll.broadcast(x, size - 1, out=out, comm=comm)
        assert_same_bits(out, parts[size - 1])


@case(label=("float32",))
def memory_that_the_system_lets_no_one_write(comm: Comm, label: str) -> None:
    # A page mapped for reading only: one stray write would end the process.
    size, rank = comm.world_size, comm.rank
    for count in (5, 200, 1_024):
        parts = contributions(size, count, label, "sum", count)
        with mmap.mmap(-1, 4096) as writable:
            writable[: count * 4] = parts[rank].tobytes()
            x = np.frombuffer(writable, label, count=count)
            x.flags.writeable = False
            libc_protect(x, writable=False)
            for view in (x, x[::-1]):
                out = np.zeros(count, label)
                cocoll.allreduce(view, out=out, comm=comm)
                turned = parts if view is x else [part[::-1] for part in parts]
                check_reduced(out, turned, "sum")
                for root in range(size):
                    received = view if rank == root else np.zeros(count, label)
                    cocoll.broadcast(received, root, comm=comm)
                    assert_same_bits(np.array(received), turned[root])
            libc_protect(x, writable=True)
            del x, view, received


def libc_protect(array: np.ndarray[Any, Any], *, writable: bool) -> None:
    """Set the protection of the page that an array starts with."""
    libc = ctypes.CDLL(None, use_errno=True)
    address = array.ctypes.data
    assert address % 4096 == 0
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(4096), protection) == 0


@case(kind=("ordinary", "array", "dlpack", "symmetric", "strided"))
def empty_arrays(comm: Comm, kind: str) -> None:
    size, rank = comm.world_size, comm.rank
    symmetric_pool(comm)
    values = np.zeros(0, np.float32)
    x = hold(comm, kind, values) if kind != "strided" else None
    given = x.array if x is not None else np.zeros((4, 6), np.float32)[:, 6:]
    for op in ("sum", "avg", "min"):
        cocoll.allreduce(given, op, comm=comm)
        cocoll.allreduce(given, op, out=np.zeros(0, np.float32), comm=comm)
        assert cocoll.reduce_scatter(given, op, comm=comm).result().size == 0
    assert cocoll.allgather(given, comm=comm).result().size == 0
    for root in range(size):
        cocoll.broadcast(given, root, comm=comm)
    # What comes after them is right.
    parts = contributions(size, 5, "float32", "sum")
    y = np.array(parts[rank])
    cocoll.allreduce(y, comm=comm)
    check_reduced(y, parts, "sum")


@case(
    shape=(0, 5, (), (3, 4), (2, 0, 3), np.int64(7), [2, np.int32(3)]),
    label=DTYPES,
    under_mpi=lambda shape, label: label == "float32",
)
def arrays_that_the_communicator_makes(comm: Comm, shape: Any, label: str) -> None:
    wanted = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    for replicated in (False, True):
        x = comm.empty(shape, label, replicated=replicated)
        assert x.shape == wanted
        assert str(x.dtype) == label
        assert x.flags.c_contiguous
        assert x.flags.writeable is not replicated
        assert x.ctypes.data % 64 == 0
    x = comm.empty(shape, label)
    values = contributions(comm.world_size, x.shape, label, "sum")
    x[...] = values[comm.rank]
    cocoll.allreduce(x, comm=comm)
    check_reduced(x, values, "sum")


@case(count=(0, 1, 2, 3, 15, 16, 17, 33, 57, 1_000, 262_145))
def shards(comm: Comm, count: int) -> None:
    size = comm.world_size
    edges = [comm.shard_range(count, rank) for rank in range(size)]
    assert edges[0][0] == 0
    assert edges[-1][1] == count
    assert all(left[1] == right[0] for left, right in itertools.pairwise(edges))
    length = 16 * math.ceil(math.ceil(count / size) / 16)
    assert edges == [
        (min(rank * length, count), min((rank + 1) * length, count)) for rank in range(size)
    ]
    assert comm.shard_range(count) == edges[comm.rank]
    assert comm.shard_range(np.int64(count)) == edges[comm.rank]
    for label in ("float32", "bfloat16", "float64"):
        shard = comm.shard_zeros(count, label)
        start, stop = comm.shard_range(count)
        assert shard.shape == (stop - start,)
        assert str(shard.dtype) == label
        assert not shard.view(f"u{itemsize_of(label)}").any()
        assert shard.flags.writeable
        assert shard.ctypes.data % 64 == 0
        whole = contribution(5, count, label, "sum")
        assert_same_bits(whole[start:stop], shard_of(whole, comm.rank, size))


@case(count=(40, 5_000))
def replicated_memory_is_one_copy(comm: Comm, count: int) -> Any:
    parts = contributions(comm.world_size, count, "float32", "sum")
    target = comm.empty(count, "float32", replicated=True)
    other = comm.empty(count, "float32", replicated=True)
    total = reduce_in_rank_order(parts, "sum")
    plain = epilogues.scale(1.0)
    symmetric_pool(comm)
    for kind in ("ordinary", "symmetric", "strided"):
        x = hold(comm, kind, parts[comm.rank])
        cocoll.allreduce_fused(x.array, plain, out=target, comm=comm)
        assert_same_bits(target, total, kind)
        assert_same_bits(x.view, parts[comm.rank])
        comm.barrier()
        # As an input it is what every rank has.
        cocoll.broadcast(target, 0, out=other, comm=comm)
        assert_same_bits(other, target)
        comm.barrier()
        out = np.zeros(count, np.float32)
        cocoll.allreduce(target, "max", out=out, comm=comm)
        assert_same_bits(out, total)
        comm.barrier()
    for call in (
        lambda: cocoll.allreduce(target, comm=comm),
        lambda: target.__setitem__(0, 1.0),
    ):
        try:
            call()
        except (UsageError, ValueError):
            continue
        raise AssertionError("a replicated array was written")
    return np.array(target)


@case(count=(64, 1 << 18))
def symmetric_memory_is_used_again(comm: Comm, count: int) -> None:
    # Blocks return when all ranks have dropped them, whatever the order; live ones are never given.
    kept = comm.empty(count)
    kept[...] = comm.rank + 0.5
    seen = set()
    for turn in range(12):
        x = comm.empty(count)
        # Successive large arrays are staggered within their huge page.
        seen.add(x.ctypes.data >> (21 if x.nbytes >= 1 << 20 else 0))
        assert not np.shares_memory(x, kept)
        x[...] = turn
        cocoll.allreduce(x, comm=comm)
        assert (x == turn * comm.world_size).all()
        if comm.rank % 2 == turn % 2:
            cycle: list[Any] = [x]
            cycle.append(cycle)
            del cycle
        del x
        gc.collect(1)
    assert len(seen) < 6, "memory is never used again"
    assert (kept == comm.rank + 0.5).all()


@case(kind=("symmetric", "replicated"))
def interiors_of_symmetric_arrays(comm: Comm, kind: str) -> None:
    # A part of a symmetric array is symmetric too; ranks may use different parts.
    base = comm.empty(4_000)
    base[...] = -7.0
    parts = contributions(comm.world_size, 900, "float32", "sum")
    start = 100 + 64 * comm.rank
    mine = base[start : start + 900]
    mine[...] = parts[comm.rank]
    if kind == "symmetric":
        cocoll.allreduce(mine, comm=comm)
        check_reduced(mine, parts, "sum")
    else:
        target = comm.empty(1_000, "float32", replicated=True)
        cocoll.allreduce_fused(mine, epilogues.scale(1.0), out=target[50:950], comm=comm)
        check_reduced(target[50:950], parts, "sum")
        assert_same_bits(mine, parts[comm.rank])
    assert (base[:start] == -7.0).all()
    assert (base[start + 900 :] == -7.0).all()


@case(label=("float32",))
def dlpack_of_nothing(comm: Comm, label: str) -> None:
    x = OnlyDLPack(np.zeros((0, 3), label))
    cocoll.allreduce(x, comm=comm)
    assert cocoll.allgather(x, comm=comm).result().shape == (0, 3)
