"""Reshardings of large tensors, as many as wanted, the same ones every time."""

from __future__ import annotations

import random
from math import prod

from cocoll.resharding import Mesh, ShardingSpec
from cocoll.topology import load_topology
from tests.helpers.reshard_draws import Draw

#: Of every tensor, at least; elements are of four bytes.
LEAST_BYTES = 64 << 20

_PRESETS = [load_topology(name) for name in ("p3.8xlarge:4", "dgx-h100:2", "dgx2:1", "laptop:16")]
_MESHES = [(1,), (2,), (3,), (4,), (8,), (2, 2), (2, 3), (2, 4), (4, 2), (3, 2), (2, 2, 2)]


def large_resharding(number: int) -> Draw:
    """Give a resharding by its number: meshes that may overlap, on a preset with latency."""
    generator = random.Random(number)
    # The sequences of `random` are the same in every version of Python.
    topology = _one_of(generator, _PRESETS)
    src, dst = _mesh(generator, topology.world_size), _mesh(generator, topology.world_size)
    dims = 1 + int(generator.random() * 3)
    shape = [_one_of(generator, [4, 6, 8, 12, 16, 30, 64, 96]) for _ in range(dims)]
    # The last dim is as long as it takes, and seldom divides.
    rows = LEAST_BYTES * (1 + generator.random()) / 4 / prod(shape[:-1])
    shape[-1] = int(rows) + 1
    return Draw(
        topology,
        tuple(shape),
        src,
        _spec(generator, src, dims, partial=generator.random() < 0.1),
        dst,
        _spec(generator, dst, dims, partial=False),
    )


def _one_of(generator: random.Random, choices: list) -> object:
    return choices[int(generator.random() * len(choices))]


def _mesh(generator: random.Random, world_size: int) -> Mesh:
    shape = _one_of(generator, _MESHES)
    size = prod(shape)
    first = int(generator.random() * (world_size - size + 1))
    if generator.random() < 0.6:
        return Mesh.arange(shape, first)
    mixed = sorted((generator.random(), rank) for rank in range(world_size))
    ranks = iter([rank for _, rank in mixed])
    return Mesh(_nested(ranks, shape))


def _nested(ranks, shape: tuple[int, ...]) -> list:
    if len(shape) == 1:
        return [next(ranks) for _ in range(shape[0])]
    return [_nested(ranks, shape[1:]) for _ in range(shape[0])]


def _spec(generator: random.Random, mesh: Mesh, dims: int, *, partial: bool) -> ShardingSpec:
    axes: list[tuple[int, ...]] = [()] * dims
    sums = []
    order = sorted((generator.random(), axis) for axis in range(mesh.ndim))
    for _, axis in order:
        place = int(generator.random() * (dims + 1)) - 1
        if place >= 0:
            axes[place] = (*axes[place], axis)
        elif partial:
            sums.append(axis)
    return ShardingSpec(tuple(axes), tuple(sorted(sums)))
