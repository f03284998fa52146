"""Sums over several hosts, in an order of their own: near float64, and the same bits everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll.testing import run_ranks
from tests.helpers.arrays import DTYPES, assert_same_bits, itemsize_of, numpy_dtype
from tests.helpers.references import OPS, contributions, reduce_in_rank_order
from tests.helpers.world import SMALL

LAYOUTS = [(0, 1), (0, 1, 2), (0, 0, 1, 1), (0, 1, 0, 1, 2), (0, 1, 1, 2, 2, 2, 0, 2)]
SHORT = [((0, 0, 1, 1), "bfloat16")]
COUNTS = (0, 1, 5, 257, 4_099)
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def reduce_everything(comm: cocoll.Communicator, label: str) -> list[np.ndarray[Any, Any]]:
    found = []
    for op in OPS:
        for count in COUNTS:
            x = np.array(contributions(comm.world_size, count, label, op, count)[comm.rank])
            cocoll.allreduce(x, op, comm=comm)
            shard = cocoll.reduce_scatter(
                contributions(comm.world_size, count, label, op, count)[comm.rank],
                op,
                layout="shard",
                comm=comm,
            ).result()
            start, stop = comm.shard_range(count)
            assert shard.size == stop - start
            found += [x, shard]
    return found


def near(got: np.ndarray[Any, Any], parts: list[np.ndarray[Any, Any]], label: str, op: str) -> bool:
    """Say whether a result is one that partial sums of the element type can give."""
    exact = [part.astype(np.float64) for part in parts]
    if op == "prod":
        total = np.multiply.reduce(exact, axis=0)
        scale = np.abs(total)
    else:
        total, scale = np.add.reduce(exact, axis=0), np.add.reduce(np.abs(exact), axis=0)
    if op == "avg":
        total, scale = total / len(parts), scale / len(parts)
    smallest = float(np.finfo(np.float16).smallest_subnormal) if label == "float16" else 0.0
    # A rounding for every rank and every host's part, and that of the result.
    bound = (2 * len(parts) + 1) * (EPS[label] * scale + smallest)
    return bool((np.abs(got.astype(np.float64) - total) <= bound).all())


@pytest.mark.parametrize(
    ("hosts", "label"),
    [
        pytest.param(hosts, label, marks=() if (hosts, label) in SHORT else pytest.mark.long)
        for hosts in LAYOUTS
        for label in DTYPES
    ],
)
def test_values(hosts: tuple[int, ...], label: str) -> None:
    size = len(hosts)
    outcomes = [
        run_ranks(
            size, lambda comm: reduce_everything(comm, label), hosts=hosts, seed=seed, tuning=SMALL
        )
        for seed in (1, 2)
    ]
    for place in range(0, 2 * len(OPS) * len(COUNTS), 2):
        op = OPS[place // (2 * len(COUNTS))]
        count = COUNTS[place // 2 % len(COUNTS)]
        parts = contributions(size, count, label, op, count)
        message = f"{op} {count} {label}"
        got = outcomes[0][0][place]
        # The same bits on all ranks, and whatever the times that messages take.
        for outcome in outcomes:
            for rank in range(size):
                assert_same_bits(outcome[rank][place], got, f"{message} on rank {rank}")
            for first, second in zip(outcome, outcomes[0], strict=True):
                assert_same_bits(first[place + 1], second[place + 1], f"the shard, {message}")
        exactly = label not in EPS or op in ("min", "max")
        if exactly:
            assert_same_bits(got, reduce_in_rank_order(parts, op), message)
            shards = np.concatenate([values[place + 1] for values in outcomes[0]])
            assert_same_bits(shards, got, f"the shards, {message}")
        else:
            assert near(got, parts, label, op), message


@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1)])
@pytest.mark.parametrize("count", [3, 5_000])
def test_not_a_number_wins(hosts: tuple[int, ...], count: int) -> None:
    size = len(hosts)

    def body(comm: cocoll.Communicator) -> None:
        for op in ("min", "max", "sum"):
            for label in ("float32", "bfloat16"):
                for bad in range(size):
                    x = np.full(count, comm.rank, numpy_dtype(label))
                    if comm.rank == bad:
                        x[count - 1] = np.nan
                    cocoll.allreduce(x, op, comm=comm)
                    wide = x.astype(np.float64)
                    assert np.isnan(wide[-1])
                    rest = {"min": 0, "max": size - 1, "sum": sum(range(size))}[op]
                    assert (wide[:-1] == rest).all()

    run_ranks(size, body, hosts=hosts, tuning=SMALL)


@pytest.mark.parametrize(
    "one_shot_bytes", [4 << 20, pytest.param(64 << 20, marks=pytest.mark.long)]
)
def test_small_may_be_more_than_the_staging_holds(one_shot_bytes: int) -> None:
    tuning = cocoll.Tuning(one_shot_bytes=one_shot_bytes)

    def body(comm: cocoll.Communicator) -> None:
        for count in (5, one_shot_bytes // 4 - 1):
            x = np.full(count, comm.rank + 1, np.float32)
            cocoll.allreduce(x, comm=comm)
            assert (x == 6).all()

    run_ranks(3, body, hosts=(0, 1, 1), tuning=tuning)


@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1), (0, 1, 2)])
def test_as_many_bytes_as_the_lower_bound(hosts: tuple[int, ...]) -> None:
    """The payload that has moved, counted where it moves."""
    from cocoll.bootstrap import ThreadBootstrap
    from tests.helpers.threads import run_threads

    size, host_count = len(hosts), max(hosts) + 1
    count = size * 4_096
    made = ThreadBootstrap.create(size, 60.0, hosts=hosts)
    network = made[0].network
    assert network is not None

    def body(rank: int) -> list[int]:
        moved = []
        with cocoll.Communicator(made[rank], timeout_seconds=60.0) as comm:
            x = np.ones(count, np.float32)
            whole = np.zeros(count, np.float32)
            shard = np.zeros(count // size, np.float32)
            for call in (
                lambda: cocoll.allreduce(x, "max", comm=comm),
                lambda: cocoll.broadcast(x, 0, comm=comm),
                lambda: cocoll.reduce_scatter(x, "max", comm=comm, out=shard),
                lambda: cocoll.allgather(shard, comm=comm, out=whole),
            ):
                call()
                made[rank].barrier()
                before = network.nbytes
                made[rank].barrier()
                call()
                made[rank].barrier()
                moved.append(network.nbytes - before)
                made[rank].barrier()
        return moved

    ends = run_threads(size, body)
    assert all(ended.error is None for ended in ends), ends
    nbytes = count * itemsize_of("float32")
    least = nbytes * (host_count - 1)
    # Besides the payload hosts agree, with a few words each in every round.
    for times, moved in zip((2, 1, 1, 1), ends[0].value, strict=True):
        assert times * least <= moved <= times * least + 32 * host_count * 4
