"""The peers: each operation under each setting worth trying."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common.cases import Entry, Group
from benchmarks.common.memory import private_array
from benchmarks.common.runner import FusedBuffers
from benchmarks.hosts.runner import HostsRunner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.hosts.collectives import Adam, Call, Collectives

__all__ = ["PeerRunner"]


class PeerRunner(HostsRunner):
    """Broadcast, allgather, reduce-scatter, all-reduce; Adam after an all-reduce or between halves.

    Parameters
    ----------
    implementation : str
        The name in the JSON.
    by_halves : bool
        Whether Adam is worth trying between the halves of an all-reduce too.
    """

    def __init__(self, implementation: str, *, by_halves: bool = True) -> None:
        self._by_halves = by_halves
        self._implementation = implementation
        self._arrays: dict[str, NDArray[Any]] = {}
        self._calls: dict[str, Call] = {}
        self._adams: dict[str, Adam] = {}
        self._operation = ""

    @abc.abstractmethod
    def settings(self, operation: str, input_bytes: int) -> dict[str, Collectives]:
        """Give the settings to try, the best one first; an operation that is not fused."""

    @abc.abstractmethod
    def make_adam(
        self,
        param: NDArray[np.float32],
        gradient: NDArray[np.float32],
        m: NDArray[np.float32],
        v: NDArray[np.float32],
    ) -> Adam:
        """Make the optimizer that this library's users have."""

    def prepare(self, group: Group) -> list[Entry]:
        """Allocate for `group` and bind its calls."""
        self._operation = group.operation
        if group.operation == "allreduce_fused":
            self._prepare_fused(group)
        else:
            self._prepare_plain(group)
        return [Entry(form, self._implementation, "peer") for form in self._calls]

    def inputs(self, form: str) -> list[NDArray[Any]]:
        """Give what this rank puts in: in a broadcast only rank 0 does."""
        del form
        if self._operation == "broadcast" and self.rank != 0:
            return []
        return [self._arrays["input"]]

    def call(self, form: str) -> Call:
        """Give the bound call of `form`."""
        return self._calls[form]

    def result(self, form: str) -> NDArray[Any]:
        """Give the output."""
        del form
        return self._arrays["output"]

    def fused_buffers(self, form: str) -> FusedBuffers:
        """Give gradient and parameters."""
        del form
        return FusedBuffers(self._arrays["input"], self._arrays["param"])

    def reset(self, form: str, param: NDArray[np.float32]) -> None:
        """Begin again from `param`."""
        self._arrays["param"][:] = param
        self._adams[form].reset()

    def release(self) -> None:
        """Drop the group's memory."""
        self._calls.clear()
        self._adams.clear()
        self._arrays.clear()

    def _prepare_plain(self, group: Group) -> None:
        n, operation = group.elements, group.operation
        if operation == "allgather":
            whole = private_array(n * self.world_size, np.float32)
            block = whole[self.rank * n : (self.rank + 1) * n]
        else:
            whole = private_array(n, np.float32)
            block = whole
        if operation == "reduce_scatter":
            block = private_array(n // self.world_size, np.float32)
        self._arrays = {
            "input": block if operation == "allgather" else whole,
            "output": block if operation == "reduce_scatter" else whole,
        }
        for name, collectives in self.settings(operation, group.input_bytes).items():
            self._calls[name] = _bind(collectives, operation, whole, block)

    def _prepare_fused(self, group: Group) -> None:
        n = group.elements
        own = slice(self.rank * n // self.world_size, (self.rank + 1) * n // self.world_size)
        for name in ("input", "param", "m", "v"):
            self._arrays[name] = private_array(n, np.float32)
        gradient, param, m, v = (self._arrays[name] for name in ("input", "param", "m", "v"))
        allreduce, scatter, gather = (
            # The first setting, which is the best: with each in each place a round takes minutes.
            next(iter(self.settings(operation, group.input_bytes).values()))
            for operation in ("allreduce", "reduce_scatter", "allgather")
        )
        self._add(
            "allreduce", self.make_adam(param, gradient, m, v), [allreduce.allreduce(gradient)], []
        )
        if not self._by_halves:
            return
        total = private_array(own.stop - own.start, np.float32)
        self._add(
            "reduce_scatter",
            self.make_adam(param[own], total, m[own], v[own]),
            [scatter.reduce_scatter(gradient, total)],
            [gather.allgather(param[own], param)],
        )

    def _add(self, form: str, adam: Adam, before: list[Call], after: list[Call]) -> None:
        steps = [*before, adam.step, *after]

        def call() -> None:
            for step in steps:
                step()

        self._calls[form] = call
        self._adams[form] = adam


def _bind(
    collectives: Collectives, operation: str, whole: NDArray[Any], block: NDArray[Any]
) -> Call:
    if operation == "broadcast":
        return collectives.broadcast(whole)
    if operation == "allgather":
        return collectives.allgather(block, whole)
    if operation == "reduce_scatter":
        return collectives.reduce_scatter(whole, block)
    return collectives.allreduce(whole)
