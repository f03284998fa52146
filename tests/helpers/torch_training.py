"""A model with everything that optimizers must cope with, trained by ranks and by torch alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["Net", "average_reference", "draw_batch", "make_models", "parameters_of"]

TOKENS, WIDTH = 13, 8


class Net(torch.nn.Module):
    """Tied weights, a layer for some steps, one that is never used, a scalar, a frozen weight."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.embed = torch.nn.Embedding(TOKENS, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, 33)
        self.norm = torch.nn.LayerNorm(33)
        self.back = torch.nn.Linear(33, WIDTH)
        self.extra = torch.nn.Linear(WIDTH, WIDTH)
        self.idle = torch.nn.Linear(3, 5)
        self.gain = torch.nn.Parameter(torch.tensor(1.5))
        self.frozen = torch.nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.out = torch.nn.Linear(WIDTH, TOKENS, bias=False)
        self.out.weight = self.embed.weight
        for param in self.parameters():
            if param.requires_grad and param.dim() > 0:
                param.data.normal_(0.0, 0.3, generator=generator)
        self.to(dtype)

    def forward(self, tokens: Any, *, extra: bool = False, swap: bool = False) -> Any:
        x = self.embed(tokens) * self.frozen
        h = self.norm(torch.tanh(self.hidden(x)))
        # The order of these decides in which order their gradients come.
        y = x + self.gain * self.back(h) if swap else self.gain * self.back(h) + x
        if extra:
            y = y + self.extra(y)
        return self.out(y)

    def loss(self, tokens: Any, **options: bool) -> Any:
        logits = self(tokens[:, :-1], **options)
        return torch.nn.functional.cross_entropy(
            logits.reshape(-1, TOKENS).to(torch.promote_types(logits.dtype, torch.float32)),
            tokens[:, 1:].reshape(-1),
        )


def make_models(count: int, dtype: torch.dtype = torch.float64) -> list[Net]:
    """Give equal models; made by one thread, for torch has one generator."""
    first = Net(dtype)
    return [copy.deepcopy(first) for _ in range(count)]


def draw_batch(step: int, rows: slice | int, length: int = 6) -> Any:
    """Give some rows of a step's tokens; the same whoever asks."""
    rng = np.random.default_rng(step)
    tokens = rng.integers(0, TOKENS, (24, length))
    return torch.from_numpy(tokens[rows] if isinstance(rows, slice) else tokens[rows : rows + 1])


def parameters_of(model: Any) -> list[np.ndarray[Any, Any]]:
    """Give copies of a model's parameters, 16-bit ones by their bits."""
    found = []
    for param in model.parameters():
        value = param.detach().clone()
        found.append((value.view(torch.int16) if value.element_size() == 2 else value).numpy())
    return found


def average_reference(
    make_optimizer: Callable[[Net], Any],
    steps: Sequence[Callable[[Net], Sequence[Any]]],
    before_step: Callable[[Net], None] | None = None,
    after_step: Callable[[Any], None] | None = None,
) -> tuple[Net, Any]:
    """Train with torch alone: each step gives the losses of all ranks, whose mean is minimised."""
    model = Net()
    optimizer = make_optimizer(model)
    for losses_of in steps:
        optimizer.zero_grad()
        losses = losses_of(model)
        for loss in losses:
            (loss / len(losses)).backward()
        if before_step is not None:
            before_step(model)
        optimizer.step()
        if after_step is not None:
            after_step(optimizer)
    return model, optimizer
