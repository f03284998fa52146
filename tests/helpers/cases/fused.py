"""Fused calls: the catalogue and users' epilogues against float64, dtypes, memory, shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cocoll
from cocoll import epilogues
from cocoll.bootstrap import SelfBootstrap
from cocoll.errors import BufferMismatchError, BufferOverlapError, UsageError
from tests.helpers import optimizers
from tests.helpers.arrays import (
    FLOATS,
    OnlyDLPack,
    assert_same_bits,
    hold,
    numpy_dtype,
    symmetric_pool,
)
from tests.helpers.cases import case
from tests.helpers.cases.streams import raises
from tests.helpers.references import (
    contribution,
    contributions,
    reduce_in_rank_order,
    reduce_wide,
    shard_of,
)

Comm = cocoll.Communicator
Array = np.ndarray[Any, Any]

COUNTS = (0, 1, 17, 1_021, 4_099)
#: How gradients and parameters lie.
MEMORIES = ("ordinary", "symmetric", "replicated", "mixed", "strided")
_ULP = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def assert_close(got: Any, wanted: Array, label: str, message: str, *, ulps: float = 4.0) -> None:
    """Compare with float64: so many units in the last place of the larger magnitude."""
    left, right = np.asarray(got).astype(np.float64), np.asarray(wanted, np.float64)
    assert left.shape == right.shape, f"{message}: shape {left.shape}, wanted {right.shape}"
    tiny = {"float16": 2.0**-24, "bfloat16": 2.0**-126}.get(label, 1e-37)
    bound = ulps * _ULP[label] * np.abs(right) + tiny
    error = np.abs(left - right)
    bad = ~(error <= bound)
    if bad.any():
        first = int(np.flatnonzero(bad.reshape(-1))[0])
        raise AssertionError(
            f"{message}: {int(bad.sum())} of {bad.size} are off, the first at {first}: got "
            f"{left.reshape(-1)[first]!r}, wanted {right.reshape(-1)[first]!r}"
        )


def reduced_wide(parts: list[Array], op: str) -> Array:
    """Give what the epilogue sees, as float64 numbers."""
    return reduce_wide(parts, op).astype(np.float64)


class Training:
    """Arrays of one optimizer step, in memory of a kind, with this rank's shards of the state."""

    def __init__(
        self, comm: Comm, memory: str, count: int, *, grad: str, param: str, state: str, op: str
    ) -> None:
        self.comm, self.memory = comm, memory
        self.parts = contributions(comm.world_size, count, grad, op, count)
        initial = contribution(77, count, "float32", "sum", count)
        initial = initial / np.float32(16)
        symmetric_pool(comm)
        kind = {"replicated": "symmetric"}.get(memory, memory)
        if memory == "mixed":
            hold(comm, "symmetric", self.parts[0])
            kind = "symmetric" if comm.rank == count % comm.world_size else "ordinary"
        self.grad = hold(comm, kind, self.parts[comm.rank])
        self.initial = initial.astype(numpy_dtype(param))
        if memory == "replicated":
            self.param = comm.empty(count, param, replicated=True)
            cocoll.broadcast(self.initial, out=self.param, comm=comm)
            self.check_around: Callable[[], None] = lambda: None
        else:
            held = hold(comm, kind, self.initial)
            self.param, self.check_around = held.view, held.check_around
        self.count, self.state = count, state

    def shard(self, whole: Array) -> Array:
        """Give this rank's part of a vector."""
        return shard_of(whole, self.comm.rank, self.comm.world_size)

    def make_state(self, values: Array | None = None) -> Array:
        """Give this rank's shard of a state, zero unless told."""
        made = self.comm.shard_zeros(self.count, self.state)
        if values is not None:
            made[...] = self.shard(values)
        return made


# ---- optimizers ---------------------------------------------------------------------------------


