"""Totals: numbers summed over all elements of a tensor, or of all tensors, inside an epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cocoll.epilogues.expr import Expression, convert, graph_of, lift
from cocoll.epilogues.graph import Kind
from cocoll.errors import TraceError

if TYPE_CHECKING:
    from cocoll.epilogues.graph import Node

__all__ = ["SCOPES", "Total", "is_total", "total"]

_OPERATION = "total"

#: What a total may be taken over: each tensor of a list alone, or all of them.
SCOPES = ("tensor", "all")


@dataclass(frozen=True, slots=True)
class Total:
    """What one total adds up.

    Parameters
    ----------
    ordinal : int
        Its place among all totals of the epilogue.
    squares : bool
        Whether each value is squared, in float64.
    per_tensor : bool
        Whether each tensor of a list has its own.
    label : str
        The name by which callers can ask for it; empty where they cannot.
    """

    ordinal: int
    squares: bool
    per_tensor: bool
    label: str

    @property
    def name(self) -> str:
        """What the scalar is called that later stages read; no parameter can be called so."""
        return f"total {self.ordinal}"

    @classmethod
    def of(cls, ordinal: int, node: Node) -> Total:
        """Give what a node of a graph adds up."""
        how, scope, *label = str(node.attribute).split()
        return cls(ordinal, how == "squares", scope == "tensor", label[0] if label else "")


def is_total(node: Node) -> bool:
    """Whether a node is a total."""
    return node.operation == _OPERATION


def total(value: Any, *, squares: bool, over: str, name: str | None = None) -> Expression:
    """Add the node of a total: a scalar that is known once all ranks have added up.

    Parameters
    ----------
    value : Expression
        A value inside an epilogue that differs from element to element.
    squares : bool
        Whether to add up squares.
    over : {"tensor", "all"}
        Of a list of tensors, each alone or all of them.
    name : str, optional
        By which callers can ask for it.

    Returns
    -------
    Expression
        A scalar, in float64.

    Raises
    ------
    TraceError
        `value` is a scalar or a truth value, `over` is neither of the two, or `name` is no word.
    """
    graph = graph_of(value)
    lifted = lift(graph, value)
    if over not in SCOPES:
        raise TraceError(f"a total is over 'tensor' or 'all'; got {over!r}")
    if lifted.kind.is_boolean:
        raise TraceError("a total adds up numbers; got a truth value: use cocoll.where")
    if lifted.kind.is_scalar:
        raise TraceError("a total adds up the elements of an array; got a scalar")
    if lifted.kind.is_integer:
        lifted = convert(lifted, Kind.FLOAT64)
    if name is not None and not str(name).isidentifier():
        raise TraceError(f"a total is called by one word; got {name!r}")
    attribute = f"{'squares' if squares else 'values'} {over} {name or ''}".rstrip()
    return Expression(graph, graph.add(_OPERATION, (lifted.index,), Kind.SCALAR, attribute))
