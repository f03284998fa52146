"""Random sequences of calls: the same on all ranks, over arrays of a kind of each rank's own."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import cocoll
from cocoll import epilogues
from tests.helpers.arrays import DTYPES, FLOATS, Held, assert_same_bits, hold, symmetric_pool
from tests.helpers.references import (
    OPS,
    check_reduced,
    contributions,
    reduce_in_rank_order,
    shard_of,
)

__all__ = ["Step", "counts", "run_sequence", "sequences"]

CALLS = (
    "allreduce",
    "reduce_scatter",
    "allgather",
    "broadcast",
    "barrier",
    "scale",
    "sgd",
    "reduce_scatter_fused",
)
KINDS = ("ordinary", "symmetric", "unaligned", "strided", "reversed")
#: Chunks of `tests.helpers.world.SMALL`, in bytes over all owners, and its other limits.
LIMITS_BYTES = (64, 1024, 2048, 3 * 2048)


@dataclass(frozen=True)
class Step:
    """One call of a sequence.

    Attributes
    ----------
    call : str
        One of `CALLS`.
    count, label, op : int, str, str
        Its length, dtype and reduction.
    root : int
        Of a broadcast, modulo world_size.
    alike : bool
        Whether all ranks' arrays are symmetric; else each rank draws its own kind.
    in_place : bool
        Whether the result goes where the input is.
    stream : int or None
        Which of the streams, if any.
    """

    call: str
    count: int
    label: str
    op: str
    root: int
    alike: bool
    in_place: bool
    stream: int | None


def counts() -> st.SearchStrategy[int]:
    """Draw lengths: small ones, primes, and those around chunks of some dtype."""
    around = [
        limit // itemsize + step
        for limit in LIMITS_BYTES
        for itemsize in (1, 2, 4, 8)
        for step in (-1, 0, 1)
    ]
    return st.one_of(
        st.integers(0, 40), st.sampled_from((257, 509, 1021, 2039, 4093)), st.sampled_from(around)
    )


def sequences(*, most: int) -> st.SearchStrategy[list[Step]]:
    """Draw sequences of up to `most` calls."""
    step = st.builds(
        Step,
        call=st.sampled_from(CALLS),
        count=counts(),
        label=st.sampled_from(DTYPES),
        op=st.sampled_from(OPS),
        root=st.integers(0, 7),
        alike=st.booleans(),
        in_place=st.booleans(),
        stream=st.sampled_from((None, None, 0, 1)),
    )
    return st.lists(step, min_size=1, max_size=most)


class _Running:
    """A call that has been issued, and what must be true once it has completed."""

    def __init__(self, comm: cocoll.Communicator, step: Step, seed: int, streams: list[Any]):
        self.comm, self.step, self.seed = comm, step, seed
        self.private = random.Random(seed * 64 + comm.rank)
        self.message = f"{step} on rank {comm.rank}"
        self.options: dict[str, Any] = {"comm": comm}
        if step.stream is not None:
            self.options["stream"] = streams[step.stream]
        label = step.label
        if step.call in ("scale", "sgd", "reduce_scatter_fused") and label not in FLOATS:
            label = "float32"
        self.parts = contributions(comm.world_size, step.count, label, step.op, seed)
        self.inputs: list[tuple[Held, np.ndarray[Any, Any]]] = []
        self.held: list[Held] = []
        getattr(self, f"_{step.call}")()

    def _hold(self, values: np.ndarray[Any, Any], *, kept: bool = False) -> Held:
        # Every rank takes the same room of the pool, whatever it uses.
        symmetric = hold(self.comm, "symmetric", values)
        kind = "symmetric" if self.step.alike else self.private.choice(KINDS)
        held = symmetric if kind == "symmetric" else hold(self.comm, kind, values)
        self.held.append(held)
        if kept:
            self.inputs.append((held, values))
        return held

    def _allreduce(self) -> None:
        mine = self.parts[self.comm.rank]
        x = self._hold(mine, kept=not self.step.in_place)
        result = x if self.step.in_place else self._hold(np.zeros_like(mine))
        out = None if self.step.in_place else result.array
        self.work = cocoll.allreduce(x.array, self.step.op, out=out, **self.options)
        self.check = lambda: check_reduced(result.view, self.parts, self.step.op, self.message)

    def _reduce_scatter(self) -> None:
        rank, size = self.comm.rank, self.comm.world_size
        x = self._hold(self.parts[rank], kept=True)
        wanted = [shard_of(part, rank, size) for part in self.parts]
        self.work = cocoll.reduce_scatter(x.array, self.step.op, layout="shard", **self.options)
        self.check = lambda: check_reduced(self.work.result(), wanted, self.step.op, self.message)

    def _allgather(self) -> None:
        x = self._hold(self.parts[self.comm.rank], kept=True)
        wanted = np.concatenate(self.parts)
        result = self._hold(np.zeros_like(wanted))
        self.work = cocoll.allgather(x.array, out=result.array, **self.options)
        self.check = lambda: assert_same_bits(result.view, wanted, self.message)

    def _broadcast(self) -> None:
        root = self.step.root % self.comm.world_size
        mine = self.parts[self.comm.rank]
        x = self._hold(mine, kept=not self.step.in_place)
        result = x if self.step.in_place else self._hold(np.zeros_like(mine))
        out = None if self.step.in_place else result.array
        self.work = cocoll.broadcast(x.array, root, out=out, **self.options)
        self.check = lambda: assert_same_bits(result.view, self.parts[root], self.message)

    def _barrier(self) -> None:
        self.work = cocoll.barrier(**self.options)
        self.check = lambda: None

    def _scale(self) -> None:
        # The catalogue has activations for sums.
        mine = self.parts[self.comm.rank]
        x = self._hold(mine, kept=not self.step.in_place)
        result = x if self.step.in_place else self._hold(np.zeros_like(mine))
        out = None if self.step.in_place else result.array
        self.work = cocoll.allreduce_fused(x.array, _SCALE, out=out, **self.options)
        wanted = self._scaled()
        self.check = lambda: assert_same_bits(result.view, wanted, self.message)

    def _reduce_scatter_fused(self) -> None:
        rank, size = self.comm.rank, self.comm.world_size
        x = self._hold(self.parts[rank], kept=True)
        self.work = cocoll.reduce_scatter_fused(x.array, _SCALE, **self.options)
        wanted = shard_of(self._scaled(), rank, size)
        self.check = lambda: assert_same_bits(self.work.result(), wanted, self.message)

    def _scaled(self) -> np.ndarray[Any, Any]:
        wide = np.float32 if self.parts[0].dtype.itemsize == 2 else self.parts[0].dtype.type
        with np.errstate(all="ignore"):
            total = reduce_in_rank_order([part.astype(wide) for part in self.parts], "sum")
            return (total * wide(-0.5)).astype(self.parts[0].dtype)

    def _sgd(self) -> None:
        op = "avg" if self.step.op == "avg" else "sum"
        mine = self.parts[self.comm.rank]
        x = self._hold(mine, kept=True)
        param = self._hold(np.ones_like(mine))
        # Zeroing wants a gradient that is contiguous, which is not every rank's.
        self.work = cocoll.allreduce_fused(
            x.array, _SGD, op=op, param=param.array, lr=0.25, **self.options
        )
        wide = np.float32 if mine.dtype.itemsize == 2 else mine.dtype.type
        with np.errstate(all="ignore"):
            total = reduce_in_rank_order([part.astype(wide) for part in self.parts], op)
            wanted = (wide(1) - wide(0.25) * total).astype(mine.dtype)
        self.check = lambda: assert_same_bits(param.view, wanted, self.message)

    def finish(self) -> None:
        """Wait, and check the results, the inputs and what lies beside them."""
        self.work.wait()
        self.check()
        for held, values in self.inputs:
            assert_same_bits(held.view, values, f"the input of {self.message}")
        for held in self.held:
            held.check_around()


_SCALE = epilogues.scale(-0.5)
_SGD = epilogues.sgd()


def run_sequence(comm: cocoll.Communicator, steps: list[Step], seed: int) -> None:
    """Run a sequence on one rank; calls on streams overlap with those after them."""
    symmetric_pool(comm)
    with cocoll.Stream() as first, cocoll.Stream() as second:
        running = [
            _Running(comm, step, seed + place, [first, second]) for place, step in enumerate(steps)
        ]
        order = list(range(len(running)))
        random.Random(seed * 64 + comm.rank).shuffle(order)
        for place in order:
            running[place].finish()