def check_sgd(comm: Comm, memory: str, op: str, label: str, count: int, **choice: Any) -> Any:
    """Take two steps of SGD, and check parameters and momentum."""
    momentum = choice.get("momentum", 0.0)
    state = "float64" if label == "float64" else "float32"
    t = Training(comm, memory, count, grad=label, param=label, state=state, op=op)
    g = reduced_wide(t.parts, op)
    p = t.initial.astype(np.float64)
    b = np.zeros(count)
    arrays: dict[str, Any] = {"param": t.param}
    if momentum:
        arrays["momentum_buffer"] = t.make_state()
    epilogue = epilogues.sgd(**choice)
    message = f"{memory} {op} {label} {count} {choice} rank {comm.rank}"
    for step in (1, 2):
        scalars = {"lr": 0.0625 / step}
        if choice.get("dampening"):
            scalars["step"] = step
        cocoll.allreduce_fused(t.grad.array, epilogue, op=op, comm=comm, **arrays, **scalars)
        p, b = optimizers.sgd(g, p, b, step=step, lr=0.0625 / step, **choice)
        # The sum of terms may be smaller than each of them: errors are relative to the terms.
        scale = np.abs(p) + np.abs(g) + np.abs(b)
        bound = 8 * _ULP[label] * scale
        assert (np.abs(t.param.astype(np.float64) - p) <= bound + 1e-30).all(), message
        if momentum:
            mine = t.shard(b)
            error = np.abs(arrays["momentum_buffer"].astype(np.float64) - mine)
            assert (error <= t.shard(8 * _ULP[state] * scale) + 1e-30).all(), message
        # The next step starts from what is stored.
        p = t.param.astype(np.float64)
    assert_same_bits(t.grad.view, t.parts[comm.rank], f"the gradient, {message}")
    t.grad.check_around()
    t.check_around()
    return np.array(t.param)


@case(
    memory=MEMORIES,
    op=("sum", "avg"),
    label=FLOATS,
    under_mpi=lambda memory, op, label: label == "float32",
)
def sgd(comm: Comm, memory: str, op: str, label: str) -> Any:
    return [check_sgd(comm, memory, op, label, count) for count in COUNTS]


@case(
    choice=(
        {"momentum": 0.75},
        {"momentum": 0.75, "weight_decay": 0.125},
        {"momentum": 0.5, "nesterov": True},
    ),
    op=("sum", "avg"),
    memory=("ordinary", "replicated", "mixed"),
    under_mpi=lambda choice, op, memory: memory == "replicated",
)
def sgd_with_momentum(comm: Comm, choice: dict[str, Any], op: str, memory: str) -> Any:
    return [check_sgd(comm, memory, op, "float32", count, **choice) for count in COUNTS]


@case(dampening=(0.25,))
def sgd_with_dampening(comm: Comm, dampening: float) -> Any:
    # Not in the catalogue: compiled, once for all ranks.
    return [
        check_sgd(comm, "ordinary", "sum", "float32", count, momentum=0.5, dampening=dampening)
        for count in (1, 700)
    ]


