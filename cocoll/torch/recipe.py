"""What makes one optimizer another: its epilogue and its hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cocoll.epilogues import Epilogue

__all__ = ["Recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """An optimizer, as far as `FusedOptimizer` does not know it.

    Attributes
    ----------
    name : str
        Of the class, for messages and checkpoints.
    torch_class : type
        The optimizer of ``torch.optim`` whose state has the same names; the same meaning, too,
        where torch has such an optimizer.
    epilogue : callable
        Gives the epilogue for a parameter group. It updates ``param``, the arrays of `state`, and
        ``master`` where it is given.
    scalars : callable
        Gives the epilogue's scalars for a parameter group and the number of a step, from 1.
    state : callable
        Gives the sharded arrays that a parameter group needs: from the epilogue's name to
        torch's.
    structure : callable
        Gives what of a group's hyperparameters the epilogue itself depends on.
    per_tensor : bool, default False
        Whether the epilogue takes norms of each parameter: a bucket is then a list of them.
    """

    name: str
    torch_class: Any
    epilogue: Callable[[Mapping[str, Any]], Epilogue]
    scalars: Callable[[Mapping[str, Any], int], dict[str, float]]
    state: Callable[[Mapping[str, Any]], dict[str, str]]
    structure: Callable[[Mapping[str, Any]], Hashable]
    per_tensor: bool = False
