"""From what a traced function returned to a :class:`~cocoll.epilogues.traced.Traced`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cocoll.dtypes import DType
from cocoll.epilogues.expr import Expression, convert, round_to
from cocoll.epilogues.graph import Graph, Kind, Node
from cocoll.epilogues.traced import Operand, Result, ScalarParameter, Traced

__all__ = ["OUTPUT", "Request", "assemble", "find_derived"]

#: The name under which a function returns the output of the call.
OUTPUT = "out"

# Raised by 1 whenever equal graphs come to mean something else.
_DIGEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Request:
    """What an epilogue is traced for.

    Parameters
    ----------
    name : str
        The epilogue, for people.
    source_dtype : DType
        How the sources of the reduction are stored.
    arrays : Mapping of str to DType
        The arrays that are given, in the order of the parameters.
    sharded : frozenset of str
        Which of them each rank holds its shard of.
    out_dtype : DType or None
        How the output is stored, if the caller says so.
    """

    name: str
    source_dtype: DType
    arrays: Mapping[str, DType]
    sharded: frozenset[str]
    out_dtype: DType | None


def assemble(
    request: Request,
    graph: Graph,
    outputs: Mapping[str, Expression],
    scalar_defaults: Mapping[str, float | None],
) -> Traced:
    """Give what a traced function means: only the nodes that its outputs need.

    Parameters
    ----------
    request : Request
        What the epilogue is traced for.
    graph : Graph
        All nodes that the function made.
    outputs : Mapping of str to Expression
        What it returned.
    scalar_defaults : Mapping of str to float or None
        Defaults in place of those that the graph notes.

    Returns
    -------
    Traced
        The same for equal graphs, in every process.
    """
    stored = {name: _stored_dtype(request, name, value) for name, value in outputs.items()}
    computed = {
        name: _to_store(graph, value, stored[name]).index for name, value in outputs.items()
    }
    nodes, renumbered = _reachable(graph, computed.values())
    arrays_read = {
        str(node.attribute): index for index, node in enumerate(nodes) if node.operation == "array"
    }
    results = []
    operands = []
    if OUTPUT in outputs:
        results.append(Result(OUTPUT, stored[OUTPUT], renumbered[computed[OUTPUT]]))
    for name, dtype in request.arrays.items():
        updated, sharded = name in outputs, name in request.sharded
        result_index = None
        if updated and not sharded:
            result_index = len(results)
            results.append(Result(name, dtype, renumbered[computed[name]]))
        operands.append(
            Operand(
                name,
                dtype,
                sharded=sharded,
                updated=updated,
                result_index=result_index,
                source_node=arrays_read.get(name),
                node=renumbered[computed[name]] if updated and sharded else None,
            )
        )
    scalars = tuple(
        ScalarParameter(name, scalar_defaults.get(name, default))
        for name, default in graph.scalars.items()
    )
    text = [
        f"version {_DIGEST_VERSION}",
        f"source {request.source_dtype.label}",
        *(f"node {node.describe()}" for node in nodes),
        *(f"result {r.name} {r.dtype.label} {r.node}" for r in results),
        *(
            f"operand {o.name} {o.dtype.label} {o.sharded} {o.updated} {o.result_index} {o.node}"
            for o in operands
        ),
        *(f"scalar {s.name}" for s in scalars),
    ]
    return Traced(
        name=request.name,
        source_dtype=request.source_dtype,
        accumulate=request.source_dtype.accumulate,
        results=tuple(results),
        operands=tuple(operands),
        scalars=scalars,
        derived=find_derived(nodes),
        source_node=arrays_read.get(""),
        nodes=nodes,
        digest=hashlib.sha256("\n".join(text).encode()).hexdigest(),
    )


def _stored_dtype(request: Request, name: str, value: Expression) -> DType:
    if name != OUTPUT:
        return request.arrays[name]
    if request.out_dtype is not None:
        return request.out_dtype
    if value.node.operation == "cast":
        return DType.parse(str(value.node.attribute))
    return request.source_dtype


def _to_store(graph: Graph, value: Expression, stored: DType) -> Expression:
    """Give an output in the kind that arrays of its dtype are computed in."""
    kind = Kind.of(stored)
    if value.kind is kind:
        return value
    if value.kind is Kind.FLOAT64 and stored is not DType.FLOAT32:
        # Through float32, a 16-bit result would be rounded twice.
        return round_to(value, stored)
    return convert(value, kind)


def _reachable(graph: Graph, roots: Iterable[int]) -> tuple[tuple[Node, ...], dict[int, int]]:
    """Give the nodes that `roots` need, renumbered in order."""
    needed = set(roots)
    for index in range(len(graph.nodes) - 1, -1, -1):
        if index in needed:
            needed.update(graph.nodes[index].arguments)
    renumbered: dict[int, int] = {}
    nodes: list[Node] = []
    for index in sorted(needed):
        node = graph.nodes[index]
        renumbered[index] = len(nodes)
        arguments = tuple(renumbered[argument] for argument in node.arguments)
        nodes.append(Node(node.operation, arguments, node.kind, node.attribute))
    return tuple(nodes), renumbered


def find_derived(nodes: tuple[Node, ...]) -> tuple[int, ...]:
    """Give the scalar nodes that array nodes read, apart from constants."""
    read = {
        argument
        for node in nodes
        if not node.kind.is_scalar
        for argument in node.arguments
        if nodes[argument].kind.is_scalar and nodes[argument].operation != "constant"
    }
    return tuple(sorted(read))
