"""Updates that wait for all gradients: reduce-scatter, then the epilogue on the shard, then gather.

Clipping, loss scaling and parameters without gradient need to know of all gradients before any
parameter changes. Reducing does not wait for that: every rank gets its shard of each bucket while
backward goes on. The epilogue then runs on the shards as it would have inside the reduction, as a
call in a world of one, for the parameters that have a gradient. An optimizer with norms of
parameters needs all ranks once more: it takes the reduced shards for gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cocoll import _core
from cocoll.epilogues import cast
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.torch.bucket import Bucket, Slot
    from cocoll.torch.recipe import Recipe

__all__ = ["Deferral"]

# What float64 copies are made of at a time; the order of additions depends on it.
_BLOCK_ELEMENTS = 1 << 16


class Deferral:
    """The shards of reduced gradients, and what is done with them.

    Parameters
    ----------
    comm, solo : Communicator
        Of all ranks; of this one alone.
    recipe : Recipe
        The optimizer.
    groups : sequence of dict
        The optimizer's parameter groups.
    op : {"avg", "sum"}
        How gradients are reduced.
    stream : Stream or None
        Where reductions run.
    """

    def __init__(
        self,
        comm: Communicator,
        solo: Communicator,
        recipe: Recipe,
        groups: Sequence[Mapping[str, Any]],
        op: str,
        stream: _core.Stream | None,
    ) -> None:
        self._comm, self._solo, self._recipe, self._groups = comm, solo, recipe, groups
        self._op, self._stream = op, stream
        self._shards: dict[int, np.ndarray[Any, Any]] = {}
        self._reductions: dict[int, _core.BoundOperation] = {}

    def reduce(self, number: int, bucket: Bucket) -> _core.Work:
        """Begin to reduce a bucket's gradients to this rank's shard. Collective."""
        bound = self._reductions.get(number)
        if bound is None:
            shard = self._shards[number] = self._comm.shard_zeros(bucket.count, bucket.state_label)
            options = {"op": self._op, "out": shard, "stream": self._stream}
            if bucket.state_label == bucket.label:
                bound = self._comm.bind(
                    _core.reduce_scatter, bucket.gradient, layout="shard", **options
                )
            else:
                if bucket.label == "bfloat16":
                    options["dtype"] = bucket.label
                widen = cast(bucket.state_label)
                bound = self._comm.bind(
                    _core.reduce_scatter_fused, bucket.gradient, widen, **options
                )
            self._reductions[number] = bound
        return bound()

    def release(self, number: int) -> None:
        """Give the memory of a bucket that does not wait any more back. Local."""
        if self._reductions.pop(number, None) is not None:
            del self._shards[number]

    def sum_squares(self, number: int) -> float:
        """Give the sum of the squares of this rank's shard, in float64 and in a fixed order."""
        shard = self._shards[number]
        total = 0.0
        for start in range(0, len(shard), _BLOCK_ELEMENTS):
            block = shard[start : start + _BLOCK_ELEMENTS].astype(np.float64)
            total += float(np.square(block, out=block).sum())
        return total

    def update(
        self,
        number: int,
        bucket: Bucket,
        slots: Sequence[Slot],
        steps: Mapping[int, int],
        factor: float,
    ) -> None:
        """Update some parameters of a bucket, with their gradients times a factor. Collective."""
        group = self._groups[bucket.group]
        gradient = self._shards[number]
        if factor != 1.0:
            np.multiply(gradient, gradient.dtype.type(factor), out=gradient)
        if self._recipe.per_tensor:
            self._update_tensors(gradient, bucket, slots, steps)
            return
        own = bucket.param_tensor[bucket.start : bucket.stop]
        value = bucket.master if bucket.master is not None else own.numpy().copy()
        epilogue = self._recipe.epilogue(group)
        for first, last, taken in _find_runs(slots, steps):
            start, stop = max(first, bucket.start), min(last, bucket.stop)
            if start >= stop:
                continue
            part = slice(start - bucket.start, stop - bucket.start)
            operands: dict[str, Any] = {name: a[part] for name, a in bucket.state.items()}
            operands.update(self._recipe.scalars(group, taken + 1), param=value[part])
            _core.allreduce_fused(gradient[part], epilogue, comm=self._solo, **operands).wait()
        dtype = None
        source: Any = value
        if bucket.label != bucket.state_label:
            source = torch.from_numpy(value).to(bucket.param_tensor.dtype)
            dtype = bucket.label if bucket.label == "bfloat16" else None
        _core.allgather(
            source, out=bucket.param, layout="shard", comm=self._comm, dtype=dtype
        ).wait()

    def _update_tensors(
        self,
        gradient: np.ndarray[Any, Any],
        bucket: Bucket,
        slots: Sequence[Slot],
        steps: Mapping[int, int],
    ) -> None:
        """Update some parameters of a bucket whose norms all ranks add up. Collective."""
        group = self._groups[bucket.group]
        present = {slot.index for slot in slots}
        # Each rank gives its shard and zeros, so that the sum is the reduced gradient itself.
        whole = np.zeros(bucket.count, bucket.state_label)
        whole[bucket.start : bucket.stop] = gradient
        each = [self._recipe.scalars(group, steps[slot.index] + 1) for slot in bucket.slots]
        absent = []
        for slot, scalars in zip(bucket.slots, each, strict=True):
            if slot.index not in present:
                scalars["lr"] = 0.0
                start = max(slot.offset, bucket.start) - bucket.start
                stop = min(slot.stop, bucket.stop) - bucket.start
                absent.append(slice(start, max(start, stop)))
        # Without a step the parameter stays; its state would decay, and is put back.
        named: dict[str, Any] = {**bucket.operands, "param": bucket.cut(bucket.param)}
        named |= {name: [scalars[name] for scalars in each] for name in each[0]}
        kept = [(a, part, a[part].copy()) for a in bucket.arrays.values() for part in absent]
        _core.allreduce_fused(
            bucket.cut(whole),
            self._recipe.epilogue(group),
            comm=self._comm,
            dtype=bucket.label if bucket.label == "bfloat16" else None,
            **named,
        ).wait()
        for array, part, before in kept:
            array[part] = before


def _find_runs(slots: Sequence[Slot], steps: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """Give neighbours that have taken equally many steps: first and last element, and how many."""
    first, last, taken = 0, 0, -1
    for slot in slots:
        # What lies between neighbours is padding, which no parameter sees.
        adjoins = slot.offset - last < SHARD_ALIGNMENT_ELEMENTS and steps[slot.index] == taken
        if not adjoins:
            if last > first:
                yield first, last, taken
            first, taken = slot.offset, steps[slot.index]
        last = slot.stop
    if last > first:
        yield first, last, taken
