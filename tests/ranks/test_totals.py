"""Epilogues with totals: optimizers with norms against float64, and what bits depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.kernels.isa import cpu_levels
from cocoll.testing import run_ranks
from cocoll.tuning import Tuning
from tests.helpers.norm_optimizers import Reference, clipped

SIZES = ((37,), (0,), (1,), (64, 65), (3, 5, 7), (), (1000,))
STEPS = 3
WORLDS = (1, 2, 3, 5)


class Job:
    """One rank's arrays: a list of tensors, or all of them as one vector."""

    def __init__(self, comm: cocoll.Communicator, *, symmetric: bool, as_list: bool) -> None:
        self.comm = comm
        draw = np.random.default_rng(7)
        shapes = SIZES if as_list else (sum(int(np.prod(shape)) for shape in SIZES),)
        self.start = [draw.normal(size=shape).astype(np.float32) for shape in shapes]
        make = comm.empty if symmetric else (lambda shape: np.empty(shape, np.float32))
        self.params = [make(shape) for shape in shapes]
        for param, start in zip(self.params, self.start, strict=True):
            param[...] = start
        self.gradients = [make(shape) for shape in shapes]
        self.as_list = as_list
        self.count = sum(param.size for param in self.params)

    def given(self, arrays: Sequence[Any]) -> Any:
        return list(arrays) if self.as_list else arrays[0]

    def draw(self, step: int, scale: float = 1.0) -> list[Any]:
        """Write this step's gradients; give their sums over all ranks in float64."""
        sums = [np.zeros(np.shape(start)) for start in self.start]
        for rank in range(self.comm.world_size):
            draw = np.random.default_rng(100 * step + rank)
            for place, start in enumerate(self.start):
                values = (scale * draw.normal(size=np.shape(start))).astype(np.float32)
                sums[place] += values
                if rank == self.comm.rank:
                    self.gradients[place][...] = values
        return sums

    def bits(self) -> bytes:
        return b"".join(np.asarray(param).tobytes() for param in self.params)


def take_steps(
    comm: cocoll.Communicator, optimizer: str, *, symmetric: bool, as_list: bool, bound: bool
) -> tuple[float, bytes]:
    job = Job(comm, symmetric=symmetric, as_list=as_list)
    reference = Reference(job.start)
    rates = [0.01 * (1 + place) for place in range(len(job.params))]
    lr: Any = rates if as_list else rates[0]
    state: dict[str, Any]
    if optimizer == "lars":
        epilogue = epilogues.lars()
        state = {"momentum_buffer": comm.shard_zeros(job.count)}
    else:
        epilogue = epilogues.lamb() if optimizer == "lamb" else epilogues.adamw(weight_decay=0.0)
        state = {"m": comm.shard_zeros(job.count), "v": comm.shard_zeros(job.count)}
    scalars: dict[str, Any] = {"lr": lr}
    if optimizer == "clipped":
        epilogue = epilogues.clip_by_global_norm(epilogue, 2.5)
        scalars["lr"] = 0.01
    x, param = job.given(job.gradients), job.given(job.params)
    operation = comm.bind(cocoll.allreduce_fused, x, epilogue, param=param, **state)
    for step in range(1, STEPS + 1):
        sums = job.draw(step)
        numbered = scalars if optimizer == "lars" else {**scalars, "step": step}
        if bound:
            operation(**numbered)
        else:
            cocoll.allreduce_fused(x, epilogue, comm=comm, param=param, **state, **numbered)
        if optimizer == "lamb":
            reference.lamb(sums, rates, step)
        elif optimizer == "lars":
            reference.lars(sums, rates)
        else:
            reference.adam(clipped(sums, 2.5), 0.01, step)
    pairs = zip(job.params, reference.params, strict=True)
    error = max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs)
    return error, job.bits()


@pytest.mark.parametrize("as_list", [False, True], ids=["vector", "list"])
@pytest.mark.parametrize(
    "optimizer", ["lamb", pytest.param("lars", marks=pytest.mark.long), "clipped"]
)
@pytest.mark.parametrize("world_size", WORLDS)
def test_optimizers_against_float64(world_size: int, optimizer: str, as_list: bool) -> None:
    for symmetric in (True, False):
        found = run_ranks(
            world_size,
            lambda comm, symmetric=symmetric: take_steps(
                comm, optimizer, symmetric=symmetric, as_list=as_list, bound=symmetric
            ),
        )
        # Near the root of a second moment of 0, Adam's step is worth 1e-5 of its rate.
        assert max(error for error, _ in found) < 2e-5
        assert len({bits for _, bits in found}) == 1


def test_bits_depend_neither_on_chunks_nor_on_where_arrays_lie() -> None:
    def bits(symmetric: bool, tuning: Tuning | None) -> bytes:
        return run_ranks(
            3,
            lambda comm: take_steps(comm, "lamb", symmetric=symmetric, as_list=True, bound=False),
            tuning=tuning,
        )[0][1]

    plain = bits(True, None)
    assert bits(False, None) == plain
    assert bits(False, Tuning(chunk_bytes=16 * 3 * 4, slots=3)) == plain
    assert bits(False, Tuning(chunk_bytes=5 * 16 * 3 * 4, slots=1)) == plain


