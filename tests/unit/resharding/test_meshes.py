"""Meshes, sharding specs and layouts: what they mean, what they refuse, other libraries' forms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cocoll.errors import ReshardError
from cocoll.resharding import Layout, Mesh, ShardingSpec
from cocoll.resharding.spec_forms import (
    from_partition_spec,
    from_placements,
    to_partition_spec,
    to_placements,
)
from cocoll.topology import load_topology

MESH = Mesh(np.arange(8).reshape(2, 4))


def test_mesh_of_arrays_and_of_lists_are_equal() -> None:
    assert Mesh([[0, 1, 2, 3], [4, 5, 6, 7]]) == MESH == Mesh.arange((2, 4))
    assert hash(Mesh.arange((2, 4))) == hash(MESH)
    assert eval(repr(MESH), {"Mesh": Mesh}) == MESH
    assert Mesh(5).shape == ()


def test_coordinates_are_those_of_numpy() -> None:
    ranks = np.random.default_rng(0).permutation(24).reshape(2, 3, 4)
    mesh = Mesh(ranks)
    for rank in range(24):
        assert mesh.coordinates(rank) == tuple(np.argwhere(ranks == rank)[0])
    assert mesh.ranks_at({1: 2}) == tuple(ranks[:, 2].ravel())
    assert mesh.ranks_at({0: 1, 2: 3}) == tuple(ranks[1, :, 3])


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "at least one rank"),
        ([0, 1, 0], "rank 0 is there twice"),
        ([[0, 1], [2]], "wanted rows of 2"),
        ([0.5], "wanted ranks"),
        ([-1], "wanted ranks"),
        ([True], "wanted ranks"),
    ],
)
def test_bad_meshes(ranks: object, message: str) -> None:
    with pytest.raises(ReshardError, match=message):
        Mesh(ranks)


def test_meshes_on_hosts() -> None:
    topology = load_topology("p3.8xlarge:3")
    assert Mesh.on_hosts(topology, 2, 2, first_host=1) == Mesh([[4, 5], [8, 9]])
    with pytest.raises(ReshardError, match="wanted 3 hosts from number 1 on"):
        Mesh.on_hosts(topology, 3, 2, first_host=1)
    with pytest.raises(ReshardError, match="wanted 5 ranks on host h0; it has 4"):
        Mesh.on_hosts(topology, 1, 5)


@pytest.mark.parametrize("text", ["R", "S0,R,S12", "S10", "S0[3:5],R", "R,S1+P0", "R+P01", ""])
def test_specs_are_written_as_they_are_read(text: str) -> None:
    assert str(ShardingSpec.parse(text)) == text
    assert ShardingSpec.parse(ShardingSpec.parse(text)) == ShardingSpec.parse(text)


def test_order_of_axes_matters() -> None:
    major0 = Layout((8,), MESH, "S01")
    major1 = Layout((8,), MESH, "S10")
    assert [major0.box_of(rank)[0][0] for rank in range(8)] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [major1.box_of(rank)[0][0] for rank in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize(
    ("spec", "shape", "rows"),
    [
        ("S0,R", (5, 10), [2, 2, 1, 0]),
        ("S0,R", (3, 10), [1, 1, 1, 0]),
        ("S0[1:4:0:0],R", (5, 10), [1, 4, 0, 0]),
    ],
)
def test_uneven_shards(spec: str, shape: tuple[int, int], rows: list[int]) -> None:
    layout = Layout(shape, Mesh.arange((4,)), spec)
    assert [layout.shape_of(rank) for rank in range(4)] == [(row, 10) for row in rows]


def test_two_axes_cut_one_after_the_other() -> None:
    # As DTensor does: 5 rows are 3 and 2, then 2, 1 and 1, 1; not 2, 2, 1, 0.
    layout = Layout((5,), Mesh.arange((2, 2)), "S01")
    assert [layout.shape_of(rank)[0] for rank in range(4)] == [2, 1, 1, 1]


@pytest.mark.parametrize(
    ("shape", "spec", "message"),
    [
        ((8, 8), "S0", "wanted a spec for the 2 dims of shape \\(8, 8\\); it has 1"),
        ((8,), "S2", "dim 0: there is no mesh axis 2; the mesh of 2x4 ranks has 2"),
        ((8,), "R+P2", "partial sums: there is no mesh axis 2"),
        ((8, 8), "S0,S0", "mesh axis 0 is used twice, for dim 0 and dim 1"),
        ((8, 8), "S0,R+P0", "mesh axis 0 is used twice, for dim 0 and partial sums"),
        ((8,), "X", "dim 0: wanted R, or S and mesh axes"),
        ((8,), "R+Q", "wanted P and mesh axes"),
        (
            (8,),
            "S0[4:5]",
            "dim 0 of length 8: wanted 2 lengths .* that add up to 8; got \\(4, 5\\)",
        ),
        ((8,), "S0[8]", "wanted 2 lengths \\(mesh axes \\(0,\\) of sizes \\[2\\]\\)"),
        ((-1,), "R", "wanted a shape of lengths of at least 0"),
    ],
)
def test_bad_specs(shape: tuple[int, ...], spec: str, message: str) -> None:
    with pytest.raises(ReshardError, match=message):
        Layout(shape, MESH, spec)


def test_uneven_shards_can_be_forbidden() -> None:
    Layout((8, 12), MESH, "S01,R", allow_uneven=False)
    with pytest.raises(
        ReshardError,
        match="src: spec R,S01, dim 1: length 12 does not divide by 8 \\(mesh axes \\(0, 1\\) of "
        "sizes \\[2, 4\\]\\)",
    ):
        Layout((8, 12), MESH, "R,S01", allow_uneven=False, name="src")


# ---- torch's and JAX's forms, of objects that look like theirs ----


@dataclass
class Placement:
    """What torch's placements look like from outside."""

    kind: str
    dim: int | None = None
    split_factor: int = 1
    reduce_op: str = "sum"

    def is_shard(self) -> bool:
        return self.kind == "shard"

    def is_replicate(self) -> bool:
        return self.kind == "replicate"

    def is_partial(self) -> bool:
        return self.kind == "partial"


