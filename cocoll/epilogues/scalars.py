"""Scalars of an epilogue, evaluated in Python: what the generated ``prepare`` does in C++.

Every operation gives C's answer where Python would raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cocoll.epilogues.graph import Node

__all__ = ["SCALAR_OPERATIONS", "evaluate_scalars"]


def _divide(a: float, b: float) -> float:
    if b != 0.0:
        return a / b
    if a == 0.0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _power(a: float, b: float) -> float:
    if a == 0.0 and b < 0.0:
        odd = b.is_integer() and b % 2.0 == 1.0
        return math.copysign(math.inf, a) if odd else math.inf
    try:
        return math.pow(a, b)
    except OverflowError:
        odd = b.is_integer() and b % 2.0 == 1.0
        return -math.inf if a < 0.0 and odd else math.inf
    except ValueError:
        return math.nan


def _exponential(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _logarithm(x: float) -> float:
    if x > 0.0:
        return math.log(x)
    return -math.inf if x == 0.0 else math.nan


def _smaller(a: float, b: float) -> float:
    return a if a < b or math.isnan(a) else b


def _larger(a: float, b: float) -> float:
    return a if a > b or math.isnan(a) else b


def _dropout_threshold(p: float) -> float:
    return math.ceil(p * 16777216.0) if 0.0 <= p <= 1.0 else 0.0


def _dropout_scale(p: float) -> float:
    return _divide(1.0, 1.0 - p) if 0.0 <= p <= 1.0 else math.nan


#: By the operation of a node.
SCALAR_OPERATIONS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "pow": _power,
    "min": _smaller,
    "max": _larger,
    "neg": lambda a: -a,
    "abs": abs,
    "sqrt": lambda a: math.sqrt(a) if a >= 0.0 else math.nan,
    "exp": _exponential,
    "tanh": math.tanh,
    "erf": math.erf,
    "log": _logarithm,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "not": lambda a: not a,
    "where": lambda c, a, b: a if c else b,
    "dropout_threshold": _dropout_threshold,
    "dropout_scale": _dropout_scale,
}


def evaluate_scalars(nodes: tuple[Node, ...], values: Mapping[str, float]) -> dict[int, float]:
    """Evaluate all scalar nodes in float64: what the generated ``prepare`` does, in Python.

    Parameters
    ----------
    nodes : tuple of Node
        A graph in order.
    values : Mapping of str to float
        The value of every scalar parameter.

    Returns
    -------
    dict of int to float
        Value by node index.
    """
    results: dict[int, float] = {}
    for index, node in enumerate(nodes):
        if not node.kind.is_scalar:
            continue
        if node.operation == "constant" and isinstance(node.attribute, float):
            results[index] = node.attribute
        elif node.operation == "scalar":
            results[index] = float(values[str(node.attribute)])
        else:
            arguments = [results[argument] for argument in node.arguments]
            results[index] = float(SCALAR_OPERATIONS[node.operation](*arguments))
    return results
