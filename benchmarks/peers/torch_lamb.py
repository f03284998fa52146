"""LAMB written with torch's foreach operations, as users without a fused one write it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.common.lamb import LAMB, cut_tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["TorchLamb"]


class TorchLamb:
    """LAMB over tensors that are views of flat buffers.

    Every list of operations runs over all tensors at once; temporaries are kept between steps.

    Parameters
    ----------
    param, gradient : torch.Tensor
        Flat, float32; the first is updated in place.
    m, v : ndarray
        The state.
    """

    def __init__(
        self,
        param: torch.Tensor,
        gradient: torch.Tensor,
        m: NDArray[np.float32],
        v: NDArray[np.float32],
    ) -> None:
        cuts = cut_tensors(param.numel())
        sizes = [stop - start for start, stop in itertools.pairwise(cuts)]
        self._flat = [torch.from_numpy(m), torch.from_numpy(v)]
        self._params = list(param.split(sizes))
        self._gradients = list(gradient.split(sizes))
        self._m = list(self._flat[0].split(sizes))
        self._v = list(self._flat[1].split(sizes))
        self._update = list(torch.empty_like(param).split(sizes))
        self._root = list(torch.empty_like(param).split(sizes))
        self._step = 0

    def reset(self) -> None:
        """Forget all steps."""
        self._step = 0
        for state in self._flat:
            state.zero_()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Take one step."""
        self._step += 1
        beta1, beta2 = LAMB["beta1"], LAMB["beta2"]
        foreach: Any = torch
        foreach._foreach_lerp_(self._m, self._gradients, 1 - beta1)
        foreach._foreach_mul_(self._v, beta2)
        foreach._foreach_addcmul_(self._v, self._gradients, self._gradients, 1 - beta2)
        foreach._foreach_copy_(self._root, self._v)
        foreach._foreach_sqrt_(self._root)
        foreach._foreach_div_(self._root, (1 - beta2**self._step) ** 0.5)
        foreach._foreach_add_(self._root, LAMB["eps"])
        foreach._foreach_copy_(self._update, self._m)
        foreach._foreach_div_(self._update, 1 - beta1**self._step)
        foreach._foreach_div_(self._update, self._root)
        foreach._foreach_add_(self._update, self._params, alpha=LAMB["weight_decay"])
        of_params = torch.stack(foreach._foreach_norm(self._params))
        of_updates = torch.stack(foreach._foreach_norm(self._update))
        defined = (of_params > 0) & (of_updates > 0)
        ratios = torch.where(defined, of_params / of_updates, torch.ones_like(of_params))
        foreach._foreach_mul_(self._update, list((-LAMB["lr"] * ratios).unbind()))
        foreach._foreach_add_(self._params, self._update)
