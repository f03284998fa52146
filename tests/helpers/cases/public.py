"""What went wrong for users of other libraries, as small inputs (the numbers are of that list)."""

from __future__ import annotations

import gc
import math
import threading
from typing import Any

import numpy as np

import cocoll
from cocoll import epilogues
from cocoll.errors import UsageError
from tests.helpers import optimizers
from tests.helpers.arrays import (
    DTYPES,
    FLOATS,
    OnlyDLPack,
    assert_same_bits,
    itemsize_of,
    numpy_dtype,
    symmetric_pool,
)
from tests.helpers.cases import case
from tests.helpers.cases.reductions import PLACES, place
from tests.helpers.cases.streams import raises
from tests.helpers.references import (
    check_reduced,
    contributions,
    reduce_in_rank_order,
    shard_of,
)

Comm = cocoll.Communicator
Array = np.ndarray[Any, Any]


def settle(comm: Comm) -> None:
    """Check that a five-element sum still comes out right."""
    x = np.arange(5, dtype=np.float32) + comm.rank
    cocoll.allreduce(x, comm=comm)
    size = comm.world_size
    assert_same_bits(x, np.arange(5, dtype=np.float32) * size + sum(range(size)))


# ---- R01: equal shapes, other layouts -----------------------------------------------------------


def _laid_out(rank: int, values: Array) -> tuple[Array, Array, Array]:
    """Give an array of a rank's own layout, its base, and which of the base is not the array."""
    rows, columns = values.shape
    layout = rank % 4
    if layout == 0:
        base = np.full((columns, rows), -7, np.float32)
        view = base.T
    elif layout == 1:
        base = np.full((rows, columns), -7, np.float32)
        view = base
    elif layout == 2:
        base = np.full((rows, columns), -7, np.float32)
        view = base[::-1, ::-1]
    else:
        base = np.full((rows, 2 * columns), -7, np.float32)
        view = base[:, ::2]
    outside = np.ones(base.shape, bool)
    {0: lambda o: o.T, 1: lambda o: o, 2: lambda o: o, 3: lambda o: o[:, ::2]}[layout](outside)[
        ...
    ] = False
    view[...] = values
    return view, base, outside


@case(
    shape=((4, 3), (1, 1), (31, 17), (1000, 1003)),
    tuning=("small", "default"),
    under_mpi=lambda shape: shape == (4, 3),
)
def r01_other_layouts(comm: Comm, shape: tuple[int, int]) -> None:
    size, rank = comm.world_size, comm.rank
    rows, columns = np.indices(shape)
    logical = (10 * rows + columns).astype(np.float32)
    roots = range(size) if logical.size < 1e5 else (0, size - 1)
    for root in roots:
        view, base, outside = _laid_out(rank, logical + rank)
        cocoll.broadcast(view, root, comm=comm)
        assert_same_bits(np.ascontiguousarray(view), logical + np.float32(root), f"root {root}")
        assert (base[outside] == -7).all()
    view, base, outside = _laid_out(rank, logical + rank)
    cocoll.allreduce(view, comm=comm)
    wanted = reduce_in_rank_order([logical + np.float32(r) for r in range(size)], "sum")
    assert_same_bits(np.ascontiguousarray(view), wanted)
    assert (base[outside] == -7).all()
    view, _, _ = _laid_out(rank, logical + rank)
    gathered = cocoll.allgather(view, comm=comm).result()
    assert_same_bits(gathered, np.concatenate([logical + np.float32(r) for r in range(size)]))
    out, base, outside = _laid_out(rank + 1, np.zeros_like(gathered))
    cocoll.allgather(view, out=out, comm=comm)
    assert_same_bits(np.ascontiguousarray(out), gathered)
    assert (base[outside] == -7).all()
    settle(comm)


# ---- R03: fewer elements than ranks -------------------------------------------------------------


