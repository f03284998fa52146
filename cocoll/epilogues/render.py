"""Rendering: a traced graph becomes C++ that host and device compilers read alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from cocoll.dtypes import DType
from cocoll.epilogues.graph import Kind, Node

if TYPE_CHECKING:
    from cocoll.epilogues.traced import Traced

__all__ = [
    "dropout_ordinals",
    "element_parameters",
    "passes_scalars_on",
    "render_functor",
    "render_prepare",
    "storage_type",
]

_STORAGE_TYPES = {
    DType.FLOAT16: "cocoll::float16",
    DType.BFLOAT16: "cocoll::bfloat16",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.INT32: "int32_t",
    DType.INT64: "int64_t",
    DType.UINT8: "uint8_t",
}
_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    # On truth values, both sides evaluated: no branch.
    "and": "&",
    "or": "|",
}
_FUNCTIONS = {
    "abs": "cocoll::absolute",
    "min": "cocoll::minimum",
    "max": "cocoll::maximum",
    "sqrt": "cocoll::square_root",
    "exp": "cocoll::exp",
    "tanh": "cocoll::tanh",
    "erf": "cocoll::erf",
    "log": "cocoll::log",
    "pow": "cocoll::power",
}
# Scalars are evaluated by the C library, in the precision that the call's numbers have.
_SCALAR_FUNCTIONS = {
    "abs": "__builtin_fabs",
    "min": "cocoll::minimum",
    "max": "cocoll::maximum",
    "sqrt": "__builtin_sqrt",
    "exp": "__builtin_exp",
    "tanh": "__builtin_tanh",
    "erf": "__builtin_erf",
    "log": "__builtin_log",
    "pow": "__builtin_pow",
}


def storage_type(dtype: DType) -> str:
    """Give the C++ type that arrays of `dtype` are stored as."""
    return _STORAGE_TYPES[dtype]


def render_functor(traced: Traced, name: str, *, tiles: bool) -> str:
    """Give the epilogue as a C++ structure.

    The structure is made from the derived scalars; its ``element`` takes the reduced value, the
    arrays that are read and the words of random bits, and gives results and updates through
    pointers, in the order of :func:`element_parameters`.

    Parameters
    ----------
    traced : Traced
        The epilogue.
    name : str
        The name of the structure.
    tiles : bool
        Whether it draws random words for a tile at a time; else its caller draws them.

    Returns
    -------
    str
        C++ text.
    """
    place = {node: position for position, node in enumerate(traced.derived)}
    members: list[str] = []
    initial: list[str] = []
    body: list[str] = []
    methods: list[str] = []
    for index, node in enumerate(traced.nodes):
        if node.kind.is_scalar:
            continue
        scalar = _scalar_argument(traced, node)
        if node.operation == "convert" and scalar is not None and scalar in place:
            members.append(f"  const {node.kind.value} t{index};")
            initial.append(f"t{index}({_from_derived(node.kind, place[scalar])})")
        elif node.operation == "keep":
            members += [
                f"  const uint32_t threshold{node.attribute};",
                f"  const uint64_t seed{node.attribute};",
                f"  const uint64_t step{node.attribute};",
            ]
            for member, cast, argument in zip(
                ("threshold", "seed", "step"),
                ("uint32_t", "uint64_t", "uint64_t"),
                node.arguments,
                strict=True,
            ):
                # A negative seed wraps: conversion from a negative double is undefined.
                value = f"static_cast<{cast}>(static_cast<int64_t>(derived[{place[argument]}]))"
                initial.append(f"{member}{node.attribute}({value})")
            if tiles:
                methods.append(_words_method(node))
            body.append(
                f"    const bool t{index} = (w{node.attribute} >> 8) >= threshold{node.attribute};"
            )
        elif node.operation != "array":
            text = _render_node(traced, node)
            body.append(f"    const {node.kind.value} t{index} = {text};")
    outputs = [
        *(f"    *r{position} = {_reference(traced, r.node)};"
          for position, r in enumerate(traced.results)),
        *(f"    *u{position} = {_reference(traced, o.node)};"
          for position, o in enumerate(traced.operands) if o.node is not None),
        *(f"    *s{position} = {_reference(traced, s.node)};"
          for position, s in enumerate(traced.summands)),
    ]  # fmt: skip
    parameters = ", ".join(element_parameters(traced))
    constructor = f"  COCOLL_INLINE explicit {name}(const double* derived)"
    constructor += f"\n      : {', '.join(initial)} {{}}" if initial else " {}"
    if not initial:
        constructor = constructor.replace("derived)", ")")
    lines = [
        f"struct {name} {{",
        constructor,
        *methods,
        f"  COCOLL_INLINE void element({parameters}) const {{",
        *body,
        *outputs,
        "  }",
        *members,
        "};",
    ]
    return "\n".join(lines)


def element_parameters(traced: Traced) -> list[str]:
    """Give the parameters of a functor's ``element``, in order."""
    value = "x" if traced.source_node is not None else ""
    parameters = [f"{Kind.of(traced.accumulate).value} {value}".rstrip()]
    for position, operand in enumerate(traced.operands):
        if operand.source_node is not None:
            parameters.append(f"{Kind.of(operand.dtype).value} a{position}")
    parameters += [f"uint32_t w{ordinal}" for ordinal in dropout_ordinals(traced)]
    for position, result in enumerate(traced.results):
        parameters.append(f"{Kind.of(result.dtype).value}* r{position}")
    for position, operand in enumerate(traced.operands):
        if operand.node is not None:
            parameters.append(f"{Kind.of(operand.dtype).value}* u{position}")
    for position, summand in enumerate(traced.summands):
        parameters.append(f"{traced.nodes[summand.node].kind.value}* s{position}")
    return parameters