def check_adam(
    comm: Comm, memory: str, op: str, label: str, count: int, *, decoupled: bool, bound: bool
) -> Any:
    """Take three steps of Adam or AdamW, called or bound, and check all that they change."""
    t = Training(comm, memory, count, grad=label, param=label, state=label, op=op)
    g = reduced_wide(t.parts, op)
    m, v = t.make_state(), t.make_state()
    choice = {"betas": (0.875, 0.96875), "eps": 1e-6, "weight_decay": 0.125}
    make = epilogues.adamw if decoupled else epilogues.adam
    epilogue = make(**choice)
    run: Any = None
    if bound:
        run = comm.bind(
            cocoll.allreduce_fused, t.grad.array, epilogue, op=op, param=t.param, m=m, v=v
        )
        assert run.algorithm == "two_shot" or run.algorithm.startswith("hierarchical")
    p, m64, v64 = t.initial.astype(np.float64), np.zeros(count), np.zeros(count)
    for step in (1, 2, 3):
        if bound:
            run(lr=0.01, step=step)
        else:
            cocoll.allreduce_fused(
                t.grad.array,
                epilogue,
                op=op,
                param=t.param,
                m=m,
                v=v,
                lr=0.01,
                step=step,
                comm=comm,
            )
        p, m64, v64 = optimizers.adam(
            g, p, m64, v64, step=step, lr=0.01, decoupled=decoupled, **choice
        )
        message = f"{memory} {op} {label} {count} step {step} rank {comm.rank}"
        # m and v sum terms that may cancel, so errors are relative to the largest that entered.
        unit = _ULP[label]
        entered = np.abs(g) + 0.125 * np.abs(t.initial.astype(np.float64)) + 0.1
        for name, got, wanted, scale in (
            ("m", m, t.shard(m64), t.shard(entered)),
            ("v", v, t.shard(v64), t.shard(entered**2)),
            ("param", t.param, p, np.abs(p) + 0.1),
        ):
            error = np.abs(got.astype(np.float64) - wanted)
            assert (error <= 16 * unit * scale).all(), f"{name}, {message}"
    t.grad.check_around()
    t.check_around()
    if bound:
        run.close()
    return np.array(t.param)


@case(
    memory=MEMORIES,
    op=("sum", "avg"),
    decoupled=(False, True),
    under_mpi=lambda memory, op, decoupled: op == "avg",
)
def adam(comm: Comm, memory: str, op: str, decoupled: bool) -> Any:
    found = []
    for turn, count in enumerate(COUNTS):
        found.append(
            check_adam(comm, memory, op, "float32", count, decoupled=decoupled, bound=turn % 2 == 0)
        )
    found.append(check_adam(comm, memory, op, "float64", 300, decoupled=decoupled, bound=True))
    return found


@case(
    half=("float16", "bfloat16"),
    optimizer=("adam", "adamw", "sgd"),
    memory=("ordinary", "replicated", "symmetric", "mixed"),
    under_mpi=lambda half, optimizer, memory: half == "bfloat16" and memory == "replicated",
)
def mixed_precision(comm: Comm, half: str, optimizer: str, memory: str) -> Any:
    # Gradients and parameters of 16 bits, master copy and state of 32: the parameters are the
    # rounded master copy, whatever they were before.
    found = []
    for count in (1, 17, 1_021):
        t = Training(comm, memory, count, grad=half, param=half, state="float32", op="avg")
        initial = contribution(78, count, "float32", "sum", count)
        master = t.make_state(initial)
        g, p = reduced_wide(t.parts, "avg"), initial.astype(np.float64)
        slots = {"adam": ("m", "v"), "adamw": ("m", "v"), "sgd": ("momentum_buffer",)}[optimizer]
        state = {name: t.make_state() for name in slots}
        b, m, v = np.zeros(count), np.zeros(count), np.zeros(count)
        epilogue = (
            epilogues.sgd(momentum=0.5) if optimizer == "sgd" else getattr(epilogues, optimizer)()
        )
        for step in (1, 2):
            scalars: dict[str, Any] = {"lr": 0.01}
            if optimizer == "sgd":
                p, b = optimizers.sgd(g, p, b, step=step, lr=0.01, momentum=0.5)
            else:
                scalars["step"] = step
                decay = 0.01 if optimizer == "adamw" else 0.0
                p, m, v = optimizers.adam(
                    g,
                    p,
                    m,
                    v,
                    step=step,
                    lr=0.01,
                    weight_decay=decay,
                    decoupled=optimizer == "adamw",
                )
            cocoll.allreduce_fused(
                t.grad.array,
                epilogue,
                op="avg",
                param=t.param,
                master=master,
                comm=comm,
                **state,
                **scalars,
            )
        message = f"{half} {optimizer} {memory} {count} rank {comm.rank}"
        error = np.abs(master.astype(np.float64) - t.shard(p))
        assert (error <= 32 * _ULP["float32"] * (np.abs(t.shard(p)) + 1)).all(), message
        assert_same_bits(t.shard(t.param), master.astype(numpy_dtype(half)), message)
        t.check_around()
        found.append(np.array(t.param))
    return found


