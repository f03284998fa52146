"""Reshards tensors: from any mesh and layout to any other, at the speed of the network.

What callers leave out is agreed among the ranks, and plans are kept.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from cocoll import _core
from cocoll.array import describe_array
from cocoll.bundle import Bundle
from cocoll.device.array import describe_device_array, is_on_device
from cocoll.dtypes import DType
from cocoll.errors import ReshardError
from cocoll.failure import Purpose
from cocoll.placement import HOST, agree_on_device, check_device_name
from cocoll.resharder import Resharding
from cocoll.resharding.mesh import Mesh
from cocoll.resharding.planner import TensorMove
from cocoll.resharding.sharding_spec import ShardingSpec

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.cuda.binding import DeviceWork
    from cocoll.epilogues import Epilogue

__all__ = ["Resharding", "Sharded", "multicast", "plan_reshard", "reshard"]

#: A mesh, and how a tensor lies on it.
Sharded: TypeAlias = "tuple[Mesh, str | ShardingSpec]"

_Pieces: TypeAlias = "Mapping[int, Sequence[int]] | None"
_MOST_PLANS = 64


def plan_reshard(
    moves: TensorMove | Sequence[TensorMove] | Mapping[str, TensorMove],
    *,
    solver: str = "auto",
    epilogue: Epilogue | None = None,
    device: str = HOST,
    comm: Communicator | None = None,
) -> Resharding:
    """Plan how tensors go from one layout to another, all of them together.

    Collective: rank 0 plans, the others are told. Plans are kept: a second call with the same
    arguments costs nothing.

    Parameters
    ----------
    moves : TensorMove, sequence of TensorMove, or mapping of str to TensorMove
        The tensors: shape, source and destination mesh and spec, dtype. A mapping is a state dict:
        shards and results then go by name too.
    solver : str, default "auto"
        A name of `cocoll.resharding.solvers.SOLVERS`.
    epilogue : Epilogue, optional
        What each element goes through where it arrives: `cocoll.epilogues.cast`, say, or any that
        takes numbers but no arrays and drops nothing. All tensors then have one dtype.
    device : str, default "cpu"
        Where the arrays of all ranks are: ``"cpu"`` for host memory; ``"cuda"`` for each rank's
        GPU or ``"cuda:N"``, as in `Communicator.empty`. GPUs need NCCL, and contiguous arrays.
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
    check_device_name(device)
    chosen = _core.resolve_communicator(comm)
    return _plan(chosen, moves, solver, epilogue, device, [])


