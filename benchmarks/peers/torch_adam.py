"""torch's fused Adam over caller-owned memory: the optimizer of every peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.common.runner import ADAM

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TorchAdam", "as_tensor"]


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Wrap an array without a copy; uint16 is taken for bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


class TorchAdam:
    """One ``torch.optim.Adam(fused=True)`` over one float32 tensor.

    Parameters
    ----------
    param : torch.Tensor
        Updated in place.
    gradient : torch.Tensor
        Read by :meth:`step`; the caller fills it.
    m, v : ndarray
        The state, of the same length; the caller's, so that forms of which only one is in use at a
        time can share it.
    """

    def __init__(
        self,
        param: torch.Tensor,
        gradient: torch.Tensor,
        m: NDArray[np.float32],
        v: NDArray[np.float32],
    ) -> None:
        self._param = torch.nn.Parameter(param)
        self._param.grad = gradient
        self._optimizer = torch.optim.Adam(
            [self._param],
            lr=ADAM["lr"],
            betas=(ADAM["beta1"], ADAM["beta2"]),
            eps=ADAM["eps"],
            fused=True,
        )
        self._m, self._v = m, v
        self.reset()

    def reset(self) -> None:
        """Forget all steps."""
        self._m[:] = 0
        self._v[:] = 0
        self._optimizer.state[self._param] = {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": torch.from_numpy(self._m),
            "exp_avg_sq": torch.from_numpy(self._v),
        }

    def step(self) -> None:
        """Take one step."""
        self._optimizer.step()