@pytest.mark.parametrize("optimizer", ["lamb", "clipped"])
def test_every_isa_level_gives_the_same_bits(optimizer: str) -> None:
    found = {
        run_ranks(
            2,
            lambda comm: take_steps(comm, optimizer, symmetric=True, as_list=True, bound=True),
            isa=level,
        )[0]
        for level in cpu_levels()
    }
    assert len(found) == 1


@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1, 1), (0, 1, 0, 2, 2)], ids=str)
@pytest.mark.parametrize("optimizer", ["lamb", "clipped"])
def test_several_hosts(hosts: tuple[int, ...], optimizer: str) -> None:
    found = run_ranks(
        len(hosts),
        lambda comm: take_steps(comm, optimizer, symmetric=True, as_list=True, bound=True),
        hosts=hosts,
    )
    assert max(error for error, _ in found) < 2e-5
    assert len({bits for _, bits in found}) == 1


def test_replicated_parameters() -> None:
    def body(comm: cocoll.Communicator) -> tuple[bytes, bytes]:
        plain = Job(comm, symmetric=True, as_list=True)
        copies = [comm.empty(np.shape(start), replicated=True) for start in plain.start]
        for copy, start in zip(copies, plain.start, strict=True):
            cocoll.broadcast(np.array(start), out=copy, comm=comm)
        plain.draw(1)
        for params in (plain.params, copies):
            cocoll.allreduce_fused(
                plain.gradients,
                epilogues.lamb(lr=0.1),
                comm=comm,
                param=params,
                m=comm.shard_zeros(plain.count),
                v=comm.shard_zeros(plain.count),
                step=1,
            )
        return plain.bits(), b"".join(np.asarray(copy).tobytes() for copy in copies)

    for mine, replicated in run_ranks(3, body):
        assert mine == replicated


@pytest.mark.long
def test_mixed_precision_keeps_a_master_copy() -> None:
    def body(comm: cocoll.Communicator) -> float:
        count = 2000
        start = np.random.default_rng(3).normal(size=count).astype(np.float32)
        first, stop = comm.shard_range(count)
        param = start.astype(np.float16)
        master = np.ascontiguousarray(start[first:stop])
        m, v = comm.shard_zeros(count), comm.shard_zeros(count)
        reference = Reference([start])
        for step in (1, 2, 3):
            gradient = np.random.default_rng(step).normal(size=count).astype(np.float16)
            cocoll.allreduce_fused(
                gradient.copy(), epilogues.lamb(), comm=comm, param=param, master=master, m=m, v=v,
                lr=0.1, step=step,
            )  # fmt: skip
            reference.lamb([gradient.astype(np.float64) * comm.world_size], [0.1], step)
        assert np.array_equal(param[first:stop], master.astype(np.float16))
        return float(np.max(np.abs(master - reference.params[0][first:stop]), initial=0.0))

    assert max(run_ranks(3, body)) < 2e-5


@pytest.mark.parametrize(
    "bad", [np.nan, *(pytest.param(bad, marks=pytest.mark.long) for bad in (np.inf, -np.inf))]
)
def test_a_step_is_skipped_on_all_ranks_where_a_gradient_is_not_finite(bad: float) -> None:
    optimizer = epilogues.unscaled(epilogues.clip_by_global_norm(epilogues.adam(lr=0.1), 1.0))

    def body(comm: cocoll.Communicator) -> None:
        job = Job(comm, symmetric=True, as_list=True)
        reference = Reference(job.start)
        m, v = comm.shard_zeros(job.count), comm.shard_zeros(job.count)

        def step(number: int) -> Any:
            return cocoll.allreduce_fused(
                job.gradients, optimizer, comm=comm, param=job.params, m=m, v=v, step=number,
                loss_scale=1024.0,
            )  # fmt: skip

        sums = [total / 1024 for total in job.draw(1, 1024.0)]
        assert step(1).totals() == {"nonfinite": 0.0}
        reference.adam(clipped(sums, 1.0), 0.1, 1)
        before, state = job.bits(), m.tobytes() + v.tobytes()
        job.draw(2, 1024.0)
        if comm.rank == comm.world_size - 1:
            job.gradients[3][5, 6] = bad
        assert step(2).totals() == {"nonfinite": 1.0}
        assert job.bits() == before
        assert m.tobytes() + v.tobytes() == state
        sums = [total / 1024 for total in job.draw(3, 1024.0)]
        step(2)
        reference.adam(clipped(sums, 1.0), 0.1, 2)
        for param, wanted in zip(job.params, reference.params, strict=True):
            np.testing.assert_allclose(param, wanted, atol=2e-5)

    run_ranks(3, body)


