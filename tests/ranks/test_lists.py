"""Lists of arrays: each call on a list against the same call on one vector, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.testing import run_ranks
from cocoll.tuning import Tuning

SHAPES = ((5,), (0,), (17, 3), (), (1,), (2, 0, 4), (301,), (4, 5, 6))
COUNT = sum(int(np.prod(shape)) for shape in SHAPES)
WORLDS = (1, 2, 5)
TUNINGS = {
    "default": None,
    "tiny chunks": Tuning(chunk_bytes=16 * 5 * 4, one_shot_bytes=64),
    "large": Tuning(one_shot_bytes=64),
}
PLACES = [
    ("strided", "one host"),
    ("symmetric", "one host"),
    ("ordinary", "one host"),
    ("ordinary", "two hosts"),
]


def values(rank: int, dtype: Any = np.float32) -> Any:
    draw = np.random.default_rng(rank)
    return (100 * draw.normal(size=COUNT)).astype(dtype)


def cut(vector: Any, comm: cocoll.Communicator, where: str) -> list[Any]:
    """Give a vector as arrays in memory of one of three kinds."""
    found, start = [], 0
    for shape in SHAPES:
        size = int(np.prod(shape))
        if where == "symmetric":
            array = comm.empty(shape, vector.dtype.name)
        elif where == "strided":
            array = np.empty((*shape, 2), vector.dtype)[..., 0]
        else:
            array = np.empty(shape, vector.dtype)
        array[...] = vector[start : start + size].reshape(shape)
        found.append(array)
        start += size
    return found


def joined(arrays: Any) -> Any:
    return np.concatenate([np.asarray(array).ravel() for array in arrays])


def hosts_of(world_size: int, layout: str) -> Any:
    return None if layout == "one host" else [rank % 2 for rank in range(world_size)]


@pytest.mark.parametrize(("where", "layout"), PLACES)
@pytest.mark.parametrize("world_size", WORLDS)
def test_calls_on_a_list_give_the_bits_of_one_vector(
    world_size: int, where: str, layout: str
) -> None:
    def body(comm: cocoll.Communicator) -> None:
        mine = values(comm.rank)
        wanted = mine.copy()
        cocoll.allreduce(wanted, comm=comm)
        x = cut(mine, comm, where)
        out = cut(np.zeros(COUNT, np.float32), comm, where)
        assert cocoll.allreduce(x, out=out, comm=comm).result() is out
        assert joined(out).tobytes() == wanted.tobytes()
        assert joined(x).tobytes() == mine.tobytes()
        cocoll.allreduce(tuple(x), comm=comm)
        assert joined(x).tobytes() == wanted.tobytes()

        root = comm.world_size - 1
        x = cut(mine, comm, where)
        cocoll.broadcast(x, root, comm=comm)
        assert joined(x).tobytes() == values(root).tobytes()

        first, stop = comm.shard_range(COUNT)
        x = cut(mine, comm, where)
        shard = cocoll.reduce_scatter(x, comm=comm).result()
        assert shard.size == stop - first
        # Over several hosts an all-reduce may add in another order.
        plain = cocoll.reduce_scatter(mine.copy(), layout="shard", comm=comm).result()
        assert shard.tobytes() == plain.tobytes()
        np.testing.assert_allclose(shard, wanted[first:stop], rtol=1e-4, atol=1e-4)
        out = cut(np.zeros(COUNT, np.float32), comm, where)
        cocoll.allgather(np.ascontiguousarray(wanted[first:stop]), out=out, comm=comm)
        assert joined(out).tobytes() == wanted.tobytes()

    for tuning in TUNINGS.values():
        run_ranks(world_size, body, tuning=tuning, hosts=hosts_of(world_size, layout))


@pytest.mark.parametrize(("where", "layout"), PLACES[1:])
@pytest.mark.parametrize("world_size", WORLDS)
def test_fused_calls_on_a_list(world_size: int, where: str, layout: str) -> None:
    def step(comm: cocoll.Communicator, x: Any, param: Any, m: Any, v: Any, **more: Any) -> None:
        cocoll.allreduce_fused(
            x, epilogues.adam(lr=0.1), comm=comm, param=param, m=m, v=v, step=1, **more
        )

    def body(comm: cocoll.Communicator) -> None:
        mine, start = values(comm.rank), values(99)
        one = start.copy()
        state = [comm.shard_zeros(COUNT) for _ in range(4)]
        step(comm, mine.copy(), one, *state[:2])
        x, param = cut(mine, comm, where), cut(start, comm, where)
        step(comm, x, param, *state[2:], zero_grad=True)
        assert joined(param).tobytes() == one.tobytes()
        assert state[0].tobytes() == state[2].tobytes()
        assert state[1].tobytes() == state[3].tobytes()
        comm.barrier()
        assert not joined(x).any()

    for tuning in TUNINGS.values():
        run_ranks(world_size, body, tuning=tuning, hosts=hosts_of(world_size, layout))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64", "uint8"])
def test_dtypes(dtype: str) -> None:
    def body(comm: cocoll.Communicator) -> None:
        mine = np.arange(COUNT).astype(dtype)
        wanted = mine.copy()
        cocoll.allreduce(wanted, "max", comm=comm)
        x = cut(mine, comm, "ordinary")
        cocoll.allreduce(x, "max", comm=comm)
        assert joined(x).tobytes() == wanted.tobytes()

    run_ranks(3, body)


def test_each_tensor_has_its_own_scalars() -> None:
    rates = [0.1 * place for place in range(len(SHAPES))]

    def body(comm: cocoll.Communicator) -> None:
        mine, start = values(comm.rank), values(99)
        x, param = cut(mine, comm, "symmetric"), cut(start, comm, "symmetric")
        sgd = epilogues.sgd()
        cocoll.allreduce_fused(x, sgd, comm=comm, param=param, lr=rates, weight_decay=0.5)
        wanted = cut(start, comm, "ordinary")
        for gradient, array, rate in zip(cut(mine, comm, "ordinary"), wanted, rates, strict=True):
            cocoll.allreduce_fused(gradient, sgd, comm=comm, param=array, lr=rate, weight_decay=0.5)
        assert joined(param).tobytes() == joined(wanted).tobytes()
        bound = comm.bind(cocoll.allreduce_fused, x, sgd, param=param, lr=np.array(rates))
        before = joined(param)
        bound(lr=0.0)
        assert joined(param).tobytes() == before.tobytes()

    for world_size in (1, 3):
        run_ranks(world_size, body)


def test_the_shard_of_a_list_s_output() -> None:
    @cocoll.epilogue
    def add(x: Any, bias: Any) -> Any:
        return x + bias

    def body(comm: cocoll.Communicator) -> None:
        x, bias = cut(values(comm.rank), comm, "ordinary"), cut(values(7), comm, "ordinary")
        shard = cocoll.reduce_scatter_fused(x, add, comm=comm, bias=bias).result()
        whole = values(comm.rank)
        cocoll.allreduce_fused(whole, add, comm=comm, bias=values(7))
        first, stop = comm.shard_range(COUNT)
        assert shard.tobytes() == whole[first:stop].tobytes()

    run_ranks(3, body)


def test_operands_broadcast_to_their_tensor() -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = [np.ones((3, 4), np.float32), np.ones((2, 5), np.float32)]
        bias = [np.arange(4, dtype=np.float32), np.arange(2, dtype=np.float32)[:, None]]
        residual = [np.zeros_like(array) for array in x]
        cocoll.allreduce_fused(
            x, epilogues.bias_dropout_residual(0.0), comm=comm, bias=bias, residual=residual
        )
        for array, one in zip(x, bias, strict=True):
            assert np.array_equal(array, comm.world_size + np.broadcast_to(one, array.shape))

    run_ranks(3, body)


def test_a_stream_keeps_the_arrays() -> None:
    def body(comm: cocoll.Communicator) -> None:
        with cocoll.Stream() as stream:
            works = []
            for turn in range(20):
                x = cut(np.full(COUNT, turn, np.float32), comm, "ordinary")
                works.append((cocoll.allreduce(x, out=cut(np.zeros(COUNT, np.float32), comm,
                              "ordinary"), comm=comm, stream=stream), turn))  # fmt: skip
            for work, turn in works:
                assert np.all(joined(work.result()) == turn * comm.world_size)

    run_ranks(3, body)


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")

    def body(comm: cocoll.Communicator) -> None:
        x = [torch.full((3, 2), 1.0 + comm.rank), torch.ones(7)]
        cocoll.allreduce(x, comm=comm)
        total = comm.world_size * (comm.world_size + 1) / 2
        assert torch.equal(x[0], torch.full((3, 2), total))
        assert torch.equal(x[1], torch.full((7,), float(comm.world_size)))

    run_ranks(2, body)


def test_a_thousand_tensors_of_odd_sizes() -> None:
    draw = np.random.default_rng(0)
    sizes = [int(size) for size in draw.integers(0, 60, 1000)]

    def body(comm: cocoll.Communicator) -> None:
        x = [np.full(size, index + comm.rank, np.float32) for index, size in enumerate(sizes)]
        cocoll.allreduce(x, comm=comm)
        for index, array in enumerate(x):
            assert np.all(array == comm.world_size * index + 1)

    run_ranks(2, body)