def dropout_ordinals(traced: Traced) -> list[int]:
    """Give the ordinals of the dropouts that are left in the graph."""
    return sorted(
        node.attribute
        for node in traced.nodes
        if node.operation == "keep" and isinstance(node.attribute, int)
    )


def passes_scalars_on(traced: Traced) -> bool:
    """Whether the kernel reads the scalars of the call unchanged and in order."""
    names = [traced.nodes[index].attribute for index in traced.derived]
    operations = {traced.nodes[index].operation for index in traced.derived}
    return operations <= {"scalar"} and names == [scalar.name for scalar in traced.scalars]


def render_prepare(traced: Traced, name: str) -> str:
    """Give the function that derives what the kernel reads from the scalars of a call."""
    position = {scalar.name: place for place, scalar in enumerate(traced.scalars)}
    lines = [f"COCOLL_PREPARE({name}) {{"]
    needed = set(traced.derived)
    for index in range(len(traced.nodes) - 1, -1, -1):
        if index in needed:
            needed.update(traced.nodes[index].arguments)
    for index in sorted(needed):
        node = traced.nodes[index]
        arguments = [f"t{argument}" for argument in node.arguments]
        if node.operation == "scalar":
            text = f"scalars[{position[str(node.attribute)]}]"
        elif node.operation == "constant":
            text = _literal(node)
        elif node.operation == "where":
            text = "{} != 0.0 ? {} : {}".format(*arguments)
        elif node.operation == "not":
            text = f"{arguments[0]} == 0.0 ? 1.0 : 0.0"
        elif node.operation in ("and", "or"):
            joined = " && " if node.operation == "and" else " || "
            text = f"{joined.join(f'{a} != 0.0' for a in arguments)} ? 1.0 : 0.0"
        elif node.operation == "dropout_threshold":
            p = arguments[0]
            text = f"{p} >= 0.0 && {p} <= 1.0 ? __builtin_ceil({p} * 16777216.0) : 0.0"
        elif node.operation == "dropout_scale":
            p = arguments[0]
            text = f"{p} >= 0.0 && {p} <= 1.0 ? 1.0 / (1.0 - {p}) : cocoll::not_a_number(0.0)"
        elif node.operation == "neg":
            text = f"-{arguments[0]}"
        elif node.operation in _OPERATORS:
            text = f" {_OPERATORS[node.operation]} ".join(arguments)
            if node.kind is Kind.SCALAR_BOOL:
                text = f"{text} ? 1.0 : 0.0"
        else:
            text = f"{_SCALAR_FUNCTIONS[node.operation]}({', '.join(arguments)})"
        lines.append(f"  const double t{index} = {text};")
    lines += [f"  derived[{place}] = t{node};" for place, node in enumerate(traced.derived)]
    lines.append("}")
    return "\n".join(lines)


