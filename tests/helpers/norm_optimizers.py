"""Optimizers with norms in float64, tensor by tensor, as their papers write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Reference:
    """Parameters and state of one optimizer.

    Parameters
    ----------
    params : sequence of numpy.ndarray
        Where it starts.
    """

    def __init__(self, params: Sequence[Array]) -> None:
        self.params = [np.asarray(param, np.float64) for param in params]
        self.m = [np.zeros_like(param) for param in self.params]
        self.v = [np.zeros_like(param) for param in self.params]

    def lamb(
        self,
        gradients: Sequence[Array],
        rates: Sequence[float],
        step: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
    ) -> None:
        """Take a step of LAMB (You et al., ICLR 2020, algorithm 2)."""
        beta1, beta2 = betas
        for k, (g, rate) in enumerate(zip(gradients, rates, strict=True)):
            self.m[k] = beta1 * self.m[k] + (1 - beta1) * g
            self.v[k] = beta2 * self.v[k] + (1 - beta2) * g * g
            mean = self.m[k] / (1 - beta1**step)
            root = np.sqrt(self.v[k] / (1 - beta2**step))
            update = mean / (root + eps) + weight_decay * self.params[k]
            of_param, of_update = np.linalg.norm(self.params[k]), np.linalg.norm(update)
            trust = of_param / of_update if of_param > 0 and of_update > 0 else 1.0
            self.params[k] = self.params[k] - rate * trust * update

    def lars(
        self,
        gradients: Sequence[Array],
        rates: Sequence[float],
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust_coefficient: float = 1e-3,
        eps: float = 1e-8,
    ) -> None:
        """Take a step of LARS (You, Gitman, Ginsburg, arXiv:1708.03888, algorithm 1)."""
        for k, (g, rate) in enumerate(zip(gradients, rates, strict=True)):
            of_param, of_gradient = np.linalg.norm(self.params[k]), np.linalg.norm(g)
            trust = 1.0
            if of_param > 0 and of_gradient > 0:
                trust = trust_coefficient * of_param
                trust /= of_gradient + weight_decay * of_param + eps
            self.m[k] = momentum * self.m[k] + rate * trust * (g + weight_decay * self.params[k])
            self.params[k] = self.params[k] - self.m[k]

    def adam(self, gradients: Sequence[Array], rate: float, step: int) -> None:
        """Take a step of Adam (Kingma, Ba, ICLR 2015, algorithm 1)."""
        for k, g in enumerate(gradients):
            self.m[k] = 0.9 * self.m[k] + 0.1 * g
            self.v[k] = 0.999 * self.v[k] + 0.001 * g * g
            mean, root = self.m[k] / (1 - 0.9**step), np.sqrt(self.v[k] / (1 - 0.999**step))
            self.params[k] = self.params[k] - rate * mean / (root + 1e-8)


def clipped(gradients: Sequence[Array], max_norm: float) -> list[Array]:
    """Clip by the norm of all gradients together, as torch does."""
    norm = np.sqrt(sum(float(np.sum(g * g)) for g in gradients))
    return [g * min(1.0, max_norm / (norm + 1e-6)) for g in gradients]