def _plan(
    comm: Communicator,
    moves: TensorMove | Sequence[TensorMove] | Mapping[str, TensorMove],
    solver: str,
    epilogue: Epilogue | None,
    device: str | None,
    arrays: list[Any],
) -> Resharding:
    """Give a plan that is kept, or make it: then ranks also agree on where their arrays are."""
    bundle = Bundle(moves)
    kept: OrderedDict[object, Resharding] = comm._reshardings
    key = (solver, epilogue, device, bundle.form, tuple(_key_of(move) for move in bundle.moves))
    found = kept.get(key)
    if found is None:
        near = next(iter(arrays), None)
        if device is None:
            device = agree_on_device(comm, arrays)
        found = kept[key] = Resharding(comm, moves, solver, epilogue, device=device, near=near)
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
    epilogue: Epilogue | None = None,
    device: str | None = None,
    comm: Communicator | None = None,
    stream: Any = None,
    **scalars: float,
) -> _core.Work | DeviceWork:
    """Bring a sharded tensor from one mesh and layout to another.

    Collective: every rank of the communicator calls it, also one that is in neither mesh. The
    arrays belong to cocoll until the returned `Work` completes.

    Parameters
    ----------
    x : array_like, optional
        This rank's shard of the tensor, contiguous or, on the host, strided; None where it has
        none.
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
    epilogue : Epilogue, optional
        As in `plan_reshard`.
    device : str, optional
        As in `plan_reshard`. Default: where the ranks' arrays are when such a tensor is first
        resharded, which they then tell each other.
    comm : Communicator, optional
        Default: the one that `cocoll.init` made.
    stream : optional
        Of the host, a `Stream`: makes the call asynchronous. Default: it has finished when it
        returns. Of the GPU, any stream; default: that of `x`.
    **scalars : float
        The epilogue's numbers.

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
    PlanNotReadyError
        The stream is being captured: plan and bind before that.

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
    planned = _plan(chosen, move, solver, epilogue, _named(device), _given(x, out))
    return planned(x, out=out, stream=stream, **scalars)


def multicast(
    x: Any = None,
    *,
    holders: Sequence[int],
    needers: Sequence[int],
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
    out: Any = None,
    solver: str = "auto",
    device: str | None = None,
    comm: Communicator | None = None,
    stream: Any = None,
) -> _core.Work | DeviceWork:
    """Bring an array from ranks that all have it to ranks that all need it.

    Collective: every rank of the communicator calls it. Each part of the array comes from whichever
    holder, and along whichever way, the solver chooses. The arrays belong to cocoll until the
    returned `Work` completes.

    Parameters
    ----------
    x : array_like, optional
        The array, on its holders; None elsewhere.
    holders, needers : sequence of int
        Ranks; a holder may be a needer too, and gets a copy.
    shape, dtype : optional
        Of the array. Default: what its holders have, which the ranks then tell each other in every
        call.
    out : array_like, optional
        Where it goes on a needer; disjoint from `x`. Default: a new array.
    solver, device, comm, stream : optional
        As in `reshard`.

    Returns
    -------
    Work
        Its result is the array on needers, None elsewhere.

    Raises
    ------
    ReshardError
        Holders disagree on the array, or a list names a rank twice or one that is not there.
    CollectiveMismatchError
        The ranks asked for different things; nothing has moved.
    """
    chosen = _core.resolve_communicator(comm)
    source = Mesh(list(holders))
    if shape is None or dtype is None:
        found = _tell(chosen, x, source, dtype)
        dtype = found.dtype
        shape = found.shapes[source.ranks[0]] if shape is None else shape
    spec = ("R",) * len(shape)
    move = TensorMove(tuple(shape), (source, ShardingSpec.parse(spec)),
                      (Mesh(list(needers)), ShardingSpec.parse(spec)), dtype)  # fmt: skip
    planned = _plan(chosen, move, solver, None, _named(device), _given(x, out))
    return planned(x, out=out, stream=stream)


def _named(device: str | None) -> str | None:
    if device is not None:
        check_device_name(device)
    return device


def _given(*arrays: Any) -> list[Any]:
    return [array for array in arrays if array is not None]


class _Told(NamedTuple):
    """What source ranks have: their dtype, and by rank the shapes."""

    dtype: str
    shapes: dict[int, tuple[int, ...]]


def _tell(comm: Communicator, x: Any, mesh: Mesh, dtype: str | None) -> _Told:
    """Let all ranks know what those of a mesh have."""
    own: dict[str, Any] = {}
    if x is not None:
        describe = describe_device_array if is_on_device(x) else describe_array
        found = describe(x, "x", -1 if dtype is None else int(DType.parse(dtype)))
        own = {"shape": found.shape, "dtype": found.dtype.label}
    told = [
        json.loads(data) for data in _core.exchange(comm, Purpose.RESHARD, json.dumps(own).encode())
    ]
    first = mesh.ranks[0]
    if max(mesh.ranks) >= comm.world_size or not told[first]:
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
    return _Told(dtype, {rank: tuple(told[rank]["shape"]) for rank in mesh})


def _agree(
    comm: Communicator,
    x: Any,
    src: Sharded,
    shape: Sequence[int] | None,
    dtype: str | None,
    lengths: tuple[_Pieces, _Pieces],
) -> tuple[Sequence[int], str, tuple[_Pieces, _Pieces]]:
    """Learn from all source ranks what the tensor is."""
    mesh, spec = src[0], ShardingSpec.parse(src[1])
    told = _tell(comm, x, mesh, dtype)
    if shape is not None:
        return shape, told.dtype, lengths
    pieces = [_measure(mesh, spec, dim, told.shapes) for dim in range(spec.ndim)]
    given = {dim: found for dim, found in enumerate(pieces) if spec.dims[dim]}
    return [sum(found) for found in pieces], told.dtype, (given, lengths[1])


def _measure(
    mesh: Mesh, spec: ShardingSpec, dim: int, shapes: Mapping[int, tuple[int, ...]]
) -> list[int]:
    """Give the lengths of a dim's pieces, on which the ranks that have one must agree."""
    axes = spec.dims[dim]
    count = math.prod(mesh.shape[axis] for axis in axes)
    found: list[int | None] = [None] * count
    for rank in mesh:
        shape = shapes[rank]
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
