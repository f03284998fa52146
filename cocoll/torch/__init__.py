"""cocoll for PyTorch: fused optimizers, a hook for DDP, differentiable collectives.

Importing it imports torch; importing cocoll does not.
"""

from __future__ import annotations

from cocoll.torch.data_parallel import ddp_hook
from cocoll.torch.optimizer import FusedOptimizer
from cocoll.torch.optimizers import FusedAdam, FusedAdamW, FusedLAMB, FusedSGD
from cocoll.torch.recipe import Recipe
from cocoll.torch.scaler import LossScaler
from cocoll.torch.tensor_parallel import (
    copy_to_ranks,
    gather_along,
    gather_sequence,
    reduce_from_ranks,
    reduce_scatter_along,
    scatter_along,
)

__all__ = [
    "FusedAdam",
    "FusedAdamW",
    "FusedLAMB",
    "FusedOptimizer",
    "FusedSGD",
    "LossScaler",
    "Recipe",
    "copy_to_ranks",
    "ddp_hook",
    "gather_along",
    "gather_sequence",
    "reduce_from_ranks",
    "reduce_scatter_along",
    "scatter_along",
]
