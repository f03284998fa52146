"""Reshardings of eight ranks, tensors cut by NumPy alone, schedules run on them rank by rank."""

from __future__ import annotations

import numpy as np

from cocoll.resharding import Layout, Mesh, MulticastPlan, ShardingSpec

A, B = Mesh.arange((2, 2), 0), Mesh.arange((2, 2), 4)
CASES = {
    "replicated": ((64, 48), (A, "R,R"), (B, "R,R")),
    "rows to columns": ((64, 48), (A, "S01,R"), (B, "R,S01")),
    "one to many": ((5000,), (Mesh([0]), "R"), (B, "R")),
    "many to one": ((5000,), (A, "S10"), (Mesh([7]), "R")),
    "uneven": ((7, 11, 13), (A, "S0,R,S1"), (B, "R,S1,S0")),
    "overlapping": ((40, 30), (Mesh.arange((4,), 0), "S0,R"), (Mesh.arange((4,), 2), "R,S0")),
    "permuted": ((40, 30), (Mesh([[3, 1], [2, 0]]), "S0,S1"), (A, "S0,S1")),
    "the same": ((40, 30), (A, "S0,S1"), (A, "S0,S1")),
    "partial": ((33, 17), (A, "S0,R+P1"), (B, "R,S01")),
    "partial in place": ((33, 17), (A, "R,R+P01"), (A, "S01,R")),
    "empty": ((0, 5), (A, "S0,R"), (B, "R,S0")),
    "a number": ((), (A, ""), (B, "")),
}


def whole_of(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    count = int(np.prod(shape))
    return (np.arange(count) % 97).astype(dtype).reshape(shape)


def summand(whole: np.ndarray, layout: Layout, rank: int) -> np.ndarray:
    """Give what a rank has of the sum: small whole numbers, so that sums are exact."""
    axes = layout.spec.partial
    at = layout.mesh.coordinates(rank)
    if not axes:
        return whole
    if whole.dtype == bool:
        # The sum of truth values is whether any is true.
        return whole
    count = int(np.prod([layout.mesh.shape[axis] for axis in axes]))
    if np.iscomplexobj(whole):
        share = (whole.real // count).astype(whole.dtype)
        return share if any(at[axis] for axis in axes) else whole - (count - 1) * share
    if any(at[axis] for axis in axes):
        return whole // count
    return whole - (count - 1) * (whole // count)


def cut_dim(array: np.ndarray, dim: int, sizes: list[int]) -> list[np.ndarray]:
    """Cut one dim as torch.chunk does, once for each size, the first one major."""
    parts = [array]
    for size in sizes:
        cut = []
        for part in parts:
            step = -(-part.shape[dim] // size)
            for number in range(size):
                index = [slice(None)] * array.ndim
                index[dim] = slice(number * step, (number + 1) * step)
                cut.append(part[tuple(index)])
        parts = cut
    return parts


def shard_of(array: np.ndarray, layout: Layout, rank: int) -> np.ndarray:
    """Give what a rank has of an array, by cutting dim after dim."""
    ranks = np.array(layout.mesh.ranks).reshape(layout.mesh.shape)
    at = [int(place[0]) for place in np.nonzero(ranks == rank)]
    given = dict(layout.spec.lengths)
    part = array
    for dim, axes in enumerate(layout.spec.dims):
        sizes = [ranks.shape[axis] for axis in axes]
        number = 0
        for axis, size in zip(axes, sizes, strict=True):
            number = number * size + at[axis]
        if dim in given:
            ends = np.cumsum([0, *given[dim]])
            index = [slice(None)] * array.ndim
            index[dim] = slice(ends[number], ends[number + 1])
            part = part[tuple(index)]
        else:
            part = cut_dim(part, dim, sizes)[number]
    return part


class Memory:
    """What every rank has of a tensor of int64; what it has not is -1."""

    def __init__(self, plan: MulticastPlan, src: Layout, dst: Layout) -> None:
        self._plan = plan
        self._src, self._dst = src, dst
        self.whole = np.arange(int(np.prod(src.shape)), dtype=np.int64).reshape(src.shape)
        # Indices of elements stand where shards are, so that a box can be checked by its values.
        self.of_rank: dict[int, np.ndarray] = {}
        for rank in plan.problem.participants:
            self.of_rank[rank] = np.full(src.shape, -1, dtype=np.int64)
        for rank in src.mesh:
            own = self.of_rank.setdefault(rank, np.full(src.shape, -1, dtype=np.int64))
            part = shard_of(self.whole, src, rank).ravel()
            own.reshape(-1)[part] = self.summand(rank)[part]

    def summand(self, rank: int) -> np.ndarray:
        """Give what a rank holds of each element: all of it, or a part of the sum."""
        axes = self._src.spec.partial
        at = self._src.mesh.coordinates(rank)
        count = int(np.prod([self._src.mesh.shape[axis] for axis in axes]))
        flat = self.whole.reshape(-1)
        # The parts add up: the first has what is left of the whole.
        if any(at[axis] for axis in axes):
            return flat // count
        return flat - (count - 1) * (flat // count)

    def run(self) -> None:
        """Run the schedule; every transfer finds at its root what it takes."""
        for group in self._plan.schedule.groups:
            taken = [self._take(transfer) for transfer in group.transfers]
            for transfer, (place, values) in zip(group.transfers, taken, strict=True):
                task = self._plan.tasks[transfer.task]
                assert (values >= 0).all(), f"{transfer} takes what is not there"
                for _, rank in transfer.hops:
                    own = self.of_rank[rank].reshape(-1)
                    if task.adds:
                        own[place] += values
                    else:
                        own[place] = values

    def _take(self, transfer) -> tuple[np.ndarray, np.ndarray]:
        task = self._plan.tasks[transfer.task]
        index = tuple(slice(start, stop) for start, stop in task.box)
        places = self.whole[index].reshape(-1)
        itemsize = task.nbytes // len(places)
        assert transfer.start % itemsize == 0
        assert transfer.stop % itemsize == 0
        place = places[transfer.start // itemsize : transfer.stop // itemsize]
        return place, self.of_rank[transfer.root].reshape(-1)[place].copy()

    def check(self) -> None:
        """Compare every rank of the destination with the array that NumPy cuts."""
        for rank in self._dst.mesh:
            own = self.of_rank.get(rank)
            part = shard_of(self.whole, self._dst, rank)
            if part.size:
                assert own is not None
                np.testing.assert_array_equal(own.reshape(-1)[part], part)


def layouts(shape, src_mesh, src_spec, dst_mesh, dst_spec) -> tuple[Layout, Layout]:
    """Give both layouts of a tensor."""
    return (
        Layout(shape, src_mesh, ShardingSpec.parse(src_spec), name="src"),
        Layout(shape, dst_mesh, ShardingSpec.parse(dst_spec), name="dst"),
    )
