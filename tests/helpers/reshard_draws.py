"""Random topologies, meshes, specs and shapes, drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st

from cocoll.resharding import Mesh, ShardingSpec
from cocoll.topology import Topology, load_topology
from cocoll.topology.parts import Device, Host, Link, Nic, Placement, Port


def _processors() -> Topology:
    """Make hosts of processors whose NICs differ, some two of them, behind two switches."""
    hosts, placements = [], []
    for number in range(4):
        switch = "left" if number < 2 else "right"
        nics = [
            Nic(f"e{nic}", Port(50_000_000 * (1 + number % 2), 15_000), switch)
            for nic in range(1 + number // 3)
        ]
        hosts.append(Host("c", Port(20_000_000_000, 100, "half"), tuple(nics)))
        placements += [Placement(number, rank % len(nics)) for rank in range(3)]
    link = Link("left", "right", Port(80_000_000, 1000))
    return Topology("processors", tuple(hosts), tuple(placements), (link,))


def _shared_gpus() -> Topology:
    """Make hosts whose ranks share GPUs, with half-duplex ports."""
    gpu = Device("g", 300_000_000_000, Port(10_000_000_000, 700, "half"))
    host = Host(
        "s", Port(20_000_000_000, 100, "half"), (Nic("e0", Port(10**9, 5000, "half")),), (gpu, gpu)
    )
    seats = [Placement(rank // 4, 0, rank % 4 // 2) for rank in range(12)]
    return Topology("shared", (host,) * 3, tuple(seats))


TOPOLOGIES = [
    load_topology("p3.8xlarge:4"),
    load_topology("dgx-h100:2"),
    load_topology("dgx2:1"),
    load_topology("laptop:12"),
    _processors(),
    _shared_gpus(),
]


class Draw(NamedTuple):
    """A resharding."""

    topology: Topology
    shape: tuple[int, ...]
    src: Mesh
    src_spec: ShardingSpec
    dst: Mesh
    dst_spec: ShardingSpec


def _mesh(draw: st.DrawFn, world_size: int) -> Mesh:
    shape = draw(
        st.sampled_from([(1,), (2,), (4,), (2, 2), (2, 3), (1, 3), (4, 2), (2, 2, 2), (3, 1, 2)])
    )
    size = 1
    for length in shape:
        size *= length
    if draw(st.booleans()):
        first = draw(st.integers(0, world_size - size))
        return Mesh.arange(shape, first)
    ranks = draw(st.permutations(range(world_size)))[:size]
    for length in reversed(shape[1:]):
        ranks = [list(ranks[at : at + length]) for at in range(0, len(ranks), length)]
    return Mesh(ranks)


def _spec(draw: st.DrawFn, mesh: Mesh, shape: tuple[int, ...], *, partial: bool) -> ShardingSpec:
    dims: list[tuple[int, ...]] = [()] * len(shape)
    sums = []
    for axis in draw(st.permutations(range(mesh.ndim))):
        place = draw(st.integers(-2 if partial else -1, len(shape) - 1))
        if place >= 0:
            dims[place] = (*dims[place], axis)
        elif place == -2:
            sums.append(axis)
    lengths = []
    if len(dims[0]) == 1 and draw(st.booleans()):
        count = mesh.shape[dims[0][0]]
        ends = sorted(draw(st.lists(st.integers(0, shape[0]), min_size=count - 1,
                                    max_size=count - 1)))  # fmt: skip
        ends = [0, *ends, shape[0]]
        lengths = [(0, tuple(b - a for a, b in pairwise(ends)))]
    return ShardingSpec(tuple(dims), tuple(sorted(sums)), tuple(lengths))


@st.composite
def reshardings(
    draw: st.DrawFn, *, partial: bool = True, topologies: Sequence[Topology] = tuple(TOPOLOGIES)
) -> Draw:
    """Draw a small resharding: uneven shards, empty dims, overlapping meshes, given lengths."""
    topology = draw(st.sampled_from(topologies))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 7, 8]), min_size=1, max_size=3)))
    src, dst = _mesh(draw, topology.world_size), _mesh(draw, topology.world_size)
    return Draw(
        topology,
        shape,
        src,
        _spec(draw, src, shape, partial=partial),
        dst,
        _spec(draw, dst, shape, partial=False),
    )
