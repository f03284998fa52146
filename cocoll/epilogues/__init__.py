"""Epilogues: computation that rides inside a reduction, and the catalogue of common ones."""

from __future__ import annotations

from cocoll.epilogues.activations import bias_dropout_residual, cast, gelu, relu, scale, silu
from cocoll.epilogues.norm_optimizers import clip_by_global_norm, lamb, lars, unscaled
from cocoll.epilogues.optimizers import adam, adamw, sgd
from cocoll.epilogues.trace import Epilogue, epilogue
from cocoll.epilogues.traced import Operand, Result, ScalarParameter, Traced

__all__ = [
    "Epilogue",
    "Operand",
    "Result",
    "ScalarParameter",
    "Traced",
    "adam",
    "adamw",
    "bias_dropout_residual",
    "cast",
    "clip_by_global_norm",
    "epilogue",
    "gelu",
    "lamb",
    "lars",
    "relu",
    "scale",
    "sgd",
    "silu",
    "unscaled",
]