@case(half=("float16", "bfloat16"), op=("sum",))
def half_gradients_of_full_parameters(comm: Comm, half: str, op: str) -> Any:
    found = []
    for count in (5, 900):
        t = Training(comm, "mixed", count, grad=half, param="float32", state="float32", op=op)
        m, v = t.make_state(), t.make_state()
        cocoll.allreduce_fused(
            t.grad.array, epilogues.adam(), param=t.param, m=m, v=v, lr=0.5, step=1, comm=comm
        )
        g = reduced_wide(t.parts, op)
        p, m64, v64 = optimizers.adam(g, t.initial.astype(np.float64), 0 * g, 0 * g, step=1, lr=0.5)
        assert_close(m, t.shard(m64), "float32", "m")
        assert_close(v, t.shard(v64), "float32", "v", ulps=8)
        assert (np.abs(t.param - p) <= 16 * _ULP["float32"] * (np.abs(p) + 1)).all()
        found.append(np.array(t.param))
    return found


# ---- zero_grad ----------------------------------------------------------------------------------


@case(
    memory=("ordinary", "symmetric", "replicated", "mixed"),
    label=("float32", "bfloat16"),
    tuning=("small", "one_slot"),
)
def zero_grad(comm: Comm, memory: str, label: str) -> Any:
    found = []
    for count in COUNTS:
        t = Training(comm, memory, count, grad=label, param=label, state="float32", op="sum")
        for turn in range(2):
            t.grad.view[...] = t.parts[comm.rank]
            work = cocoll.allreduce_fused(
                t.grad.array, epilogues.sgd(lr=0.5), param=t.param, zero_grad=True, comm=comm
            )
            assert work is cocoll.DONE
            message = f"{memory} {count} turn {turn} rank {comm.rank}"
            assert not np.asarray(t.grad.view).view(np.uint8).any(), f"not zeroed, {message}"
        wanted = t.initial
        total = reduce_wide(t.parts, "sum")
        for _ in range(2):
            wanted = (wanted.astype(total.dtype) - total.dtype.type(0.5) * total).astype(
                wanted.dtype
            )
        assert_same_bits(t.param, wanted, f"{memory} {count} rank {comm.rank}")
        t.grad.check_around()
        t.check_around()
        found.append(np.array(t.param))
    return found


@case(memory=("ordinary", "symmetric", "mixed"))
def zero_grad_in_reduce_scatter(comm: Comm, memory: str) -> None:
    for count in COUNTS:
        t = Training(
            comm, memory, count, grad="float32", param="float32", state="float32", op="sum"
        )
        made = cocoll.reduce_scatter_fused(
            t.grad.array, epilogues.scale(3.0), zero_grad=True, comm=comm
        ).result()
        assert not t.grad.view.any()
        total = reduce_in_rank_order(t.parts, "sum")
        assert_same_bits(made, t.shard(total * np.float32(3)), f"{memory} {count}")
        t.grad.check_around()


@case(what=("refusals",))
def zero_grad_refuses(comm: Comm, what: str) -> None:
    x = np.ones(8, np.float32)
    raises(
        UsageError,
        lambda: cocoll.allreduce_fused(x, epilogues.scale(2.0), zero_grad=True, comm=comm),
    )
    strided = np.ones(16, np.float32)[::2]
    raises(
        BufferMismatchError,
        lambda: cocoll.allreduce_fused(
            strided, epilogues.sgd(lr=1.0), param=np.ones(8, np.float32), zero_grad=True, comm=comm
        ),
    )
    assert (x == 1).all()
    assert (strided == 1).all()


# ---- activations --------------------------------------------------------------------------------