def shard(dim: int) -> Placement:
    return Placement("shard", dim)


def strided(dim: int, split_factor: int) -> Placement:
    return Placement("shard", dim, split_factor)


CUBE = Mesh.arange((2, 3, 4))


@pytest.mark.parametrize(
    ("placements", "text"),
    [
        ([shard(0), Placement("replicate"), shard(1)], "S0,S2"),
        ([shard(1), shard(1), Placement("partial")], "R,S01+P2"),
        ([shard(0), shard(0), shard(0)], "S012,R"),
        # Sharded along axis 1 first, so that axis 0 cuts each of 3 pieces.
        ([strided(0, 3), shard(0), Placement("replicate")], "S10,R"),
        ([strided(0, 4), Placement("replicate"), shard(0)], "S20,R"),
    ],
)
def test_placements(placements: list[Placement], text: str) -> None:
    spec = from_placements(placements, 2, CUBE)
    assert str(spec) == text
    written = to_placements(
        spec,
        CUBE,
        shard=shard,
        replicate=lambda: Placement("replicate"),
        partial=lambda: Placement("partial"),
        strided_shard=strided,
    )
    assert written == placements


def test_placements_that_cannot_be() -> None:
    with pytest.raises(ReshardError, match="wanted a placement for each of the 3 axes"):
        from_placements([shard(0)], 2, CUBE)
    with pytest.raises(ReshardError, match=r"mesh axis 1 of length 3: .* names dim 2"):
        from_placements([shard(0), shard(2), shard(1)], 2, CUBE)
    with pytest.raises(ReshardError, match=r"wanted partial sums; got .*'max'"):
        from_placements([Placement("partial", reduce_op="max"), shard(0), shard(0)], 2, CUBE)
    with pytest.raises(ReshardError, match="a split factor of 2 is no product"):
        from_placements([strided(0, 2), shard(0), shard(1)], 2, CUBE)
    with pytest.raises(ReshardError, match="needs strided_shard="):
        to_placements(ShardingSpec.parse("S10"), CUBE, shard=shard, replicate=lambda: None)


def test_partition_specs() -> None:
    mesh = Mesh(np.arange(8).reshape(2, 4), axis_names=("data", "model"))
    spec = from_partition_spec((None, ("model", "data")), 3, mesh)
    assert str(spec) == "R,S10,R"
    assert to_partition_spec(spec, mesh) == (None, ("model", "data"), None)
    assert to_partition_spec(ShardingSpec.parse("S1"), mesh) == ("model",)
    with pytest.raises(ReshardError, match="dim 0: 'pipe' is no axis"):
        from_partition_spec(("pipe",), 1, mesh)
    with pytest.raises(ReshardError, match="wanted at most 1 entries"):
        from_partition_spec((None, "data"), 1, mesh)
    with pytest.raises(ReshardError, match="has no axis names"):
        from_partition_spec((None,), 1, MESH)
