"""cocoll.reshard: the same tensors over any number of ranks, cut in many ways."""

from __future__ import annotations

import numpy as np

import cocoll
from cocoll.resharding import Layout, Mesh
from tests.helpers.cases import case
from tests.helpers.reshard_data import shard_of

Comm = cocoll.Communicator

KINDS = ("rows to columns", "turned round", "one to all", "all to one", "halves", "sums")
SHAPES = ((12, 7), (5, 3, 4), (1, 1), (0, 3), (3_000, 2))


def sides(kind: str, size: int, ndim: int) -> tuple[tuple[Mesh, str], tuple[Mesh, str]]:
    """Give where a tensor is and where it must be, in a world of any size."""
    rest = ",R" * (ndim - 2)
    rows, columns, whole = f"S0,R{rest}", f"R,S0{rest}", f"R,R{rest}"
    everyone, half = Mesh.arange((size,)), max(1, size // 2)
    first, last = Mesh([0]), Mesh([size - 1])
    return {
        "rows to columns": ((everyone, rows), (everyone, columns)),
        "turned round": ((everyone, rows), (Mesh(list(range(size))[::-1]), rows)),
        "one to all": ((first, whole), (everyone, whole)),
        "all to one": ((everyone, columns), (last, whole)),
        "halves": ((Mesh.arange((half,)), rows), (Mesh.arange((size - half or 1,), half % size),
                                                 columns)),
        "sums": ((everyone, f"{whole}+P0"), (everyone, columns)),
    }[kind]  # fmt: skip


def is_worth_it(kind: str, shape: tuple[int, ...], solver: str) -> bool:
    return solver == "auto" or (kind != "sums" and shape == SHAPES[0])


@case(kind=KINDS, shape=SHAPES, solver=("auto", "striped", "send_recv"), only=is_worth_it)
def tensors_reshard(comm: Comm, kind: str, shape: tuple[int, ...], solver: str) -> None:
    src, dst = sides(kind, comm.world_size, len(shape))
    source, target = Layout(shape, *src), Layout(shape, *dst)
    whole = (np.arange(np.prod(shape)) % 53).astype(np.float32).reshape(shape)
    mine = whole
    if kind == "sums":
        # Small whole numbers: their sums are exact.
        count = comm.world_size
        mine = whole // count if comm.rank else whole - (count - 1) * (whole // count)
    x = shard_of(mine, source, comm.rank).copy() if comm.rank in source.mesh else None
    for given in (False, True):
        facts = {"shape": shape, "dtype": "float32"} if given else {}
        got = cocoll.reshard(x, src=src, dst=dst, solver=solver, comm=comm, **facts).result()
        if comm.rank in target.mesh:
            np.testing.assert_array_equal(got, shard_of(whole, target, comm.rank))
        else:
            assert got is None
