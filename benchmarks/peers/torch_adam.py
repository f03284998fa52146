"""torch's fused Adam over caller-owned memory: the optimizer of every peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.adam import adam

from benchmarks.common.runner import ADAM

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TorchAdam", "as_tensor"]


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Wrap an array without a copy; uint16 is taken for bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


class TorchAdam:
    """torch's fused Adam over one float32 tensor, called as a function.

    ``torch.optim.Adam(fused=True).step()`` ends in the same call. Its constructor imports the
    compiler, some seconds a process, and a step adds some tens of microseconds of Python: left out,
    to the peers' advantage. (DDP and ZeRO keep the class.)

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
        self._params, self._gradients = [param], [gradient]
        self._m, self._v = [torch.from_numpy(m)], [torch.from_numpy(v)]
        self._steps = [torch.zeros((), dtype=torch.float32)]
        self.reset()

    def reset(self) -> None:
        """Forget all steps."""
        for state in (*self._m, *self._v, *self._steps):
            state.zero_()

    def step(self) -> None:
        """Take one step."""
        adam(
            self._params,
            self._gradients,
            self._m,
            self._v,
            [],
            self._steps,
            fused=True,
            amsgrad=False,
            beta1=ADAM["beta1"],
            beta2=ADAM["beta2"],
            lr=ADAM["lr"],
            weight_decay=0.0,
            eps=ADAM["eps"],
            maximize=False,
        )
