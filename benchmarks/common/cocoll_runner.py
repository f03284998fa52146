"""cocoll itself, through its public face."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

import cocoll
from benchmarks.common.cases import Entry, Group
from benchmarks.common.lamb import LAMB, cut_tensors
from benchmarks.common.memory import private_array
from benchmarks.common.runner import ADAM, FusedBuffers, Runner
from cocoll import epilogues

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["CocollRunner"]


class CocollRunner(Runner):
    """Symmetric and ordinary arrays, plain and bound calls."""

    def __init__(self) -> None:
        self._comm: Any = None
        self._arrays: dict[str, dict[str, Any]] = {}
        self._calls: dict[str, Callable[[], object]] = {}
        self._steps: dict[str, int] = {}

    def open(self) -> None:
        """Make the default communicator over MPI."""
        self._comm = cocoll.init()
        self.rank = self._comm.rank
        self.world_size = self._comm.world_size

    def close(self) -> None:
        """Close the communicator."""
        self._comm.close()

    def versions(self) -> dict[str, str]:
        """Give cocoll's version."""
        return {"cocoll": str(cocoll.__version__)}

    def prepare(self, group: Group) -> list[Entry]:
        """Allocate; forms are named after the row they compete in."""
        if group.operation == "allreduce":
            return self._prepare_allreduce(group)
        if group.operation == "lamb":
            return [self._add_lamb(form, group.elements) for form in ("list", "vector", "ordinary")]
        return self._prepare_fused(group)

    def inputs(self, form: str) -> list[NDArray[Any]]:
        """Give the gradient, or the input, of `form`."""
        return [_bits(self._arrays[form]["input"])]

    def call(self, form: str) -> Callable[[], object]:
        """Give the call of `form`."""
        return self._calls[form]

    def result(self, form: str) -> NDArray[Any]:
        """Give the output of `form`."""
        return _bits(self._arrays[form]["output"])

    def fused_buffers(self, form: str) -> FusedBuffers:
        """Give gradient and parameters."""
        arrays = self._arrays[form]
        return FusedBuffers(_bits(arrays["input"]), _bits(arrays["output"]))

    def reset(self, form: str, param: NDArray[np.float32]) -> None:
        """Set parameters (and masters), zero the state, begin at step 1."""
        arrays = self._arrays[form]
        self._steps[form] = 0
        arrays["m"][...] = 0
        arrays["v"][...] = 0
        values: Any = param
        if arrays["dtype"] == "bfloat16":
            start, stop = self._comm.shard_range(param.size)
            arrays["master"][...] = param[start:stop]
            values = self._comm.empty(param.size, "bfloat16")
            _bits(values)[...] = param.view(np.uint32) >> 16  # exact: param holds bfloat16 values
        if arrays["replicated"]:
            cocoll.broadcast(values, out=arrays["output"], dtype=arrays["dtype"]).wait()
        else:
            _bits(arrays["output"])[...] = _bits(values)

    def release(self) -> None:
        """Drop all arrays; the communicator takes the blocks back by itself."""
        self._calls.clear()
        self._arrays.clear()

    def _prepare_allreduce(self, group: Group) -> list[Entry]:
        comm, n = self._comm, group.elements
        if group.suite == "call_overhead":
            return self._prepare_overhead(n)
        in_place = comm.empty(n, group.dtype)
        source, output = comm.empty(n, group.dtype), comm.empty(n, group.dtype)
        private, private_output = private_array(n, np.float32), private_array(n, np.float32)
        entries = []
        for form, row, x, out in (
            ("symmetric_in_place", "symmetric_in_place", in_place, None),
            ("symmetric_out_of_place", "symmetric_out_of_place", source, output),
            ("ordinary_in_place", "ordinary", private, None),
            ("ordinary_out_of_place", "ordinary", private, private_output),
        ):
            self._arrays[form] = {"input": x, "output": x if out is None else out}
            self._calls[form] = _allreduce_call(x, out)
            entries.append(Entry(form, "cocoll", row))
        return entries

    def _prepare_overhead(self, n: int) -> list[Entry]:
        x = self._comm.empty(n, "float32")
        private = private_array(n, np.float32)
        arrays = {"call": x, "bound": x, "call_ordinary": private}
        self._arrays = {form: {"input": a, "output": a} for form, a in arrays.items()}
        self._calls = {
            "call": _allreduce_call(x, None),
            "bound": self._comm.bind(cocoll.allreduce, x, "sum"),
            "call_ordinary": _allreduce_call(private, None),
        }
        return [Entry(form, "cocoll", form) for form in self._calls]

    def _prepare_fused(self, group: Group) -> list[Entry]:
        forms = ["symmetric", "symmetric_zero_grad"]
        if group.dtype == "float32":
            forms.append("ordinary")
        for form in forms:
            self._add_fused(form, group)
        return [Entry(form, "cocoll", form) for form in forms]

    def _add_fused(self, form: str, group: Group) -> None:
        comm, n, dtype = self._comm, group.elements, group.dtype
        shared = "symmetric"
        if form == "symmetric_zero_grad" and shared in self._arrays:
            arrays = self._arrays[
                shared
            ]  # the same step over the same arrays, with one option more
        else:
            symmetric = form != "ordinary"
            arrays = {
                "dtype": dtype,
                "replicated": symmetric,
                "input": comm.empty(n, dtype) if symmetric else private_array(n, np.float32),
                "output": comm.empty(n, dtype, replicated=True)
                if symmetric
                else private_array(n, np.float32),
                "m": comm.shard_zeros(n),
                "v": comm.shard_zeros(n),
            }
            if dtype == "bfloat16":
                arrays["master"] = comm.shard_zeros(n)
        self._arrays[form] = arrays
        self._steps[form] = 0
        adam = epilogues.adam(betas=(ADAM["beta1"], ADAM["beta2"]), eps=ADAM["eps"])
        operands = {"param": arrays["output"], "m": arrays["m"], "v": arrays["v"]}
        if "master" in arrays:
            operands["master"] = arrays["master"]
        if form == "symmetric_zero_grad":
            operands["zero_grad"] = True
        gradient, lr, steps = arrays["input"], ADAM["lr"], self._steps

        def step() -> object:
            steps[form] += 1
            return cocoll.allreduce_fused(
                gradient, adam, **operands, lr=lr, step=steps[form], dtype=dtype
            )

        self._calls[form] = step

    def _add_lamb(self, form: str, n: int) -> Entry:
        comm = self._comm
        arrays = {
            "dtype": "float32",
            "replicated": form != "ordinary",
            "input": private_array(n, np.float32) if form == "ordinary" else comm.empty(n),
            "output": private_array(n, np.float32)
            if form == "ordinary"
            else comm.empty(n, replicated=True),
            "m": comm.shard_zeros(n),
            "v": comm.shard_zeros(n),
        }
        self._arrays[form] = arrays
        self._steps[form] = 0
        cuts = cut_tensors(n) if form != "vector" else [0, n]
        pieces = [slice(*pair) for pair in itertools.pairwise(cuts)]
        betas = (LAMB["beta1"], LAMB["beta2"])
        optimizer = epilogues.lamb(
            lr=LAMB["lr"], betas=betas, eps=LAMB["eps"], weight_decay=LAMB["weight_decay"]
        )
        gradients = [arrays["input"][piece] for piece in pieces]
        params = [arrays["output"][piece] for piece in pieces]
        bound = comm.bind(
            cocoll.allreduce_fused,
            gradients[0] if form == "vector" else gradients,
            optimizer,
            param=params[0] if form == "vector" else params,
            m=arrays["m"],
            v=arrays["v"],
        )
        steps = self._steps

        def step() -> object:
            steps[form] += 1
            return bound(step=steps[form])

        self._calls[form] = step
        # One vector has one norm: it shows what lists cost, and is no LAMB of the tensors.
        return Entry(form, "cocoll", form)


def _allreduce_call(x: Any, out: Any) -> Callable[[], object]:
    allreduce = cocoll.allreduce
    if out is None:
        return lambda: allreduce(x, "sum")
    return lambda: allreduce(x, "sum", out=out)


def _bits(array: Any) -> NDArray[Any]:
    """Give a plain view: bfloat16 as its uint16 patterns, whatever type carries it."""
    plain = np.asarray(array)
    return plain if plain.dtype.itemsize != 2 else plain.view(np.uint16)