_ACTIVATIONS: dict[str, tuple[Any, Callable[[Array], Array], float]] = {
    # The epilogue, its meaning in float64, and units in the last place of float32.
    "scale": (epilogues.scale(0.375), lambda x: 0.375 * x, 0.5),
    "relu": (epilogues.relu(), lambda x: np.maximum(x, 0.0), 0.0),
    "gelu": (epilogues.gelu(), optimizers.gelu, 16.0),
    "gelu_tanh": (epilogues.gelu(approximate="tanh"), optimizers.gelu_tanh, 64.0),
    "silu": (epilogues.silu(), lambda x: x / (1.0 + np.exp(-x)), 16.0),
}


@case(name=tuple(_ACTIVATIONS), label=FLOATS, under_mpi=lambda name, label: label == "float32")
def activations(comm: Comm, name: str, label: str) -> Any:
    epilogue, reference, ulps = _ACTIVATIONS[name]
    found = []
    for turn, count in enumerate((0, 1, 15, 17, 255, 257, 1_021, 5_000)):
        symmetric_pool(comm)
        kind = ("ordinary", "symmetric", "strided")[turn % 3]
        parts = [
            (part.astype(np.float32) / 8).astype(part.dtype)
            for part in contributions(comm.world_size, count, label, "sum", count)
        ]
        x = hold(comm, kind, parts[comm.rank])
        out = hold(comm, kind, np.zeros_like(parts[0]))
        with np.errstate(over="ignore"):
            wanted = reference(reduced_wide(parts, "sum"))
        message = f"{name} {label} {count} {kind} rank {comm.rank}"
        work = cocoll.allreduce_fused(x.array, epilogue, out=out.array, comm=comm)
        assert work.result() is out.array
        # Where the exact value is tiny next to its terms, what counts is the terms.
        unit = max(_ULP[label], _ULP["float32"] * ulps if label != "float64" else 2e-13)
        bound = unit * np.maximum(np.abs(wanted), 1.0) + (2.0**-24 if label == "float16" else 0)
        assert (np.abs(out.view.astype(np.float64) - wanted) <= bound).all(), message
        assert_same_bits(x.view, parts[comm.rank], f"the input, {message}")
        assert cocoll.allreduce_fused(x.array, epilogue, comm=comm) is cocoll.DONE
        assert_same_bits(x.view, np.array(out.view), f"in place, {message}")
        x.view[...] = parts[comm.rank]
        made = cocoll.reduce_scatter_fused(x.array, epilogue, comm=comm).result()
        mine = shard_of(np.ascontiguousarray(out.view), comm.rank, comm.world_size)
        assert_same_bits(made, mine, f"scattered, {message}")
        out.check_around()
        x.check_around()
        found.append(np.array(out.view))
    return found


@case(
    source=FLOATS,
    target=FLOATS,
    op=("sum", "avg"),
    only=lambda source, target, op: (
        (source, target)
        in (
            ("float32", "float16"),
            ("float32", "bfloat16"),
            ("float16", "float32"),
            ("bfloat16", "float32"),
        )
    ),
)
def casts(comm: Comm, source: str, target: str, op: str) -> Any:
    found = []
    for count in (0, 1, 33, 1_021, 4_099):
        symmetric_pool(comm)
        parts = contributions(comm.world_size, count, source, op, count)
        x = hold(comm, ("ordinary", "symmetric")[count % 2], parts[comm.rank])
        out = hold(comm, ("symmetric", "ordinary")[count % 2], np.zeros(count, numpy_dtype(target)))
        cocoll.allreduce_fused(x.array, epilogues.cast(target), op=op, out=out.array, comm=comm)
        wanted = reduce_wide(parts, op).astype(numpy_dtype(target))
        assert_same_bits(out.view, wanted, f"{source} {target} {op} {count}")
        made = cocoll.reduce_scatter_fused(
            x.array, epilogues.cast(target), op=op, comm=comm
        ).result()
        assert_same_bits(made, shard_of(wanted, comm.rank, comm.world_size))
        found.append(np.array(out.view))
    return found


# ---- dropout ------------------------------------------------------------------------------------


