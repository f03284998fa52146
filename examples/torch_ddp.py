"""Train a small transformer, data parallel, with a fused optimizer and with torch's own.

Run it as ``mpirun -n 4 python examples/torch_ddp.py``, as ``torchrun --nproc-per-node 2
examples/torch_ddp.py``, or alone. The first training averages gradients with one all-reduce each
and then steps ``torch.optim.AdamW`` on every rank, over all parameters. In the second one
``cocoll.torch.FusedAdamW`` does both, bucket by bucket, while backward goes on; each rank keeps its
share of the optimizer's state. Both start from the same weights and see the same text.
"""

from __future__ import annotations

import copy
import os

# Ranks share the cores. This must stand before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import cocoll
import cocoll.torch

TOKENS, WIDTH, LAYERS, HEADS, LENGTH = 64, 64, 2, 4, 32
ROWS = 8  # of each rank in each step
STEPS = 30
# The true gradient of the keys' biases is zero: with a smaller eps Adam follows rounding errors.
OPTIONS: dict[str, Any] = {"lr": 3e-3, "weight_decay": 0.01, "eps": 1e-5}
WANTED_DIFFERENCE = 1e-3


class Transformer(nn.Module):
    """Predicts the next token; the weights of the first and the last layer are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, TOKENS, bias=False)
        self.out.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=WIDTH**-0.5)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        return self.out(self.norm(x))


def draw_text(step: int, rank: int) -> torch.Tensor:
    """Draw rows of text in which each token is one of two that may follow the one before."""
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    tokens = torch.empty(ROWS, LENGTH + 1, dtype=torch.int64)
    tokens[:, 0] = torch.randint(TOKENS, (ROWS,), generator=generator)
    for position in range(LENGTH):
        coin = torch.randint(2, (ROWS,), generator=generator)
        tokens[:, position + 1] = (5 * tokens[:, position] + 7 + 22 * coin) % TOKENS
    return tokens


def train(
    comm: cocoll.Communicator, model: Transformer, optimizer: Any, average: Callable[[], None]
) -> tuple[list[float], float]:
    """Give the mean loss over all ranks of each step, and the median seconds of a step."""
    losses: list[float] = []
    seconds = []
    for step in range(STEPS):
        tokens = draw_text(step, comm.rank)
        comm.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        average()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        mean = loss.detach().clone()
        cocoll.allreduce(mean, "avg")
        losses.append(float(mean))
    return losses, statistics.median(seconds)


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = Transformer()
    fused_model = copy.deepcopy(model)
    comm = cocoll.init()

    def average_gradients() -> None:
        for param in model.parameters():
            cocoll.allreduce(param.grad, "avg")

    plain = torch.optim.AdamW(model.parameters(), **OPTIONS)
    plain_losses, plain_seconds = train(comm, model, plain, average_gradients)

    fused = cocoll.torch.FusedAdamW(fused_model.parameters(), **OPTIONS)
    fused_losses, fused_seconds = train(comm, fused_model, fused, lambda: None)

    differences = [
        float((ours - theirs).detach().abs().max())
        for ours, theirs in zip(fused_model.parameters(), model.parameters(), strict=True)
    ]
    worst = torch.tensor([max(differences), fused.state_bytes, -fused_losses[-1]])
    cocoll.allreduce(worst, "max")
    count = sum(param.numel() for param in model.parameters())
    if comm.rank == 0:
        print(f"{comm.world_size} ranks, {count} parameters, {STEPS} steps")
        print("step   torch.optim.AdamW   FusedAdamW")
        for step in [*range(0, STEPS, 10), STEPS - 1]:
            print(f"{step:4}   {plain_losses[step]:17.5f}   {fused_losses[step]:10.5f}")
        print(f"a step takes {plain_seconds * 1e3:.1f} ms and {fused_seconds * 1e3:.1f} ms")
        print(f"state: {8 * count} bytes on every rank, and at most {int(worst[1])}")
        print(f"the parameters differ by {float(worst[0]):.1e} at most")
    if not float(worst[0]) < WANTED_DIFFERENCE or not -float(worst[2]) < plain_losses[0] - 1.0:
        print(f"rank {comm.rank}: the trainings differ, or did not succeed", file=sys.stderr)
        return 1
    fused.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