@case(count=(1, 2, 3, 15, 16, 17, 33), bound=(False, True))
def r03_empty_shards(comm: Comm, count: int, bound: bool) -> Any:
    size, rank = comm.world_size, comm.rank
    length = 16 * math.ceil(math.ceil(count / size) / 16)
    lengths = [max(0, min(length, count - r * length)) for r in range(size)]
    parts = contributions(size, count, "float32", "sum", count)
    grad, param = np.array(parts[rank]), np.linspace(-1, 1, count, dtype=np.float32)
    m, v = comm.shard_zeros(count), comm.shard_zeros(count)
    assert m.size == v.size == lengths[rank]
    epilogue = epilogues.adam()
    run: Any = None
    if bound:
        run = comm.bind(cocoll.allreduce_fused, grad, epilogue, param=param, m=m, v=v)
    g = reduce_in_rank_order(parts, "sum").astype(np.float64)
    p, m64, v64 = param.astype(np.float64), 0 * g, 0 * g
    for step in (1, 2, 3):
        if bound:
            run(lr=0.125, step=step)
        else:
            cocoll.allreduce_fused(
                grad, epilogue, param=param, m=m, v=v, lr=0.125, step=step, comm=comm
            )
        p, m64, v64 = optimizers.adam(g, p, m64, v64, step=step, lr=0.125)
    assert (np.abs(param - p) <= 4 * 2.0**-23 * np.maximum(np.abs(p), 0.25)).all()
    assert_same_bits(grad, parts[rank])
    # The same lengths, plainly.
    cocoll.reduce_scatter(grad, out=m, comm=comm)
    check_reduced(m, [shard_of(part, rank, size) for part in parts], "sum")
    whole = np.zeros(count, np.float32)
    cocoll.allgather(m, out=whole, comm=comm)
    check_reduced(whole, parts, "sum")
    # State from elsewhere: an array, an empty one too; through DLPack; None is refused by name.
    plain = [np.zeros(lengths[rank], np.float32) for _ in range(4)]
    for first, second in (plain[:2], [OnlyDLPack(part) for part in plain[2:]]):
        again = np.linspace(-1, 1, count, dtype=np.float32)
        for step in (1, 2, 3):
            cocoll.allreduce_fused(
                grad, epilogue, param=again, m=first, v=second, lr=0.125, step=step, comm=comm
            )
        assert_same_bits(again, param)
    error = raises(
        UsageError,
        lambda: cocoll.allreduce_fused(
            grad, epilogue, param=param, m=None, v=v, lr=0.125, step=1, comm=comm
        ),
    )
    assert "m must be an array; got None" in str(error)
    settle(comm)
    return param


# ---- R07: averages ------------------------------------------------------------------------------


