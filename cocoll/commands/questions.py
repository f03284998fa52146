"""What a communicator would do on a topology, asked without one: algorithms and alternatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from cocoll import epilogues
from cocoll.algorithms import OperandSpec, ReduceSpec
from cocoll.algorithms.choosing import Candidate, Demand, candidates
from cocoll.dtypes import DType
from cocoll.failure import Kind, Option
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS, Plan
from cocoll.simulation.explainer import Explanation, explain
from cocoll.tuning import Tuning
from cocoll.variants import INLINE, ONE_SHOT, choose_variants

if TYPE_CHECKING:
    from cocoll.epilogues import Epilogue
    from cocoll.topology.cost import CollectiveKind
    from cocoll.topology.graph import Topology

__all__ = ["FUSED", "Question", "explain_question", "reduce_spec"]

_MAKERS: dict[str, Callable[[], Epilogue]] = {
    "adam": epilogues.adam,
    "adamw": epilogues.adamw,
    "sgd": lambda: epilogues.sgd(momentum=0.9),
}
#: The optimizers that can ride in a planned all-reduce.
FUSED = tuple(_MAKERS)

_CODES = {
    "allreduce": Kind.ALLREDUCE,
    "broadcast": Kind.BROADCAST,
    "allgather": Kind.ALLGATHER,
    "reduce_scatter": Kind.REDUCE_SCATTER,
}
_LONGER = ONE_SHOT + 1
_WHY = {
    INLINE: "the data travels in the arrival lines",
    ONE_SHOT: "one synchronisation, every rank reads everything",
    _LONGER: "every rank reads and writes only its part of every array",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be planned.

    Attributes
    ----------
    kind : str
        The collective.
    spec : ReduceSpec
        Its arrays; of a copy the source and one result.
    count : int
        Elements of the whole vector.
    topology : Topology
        Where.
    root : int
        Of a broadcast.
    symmetric : bool
        Whether arrays are symmetric memory; else they are staged.
    replicated : bool
        Whether the ranks of a host have one copy of the results between them.
    staging_bytes : int or None
        What a rank has for data under way. None: what communicators have.
    """

    kind: CollectiveKind
    spec: ReduceSpec
    count: int
    topology: Topology
    root: int = 0
    symmetric: bool = True
    replicated: bool = False
    staging_bytes: int | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the whole vector."""
        return self.count * self.spec.source_itemsize_bytes

    @property
    def is_on_gpus(self) -> bool:
        """Whether ranks are on GPUs."""
        return any(place.device is not None for place in self.topology.placements)


def reduce_spec(dtype: str, fused: str | None = None) -> ReduceSpec:
    """Give what a collective works on.

    Parameters
    ----------
    dtype : str
        Of the elements.
    fused : str, optional
        An optimizer: of the same dtype, its state in shards of the accumulate type.

    Returns
    -------
    ReduceSpec
        As the call itself would have it.
    """
    source = DType.parse(dtype)
    if fused is None:
        return ReduceSpec(source.itemsize_bytes, (source.itemsize_bytes,))
    optimizer = _MAKERS[fused]()
    arrays = {
        name: source.accumulate if name in optimizer.sharded else source
        for name in optimizer.array_names
        if name != "master"
    }
    traced = optimizer.trace(source, arrays, out_dtype=source)
    return ReduceSpec(
        source.itemsize_bytes,
        tuple(result.dtype.itemsize_bytes for result in traced.results),
        tuple(
            OperandSpec(
                operand.dtype.itemsize_bytes,
                sharded=operand.sharded,
                updated=operand.updated and operand.sharded,
            )
            for operand in traced.operands
        ),
    )


class _Way(NamedTuple):
    name: str
    why: str
    make: Callable[[int], Plan]


def explain_question(question: Question, *, alternatives: bool = True) -> Explanation:
    """Explain what a communicator would do, beside everything else that it could.

    Parameters
    ----------
    question : Question
        What is to be planned.
    alternatives : bool, default True
        Whether to predict the others too.

    Returns
    -------
    Explanation
        Of the algorithm that a communicator with the default tuning would choose.
    """
    on_one = len(question.topology.hosts) == 1
    ways = _ways_on_a_host(question) if on_one else _ways_over_hosts(question)
    if not alternatives:
        ways = ways[:1]
    return explain(
        question.kind,
        [(way.name, way.make) for way in ways],
        question.topology,
        question.count,
        nbytes=question.nbytes,
        root=question.root,
        replicated=question.replicated,
        chosen=ways[0].name,
        reasons={way.name: way.why for way in ways},
    )


def _tuning(question: Question) -> Tuning:
    tuning = Tuning()
    staging = question.staging_bytes
    if question.is_on_gpus:
        # Their chunks are as long as there is room for.
        staging = tuning.gpu_window_bytes if staging is None else staging
        return replace(tuning, staging_bytes=staging, chunk_bytes=max(1, staging))
    return tuning if staging is None else replace(tuning, staging_bytes=staging)


def _ways_over_hosts(question: Question) -> list[_Way]:
    tuning = _tuning(question)
    sharded = question.kind not in ("reduce_scatter", "allgather")
    demand = Demand(
        question.kind,
        question.spec,
        question.nbytes,
        root=question.root,
        alignment_elements=SHARD_ALIGNMENT_ELEMENTS if sharded else 1,
        replicated=question.replicated,
        staging_bytes=tuning.staging_bytes,
        small_bytes=tuning.one_shot_bytes,
    )

    def way(candidate: Candidate) -> _Way:
        staged = not question.symmetric
        return _Way(candidate.name, candidate.why, lambda rank: candidate.make(rank, staged))

    return [way(candidate) for candidate in candidates(question.topology, demand)]


def _ways_on_a_host(question: Question) -> list[_Way]:
    """Give what a communicator of one host does, then what it does for other sizes and memory."""
    tuning = _tuning(question)
    own = _size_class(question, tuning)
    world_size = question.topology.world_size
    options = Option.REPLICATED if question.replicated else Option(0)
    root = question.root if question.kind == "broadcast" else -1

    def way(size_class: int, symmetric: bool) -> _Way:
        def make(rank: int) -> Plan:
            return choose_variants(
                rank,
                world_size,
                tuning,
                _CODES[question.kind],
                question.spec,
                size_class,
                root,
                options,
            ).plan(symmetric)

        plan = make(0)
        mapped = plan.mapped_sources or plan.mapped_results
        memory = "for symmetric arrays" if mapped else "for any arrays"
        return _Way(plan.name, f"{memory}, {_WHY[size_class]}", make)

    ways: dict[str, _Way] = {}
    for symmetric in (question.symmetric, not question.symmetric):
        for size_class in dict.fromkeys((own, *(ONE_SHOT, _LONGER)[own > ONE_SHOT :])):
            found = way(size_class, symmetric)
            ways.setdefault(found.name, found)
    return list(ways.values())


def _size_class(question: Question, tuning: Tuning) -> int:
    if question.kind != "allreduce":
        return _LONGER
    if question.is_on_gpus:
        return ONE_SHOT if question.nbytes <= tuning.gpu_one_shot_bytes else _LONGER
    if question.nbytes <= tuning.inline_bytes:
        return INLINE
    return ONE_SHOT if question.nbytes <= tuning.one_shot_bytes else _LONGER
