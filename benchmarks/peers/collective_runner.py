"""What MPI, oneCCL and Gloo have in common: the forms, given each library's three collectives."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common.cases import Entry, Group
from benchmarks.common.memory import private_array
from benchmarks.common.runner import FusedBuffers, Runner

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CollectiveRunner"]

Call = Callable[[], object]


class CollectiveRunner(Runner):
    """All-reduce in and out of place; Adam after an all-reduce, or between two halves of one.

    Subclasses bind their library's collectives to arrays; a bound call is what is timed.
    """

    implementation: str

    #: Whether the library sums bfloat16. Without it gradients are widened to float32 first, which
    #: is what its users do.
    sums_bfloat16 = False

    def __init__(self, implementation: str = "") -> None:
        self.implementation = implementation or self.implementation
        self._arrays: dict[str, NDArray[Any]] = {}
        self._calls: dict[str, Call] = {}
        self._adams: dict[str, Any] = {}
        self._dtype = "float32"

    @abc.abstractmethod
    def bind_allreduce(self, source: NDArray[Any] | None, output: NDArray[Any]) -> Call:
        """Bind a sum over all ranks; `source` None means in place."""

    @abc.abstractmethod
    def bind_reduce_scatter(self, source: NDArray[Any], block: NDArray[Any]) -> Call:
        """Bind a reduce-scatter of equal blocks."""

    @abc.abstractmethod
    def bind_allgather(self, block: NDArray[Any], output: NDArray[Any]) -> Call:
        """Bind a gather of equal blocks; `block` is this rank's own part of `output`."""

    def prepare(self, group: Group) -> list[Entry]:
        """Allocate for `group` and bind its calls."""
        self._dtype = group.dtype
        if group.operation == "allreduce":
            return self._prepare_allreduce(group)
        if group.operation == "lamb":
            return self._prepare_lamb(group)
        return self._prepare_fused(group)

    def inputs(self, form: str) -> list[NDArray[Any]]:
        """Give the input, or the gradient."""
        if form == "adam_alone":
            return [self._arrays["sum"]]
        return [self._arrays["input"]]

    def call(self, form: str) -> Call:
        """Give the bound call of `form`."""
        return self._calls[form]

    def result(self, form: str) -> NDArray[Any]:
        """Give the output of `form`."""
        return self._arrays["input" if form == "in_place" else "output"]

    def fused_buffers(self, form: str) -> FusedBuffers:
        """Give gradient and parameters."""
        del form
        return FusedBuffers(self._arrays["input"], self._arrays["param"])

    def reset(self, form: str, param: NDArray[np.float32]) -> None:
        """Begin again from `param`."""
        if "master" in self._arrays:
            self._arrays["master"][:] = param
            self._arrays["param"][:] = param.view(np.uint32) >> 16
        else:
            self._arrays["param"][:] = param
        self._adams[form].reset()

    def release(self) -> None:
        """Drop the group's memory."""
        self._calls.clear()
        self._adams.clear()
        self._arrays.clear()

    def _prepare_allreduce(self, group: Group) -> list[Entry]:
        source = private_array(group.elements, np.float32)
        output = private_array(group.elements, np.float32)
        self._arrays = {"input": source, "output": output}
        self._calls = {
            "in_place": self.bind_allreduce(None, source),
            "out_of_place": self.bind_allreduce(source, output),
        }
        return [Entry(form, self.implementation, "peer") for form in self._calls]

    def _prepare_fused(self, group: Group) -> list[Entry]:
        # torch is needed here alone: plain all-reduces are timed without it in the process.
        from benchmarks.peers.torch_adam import TorchAdam, as_tensor

        n, p = group.elements, self.world_size
        if n % p:
            raise ValueError(f"reduce-scatter needs equal blocks: {n} elements on {p} ranks")
        block = slice(self.rank * n // p, (self.rank + 1) * n // p)
        arrays = self._arrays
        half = group.dtype == "bfloat16"
        arrays["input"] = private_array(n, np.uint16 if half else np.float32)
        arrays["param"] = private_array(n, np.uint16 if half else np.float32)
        arrays["sum"] = private_array(n, np.float32)
        updated = arrays["param"]
        if half:
            arrays["master"] = updated = private_array(n, np.float32)
        source: NDArray[Any] = arrays["input"]
        before: list[Call] = []
        widen: list[Call] = []
        if half and self.sums_bfloat16:
            arrays["half_sum"] = private_array(n, np.uint16)
            sums = arrays["half_sum"]
            wide, narrow = as_tensor(arrays["sum"]), as_tensor(sums)
            widen = [lambda: wide.copy_(narrow)]
            wide_block, narrow_block = wide[block], narrow[block]
            widen_block: list[Call] = [lambda: wide_block.copy_(narrow_block)]
        else:
            sums = arrays["sum"]
            widen_block = []
            if half:
                arrays["wide_input"] = source = private_array(n, np.float32)
                wide_input, narrow_input = as_tensor(source), as_tensor(arrays["input"])
                before = [lambda: wide_input.copy_(narrow_input)]
        updated_tensor, param = as_tensor(updated), as_tensor(arrays["param"])
        sum_tensor = as_tensor(arrays["sum"])
        narrow_after: list[Call] = []
        narrow_after_block: list[Call] = []
        if half:
            updated_block, param_block = updated_tensor[block], param[block]
            narrow_after = [lambda: param.copy_(updated_tensor)]
            narrow_after_block = [lambda: param_block.copy_(updated_block)]

        m, v = private_array(n, np.float32), private_array(n, np.float32)
        whole = TorchAdam(updated_tensor, sum_tensor, m, v)
        # In place needs no second vector; a gradient that must stay needs one.
        self._add(
            "allreduce",
            whole,
            [
                *before,
                self.bind_allreduce(source, sums),
                *widen,
                whole.step,
                *narrow_after,
            ],
        )
        if not half:
            in_place = TorchAdam(updated_tensor, as_tensor(source), m, v)
            self._add(
                "allreduce_in_place",
                in_place,
                [
                    self.bind_allreduce(None, source),
                    in_place.step,
                ],
            )
        shard = TorchAdam(updated_tensor[block], sum_tensor[block], m[block], v[block])
        self._add(
            "reduce_scatter",
            shard,
            [
                *before,
                self.bind_reduce_scatter(source, sums[block]),
                *widen_block,
                shard.step,
                *narrow_after_block,
                self.bind_allgather(arrays["param"][block], arrays["param"]),
            ],
        )
        entries = [Entry(form, self.implementation, "peer") for form in self._calls]
        return entries + self._extra_entries(whole)

    def _prepare_lamb(self, group: Group) -> list[Entry]:
        from benchmarks.peers.torch_adam import as_tensor
        from benchmarks.peers.torch_lamb import TorchLamb

        arrays = self._arrays
        for name in ("input", "param", "sum", "m", "v"):
            arrays[name] = private_array(group.elements, np.float32)
        param = as_tensor(arrays["param"])
        for form, source, sums in (
            ("allreduce", arrays["input"], arrays["sum"]),
            ("allreduce_in_place", None, arrays["input"]),
        ):
            optimizer = TorchLamb(param, as_tensor(sums), arrays["m"], arrays["v"])
            self._add(form, optimizer, [self.bind_allreduce(source, sums), optimizer.step])
        return [Entry(form, self.implementation, "peer") for form in self._calls]

    def _extra_entries(self, whole: Any) -> list[Entry]:
        """Name what this job also times for others; nothing by default."""
        del whole
        return []

    def _add(self, form: str, adam: Any, steps: list[Call]) -> None:
        def call() -> None:
            for step in steps:
                step()

        self._calls[form] = call
        self._adams[form] = adam