@case(
    count=(5, 200, 3_000, 20_011),
    tuning=("small", "one_shot", "two_shot", "default"),
    under_mpi=lambda count: count == 3_000,
)
def dropout_masks(comm: Comm, count: int) -> Any:
    # One mask for every number of ranks, algorithm and memory: a world of one draws it too.
    ones = np.ones(count, np.float32)
    zero = np.zeros(1, np.float32)
    epilogue = epilogues.bias_dropout_residual(0.25, seed=11)
    found = []
    with cocoll.Communicator(SelfBootstrap(), cache_dir=comm.settings.cache_dir) as alone:
        for step in (0, 3):
            masks = []
            for where, kind in ((alone, "ordinary"), (comm, "ordinary"), (comm, "symmetric")):
                symmetric_pool(comm)
                x = hold(comm, kind, ones)
                cocoll.allreduce_fused(
                    x.array, epilogue, op="avg", bias=zero, residual=zero, step=step, comm=where
                )
                masks.append(np.array(x.view))
            assert_same_bits(masks[1], masks[0], f"{count} {step}")
            assert_same_bits(masks[2], masks[0], f"{count} {step} symmetric")
            kept = masks[0] != 0
            assert_same_bits(masks[0][kept], np.full(int(kept.sum()), np.float32(1 / 0.75)))
            if count >= 3_000:
                # Six standard deviations.
                assert abs(kept.mean() - 0.75) < 6 * np.sqrt(0.25 * 0.75 / count)
            mine = cocoll.reduce_scatter_fused(
                ones, epilogue, op="avg", bias=zero, residual=zero, step=step, comm=comm
            ).result()
            assert_same_bits(mine, shard_of(masks[0], comm.rank, comm.world_size))
            found.append(masks[0])
    if count >= 200:
        assert (found[0] != found[1]).any(), "the step does not change the mask"
    return found


@case(
    shape=((6, 40), (31, 67), (3, 5, 70)),
    label=("float32", "bfloat16", "float64"),
    under_mpi=lambda shape, label: label == "float32",
)
def bias_dropout_residual(comm: Comm, shape: tuple[int, ...], label: str) -> Any:
    dtype = numpy_dtype(label)
    parts = [
        (part.astype(np.float32) / 16).astype(dtype)
        for part in contributions(comm.world_size, shape, label, "sum", 4)
    ]
    bias = contribution(90, shape[-1:], label, "sum")
    residual = contribution(91, shape, label, "sum")
    wide = reduce_wide(parts, "sum")
    biased = wide + bias.astype(wide.dtype)
    found = []
    for turn, p in enumerate((0.0, 0.5, 1.0)):
        symmetric_pool(comm)
        kind = ("ordinary", "symmetric", "transposed")[turn]
        x = hold(comm, kind, parts[comm.rank])
        other = hold(comm, ("strided", "ordinary", "reversed")[turn], residual)
        cocoll.allreduce_fused(
            x.array,
            epilogues.bias_dropout_residual(),
            bias=bias,
            residual=other.array,
            p=p,
            seed=5,
            step=turn,
            comm=comm,
        )
        got = np.array(x.view)
        if p == 0.5:
            ones = np.ones(shape, np.float32)
            cocoll.allreduce_fused(
                ones,
                epilogues.bias_dropout_residual(),
                op="avg",
                comm=comm,
                bias=np.zeros(1, np.float32),
                residual=np.zeros(1, np.float32),
                p=p,
                seed=5,
                step=turn,
            )
            scale = ones.astype(wide.dtype)
        else:
            scale = np.full(shape, 1.0 - p, wide.dtype)
        wanted = (biased * scale + residual.astype(wide.dtype)).astype(dtype)
        assert_same_bits(got, wanted, f"{shape} {label} p={p} rank {comm.rank}")
        x.check_around()
        other.check_around()
        found.append(got)
    return found


# ---- users' epilogues ---------------------------------------------------------------------------