def test_sums_are_per_tensor_or_of_all() -> None:
    @cocoll.epilogue
    def measure(x: Any) -> Any:
        each = cocoll.sum(x, name="each")
        everything = cocoll.sum(x, over="all", name="everything")
        return x * 0.0 + each + 1000.0 * everything

    def body(comm: cocoll.Communicator) -> None:
        x = [np.full(n, n + comm.rank, np.float64) for n in (3, 0, 2)]
        work = cocoll.allreduce_fused(x, measure, comm=comm)
        ranks = comm.world_size * (comm.world_size - 1) // 2
        sums = [n * (comm.world_size * n + ranks) for n in (3, 0, 2)]
        assert work.totals() == {"each": [float(s) for s in sums], "everything": float(sum(sums))}
        for values, own in zip(x, sums, strict=True):
            assert np.array_equal(values, np.full(values.size, own + 1000.0 * sum(sums)))

    for world_size in (1, 2, 4):
        run_ranks(world_size, body)


def test_sums_that_wait_for_sums() -> None:
    @cocoll.epilogue(sharded=("s",))
    def deviate(x: Any, s: Any, *, n: Any) -> Any:
        mean = cocoll.sum(x) / n
        centred = x - mean
        variance = cocoll.sum(centred * centred) / n
        return {"s": s + centred, "out": centred / cocoll.sqrt(variance)}

    def body(comm: cocoll.Communicator) -> None:
        count = 501
        mine = np.random.default_rng(comm.rank).normal(size=count)
        everyone = [np.random.default_rng(r).normal(size=count) for r in range(comm.world_size)]
        total = np.sum(everyone, axis=0)
        wanted = (total - total.mean()) / total.std()
        first, stop = comm.shard_range(count)
        state = np.ones(stop - first)
        out = np.empty(count)
        cocoll.allreduce_fused(mine, deviate, out=out, comm=comm, s=state, n=count)
        np.testing.assert_allclose(out, wanted, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(state, 1 + (total - total.mean())[first:stop], atol=1e-12)
        shard = cocoll.reduce_scatter_fused(mine, deviate, comm=comm, s=state, n=count).result()
        np.testing.assert_allclose(shard, wanted[first:stop], rtol=1e-12, atol=1e-12)

    for world_size in (1, 2, 3):
        run_ranks(world_size, body)
    run_ranks(4, body, hosts=(0, 0, 1, 1))


def test_on_a_stream_each_run_has_its_own_rates() -> None:
    def body(comm: cocoll.Communicator) -> None:
        job = Job(comm, symmetric=True, as_list=True)
        reference = Reference(job.start)
        sums = job.draw(1)
        with cocoll.Stream() as stream:
            operation = comm.bind(
                cocoll.allreduce_fused,
                job.gradients,
                epilogues.lamb(),
                stream=stream,
                param=job.params,
                m=comm.shard_zeros(job.count),
                v=comm.shard_zeros(job.count),
            )
            works = []
            for step in (1, 2, 3):
                rates = [0.01 * step * (1 + place) for place in range(len(SIZES))]
                works.append(operation(lr=rates, step=step))
                reference.lamb(sums, rates, step)
            for work in works:
                work.wait()
        for param, wanted in zip(job.params, reference.params, strict=True):
            np.testing.assert_allclose(param, wanted, atol=2e-5)

    run_ranks(3, body)


@pytest.mark.parametrize("issue", ["now", "stream"])
def test_ranks_that_disagree_move_nothing(issue: str) -> None:
    def body(comm: cocoll.Communicator) -> None:
        job = Job(comm, symmetric=True, as_list=True)
        job.draw(1)
        before = job.bits()
        m, v = comm.shard_zeros(job.count), comm.shard_zeros(job.count)

        def step(rate: float, stream: Any = None) -> Any:
            return cocoll.allreduce_fused(
                job.gradients, epilogues.lamb(), comm=comm, param=job.params, m=m, v=v,
                lr=[rate] * len(SIZES), step=1, stream=stream,
            )  # fmt: skip

        mismatch = pytest.raises(cocoll.errors.CollectiveMismatchError)
        with cocoll.Stream() as stream, mismatch:
            step(0.1 + 0.1 * comm.rank, None if issue == "now" else stream).wait()
        assert job.bits() == before
        assert not m.any()
        step(0.1)
        assert job.bits() != before

    run_ranks(2, body)


def test_gradients_are_zeroed() -> None:
    def body(comm: cocoll.Communicator, symmetric: bool) -> None:
        job = Job(comm, symmetric=symmetric, as_list=True)
        job.draw(1)
        cocoll.allreduce_fused(
            job.gradients, epilogues.lamb(lr=0.1), comm=comm, zero_grad=True, param=job.params,
            m=comm.shard_zeros(job.count), v=comm.shard_zeros(job.count), step=1,
        )  # fmt: skip
        comm.barrier()
        assert not any(np.any(gradient) for gradient in job.gradients)

    for symmetric in (True, False):
        run_ranks(3, lambda comm, symmetric=symmetric: body(comm, symmetric))