@case(label=DTYPES, length=(5, 4, None))
def r07_averages(comm: Comm, label: str, length: int | None) -> None:
    size, rank = comm.world_size, comm.rank
    shape: Any = () if length is None else (length,)
    ramps = [np.full(shape, r, np.int64).astype(numpy_dtype(label)) for r in range(size)]
    batches = [ramps]
    if label == "int32" and length == 5:
        batches.append([np.array([1, 0, -1, -2, 7], np.int32) + np.int32(r) for r in range(size)])
        batches.append([np.full(5, (-1) ** r * (2**31 - 1), np.int32) for r in range(size)])
        batches.append([np.full(5, -(2**31), np.int32)] * size)
    if label == "int64":
        batches.append([np.full(shape, 2**60 + 1, np.int64)] * size)
        batches.append([np.full(shape, -(2**63), np.int64)] * size)
        batches.append([np.full(shape, 2**63 - 1 - r, np.int64) for r in range(size)])
    if label == "uint8":
        batches.append([np.full(shape, 200, np.uint8)] * size)
        batches.append([np.full(shape, 255 - r, np.uint8) for r in range(size)])
    for parts in batches:
        x = np.array(parts[rank])
        cocoll.allreduce(x, "avg", comm=comm)
        check_reduced(x, parts, "avg", f"{label} {length}")
        if label.startswith(("int", "uint")):
            exact = [sum(int(part.reshape(-1)[i]) for part in parts) for i in range(x.size)]
            truncated = [abs(s) // size * (1 if s > 0 else -1) for s in exact]
            assert x.reshape(-1).tolist() == truncated
        if length is not None:
            long = [np.concatenate([part] * size) for part in parts]
            block = cocoll.reduce_scatter(long[rank], "avg", comm=comm).result()
            check_reduced(block, parts, "avg")
    settle(comm)


# ---- R08: NaN -----------------------------------------------------------------------------------


def _nan(label: str, negative: bool) -> Array:
    """Give a NaN with a sign and a payload."""
    bits = {
        "float16": 0x7E55,
        "bfloat16": 0x7FD5,
        "float32": 0x7FD5_5555,
        "float64": 0x7FFD_5555_5555_5555,
    }[label]
    width = 8 * itemsize_of(label)
    value = np.array([bits | negative << (width - 1)], f"u{width // 8}")
    return value.view(numpy_dtype(label))


@case(
    count=(1, 16, 17, 1_000, 5_000, 70_001, 1_048_579),
    label=FLOATS,
    op=("min", "max"),
    tuning="default",
    only=lambda count, label, op: (
        count < 10_000 or label == "float32" or (label == "bfloat16" and count < 100_000)
    ),
    under_mpi=lambda count, label, op: count in (17, 5_000),
)
def r08_nan(comm: Comm, count: int, label: str, op: str) -> Any:
    size, rank = comm.world_size, comm.rank
    places = sorted({0, 1, count // 2, count - 1, count - 2} & set(range(count)))
    found = []
    symmetric_pool(comm)
    for turn in range(size if count < 10_000 else 1):
        parts = contributions(size, count, label, op, turn)
        for number, spot in enumerate(places):
            parts[(turn + number) % size][spot] = _nan(label, number % 2 == 1)[0]
        plain = [np.array(part) for part in parts]
        x = place(comm, PLACES[turn % 3], parts[rank]) if count < 70_000 else None
        array = x.array if x is not None else parts[rank]
        cocoll.allreduce(array, op, comm=comm)
        got = np.asarray(array).astype(np.float64)
        assert np.isnan(got[places]).all(), f"{op} lost a NaN: {got[places]}"
        others = np.ones(count, bool)
        others[places] = False
        wanted = reduce_in_rank_order(plain, op)
        assert_same_bits(np.asarray(array)[others], wanted[others])
        if count >= size:
            even = count // size * size
            made = cocoll.reduce_scatter(plain[rank][:even], op, comm=comm).result()
            block = np.asarray(array)[rank * (even // size) : (rank + 1) * (even // size)]
            assert_same_bits(np.isnan(made.astype(np.float64)), np.isnan(block.astype(np.float64)))
        found.append(np.array(array))
    settle(comm)
    return found


# ---- R09: half precision ------------------------------------------------------------------------


def check_r09(comm: Comm, label: str) -> Any:
    """Add every bit pattern to telling constants, and check the roundings one by one."""
    size, rank = comm.world_size, comm.rank
    dtype = numpy_dtype(label)
    patterns = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    constants = [0.0, -0.0, 2.0**-24, 2.0**-11, 15.9921875, 16.0, -65504.0, np.inf, np.nan]
    if label == "bfloat16":
        constants += [2.0**-133, 3.3895313892515355e38]
    found = []
    for constant in constants:
        with np.errstate(all="ignore"):
            parts = [patterns, np.full(1 << 16, constant).astype(dtype)]
        # Adding -0 changes nothing.
        parts = (parts + [np.full(1 << 16, -0.0).astype(dtype)] * size)[:size]
        # 65,521 elements: the tail is not a whole vector.
        for length in (1 << 16, 65_521):
            x = np.array(parts[rank][:length])
            cocoll.allreduce(x, comm=comm)
            with np.errstate(all="ignore"):
                wanted = parts[0].astype(np.float32)
                for part in parts[1:]:
                    wanted = wanted + part.astype(np.float32)
                rounded = wanted.astype(dtype)[:length]
            nan = np.isnan(wanted[:length])
            assert (np.isnan(x.astype(np.float32)) == nan).all(), constant
            assert_same_bits(x[~nan], rounded[~nan], f"{label} {constant}")
            found.append(x)
    return found


@case(label=("float16", "bfloat16"), tuning="default", under_mpi=False)
def r09_all_patterns(comm: Comm, label: str) -> Any:
    return check_r09(comm, label)


@case(what=("singles",))
def r09_singles(comm: Comm, what: str) -> None:
    if comm.world_size < 3:
        return
    zeros = [-0.0] * (comm.world_size - 3)
    singles = [
        ([65504.0, 15.9921875, -0.0], 65504.0),
        ([65504.0, 16.0, -0.0], np.inf),
        ([1.9990234375, 2.0**-11, -0.0], 2.0),
        ([2.0**-24, 2.0**-24, -0.0], 2.0**-23),
        ([60000.0, 60000.0, -60000.0], 60000.0),
        ([-0.0, -0.0, -0.0], -0.0),
        ([2.0**-24, -(2.0**-24), -0.0], 0.0),
    ]
    for length in (1, 33, 700):
        for terms, wanted in singles:
            x = np.full(length, [*terms, *zeros][comm.rank], np.float16)
            cocoll.allreduce(x, comm=comm)
            assert_same_bits(x, np.full(length, wanted, np.float16), f"{terms}")


# ---- R11: where epsilon stands ------------------------------------------------------------------


@case(label=("float32", "float64"), count=(1, 64, 1_001))
def r11_first_step_of_small_gradients(comm: Comm, label: str, count: int) -> None:
    dtype = np.dtype(label)
    grad = np.full(count, 1e-8 if comm.rank == 0 else 0.0, dtype)
    param = np.ones(count, dtype)
    m, v = comm.shard_zeros(count, label), comm.shard_zeros(count, label)
    cocoll.allreduce_fused(
        grad, epilogues.adamw(weight_decay=0.0), param=param, m=m, v=v, lr=1.0, step=1, comm=comm
    )
    assert np.abs(param - 0.5).max() < (1e-12 if label == "float64" else 1e-6)


@case(label=("float32", "float64"), memory=("ordinary", "replicated"))
def r11_trajectory(comm: Comm, label: str, memory: str) -> Any:
    size, rank, count = comm.world_size, comm.rank, 96
    random = np.random.default_rng(11)
    param64 = random.standard_normal(count)
    m64, v64 = np.zeros(count), np.zeros(count)
    m, v = comm.shard_zeros(count, label), comm.shard_zeros(count, label)
    start = param64.astype(label)
    if memory == "replicated":
        param = comm.empty(count, label, replicated=True)
        cocoll.broadcast(start, out=param, comm=comm)
    else:
        param = np.array(start)
    grad = np.zeros(count, label)
    step = comm.bind(
        cocoll.allreduce_fused, grad, epilogues.adamw(weight_decay=0.1), param=param, m=m, v=v
    )
    param64 = start.astype(np.float64)
    for number in range(1, 51):
        scale = 10.0 ** random.integers(-12, 3, (size, count))
        parts = (random.standard_normal((size, count)) * scale).astype(label)
        parts[:, :8] = 0.0
        grad[...] = parts[rank]
        step(lr=0.01, step=number)
        g = reduce_in_rank_order(list(parts), "sum").astype(np.float64)
        param64, m64, v64 = optimizers.adam(
            g, param64, m64, v64, step=number, lr=0.01, weight_decay=0.1, decoupled=True
        )
        error = np.abs(param - param64) / np.maximum(np.abs(param64), 1e-2)
        assert error.max() < (1e-12 if label == "float64" else 2e-5), f"step {number}"
    # A gradient of zero still decays the parameter.
    decayed = start[:8].astype(np.float64) * (1 - 0.01 * 0.1) ** 50
    assert np.abs(param[:8] / decayed - 1).max() < 2e-5
    return np.array(param)


# ---- R14: dropping symmetric arrays -------------------------------------------------------------


@case(count=(1 << 10, 1 << 20), way=("order", "cycle", "thread"))
def r14_dropped_first_on_one_rank(comm: Comm, count: int, way: str) -> None:
    size, rank = comm.world_size, comm.rank
    x = comm.empty(count)
    x[...] = rank + 1
    if rank == 0:
        del x
        gc.collect(1)
    for _ in range(20):
        settle(comm)
    y = comm.empty(count)
    y[...] = rank
    cocoll.allreduce(y, comm=comm)
    assert (y == sum(range(size))).all()
    if rank != 0:
        assert (x == rank + 1).all()
    a, b = comm.empty(count), comm.empty(count)
    a[...], b[...] = 1, 2
    if way == "order":
        if rank % 2:
            del a, b
        else:
            del b, a
    elif way == "cycle":
        cycle: list[Any] = [a, b]
        cycle.append(cycle)
        del cycle, a, b
        gc.collect(1)
    else:
        held = [a, b]
        del a, b
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
    del y
    first = comm.empty(count)
    second = comm.empty(count)
    first[...], second[...] = rank, rank
    cocoll.allreduce(first, comm=comm)
    assert (first == sum(range(size))).all()
    assert (second == rank).all()
    settle(comm)
