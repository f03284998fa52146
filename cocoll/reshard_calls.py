"""Reshards tensors: from any mesh and layout to any other, at the speed of the network.

What callers leave out is agreed among the ranks, and plans are kept.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from cocoll import _core
from cocoll.array import describe_array
from cocoll.dtypes import DType
from cocoll.errors import ReshardError
from cocoll.failure import Purpose
from cocoll.resharder import Resharding
from cocoll.resharding.planner import TensorMove
from cocoll.resharding.sharding_spec import ShardingSpec

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.resharding.mesh import Mesh

__all__ = ["Resharding", "Sharded", "plan_reshard", "reshard"]

#: A mesh, and how a tensor lies on it.
Sharded: TypeAlias = "tuple[Mesh, str | ShardingSpec]"

_Pieces: TypeAlias = "Mapping[int, Sequence[int]] | None"
_MOST_PLANS = 64


def plan_reshard(
    moves: TensorMove | Sequence[TensorMove],
    *,
    solver: str = "auto",
    comm: Communicator | None = None,
) -> Resharding:
    """Plan how tensors go from one layout to another, all of them together.

    Collective: rank 0 plans, the others are told. Plans are kept: a second call with the same
    arguments costs nothing.

    Parameters
    ----------
    moves : TensorMove or sequence of TensorMove
        The tensors: shape, source and destination mesh and spec, dtype.
    solver : str, default "auto"
        A name of `cocoll.resharding.solvers.SOLVERS`.
    comm : Communicator, optional
        Default: the one that `cocoll.init` made.

    Returns
    -------
    Resharding
        Call it with this rank's shards.

    Raises
    ------
    ReshardError
        A spec does not fit its mesh or the shape, or a mesh names a rank that is not there; the
        message names dim, axis and sizes.
    UsageError
        There is no such solver.
    CollectiveMismatchError
        The ranks asked for different reshardings.

    References
    ----------
    Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 3.
    """
    chosen = _core.resolve_communicator(comm)
    listed = (moves,) if isinstance(moves, TensorMove) else tuple(moves)
    if not listed:
        raise ReshardError("wanted at least one tensor to reshard; got none")
    kept: OrderedDict[object, Resharding] = chosen._reshardings
    key = (solver, tuple(_key_of(move) for move in listed))
    found = kept.get(key)
    if found is None:
        found = kept[key] = Resharding(chosen, listed, solver)
        if len(kept) > _MOST_PLANS:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return found


def _key_of(move: TensorMove) -> object:
    source, destination = (ShardingSpec.parse(spec) for _, spec in (move.src, move.dst))
    lengths = [
        None if one is None else tuple(sorted((dim, tuple(pieces)) for dim, pieces in one.items()))
        for one in move.lengths
    ]
    return (
        move.shape,
        move.src[0],
        source,
        move.dst[0],
        destination,
        move.dtype,
        *lengths,
        move.allow_uneven,
    )


def reshard(
    x: Any = None,
    *,
    src: Sharded,
    dst: Sharded,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
    lengths: tuple[_Pieces, _Pieces] = (None, None),
    out: Any = None,
    solver: str = "auto",
    comm: Communicator | None = None,
    stream: Any = None,
) -> _core.Work:
    """Bring a sharded tensor from one mesh and layout to another.

    Collective: every rank of the communicator calls it, also one that is in neither mesh. The
    arrays belong to cocoll until the returned `Work` completes.

    Parameters
    ----------
    x : array_like, optional
        This rank's shard of the tensor, contiguous or strided; None where it has none.
    src, dst : tuple of (Mesh, str or ShardingSpec)
        Where the tensor is, and where it must be: ``(mesh, "S0,R")``. The meshes may overlap.
    shape : sequence of int, optional
        Of the whole tensor. Default: what the shards add up to, which the ranks then tell each
        other in every call.
    dtype : str, optional
        Of its elements. Default: that of the first source rank's shard.
    lengths : pair of mapping, optional
        By dim, the lengths of the pieces of source and destination, where they are not equal.
    out : array_like, optional
        Where this rank's new shard goes; disjoint from `x`. Default: a new array.
    solver : str, default "auto"
        A name of `cocoll.resharding.solvers.SOLVERS`.
    comm : Communicator, optional
        Default: the one that `cocoll.init` made.
    stream : Stream, optional
        Makes the call asynchronous. Default: it has finished when it returns.

    Returns
    -------
    Work
        Its result is this rank's new shard, None where it has none.

    Raises
    ------
    ReshardError
        A spec does not fit, shards disagree, or an array is not what the layout says; nothing has
        moved.
    CollectiveMismatchError
        The ranks asked for different reshardings; nothing has moved.

    Notes
    -----
    Partial sums (``+P0`` in the source's spec) are added in the order of the schedule, each element
    on one rank: the same bits wherever it goes.

    References
    ----------
    Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 3.
    """
    chosen = _core.resolve_communicator(comm)
    if shape is None or dtype is None:
        shape, dtype, lengths = _agree(chosen, x, src, shape, dtype, lengths)
    move = TensorMove(tuple(shape), src, dst, dtype, lengths)
    return plan_reshard(move, solver=solver, comm=chosen)(x, out=out, stream=stream)


def _agree(
    comm: Communicator,
    x: Any,
    src: Sharded,
    shape: Sequence[int] | None,
    dtype: str | None,
    lengths: tuple[_Pieces, _Pieces],
) -> tuple[Sequence[int], str, tuple[_Pieces, _Pieces]]:
    """Learn from all source ranks what the tensor is."""
    own: dict[str, Any] = {}
    if x is not None:
        found = describe_array(x, "x", -1 if dtype is None else int(DType.parse(dtype)))
        own = {"shape": found.shape, "dtype": found.dtype.label}
    told = [
        json.loads(data) for data in _core.exchange(comm, Purpose.RESHARD, json.dumps(own).encode())
    ]
    mesh, spec = src[0], ShardingSpec.parse(src[1])
    first = next(iter(mesh))
    if first >= comm.world_size or not told[first]:
        raise ReshardError(
            f"x: wanted a shard on rank {first}, the first of the source; it has none"
        )
    if dtype is None:
        dtype = str(told[first]["dtype"])
    for rank in mesh:
        if not told[rank] or told[rank]["dtype"] != dtype:
            raise ReshardError(
                f"x: wanted shards of {dtype} on all ranks of the source; got "
                f"{told[rank].get('dtype')} on rank {rank}"
            )
    if shape is not None:
        return shape, dtype, lengths
    pieces = [_measure(mesh, spec, dim, told) for dim in range(spec.ndim)]
    given = {dim: found for dim, found in enumerate(pieces) if spec.dims[dim]}
    return [sum(found) for found in pieces], dtype, (given, lengths[1])


def _measure(
    mesh: Mesh, spec: ShardingSpec, dim: int, told: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Give the lengths of a dim's pieces, on which the ranks that have one must agree."""
    axes = spec.dims[dim]
    count = math.prod(mesh.shape[axis] for axis in axes)
    found: list[int | None] = [None] * count
    for rank in mesh:
        shape = told[rank]["shape"]
        if len(shape) != spec.ndim:
            raise ReshardError(
                f"x: wanted shards of {spec.ndim} dims (spec {spec}); got shape {shape} on rank "
                f"{rank}"
            )
        at = mesh.coordinates(rank)
        piece = 0
        for axis in axes:
            piece = piece * mesh.shape[axis] + at[axis]
        if found[piece] is None:
            found[piece] = shape[dim]
        elif found[piece] != shape[dim]:
            raise ReshardError(
                f"x, dim {dim}: ranks that share piece {piece} (spec {spec}) disagree on its "
                f"length: {found[piece]}, and {shape[dim]} on rank {rank}"
            )
    return [length or 0 for length in found]
