"""torch.distributed on Gloo: plain collectives, DDP, ZeroRedundancyOptimizer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.common.cases import Entry, Group
from benchmarks.common.memory import private_array
from benchmarks.common.runner import ADAM, FusedBuffers, Runner
from benchmarks.peers.collective_runner import Call, CollectiveRunner
from benchmarks.peers.torch_adam import as_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["DdpRunner", "GlooRunner", "ZeroRunner"]

_TENSORS = 16  # DDP and ZeRO work on whole tensors: a model of one could not be shared out


def _open_gloo(runner: Runner) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    runner.rank = dist.get_rank()
    runner.world_size = dist.get_world_size()


def _close_gloo() -> None:
    dist.barrier()
    dist.destroy_process_group()


class GlooRunner(CollectiveRunner):
    """``torch.distributed`` collectives; also times torch's Adam alone, as a yardstick."""

    implementation = "gloo"
    sums_bfloat16 = True

    def open(self) -> None:
        """Join over ``env://``."""
        _open_gloo(self)

    def close(self) -> None:
        """Leave."""
        _close_gloo()

    def versions(self) -> dict[str, str]:
        """Give torch's version."""
        return {"torch": str(torch.__version__)}

    def bind_allreduce(self, source: NDArray[Any] | None, output: NDArray[Any]) -> Call:
        """``all_reduce``, which is in place; out of place needs a copy first."""
        tensor = as_tensor(output)
        if source is None:
            return lambda: dist.all_reduce(tensor)
        source_tensor = as_tensor(source)

        def call() -> None:
            tensor.copy_(source_tensor)
            dist.all_reduce(tensor)

        return call

    def bind_reduce_scatter(self, source: NDArray[Any], block: NDArray[Any]) -> Call:
        """``reduce_scatter_tensor``."""
        source_tensor, block_tensor = as_tensor(source), as_tensor(block)
        return lambda: dist.reduce_scatter_tensor(block_tensor, source_tensor)

    def bind_allgather(self, block: NDArray[Any], output: NDArray[Any]) -> Call:
        """``all_gather_into_tensor``."""
        block_tensor, output_tensor = as_tensor(block), as_tensor(output)
        return lambda: dist.all_gather_into_tensor(output_tensor, block_tensor)

    def _extra_entries(self, whole: Any) -> list[Entry]:
        self._calls["adam_alone"] = whole.step
        return [Entry("adam_alone", "torch_adam", "yardstick")]


class _GivenGradients(torch.autograd.Function):  # type: ignore[misc]
    """A forward and backward of no cost of its own, that yields prepared gradients."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *params: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return params[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        return (None, *ctx.gradients)


class _Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, params: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        super().__init__()
        self.params = torch.nn.ParameterList([torch.nn.Parameter(p) for p in params])
        self._gradients = gradients

    def forward(self) -> torch.Tensor:
        loss: torch.Tensor = _GivenGradients.apply(self._gradients, *self.params)
        return loss


class _TensorsRunner(Runner):
    """Parameters and gradients as 16 tensors over one flat buffer each."""

    def __init__(self) -> None:
        self._gradient: NDArray[Any] = np.empty(0, np.float32)
        self._param: NDArray[Any] = np.empty(0, np.float32)
        self._master: NDArray[np.float32] | None = None
        self._masters: list[torch.nn.Parameter] = []
        self._wide: list[torch.Tensor] = []
        self._params: list[torch.nn.Parameter] = []
        self._optimizer: Any = None
        self._ddp: Any = None

    def open(self) -> None:
        """Join over ``env://``."""
        _open_gloo(self)

    def close(self) -> None:
        """Leave."""
        _close_gloo()

    def versions(self) -> dict[str, str]:
        """Give torch's version."""
        return {"torch": str(torch.__version__)}

    def inputs(self, form: str) -> list[NDArray[Any]]:
        """Give the gradients."""
        del form
        return [self._gradient]

    def result(self, form: str) -> NDArray[Any]:
        """Give the parameters."""
        del form
        return self._param

    def _allocate(self, group: Group) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        if group.elements % _TENSORS:
            raise ValueError(f"wanted a multiple of {_TENSORS} elements, got {group.elements}")
        dtype = np.uint16 if group.dtype == "bfloat16" else np.float32
        self._gradient = private_array(group.elements, dtype)
        self._param = private_array(group.elements, dtype)
        return (
            list(as_tensor(self._param).chunk(_TENSORS)),
            list(as_tensor(self._gradient).chunk(_TENSORS)),
        )


