"""Optimizers and activations in float64, as their papers and PyTorch's documentation have them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["adam", "gelu", "gelu_tanh", "sgd"]

Array = np.ndarray[Any, Any]


def sgd(
    g: Array,
    p: Array,
    buffer: Array,
    *,
    step: int,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> tuple[Array, Array]:
    """Give the new parameters and the new momentum buffer."""
    g = g + weight_decay * p
    if momentum != 0.0:
        share = 1.0 if step == 1 else 1.0 - dampening
        buffer = momentum * buffer + share * g
        g = g + momentum * buffer if nesterov else buffer
    return p - lr * g, buffer


def adam(
    g: Array,
    p: Array,
    m: Array,
    v: Array,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> tuple[Array, Array, Array]:
    """Give the new parameters and moments of Adam, or of AdamW where decay is decoupled."""
    beta1, beta2 = betas
    if decoupled:
        p = p * (1.0 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    m = beta1 * m + (1.0 - beta1) * g
    v = beta2 * v + (1.0 - beta2) * g * g
    corrected_m = m / (1.0 - beta1**step)
    corrected_v = v / (1.0 - beta2**step)
    return p - lr * corrected_m / (np.sqrt(corrected_v) + eps), m, v


def gelu(x: Array) -> Array:
    """Give x times the normal distribution function of x."""
    erf = np.array([math.erf(value / math.sqrt(2.0)) for value in x.reshape(-1)])
    return 0.5 * x * (1.0 + erf.reshape(x.shape))


def gelu_tanh(x: Array) -> Array:
    """Give the approximation by the hyperbolic tangent."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
