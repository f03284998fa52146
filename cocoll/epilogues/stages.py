"""Stages: an epilogue with totals becomes several kernels, each run once its totals are known.

A total is known once all ranks have added up their shards, so what depends on one cannot run in the
pass that adds it up. The *depth* of a value is the number of totals it waits for, one after the
other; stage k computes what has depth k. A later stage finds an earlier value in one of three ways:
it reads the array where that value was stored, computes it again from arrays that still hold what
it is made of, or reads it from an array that is held for it alone. The first two cost no memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cocoll.dtypes import DType
from cocoll.epilogues.assembly import find_derived
from cocoll.epilogues.graph import Kind, Node
from cocoll.epilogues.totals import Total, is_total
from cocoll.epilogues.traced import Operand, Result, ScalarParameter, Summand, Traced

__all__ = ["Stages", "has_totals", "split_stages"]

_EXACT = {Kind.FLOAT32: DType.FLOAT32, Kind.FLOAT64: DType.FLOAT64}


@dataclass(frozen=True, slots=True)
class Stages:
    """What an epilogue with totals runs as.

    Parameters
    ----------
    stages : tuple of Traced
        The kernels, in order. The first one reduces; the results are the last one's.
    totals : tuple of Total
        What is added up, in the order in which stages do.
    held : tuple of (str, DType)
        Arrays of the length of a shard that carry values from one stage to another, by name.
    """

    stages: tuple[Traced, ...]
    totals: tuple[Total, ...]
    held: tuple[tuple[str, DType], ...]


def split_stages(traced: Traced) -> Stages | None:
    """Give the stages of an epilogue.

    Parameters
    ----------
    traced : Traced
        The epilogue.

    Returns
    -------
    Stages or None
        None where it has no totals: it then runs in one pass.
    """
    return _Splitter(traced).split() if has_totals(traced) else None


def has_totals(traced: Traced) -> bool:
    """Whether an epilogue runs in several passes."""
    return any(is_total(node) for node in traced.nodes)


class _Splitter:
    """Cuts one graph."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._nodes = traced.nodes
        self._depths = _depths(traced.nodes)
        self._last = max(depth for depth in self._depths)
        self._updates = {
            operand.name: operand for operand in traced.operands if operand.node is not None
        }
        # Totals in the order of the stages that add them up.
        ordered = sorted(
            (index for index, node in enumerate(self._nodes) if is_total(node)),
            key=lambda index: (self._depths[index], index),
        )
        self._total_of = {
            index: Total.of(ordinal, self._nodes[index]) for ordinal, index in enumerate(ordered)
        }
        self._held: dict[int, str] = {}

    def split(self) -> Stages:
        """Give all stages: from the last one back, for later stages say what earlier ones hold."""
        stages = [self._stage(number) for number in range(self._last, -1, -1)]
        return Stages(
            tuple(reversed(stages)),
            tuple(self._total_of.values()),
            tuple((name, _EXACT[self._nodes[index].kind]) for index, name in self._held.items()),
        )

    def _stage(self, stage: int) -> Traced:
        updated = {
            name: operand
            for name, operand in self._updates.items()
            if operand.node is not None and self._depths[operand.node] == stage
        }
        summed = [
            index
            for index in self._total_of
            if self._depths[self._nodes[index].arguments[0]] == stage
        ]
        results = self._traced.results if stage == self._last else ()
        roots = [
            *(result.node for result in results),
            *(operand.node for operand in updated.values() if operand.node is not None),
            *(self._nodes[index].arguments[0] for index in summed),
            *(index for index in self._held if self._depths[index] == stage),
        ]
        if not results and not updated and len(roots) == len(summed):
            # A pass that stores nothing is no reduction: it keeps what it adds up.
            roots.append(self._hold(roots[0]))
        writer = _Writer(self, stage)
        places = {root: writer.add(root) for root in roots}
        return self._assemble(stage, writer, places, updated, summed, results)

    def _assemble(
        self,
        stage: int,
        writer: _Writer,
        places: dict[int, int],
        updated: dict[str, Operand],
        summed: list[int],
        results: tuple[Result, ...],
    ) -> Traced:
        source = self._traced
        operands = [
            Operand(
                operand.name,
                operand.dtype,
                sharded=operand.sharded,
                updated=operand.name in updated,
                result_index=operand.result_index if results else None,
                source_node=writer.arrays.get(operand.name),
                node=places[operand.node]
                if operand.name in updated and operand.node is not None
                else None,
            )
            for operand in source.operands
            if operand.name in updated
            or operand.name in writer.arrays
            or (results and operand.result_index is not None)
        ]
        for index, name in self._held.items():
            is_written = self._depths[index] == stage
            if is_written or name in writer.arrays:
                operands.append(
                    Operand(
                        name,
                        _EXACT[self._nodes[index].kind],
                        sharded=True,
                        updated=is_written,
                        result_index=None,
                        source_node=None if is_written else writer.arrays[name],
                        node=places[index] if is_written else None,
                    )
                )
        known = [total for index, total in self._total_of.items() if self._depths[index] <= stage]
        nodes = tuple(writer.nodes)
        text = [
            f"stage {stage} of {source.digest}",
            *(f"node {node.describe()}" for node in nodes),
            *(f"operand {operand}" for operand in operands),
        ]
        return Traced(
            name=source.name,
            source_dtype=source.source_dtype,
            accumulate=source.accumulate,
            results=tuple(Result(r.name, r.dtype, places[r.node]) for r in results),
            operands=tuple(operands),
            scalars=(*source.scalars, *(ScalarParameter(total.name, None) for total in known)),
            derived=find_derived(nodes),
            source_node=writer.arrays.get(""),
            nodes=nodes,
            digest=hashlib.sha256("\n".join(text).encode()).hexdigest(),
            summands=tuple(
                Summand(places[self._nodes[index].arguments[0]], self._total_of[index].squares)
                for index in summed
            ),
            reads_sources=stage == 0,
        )

    # ---- where a stage finds a value -----------------------------------------------------------

    def array_of(self, index: int, stage: int) -> str | None:
        """Give the array in which a stage finds a value as it is, or None."""
        node = self._nodes[index]
        if self._held.get(index) is not None and self._depths[index] < stage:
            return self._held[index]
        if node.operation == "array":
            name = str(node.attribute)
            return name if self._is_intact(name, stage) else None
        for name, operand in self._updates.items():
            is_exact = _EXACT.get(node.kind) is operand.dtype
            if operand.node == index and self._depths[index] < stage and is_exact:
                return name
        return None

    def _is_intact(self, name: str, stage: int) -> bool:
        if name == "":
            return stage == 0
        operand = self._updates.get(name)
        return operand is None or operand.node is None or self._depths[operand.node] >= stage

    def can_compute(self, index: int, stage: int) -> bool:
        """Whether a stage can compute a value again from arrays that are still what they were."""
        node = self._nodes[index]
        if node.kind.is_scalar or self.array_of(index, stage) is not None:
            return True
        if node.operation == "array":
            return False
        return all(self.can_compute(argument, stage) for argument in node.arguments)

    def hold_if_lost(self, index: int, stage: int) -> None:
        """Hold a value of an earlier stage that this one can neither read nor compute again."""
        node = self._nodes[index]
        if node.kind.is_scalar or self._depths[index] == stage or self.can_compute(index, stage):
            return
        if node.kind in _EXACT:
            self._hold(index)

    def _hold(self, index: int) -> int:
        self._held.setdefault(index, f"held {len(self._held)}")
        return index

    def total_of(self, index: int) -> Total:
        """Give the total that a node is."""
        return self._total_of[index]

    def node(self, index: int) -> Node:
        """Give a node of the whole graph."""
        return self._nodes[index]