@cocoll.epilogue
def clipped(x: Any, low: Any, high: Any, *, gain: float = 1.0) -> Any:
    """Clip between two arrays that broadcast."""
    return cocoll.minimum(cocoll.maximum(x * gain, low), high)


@cocoll.epilogue(sharded=("total", "seen"))
def statistics(x: Any, mean: Any, total: Any, seen: Any = None, *, weight: float) -> Any:
    """Update a sharded sum, a replicated mean and an optional count; give an output too."""
    total = total + weight * x
    updated = {"total": total, "mean": total / 4.0, "out": cocoll.where(x > 0.0, x, -x)}
    if seen is not None:
        updated["seen"] = seen + 1.0
    return updated


@case(shape=((24,), (5, 70), (4, 9, 41)), under_mpi=lambda shape: shape == (5, 70))
def operands_broadcast(comm: Comm, shape: tuple[int, ...]) -> Any:
    parts = contributions(comm.world_size, shape, "float32", "sum", 2)
    gain = np.float32(0.5)
    total = reduce_in_rank_order(parts, "sum") * gain
    lows = [
        np.float32(-1.0),
        np.full(shape[-1:], -2.0, np.float32),
        np.full((1,), -0.5, np.float32),
    ]
    highs = [np.float32(1.0), contribution(8, shape, "float32", "sum")]
    if len(shape) > 1:
        highs.append(
            np.abs(contribution(9, (shape[0],) + (1,) * (len(shape) - 1), "float32", "sum"))
        )
        highs.append(np.full(shape[1:], 3.0, np.float32)[..., ::-1])
    found = []
    for low in lows:
        for turn, high in enumerate(highs):
            symmetric_pool(comm)
            x = hold(
                comm, ("ordinary", "symmetric", "reversed", "transposed")[turn], parts[comm.rank]
            )
            cocoll.allreduce_fused(
                x.array, clipped, low=np.asarray(low), high=np.asarray(high), gain=0.5, comm=comm
            )
            wanted = np.minimum(np.maximum(total, low), high)
            assert_same_bits(x.view, wanted, f"{shape} {np.shape(low)} {np.shape(high)}")
            x.check_around()
            found.append(np.array(x.view))
    return found


@case(memory=("ordinary", "replicated", "mixed"), optional=(False, True))
def several_results_and_optional_arrays(comm: Comm, memory: str, optional: bool) -> Any:
    found = []
    for count in (0, 1, 16, 17, 400, 2_003):
        t = Training(
            comm, memory, count, grad="float32", param="float32", state="float32", op="sum"
        )
        out = (
            comm.empty(count, "float32", replicated=True)
            if memory == "replicated"
            else np.zeros(count, np.float32)
        )
        total = t.make_state(t.initial)
        arrays = {"mean": t.param, "total": total}
        if optional:
            arrays["seen"] = t.make_state()
        g = reduce_in_rank_order(t.parts, "sum")
        wanted = t.initial
        for weight in (1.0, -0.5):
            cocoll.allreduce_fused(
                t.grad.array, statistics, out=out, weight=weight, comm=comm, **arrays
            )
            wanted = wanted + np.float32(weight) * g
        message = f"{memory} {count} rank {comm.rank}"
        assert_same_bits(total, t.shard(wanted), message)
        assert_same_bits(t.param, wanted / np.float32(4), message)
        assert_same_bits(out, np.abs(g), message)
        if optional:
            assert (arrays["seen"] == 2.0).all()
        t.check_around()
        found += [np.array(t.param), np.array(out)]
        comm.barrier()
    return found


