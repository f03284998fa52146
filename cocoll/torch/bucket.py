"""Buckets: which parameters lie side by side, and the memory that they and their state lie in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from cocoll import _core
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS
from cocoll.torch.memory import view_tensor

if TYPE_CHECKING:
    import numpy as np

    from cocoll.communicator import Communicator
    from cocoll.state import ShardLayout

__all__ = ["Bucket", "Slot", "plan_buckets"]

_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter lies.

    Attributes
    ----------
    index : int
        The parameter's number, over all groups.
    offset, length : int
        Its elements in its bucket.
    """

    index: int
    offset: int
    length: int

    @property
    def stop(self) -> int:
        """One past its last element."""
        return self.offset + self.length


def plan_buckets(lengths: Sequence[int], limit: int) -> list[tuple[list[Slot], int]]:
    """Lay parameters side by side, the last one first: as gradients come.

    Parameters
    ----------
    lengths : sequence of int
        Elements of each parameter.
    limit : int
        Elements of a bucket; one that a single parameter fills may have more.

    Returns
    -------
    list of (list of Slot, int)
        Slots and length of each bucket. Slots start at a multiple of 16 elements.
    """
    buckets: list[tuple[list[Slot], int]] = []
    slots: list[Slot] = []
    used = 0
    for index in reversed(range(len(lengths))):
        padded = -(-lengths[index] // SHARD_ALIGNMENT_ELEMENTS) * SHARD_ALIGNMENT_ELEMENTS
        if slots and used + padded > limit:
            buckets.append((slots, used))
            slots, used = [], 0
        slots.append(Slot(index, used, lengths[index]))
        used += padded
    if slots:
        buckets.append((slots, used))
    return buckets


class Bucket:
    """Parameters of one group and one dtype, their gradients, and this rank's shard of their state.

    Making one is collective: its memory is the communicator's. From then on the parameters are
    views into it, with the values that rank 0 had.

    Parameters
    ----------
    comm : Communicator
        Whose memory.
    group : int
        The number of the parameter group.
    slots : list of Slot
        Who lies where; numbers over all groups.
    params : sequence of torch.nn.Parameter
        In the order of `slots`.
    count : int
        Elements, padding included.
    label : str
        The parameters' dtype.
    state : sequence of str
        The epilogue's names of the state's arrays.
    replicated : bool
        Whether ranks of a host share one copy of the parameters.
    """

    def __init__(
        self,
        comm: Communicator,
        group: int,
        slots: list[Slot],
        params: Sequence[Any],
        count: int,
        label: str,
        state: Sequence[str],
        *,
        replicated: bool,
    ) -> None:
        self.group, self.slots, self.count, self.label = group, slots, count, label
        self.layout: ShardLayout = comm.shard_layout(count)
        self.start, self.stop = self.layout.find_range(comm.rank)
        self.gradient = comm.empty(count, label)
        self.param = comm.empty(count, label, replicated=replicated)
        self.gradient_tensor = view_tensor(self.gradient, label)
        self.gradient_tensor.zero_()
        self.param_tensor = view_tensor(self.param, label)
        self.gradients: list[Any] = []
        values = torch.zeros(count, dtype=self.param_tensor.dtype)
        for slot, param in zip(slots, params, strict=True):
            values[slot.offset : slot.stop] = param.detach().reshape(-1)
        dtype = label if label == "bfloat16" else None
        _core.broadcast(values, out=self.param, comm=comm, dtype=dtype).wait()
        for slot, param in zip(slots, params, strict=True):
            param.data = self.param_tensor[slot.offset : slot.stop].view(param.shape)
            self.gradients.append(self.gradient_tensor[slot.offset : slot.stop].view(param.shape))
        self.state_label = "float32" if label in _HALF else label
        self.state = {name: comm.shard_zeros(count, self.state_label) for name in state}
        # A 16-bit parameter is the rounding of a float32 one.
        self.master = comm.shard_zeros(count, self.state_label) if label in _HALF else None
        self.refresh_master()

    def cut(self, array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Give a vector of the bucket's length as one array a parameter, each with its padding."""
        ends = [*(slot.offset for slot in self.slots[1:]), self.count]
        return [array[slot.offset : end] for slot, end in zip(self.slots, ends, strict=True)]

    def refresh_master(self) -> None:
        """Take the float32 copy of 16-bit parameters from the parameters. Local."""
        if self.master is not None:
            shard = self.param_tensor[self.start : self.stop]
            torch.from_numpy(self.master).copy_(shard)

    @property
    def operands(self) -> dict[str, Any]:
        """What the fused call takes besides the gradient."""
        operands: dict[str, Any] = {"param": self.param, **self.state}
        if self.master is not None:
            operands["master"] = self.master
        return operands

    @property
    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays of this rank's shard of the state, ``master`` among them."""
        return self.state if self.master is None else {**self.state, "master": self.master}
