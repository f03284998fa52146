"""The ways to train that are timed side by side, in the same processes."""

from __future__ import annotations

import abc
import copy
from typing import TYPE_CHECKING, Any

import torch

import cocoll
import cocoll.torch
from benchmarks.common.runner import ADAM

if TYPE_CHECKING:
    from benchmarks.training.model import Transformer

__all__ = ["DDP_BUCKETS_MB", "Alone", "Cocoll", "Ddp", "Way", "make_ways"]

#: Its default is 25. Those that are more than a tenth slower than the best are dropped.
DDP_BUCKETS_MB = (1, 4, 25, 100)

_ADAM: dict[str, Any] = {
    "lr": ADAM["lr"],
    "betas": (ADAM["beta1"], ADAM["beta2"]),
    "eps": ADAM["eps"],
}


class Way(abc.ABC):
    """One way: a model of its own, and what a step is.

    Attributes
    ----------
    implementation, setting : str
        As in the JSON.
    state_bytes : int
        The optimizer's state on this rank, after a step.
    """

    implementation: str
    setting: str = ""

    def __init__(self, model: Transformer) -> None:
        self.model: Any = copy.deepcopy(model)

    @abc.abstractmethod
    def step(self, tokens: Any) -> None:
        """Take a whole step."""

    @property
    def state_bytes(self) -> int:
        return 0

    def parameters(self) -> Any:
        """Give all parameters as one vector, a copy."""
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])


class Alone(Way):
    """Forward and backward without anything else: what every step contains."""

    implementation = "forward_backward"

    def step(self, tokens: Any) -> None:
        """Compute gradients, and drop them."""
        self.model.zero_grad()
        self.model(tokens).backward()


class Cocoll(Way):
    """The fused optimizer."""

    implementation = "cocoll"

    def __init__(self, model: Transformer, comm: cocoll.Communicator, overlap: bool) -> None:
        super().__init__(model)
        self.setting = f"overlap={overlap}"
        self._optimizer = cocoll.torch.FusedAdam(
            self.model.parameters(), comm=comm, overlap=overlap, **_ADAM
        )

    def step(self, tokens: Any) -> None:
        """Take a step."""
        self._optimizer.zero_grad()
        self.model(tokens).backward()
        self._optimizer.step()

    @property
    def state_bytes(self) -> int:
        return self._optimizer.state_bytes


class Ddp(Way):
    """DDP over Gloo, and torch's fused Adam."""

    implementation = "ddp"

    def __init__(self, model: Transformer, bucket_mb: int) -> None:
        super().__init__(model)
        self.setting = f"bucket_cap_mb={bucket_mb}"
        self._ddp = torch.nn.parallel.DistributedDataParallel(
            self.model, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb
        )
        self._optimizer = torch.optim.Adam(self.model.parameters(), fused=True, **_ADAM)

    def step(self, tokens: Any) -> None:
        """Take a step."""
        self._optimizer.zero_grad()
        self._ddp(tokens).backward()
        self._optimizer.step()

    @property
    def state_bytes(self) -> int:
        tensors = [t for state in self._optimizer.state.values() for t in state.values()]
        return sum(t.numel() * t.element_size() for t in tensors if t.dim() > 0)


def make_ways(model: Transformer, comm: cocoll.Communicator) -> list[Way]:
    """Give all ways, each with a model of its own; collective."""
    fused = [Cocoll(model, comm, overlap) for overlap in (True, False)]
    return [Alone(model), *fused, *(Ddp(model, mb) for mb in DDP_BUCKETS_MB)]