@case(count=(700,))
def scalars_change_without_compiling(comm: Comm, count: int) -> None:
    parts = contributions(comm.world_size, count, "float32", "sum")
    total = reduce_in_rank_order(parts, "sum")

    def run(epilogue: Any, **scalars: float) -> Array:
        x = np.array(parts[comm.rank])
        cocoll.allreduce_fused(x, epilogue, comm=comm, **scalars)
        return x

    assert_same_bits(run(epilogues.scale(), factor=2.0), total * np.float32(2))
    loaded = dict(comm._kernels._kernels)
    plain = epilogues.scale()
    run(plain, factor=1.0)
    programs = comm.cached_programs
    for factor in np.linspace(-3, 3, 40):
        wanted = total * np.float32(factor)
        assert_same_bits(run(plain, factor=factor), wanted)
    assert comm.cached_programs == programs, "a scalar made a program"
    for factor in (0.25, 7.0):
        assert_same_bits(run(epilogues.scale(factor)), total * np.float32(factor))
    bound = comm.bind(cocoll.allreduce_fused, x := np.array(parts[comm.rank]), plain)
    for factor in (np.float32(0.5), 3, np.int64(2), np.array(1.5)):
        x[...] = parts[comm.rank]
        bound(factor=factor)
        assert_same_bits(x, total * np.float32(factor))
    assert comm._kernels._kernels.keys() == loaded.keys(), "a scalar loaded a kernel"
    for wrong in (
        {},
        {"factor": "two"},
        {"factor": None},
        {"gain": 1.0},
        {"factor": 1.0, "k": 2.0},
    ):
        raises(UsageError, lambda wrong=wrong: run(plain, **wrong))
    assert_same_bits(run(plain, factor=1.0), total)


@case(count=(0, 5, 600))
def state_of_any_origin(comm: Comm, count: int) -> None:
    # Shards need not come from shard_zeros.
    t = Training(
        comm, "ordinary", count, grad="float32", param="float32", state="float32", op="sum"
    )
    length = t.shard(t.initial).size
    whole = np.zeros(count + 64, np.float32)
    for made in (
        np.zeros(length, np.float32),
        whole[16 : 16 + length],
        OnlyDLPack(np.zeros(length, np.float32)),
        comm.empty(count)[:length],
    ):
        if isinstance(made, np.ndarray):
            made[...] = 0
        t.param[...] = t.initial
        cocoll.allreduce_fused(
            t.grad.array,
            epilogues.sgd(momentum=0.5),
            param=t.param,
            momentum_buffer=made,
            lr=1.0,
            comm=comm,
        )
        g = reduce_in_rank_order(t.parts, "sum")
        values = made._values if isinstance(made, OnlyDLPack) else made
        assert_same_bits(values, t.shard(g))
        assert_same_bits(t.param, t.initial - g)
    if count > 16 and comm.world_size > 1:
        raises(
            BufferMismatchError,
            lambda: cocoll.allreduce_fused(
                t.grad.array,
                epilogues.sgd(momentum=0.5),
                param=t.param,
                momentum_buffer=np.zeros(count, np.float32),
                lr=1.0,
                comm=comm,
            ),
        )


@case(what=("overlap",))
def overlapping_arrays_are_refused(comm: Comm, what: str) -> None:
    base = np.ones(64, np.float32)
    for arrays in (
        {"param": base[8:40]},
        {"param": np.ones(32, np.float32), "momentum_buffer": base[8 : 8 + 16]},
    ):
        raises(
            (BufferOverlapError, BufferMismatchError),
            lambda arrays=arrays: cocoll.allreduce_fused(
                base[:32], epilogues.sgd(momentum=0.5), lr=1.0, comm=comm, **arrays
            ),
        )
    assert (base == 1).all()


@case(count=(3, 1_200))
def a_result_may_be_the_gradient(comm: Comm, count: int) -> None:
    # The parameters may lie where the gradient lies.
    parts = contributions(comm.world_size, count, "float32", "sum")
    symmetric_pool(comm)
    for kind in ("ordinary", "symmetric", "strided"):
        x = hold(comm, kind, parts[comm.rank])
        cocoll.allreduce_fused(x.array, epilogues.scale(4.0), out=x.array, comm=comm)
        assert_same_bits(x.view, reduce_in_rank_order(parts, "sum") * np.float32(4), kind)
        x.check_around()
