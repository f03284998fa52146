"""The typed expression graph that an epilogue is traced into.

Nodes are numbered in the order they are made and equal nodes are one node, so that a graph has one
canonical text, on every rank and in every Python. Values carry a :class:`Kind`: what they are
computed in. Python numbers and keyword-only parameters are *scalars*: they have no type of their
own and take that of the array they meet. Expressions of scalars alone are evaluated once an
operation, in float64.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from cocoll.dtypes import DType
from cocoll.errors import DTypeError, TraceError

__all__ = ["Graph", "Kind", "Node"]


class Kind(enum.Enum):
    """What a value is computed in; the value of a member is its C++ type."""

    FLOAT32 = "float"
    FLOAT64 = "double"
    INT32 = "int32_t"
    INT64 = "int64_t"
    UINT8 = "uint8_t"
    BOOL = "bool"
    SCALAR = "scalar"
    SCALAR_BOOL = "scalar_bool"

    @classmethod
    def of(cls, dtype: DType) -> Kind:
        """Give what arrays of `dtype` are computed in; a DTypeError for what none may have."""
        kind = _KIND_OF.get(dtype)
        if kind is None:
            known = ", ".join(member.label for member in _KIND_OF)
            raise DTypeError(
                f"an epilogue's arrays have a dtype out of {known}; got {dtype.label}. Convert it"
            )
        return kind

    @property
    def is_scalar(self) -> bool:
        """Whether the value is the same for all elements and known before the kernel runs."""
        return self in (Kind.SCALAR, Kind.SCALAR_BOOL)

    @property
    def is_boolean(self) -> bool:
        """Whether the value is a truth value."""
        return self in (Kind.BOOL, Kind.SCALAR_BOOL)

    @property
    def is_floating(self) -> bool:
        """Whether the value is an array's of floating type."""
        return self in (Kind.FLOAT32, Kind.FLOAT64)

    @property
    def is_integer(self) -> bool:
        """Whether the value is an array's of integer type."""
        return self in (Kind.INT32, Kind.INT64, Kind.UINT8)


_KIND_OF = {
    DType.FLOAT16: Kind.FLOAT32,
    DType.BFLOAT16: Kind.FLOAT32,
    DType.FLOAT8_E4M3FN: Kind.FLOAT32,
    DType.FLOAT8_E5M2: Kind.FLOAT32,
    DType.FLOAT32: Kind.FLOAT32,
    DType.FLOAT64: Kind.FLOAT64,
    DType.INT32: Kind.INT32,
    DType.INT64: Kind.INT64,
    DType.UINT8: Kind.UINT8,
}
_DTYPE_OF = {
    Kind.FLOAT32: DType.FLOAT32,
    Kind.FLOAT64: DType.FLOAT64,
    Kind.INT32: DType.INT32,
    Kind.INT64: DType.INT64,
    Kind.UINT8: DType.UINT8,
}

Attribute: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of the graph.

    Parameters
    ----------
    operation : str
        ``"array"``, ``"scalar"``, ``"constant"``, or what it computes.
    arguments : tuple of int
        Indices of the nodes it reads.
    kind : Kind
        What it is computed in.
    attribute : str, int, float or None
        The name of an array or scalar, the value of a constant, the target of a cast, the ordinal
        of a dropout.
    """

    operation: str
    arguments: tuple[int, ...]
    kind: Kind
    attribute: Attribute = None

    def describe(self) -> str:
        """Give a text that is equal exactly for equal nodes, in every process."""
        attribute = self.attribute
        shown = attribute.hex() if isinstance(attribute, float) else repr(attribute)
        return f"{self.operation}:{self.kind.value}:{shown}:{self.arguments}"


class Graph:
    """The nodes of one trace."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.scalars: dict[str, float | None] = {}
        self.dropout_count = 0
        self._index_of: dict[Node, int] = {}
        self._array_dtypes: dict[int, DType] = {}

    def add(
        self, operation: str, arguments: tuple[int, ...], kind: Kind, attribute: Attribute = None
    ) -> int:
        """Give the index of a node, made if it is new."""
        # Node(0.0) == Node(-0.0) == Node(0): constants are told apart by their bits.
        if isinstance(attribute, float):
            key = Node(operation, arguments, kind, attribute.hex())
        else:
            key = Node(operation, arguments, kind, attribute)
        index = self._index_of.get(key)
        if index is None:
            index = len(self.nodes)
            self.nodes.append(Node(operation, arguments, kind, attribute))
            self._index_of[key] = index
        return index

    def add_array(self, name: str, dtype: DType) -> int:
        """Give the index of an array parameter's node."""
        index = self.add("array", (), Kind.of(dtype), name)
        self._array_dtypes[index] = dtype
        return index

    def add_scalar(self, name: str, default: float | None) -> int:
        """Give the index of a scalar parameter's node; it is declared if it is new."""
        self.scalars.setdefault(name, default)
        return self.add("scalar", (), Kind.SCALAR, name)

    def add_constant(self, value: float) -> int:
        """Give the index of the node of a number that the function holds."""
        return self.add("constant", (), Kind.SCALAR, float(value))

    def dtype(self, index: int) -> DType:
        """Give the type of a node: as stored for an array, as computed for anything else."""
        stored = self._array_dtypes.get(index)
        if stored is not None:
            return stored
        kind = self.nodes[index].kind
        if kind not in _DTYPE_OF:
            raise TraceError("a scalar or a truth value has no dtype of its own")
        return _DTYPE_OF[kind]
