"""Sharding specs as torch and JAX write them. Neither is imported: objects are asked.

References
----------
torch.distributed.tensor, "DTensor placements": one of Shard(dim), Replicate(), Partial(op) for each
mesh axis; jax.sharding.PartitionSpec: for each tensor dim None, a mesh axis name, or several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cocoll.errors import ReshardError
from cocoll.resharding.sharding_spec import ShardingSpec

if TYPE_CHECKING:
    from cocoll.resharding.mesh import Mesh

__all__ = ["from_partition_spec", "from_placements", "to_partition_spec", "to_placements"]


def from_placements(placements: Sequence[Any], ndim: int, mesh: Mesh) -> ShardingSpec:
    """Give the spec that DTensor placements mean.

    Parameters
    ----------
    placements : sequence
        Of each mesh axis: what has ``is_shard()``, ``is_replicate()`` and ``is_partial()``.
    ndim : int
        How many dims the tensor has.
    mesh : Mesh
        The mesh.

    Returns
    -------
    ShardingSpec
        An axis with a ``split_factor`` (torch's strided shards) comes after the axes that have cut
        the dim into that many pieces before it.

    Raises
    ------
    ReshardError
        They are not one for each axis, name a dim that is not there, or hold something unknown.
    """
    if len(placements) != mesh.ndim:
        raise ReshardError(
            f"wanted a placement for each of the {mesh.ndim} axes of the {mesh}; "
            f"got {len(placements)}: {list(placements)}"
        )
    dims: list[list[int]] = [[] for _ in range(ndim)]
    partial = []
    # From the last axis on: a strided one goes behind axes with larger numbers.
    for axis in reversed(range(mesh.ndim)):
        placement = placements[axis]
        if placement.is_partial():
            operator = str(getattr(placement, "reduce_op", "sum"))
            if operator != "sum":
                raise ReshardError(
                    f"mesh axis {axis}: wanted partial sums; got {placement}, of {operator!r}"
                )
            partial.append(axis)
        elif not placement.is_replicate():
            dim = getattr(placement, "dim", None)
            if not isinstance(dim, int) or not -ndim <= dim < ndim:
                raise ReshardError(
                    f"mesh axis {axis} of length {mesh.shape[axis]}: {placement} names dim {dim} "
                    f"of a tensor with {ndim} dims"
                )
            _insert(dims[dim], axis, int(getattr(placement, "split_factor", 1)), mesh)
    return ShardingSpec(tuple(map(tuple, dims)), tuple(reversed(partial)))


def _insert(axes: list[int], axis: int, split_factor: int, mesh: Mesh) -> None:
    pieces = place = 1
    place = 0
    while pieces < split_factor and place < len(axes):
        pieces *= mesh.shape[axes[place]]
        place += 1
    if pieces != split_factor:
        raise ReshardError(
            f"mesh axis {axis}: a split factor of {split_factor} is no product of the lengths "
            f"{[mesh.shape[other] for other in axes]} of the axes after it"
        )
    axes.insert(place, axis)


def to_placements(
    spec: ShardingSpec,
    mesh: Mesh,
    *,
    shard: Callable[[int], Any],
    replicate: Callable[[], Any],
    partial: Callable[[], Any] | None = None,
    strided_shard: Callable[..., Any] | None = None,
) -> list[Any]:
    """Give the DTensor placements of a spec.

    Parameters
    ----------
    spec : ShardingSpec
        What to write.
    mesh : Mesh
        The mesh.
    shard, replicate, partial : callable
        torch's ``Shard``, ``Replicate`` and ``Partial``.
    strided_shard : callable, optional
        torch's ``_StridedShard``, which ``S10`` needs.

    Returns
    -------
    list
        One for each mesh axis.

    Raises
    ------
    ReshardError
        It has lengths of its own, which placements cannot say, or needs what was not given.
    """
    if spec.lengths:
        raise ReshardError(f"spec {spec}: placements cannot say lengths of pieces")
    of_axis = {axis: dim for dim, axes in enumerate(spec.dims) for axis in axes}
    found: list[Any] = []
    for axis in range(mesh.ndim):
        if axis in spec.partial:
            if partial is None:
                raise ReshardError(f"spec {spec}: mesh axis {axis} needs partial=")
            found.append(partial())
        elif axis not in of_axis:
            found.append(replicate())
        else:
            dim = of_axis[axis]
            axes = spec.dims[dim]
            before = [other for other in axes[: axes.index(axis)] if other > axis]
            factor = 1
            for other in before:
                factor *= mesh.shape[other]
            if not before:
                found.append(shard(dim))
            elif strided_shard is None:
                raise ReshardError(
                    f"spec {spec}, dim {dim}: mesh axis {axis} comes after axis {before[0]}, which "
                    "needs strided_shard="
                )
            else:
                found.append(strided_shard(dim, split_factor=factor))
    return found


def from_partition_spec(partition_spec: Sequence[Any], ndim: int, mesh: Mesh) -> ShardingSpec:
    """Give the spec that a PartitionSpec-like tuple means.

    Parameters
    ----------
    partition_spec : sequence
        For each dim None, the name of a mesh axis, or a tuple of names; dims at the end that are
        not named are whole.
    ndim : int
        How many dims the tensor has.
    mesh : Mesh
        With `axis_names`.

    Returns
    -------
    ShardingSpec
        The same.

    Raises
    ------
    ReshardError
        The mesh has no names, or none of this name, or there are too many dims.
    """
    names = _names_of(mesh)
    if len(partition_spec) > ndim:
        raise ReshardError(
            f"wanted at most {ndim} entries, one for each dim; got {tuple(partition_spec)}"
        )
    dims = []
    for dim in range(ndim):
        entry = partition_spec[dim] if dim < len(partition_spec) else None
        wanted = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for name in wanted:
            if name not in names:
                raise ReshardError(
                    f"dim {dim}: {name!r} is no axis of the {mesh}, whose axes are {names}"
                )
        dims.append(tuple(map(names.index, wanted)))
    return ShardingSpec(tuple(dims))


def to_partition_spec(spec: ShardingSpec, mesh: Mesh) -> tuple[str | tuple[str, ...] | None, ...]:
    """Give the tuple that jax.sharding.PartitionSpec takes.

    Parameters
    ----------
    spec : ShardingSpec
        What to write.
    mesh : Mesh
        With `axis_names`.

    Returns
    -------
    tuple
        For each dim None, a name, or a tuple of names.

    Raises
    ------
    ReshardError
        The mesh has no names, or the spec has partial sums or lengths.
    """
    names = _names_of(mesh)
    if spec.partial or spec.lengths:
        raise ReshardError(f"spec {spec}: a PartitionSpec has neither partial sums nor lengths")
    found: list[str | tuple[str, ...] | None] = []
    for axes in spec.dims:
        if len(axes) == 1:
            found.append(names[axes[0]])
        else:
            found.append(tuple(names[axis] for axis in axes) or None)
    return tuple(found)


def _names_of(mesh: Mesh) -> tuple[str, ...]:
    if mesh.axis_names is None:
        raise ReshardError(f"the {mesh} has no axis names; give it some: Mesh(ranks, axis_names=)")
    return mesh.axis_names
