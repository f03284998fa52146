"""The values that an epilogue is written with, and the nodes that operations on them make."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any, NoReturn

from cocoll.epilogues.graph import Graph, Kind, Node
from cocoll.epilogues.scalars import SCALAR_OPERATIONS
from cocoll.errors import DTypeError, TraceError

if TYPE_CHECKING:
    from cocoll.dtypes import DType

__all__ = [
    "Expression",
    "arithmetic",
    "comparison",
    "convert",
    "drop",
    "graph_of",
    "lift",
    "logical",
    "power",
    "round_to",
    "select",
    "unary",
]

#: ``Philox`` keys give a dropout's ordinal 11 bits beside a seed of 53 (kernels/philox.h).
MAX_DROPOUTS = 2048

# An integer array that meets a scalar is computed in a floating type that holds its values, as far
# as there is one.
_FLOAT_OF_INTEGER = {Kind.UINT8: Kind.FLOAT32, Kind.INT32: Kind.FLOAT64, Kind.INT64: Kind.FLOAT64}
_WIDTH = {Kind.UINT8: 1, Kind.INT32: 4, Kind.INT64: 8, Kind.FLOAT32: 4, Kind.FLOAT64: 8}


class Expression:
    """A value inside an epilogue: the reduced value, an array, a scalar, or computed from them.

    It stands for every element at once, so Python can neither branch on it nor look into it.
    """

    __slots__ = ("_graph", "_index")

    #: NumPy functions and operators leave the work to this class, or refuse.
    __array_ufunc__ = None

    def __init__(self, graph: Graph, index: int) -> None:
        self._graph = graph
        self._index = index

    @property
    def graph(self) -> Graph:
        """The graph of the trace that this value belongs to."""
        return self._graph

    @property
    def index(self) -> int:
        """The place of its node in the graph."""
        return self._index

    @property
    def node(self) -> Node:
        """Its node."""
        return self._graph.nodes[self._index]

    @property
    def kind(self) -> Kind:
        """What it is computed in."""
        return self.node.kind

    @property
    def dtype(self) -> DType:
        """The element type: as stored for an array parameter, as computed for anything else.

        Raises
        ------
        TraceError
            It is a scalar or a truth value.
        """
        return self._graph.dtype(self._index)

    def __repr__(self) -> str:
        """Give the operation, for messages."""
        node = self.node
        what = node.attribute if node.operation in ("array", "scalar", "constant") else ""
        return f"<epilogue value: {node.operation}{f' {what}' if what != '' else ''}>"

    def __add__(self, other: Any) -> Expression:
        return arithmetic("add", self, other)

    def __radd__(self, other: Any) -> Expression:
        return arithmetic("add", other, self)

    def __sub__(self, other: Any) -> Expression:
        return arithmetic("sub", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return arithmetic("sub", other, self)

    def __mul__(self, other: Any) -> Expression:
        return arithmetic("mul", self, other)

    def __rmul__(self, other: Any) -> Expression:
        return arithmetic("mul", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return arithmetic("div", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return arithmetic("div", other, self)

    def __pow__(self, other: Any) -> Expression:
        return power(self, other)

    def __rpow__(self, other: Any) -> Expression:
        return power(other, self)

    def __neg__(self) -> Expression:
        return unary("neg", self)

    def __pos__(self) -> Expression:
        return self

    def __abs__(self) -> Expression:
        return unary("abs", self)

    def __lt__(self, other: Any) -> Expression:
        return comparison("lt", self, other)

    def __le__(self, other: Any) -> Expression:
        return comparison("le", self, other)

    def __gt__(self, other: Any) -> Expression:
        return comparison("gt", self, other)

    def __ge__(self, other: Any) -> Expression:
        return comparison("ge", self, other)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return comparison("eq", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return comparison("ne", self, other)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Any) -> Expression:
        return logical("and", self, other)

    def __or__(self, other: Any) -> Expression:
        return logical("or", self, other)

    def __invert__(self) -> Expression:
        return logical("not", self)

    def __bool__(self) -> bool:
        raise TraceError(
            "an epilogue cannot branch on its values, which exist only when the kernel runs; "
            "choose between two results with cocoll.where(condition, a, b)"
        )

    def _refuse(self, *_: Any) -> NoReturn:
        raise TraceError(
            "a value inside an epilogue stands for every element at once: it cannot be turned "
            "into a Python number, an array or a sequence, nor be indexed"
        )

    __iter__ = __len__ = __getitem__ = __contains__ = _refuse
    __int__ = __float__ = __complex__ = __index__ = __array__ = __round__ = _refuse


def graph_of(*values: Any) -> Graph:
    """Give the graph that `values` belong to.

    Raises
    ------
    TraceError
        None of them is a value of an epilogue, or they belong to two traces.
    """
    graph: Graph | None = None
    for value in values:
        if isinstance(value, Expression):
            if graph is not None and value.graph is not graph:
                raise TraceError("a value of another trace was kept and used here")
            graph = value.graph
    if graph is None:
        raise TraceError(
            "this function works on the values inside an epilogue and got none; for numbers use "
            "the math module, for arrays their own library"
        )
    return graph


def lift(graph: Graph, value: Any) -> Expression:
    """Give an expression of `graph` for an expression or a number.

    Raises
    ------
    TraceError
        `value` is neither.
    """
    if isinstance(value, Expression):
        if value.graph is not graph:
            raise TraceError("a value of another trace was kept and used here")
        return value
    if isinstance(value, numbers.Real):
        return Expression(graph, graph.add_constant(float(value)))
    raise TraceError(
        f"wanted a value of the epilogue or a number, got {type(value).__name__}; arrays come in "
        "as positional parameters, numbers that change as keyword-only ones"
    )


def convert(value: Expression, kind: Kind) -> Expression:
    """Give `value` computed in `kind`."""
    if value.kind is kind:
        return value
    return Expression(value.graph, value.graph.add("convert", (value.index,), kind))


def _common_kind(values: tuple[Expression, ...]) -> Kind:
    """Give the kind that values meet in."""
    arrays = [value.kind for value in values if not value.kind.is_scalar]
    if not arrays:
        return Kind.SCALAR
    floating = [kind for kind in arrays if kind.is_floating]
    if floating:
        return max(floating, key=_WIDTH.__getitem__)
    widest = max(arrays, key=_WIDTH.__getitem__)
    if len(arrays) < len(values):
        return _FLOAT_OF_INTEGER[widest]
    return widest


def _numbers(operation: str, graph: Graph, values: tuple[Any, ...]) -> tuple[Expression, ...]:
    lifted = tuple(lift(graph, value) for value in values)
    for value in lifted:
        if value.kind.is_boolean:
            raise TraceError(f"{operation} works on numbers; got a truth value: use cocoll.where")
    return lifted


def _apply(operation: str, values: tuple[Any, ...]) -> Expression:
    """Add a node whose arguments and result have one kind."""
    graph = graph_of(*values)
    lifted = _numbers(operation, graph, values)
    kind = _common_kind(lifted)
    if kind.is_integer:
        raise TraceError(
            f"{operation} of integer arrays alone is not supported in an epilogue: "
            'cast one first, as in cocoll.cast(mask, "float32")'
        )
    folded = _fold(operation, lifted)
    if folded is not None:
        return Expression(graph, graph.add_constant(folded))
    arguments = tuple(convert(value, kind).index for value in lifted)
    return Expression(graph, graph.add(operation, arguments, kind))


def _fold(operation: str, values: tuple[Expression, ...]) -> float | None:
    """Evaluate an operation on constants alone."""
    constants = [_constant_value(value) for value in values]
    if any(constant is None for constant in constants):
        return None
    return SCALAR_OPERATIONS[operation](*constants)


def _constant_value(value: Expression) -> float | None:
    node = value.node
    if node.operation != "constant":
        return None
    if not isinstance(node.attribute, float):
        raise TypeError(node)
    return node.attribute


def arithmetic(operation: str, a: Any, b: Any) -> Expression:
    """Add, subtract, multiply or divide, or take the smaller or larger."""
    return _apply(operation, (a, b))


def unary(operation: str, value: Any) -> Expression:
    """Apply a function of one number."""
    return _apply(operation, (value,))


def power(a: Any, b: Any) -> Expression:
    """Raise to a power; small whole and half powers become multiplications and roots."""
    graph = graph_of(a, b)
    base, exponent = _numbers("**", graph, (a, b))
    fixed = _constant_value(exponent)
    if base.kind.is_scalar or fixed is None:
        return _apply("pow", (base, exponent))
    if fixed == 0.5:
        return unary("sqrt", base)
    if fixed == -0.5:
        return arithmetic("div", 1.0, unary("sqrt", base))
    if fixed in (-1.0, -2.0):
        return arithmetic("div", 1.0, power(base, -fixed))
    if fixed == 1.0:
        return convert(base, _FLOAT_OF_INTEGER.get(base.kind, base.kind))
    if fixed == 2.0:
        return base * base
    if fixed == 3.0:
        return base * base * base
    if fixed == 4.0:
        square = base * base
        return square * square
    return _apply("pow", (base, exponent))


def comparison(operation: str, a: Any, b: Any) -> Expression:
    """Compare; the result is a truth value for :func:`cocoll.where`."""
    graph = graph_of(a, b)
    lifted = _numbers("a comparison", graph, (a, b))
    kind = _common_kind(lifted)
    arguments = tuple(convert(value, kind).index for value in lifted)
    result = Kind.SCALAR_BOOL if kind is Kind.SCALAR else Kind.BOOL
    return Expression(graph, graph.add(operation, arguments, result))


def logical(operation: str, *values: Any) -> Expression:
    """Combine truth values."""
    graph = graph_of(*values)
    lifted = [lift(graph, value) for value in values]
    if not all(value.kind.is_boolean for value in lifted):
        raise TraceError("&, | and ~ combine comparisons; got a number")
    scalar = all(value.kind.is_scalar for value in lifted)
    kind = Kind.SCALAR_BOOL if scalar else Kind.BOOL
    arguments = tuple(convert(value, kind).index for value in lifted)
    return Expression(graph, graph.add(operation, arguments, kind))


def select(condition: Any, a: Any, b: Any) -> Expression:
    """Give `a` where the condition holds and `b` elsewhere."""
    graph = graph_of(condition, a, b)
    if not isinstance(condition, Expression) or not condition.kind.is_boolean:
        raise TraceError("cocoll.where wants a comparison as its condition, such as x > 0")
    choices = _numbers("where", graph, (a, b))
    kind = _common_kind(choices)
    if kind.is_scalar and not condition.kind.is_scalar:
        # Two scalars chosen between element by element become an array, as wide as the compared.
        argument = graph.nodes[condition.index].arguments
        compared = [graph.nodes[index].kind for index in argument]
        kind = Kind.FLOAT64 if Kind.FLOAT64 in compared else Kind.FLOAT32
    if kind.is_integer:
        kind = _FLOAT_OF_INTEGER[kind]
    if not kind.is_scalar:
        condition = convert(condition, Kind.BOOL)
    arguments = (condition.index, *(convert(value, kind).index for value in choices))
    return Expression(graph, graph.add("where", arguments, kind))


def round_to(value: Any, dtype: DType) -> Expression:
    """Round to the values of `dtype`; computation goes on in its accumulate type."""
    graph = graph_of(value)
    (value,) = _numbers("cast", graph, (value,))
    if not dtype.is_floating:
        raise DTypeError(f"cast: wanted a floating dtype, got {dtype.label}")
    kind = Kind.of(dtype)
    if value.kind.is_scalar:
        value = convert(value, kind)
    # The attribute, not the kind, says where the value was rounded to.
    return Expression(graph, graph.add("cast", (value.index,), kind, dtype.label))


def drop(value: Any, p: Any) -> Expression:
    """Zero elements with probability `p` and scale the others by 1 / (1 - p)."""
    graph = graph_of(value, p)
    value, p = _numbers("dropout", graph, (value, p))
    if not value.kind.is_floating:
        raise TraceError("cocoll.dropout wants a floating array as its first argument")
    if not p.kind.is_scalar:
        raise TraceError("cocoll.dropout wants a number or a keyword-only parameter as p")
    if graph.dropout_count == MAX_DROPOUTS:
        raise TraceError(f"an epilogue has at most {MAX_DROPOUTS} dropouts")
    ordinal = graph.dropout_count
    graph.dropout_count += 1
    seed, step = graph.add_scalar("seed", 0.0), graph.add_scalar("step", 0.0)
    threshold = graph.add("dropout_threshold", (p.index,), Kind.SCALAR)
    scale = Expression(graph, graph.add("dropout_scale", (p.index,), Kind.SCALAR))
    arguments = (threshold, seed, step)
    kept = Expression(graph, graph.add("keep", arguments, Kind.BOOL, ordinal))
    return select(kept, value * scale, 0.0)