def _scalar_argument(traced: Traced, node: Node) -> int | None:
    """Give the only argument of `node` if it is a scalar."""
    if len(node.arguments) == 1 and traced.nodes[node.arguments[0]].kind.is_scalar:
        return node.arguments[0]
    return None


def _from_derived(kind: Kind, position: int) -> str:
    if kind is Kind.BOOL:
        return f"derived[{position}] != 0.0"
    return f"static_cast<{kind.value}>(derived[{position}])"


def _words_method(node: Node) -> str:
    ordinal = node.attribute
    return (
        f"  COCOLL_INLINE const uint32_t* words{ordinal}"
        "(uint32_t* scratch, int64_t first, int count) const {\n"
        "    return cocoll::philox_tile(scratch, first, count, "
        f"cocoll::philox_key(seed{ordinal}, {ordinal}u), step{ordinal});\n"
        "  }"
    )


def _reference(traced: Traced, index: int | None) -> str:
    """Give the C++ name of a node's value."""
    if index is None:
        raise TypeError(index)
    node = traced.nodes[index]
    if node.operation != "array":
        return f"t{index}"
    if node.attribute == "":
        return "x"
    names = [operand.name for operand in traced.operands]
    return f"a{names.index(str(node.attribute))}"


def _literal(node: Node) -> str:
    value = node.attribute
    if not isinstance(value, float):
        raise TypeError(node)
    if math.isnan(value):
        return "cocoll::not_a_number(0.0)"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}cocoll::infinity(0.0)"
    return value.hex()


def _render_convert(traced: Traced, node: Node) -> str:
    (argument,) = node.arguments
    source = traced.nodes[argument]
    if source.operation == "constant":
        return f"static_cast<{node.kind.value}>({_literal(source)})"
    return f"static_cast<{node.kind.value}>({_reference(traced, argument)})"


def _render_cast(traced: Traced, node: Node) -> str:
    (argument,) = node.arguments
    stored = _STORAGE_TYPES[DType.parse(str(node.attribute))]
    value = _reference(traced, argument)
    if stored == node.kind.value:
        return f"static_cast<{stored}>({value})"
    kind = traced.nodes[argument].kind
    if kind.is_integer:
        value = f"static_cast<{node.kind.value}>({value})"
    return f"cocoll::widen(cocoll::narrow<{stored}>({value}))"


_SPECIAL: dict[str, Callable[[Traced, Node], str]] = {
    "convert": _render_convert,
    "cast": _render_cast,
}


def _render_node(traced: Traced, node: Node) -> str:
    """Give the C++ expression of one node."""
    special = _SPECIAL.get(node.operation)
    if special is not None:
        return special(traced, node)
    arguments = [_reference(traced, argument) for argument in node.arguments]
    if node.operation == "where":
        return "{} ? {} : {}".format(*arguments)
    if node.operation == "neg":
        return f"-{arguments[0]}"
    if node.operation == "not":
        return f"!{arguments[0]}"
    if node.operation in _OPERATORS:
        return f" {_OPERATORS[node.operation]} ".join(arguments)
    return f"{_FUNCTIONS[node.operation]}({', '.join(arguments)})"
