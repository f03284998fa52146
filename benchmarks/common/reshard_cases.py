"""The cases of the resharding benchmark: tensors, meshes and specs.

case1 to case9 and the one-to-many ones are those of Zhuang et al., "On Optimizing the Communication
of Model Parallelism", MLSys 2023, sections 5.1.1 and 5.1.2 (hosts of 4 GPUs; case8 with another
destination than case7). Those named after DTensor stay inside one mesh, as it does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, TypeVar

from cocoll.errors import UnsupportedError
from cocoll.resharding import Mesh, MulticastPlan, TensorMove, plan_reshard
from cocoll.resharding.solvers import SOLVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cocoll.topology import Topology

_Given = TypeVar("_Given")

__all__ = [
    "CASES",
    "MODELS",
    "Entry",
    "ModelCase",
    "ReshardCase",
    "plan_case",
    "plan_entries",
]


@dataclass(frozen=True)
class ReshardCase:
    """A tensor that goes from the first hosts of a cluster to the next ones.

    Meshes are (hosts, ranks a host). With `is_one_mesh` it stays on those of `src_mesh`, which
    form a mesh of a single axis.
    """

    name: str
    shape: tuple[int, ...]
    src_mesh: tuple[int, int]
    src_spec: str
    dst_mesh: tuple[int, int]
    dst_spec: str
    dtype: str = "int32"
    is_one_mesh: bool = False

    @property
    def hosts(self) -> int:
        """How many hosts it wants."""
        return self.src_mesh[0] + (0 if self.is_one_mesh else self.dst_mesh[0])

    @property
    def ranks(self) -> int:
        """How many ranks have a part of it."""
        return prod(self.src_mesh) + (0 if self.is_one_mesh else prod(self.dst_mesh))

    def scaled(self, nbytes: int, itemsize_bytes: int = 4) -> ReshardCase:
        """Give the case with a tensor of about `nbytes`, its first dim in the same proportions."""
        rows = max(1, round(nbytes / (prod(self.shape[1:]) * itemsize_bytes)))
        unit = prod(self.src_mesh) * (1 if self.is_one_mesh else prod(self.dst_mesh))
        if rows > unit and self.shape[0] % unit == 0:
            rows = rows // unit * unit
        return replace(self, shape=(rows, *self.shape[1:]))

    def on_all_of(self, hosts: int, ranks_per_host: int) -> ReshardCase:
        """Give a case of one mesh on all ranks of a cluster, with dims that divide among them."""
        mesh, world_size = (hosts, ranks_per_host), hosts * ranks_per_host
        shape = tuple(max(1, length // world_size) * world_size for length in self.shape)
        return replace(self, shape=shape, src_mesh=mesh, dst_mesh=mesh)

    def meshes(self, topology: Topology) -> tuple[Mesh, Mesh]:
        """Give source and destination mesh: on different hosts, or the same one twice."""
        if self.is_one_mesh:
            mesh = Mesh(Mesh.on_hosts(topology, *self.src_mesh).ranks)
            return mesh, mesh
        return (
            Mesh.on_hosts(topology, *self.src_mesh),
            Mesh.on_hosts(topology, *self.dst_mesh, first_host=self.src_mesh[0]),
        )


@dataclass(frozen=True)
class ModelCase:
    """Tensors that go together from the first ranks of a preset to the next ones."""

    name: str
    preset: str
    hosts: int
    src_meshes: tuple[tuple[int, ...], ...]
    src_specs: tuple[str, ...]
    dst_meshes: tuple[tuple[int, ...], ...]
    dst_specs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    tensors: int
    dtype: str = "bfloat16"

    @property
    def ranks(self) -> int:
        """Of both sides together."""
        return 2 * prod(self.src_meshes[0])

    def moves(self) -> list[TensorMove]:
        """Give the tensors: shapes, meshes and specs take turns."""
        first = prod(self.src_meshes[0])
        sources = [Mesh.arange(shape) for shape in self.src_meshes]
        targets = [Mesh.arange(shape, first) for shape in self.dst_meshes]
        found = []
        for number in range(self.tensors):
            again = number // len(self.src_specs)
            src = sources[again % len(sources)], _turn(self.src_specs, number)
            dst = targets[again // 2 % len(targets)], _turn(self.dst_specs, number + again)
            found.append(TensorMove(_turn(self.shapes, number), src, dst, self.dtype))
        return found


def _turn(given: tuple[_Given, ...], number: int) -> _Given:
    return given[number % len(given)]


_CUBE = (1024, 1024, 512)
# 64 MiB of float32, as near as both dims divide by 20 ranks.
_SQUARE = (4020, 4160)

_LISTED = [
    ReshardCase("case1", _CUBE, (2, 4), "S0,R,R", (2, 4), "S0,R,R"),
    ReshardCase("case2", _CUBE, (2, 4), "R,R,R", (2, 4), "S0,R,R"),
    ReshardCase("case3", _CUBE, (2, 4), "R,S0,R", (2, 4), "S0,R,R"),
    ReshardCase("case4", _CUBE, (2, 4), "R,S01,R", (2, 4), "S01,R,R"),
    ReshardCase("case5", _CUBE, (2, 4), "S1,R,R", (2, 4), "S0,R,R"),
    ReshardCase("case6", (3072, 1024, 170), (2, 4), "S0,R,R", (3, 4), "S0,R,R"),
    ReshardCase("case7", _CUBE, (1, 4), "S1,R,R", (2, 4), "R,R,R"),
    ReshardCase("case8", _CUBE, (1, 4), "S1,R,R", (4, 2), "R,R,R"),
    ReshardCase("case9", _CUBE, (2, 4), "R,S0,R", (2, 4), "R,R,S0"),
    *(
        ReshardCase(f"one_to_many_{hosts}x{ranks}", (2**28,), (1, 1), "R", (hosts, ranks), "R")
        for hosts, ranks in [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (3, 2), (4, 2), (4, 4)]
    ),
    ReshardCase("striping_2to3", _CUBE, (2, 4), "R,R,R", (3, 4), "S0,R,R"),
    ReshardCase("uneven", (1000, 1021, 509), (2, 4), "S0,S1,R", (3, 4), "R,S0,R"),
    # DTensor's Shard(0) to Shard(1), and to Replicate().
    ReshardCase(
        "dtensor_S0_to_S1", _SQUARE, (5, 4), "S0,R", (5, 4), "R,S0", "float32", is_one_mesh=True
    ),
    ReshardCase(
        "dtensor_S0_to_R", _SQUARE, (5, 4), "S0,R", (5, 4), "R,R", "float32", is_one_mesh=True
    ),
]

#: By name.
CASES = {case.name: case for case in _LISTED}

_GRIDS = ((128, 8), (64, 16))

#: By name; what is looked at is how long planning takes.
MODELS = {
    case.name: case
    for case in [
        ModelCase(
            "model_500x1024", "dgx-h100", 256,
            _GRIDS, ("S0,R", "S01,R", "S1,R", "R,R"), _GRIDS, ("S1,R", "S01,R", "R,R", "S0,R"),
            ((4096, 4096), (4096, 16384), (16384, 4096), (8192, 2048), (4096, 4097)), 500,
        ),
    ]
}  # fmt: skip


def plan_case(case: ReshardCase, topology: Topology, *, solver: str = "auto") -> MulticastPlan:
    """Plan a case on the first hosts of a topology."""
    src, dst = case.meshes(topology)
    return plan_reshard(
        case.shape,
        (src, case.src_spec),
        (dst, case.dst_spec),
        case.dtype,
        topology,
        solver=solver,
    )


@dataclass(slots=True)
class Entry:
    """What is measured of a case: a schedule, which equal solvers share, or a peer.

    Attributes
    ----------
    names : list of str
        Solvers, or the peer.
    planned : MulticastPlan or None
        None of a peer, and so is `planning_seconds`.
    samples : list of float
        Seconds of the slowest rank; empty where nothing was run.
    is_right : bool
        Whether every element was.
    version : str or None
        Of a peer.
    """

    names: list[str]
    planned: MulticastPlan | None
    planning_seconds: float | None
    samples: list[float]
    is_right: bool = True
    version: str | None = None


def plan_entries(
    plan: Callable[[str], MulticastPlan], solvers: Iterable[str] = SOLVERS
) -> list[Entry]:
    """Plan a case with every solver that serves it."""
    found: dict[object, Entry] = {}
    for solver in solvers:
        begin = time.perf_counter()
        try:
            planned = plan(solver)
        except UnsupportedError:
            continue
        seconds = time.perf_counter() - begin
        key = planned.schedule.groups
        if key in found:
            found[key].names.append(solver)
        else:
            found[key] = Entry([solver], planned, seconds, [])
    return list(found.values())