class DdpRunner(_TensorsRunner):
    """DDP and torch's fused Adam: the whole step less the same forward and backward without DDP's.

    One sample is two measurements in turn: forward, backward with DDP's all-reduce, and the
    optimizer step; and forward and backward under ``no_sync()``. Their difference counts.
    """

    def prepare(self, group: Group) -> list[Entry]:
        """Build model, DDP and optimizer."""
        from torch.nn.parallel import DistributedDataParallel

        params, gradients = self._allocate(group)
        model = _Model(params, gradients)
        self._ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._params = list(model.params)
        if group.dtype == "bfloat16":
            self._master = private_array(group.elements, np.float32)
            masters = list(as_tensor(self._master).chunk(_TENSORS))
            self._wide = [torch.zeros_like(master) for master in masters]
            self._masters = [torch.nn.Parameter(master) for master in masters]
            for master, wide in zip(self._masters, self._wide, strict=True):
                master.grad = wide
        self._make_optimizer()
        return [Entry("step", "ddp", "peer")]

    def reset(self, form: str, param: NDArray[np.float32]) -> None:
        """Begin again from `param`."""
        del form
        if self._master is None:
            self._param[:] = param
        else:
            self._master[:] = param
            self._param[:] = param.view(np.uint32) >> 16
        self._make_optimizer()

    def fused_buffers(self, form: str) -> FusedBuffers:
        """Give gradients and parameters; DDP averages."""
        del form
        return FusedBuffers(self._gradient, self._param, averages=True)

    def call(self, form: str) -> Callable[[], object]:
        """Give the whole step."""
        del form
        return self._step

    def measure(self, form: str) -> float:
        """Give the whole step less forward and backward."""
        del form
        start = time.perf_counter()
        self._step()
        whole_seconds = time.perf_counter() - start
        start = time.perf_counter()
        with self._ddp.no_sync():
            self._ddp().backward()
        alone_seconds = time.perf_counter() - start
        self._clear_gradients()
        return max(0.0, whole_seconds - alone_seconds)

    def release(self) -> None:
        """Drop the model."""
        self._params = []
        self._ddp = self._optimizer = None
        self._master = None
        self._masters, self._wide = [], []

    def _make_optimizer(self) -> None:
        params = self._params if self._master is None else self._masters
        self._optimizer = torch.optim.Adam(
            params, lr=ADAM["lr"], betas=(ADAM["beta1"], ADAM["beta2"]), eps=ADAM["eps"], fused=True
        )

    def _clear_gradients(self) -> None:
        for param in self._params:
            param.grad = None

    def _step(self) -> None:
        self._ddp().backward()
        if self._master is not None:
            for wide, param in zip(self._wide, self._params, strict=True):
                wide.copy_(param.grad)
        self._optimizer.step()
        if self._master is not None:
            with torch.no_grad():
                for param, master in zip(self._params, self._masters, strict=True):
                    param.copy_(master)
        self._clear_gradients()


class ZeroRunner(_TensorsRunner):
    """One Gloo all-reduce of the flat gradients, then ``ZeroRedundancyOptimizer`` (fused Adam)."""

    def prepare(self, group: Group) -> list[Entry]:
        """Build the optimizer; it keeps its state in the parameters' type, so float32 only."""
        if group.dtype != "float32":
            return []
        params, gradients = self._allocate(group)
        self._params = [torch.nn.Parameter(param) for param in params]
        for param, gradient in zip(self._params, gradients, strict=True):
            param.grad = gradient
        self._make_optimizer()
        return [Entry("step", "zero", "peer")]

    def reset(self, form: str, param: NDArray[np.float32]) -> None:
        """Begin again from `param`."""
        del form
        self._param[:] = param
        self._make_optimizer()

    def fused_buffers(self, form: str) -> FusedBuffers:
        """Give gradients and parameters."""
        del form
        return FusedBuffers(self._gradient, self._param)

    def call(self, form: str) -> Callable[[], object]:
        """Give all-reduce and step."""
        del form
        return self._step

    def release(self) -> None:
        """Drop the optimizer."""
        self._params = []
        self._optimizer = None

    def _make_optimizer(self) -> None:
        # Imported where it is used: it takes a second, and Gloo's job has no need of it.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self._optimizer = ZeroRedundancyOptimizer(
            self._params,
            optimizer_class=torch.optim.Adam,
            lr=ADAM["lr"],
            betas=(ADAM["beta1"], ADAM["beta2"]),
            eps=ADAM["eps"],
            fused=True,
        )

    def _step(self) -> None:
        dist.all_reduce(as_tensor(self._gradient))
        self._optimizer.step()