class _Writer:
    """Writes the graph of one stage."""

    def __init__(self, splitter: _Splitter, stage: int) -> None:
        self._splitter = splitter
        self._stage = stage
        self._places: dict[int, int] = {}
        self.nodes: list[Node] = []
        self.arrays: dict[str, int] = {}

    def add(self, index: int) -> int:
        """Give the place of a value, written with all that it needs."""
        place = self._places.get(index)
        if place is None:
            self._splitter.hold_if_lost(index, self._stage)
            place = self._places[index] = self._write(index)
        return place

    def _write(self, index: int) -> int:
        node = self._splitter.node(index)
        if is_total(node):
            return self._append(
                Node("scalar", (), Kind.SCALAR, self._splitter.total_of(index).name)
            )
        name = None if node.kind.is_scalar else self._splitter.array_of(index, self._stage)
        if name is not None:
            if name not in self.arrays:
                self.arrays[name] = self._append(Node("array", (), node.kind, name))
            return self.arrays[name]
        arguments = tuple(self.add(argument) for argument in node.arguments)
        return self._append(Node(node.operation, arguments, node.kind, node.attribute))

    def _append(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1


def _depths(nodes: tuple[Node, ...]) -> list[int]:
    depths: list[int] = []
    for node in nodes:
        depth = max((depths[argument] for argument in node.arguments), default=0)
        depths.append(depth + 1 if is_total(node) else depth)
    return depths
