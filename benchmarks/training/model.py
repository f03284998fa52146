"""A transformer of four layers and 2^24 parameters, and what it reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["LENGTH", "PARAMETERS", "Transformer", "draw_tokens"]

PARAMETERS = 1 << 24
LENGTH = 64
_TOKENS, _WIDTH, _HEADS, _LAYERS = 8074, 512, 8, 4


class Transformer(nn.Module):  # type: ignore[misc]
    """Predicts the next token; the first and the last layer have the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_TOKENS, _WIDTH)
        nn.init.normal_(self.embed.weight, std=_WIDTH**-0.5)
        self.place = nn.Parameter(torch.randn(LENGTH, _WIDTH) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                _WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(_LAYERS)
        )
        self.norm = nn.LayerNorm(_WIDTH)
        self.out = nn.Linear(_WIDTH, _TOKENS, bias=False)
        self.out.weight = self.embed.weight
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Any) -> Any:
        """Give the loss for rows of LENGTH + 1 tokens."""
        x = self.embed(tokens[:, :-1]) + self.place
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        logits = self.out(self.norm(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def draw_tokens(micro_batch: int, rank: int) -> Any:
    """Give a rank's rows, the same in every run."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(_TOKENS, (micro_batch, LENGTH + 1), generator=generator)
