"""Shards of one world size become shards of another, whatever the length and the two sizes."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll.errors import BufferMismatchError, DTypeError, RankError, UsageError

WORLD_SIZES = range(1, 9)
COUNTS = (0, 1, 2, 7, 16, 17, 31, 127, 128, 251, 1009)


def cut(vector: np.ndarray, layout: cocoll.ShardLayout) -> list[np.ndarray]:
    return [vector[start:stop] for start, stop in layout.ranges]


@pytest.mark.parametrize("before", WORLD_SIZES)
@pytest.mark.parametrize("after", WORLD_SIZES)
def test_any_world_size_to_any_other(before: int, after: int) -> None:
    for count in COUNTS:
        vector = np.arange(count, dtype=np.int64) + 1
        old, new = cocoll.ShardLayout(count, before), cocoll.ShardLayout(count, after)
        shards = cut(vector, old)
        parts = [cocoll.reshard_state(shards, old, new, rank=rank) for rank in range(after)]
        assert [len(part) for part in parts] == [stop - start for start, stop in new.ranges]
        np.testing.assert_array_equal(np.concatenate(parts), vector)


@pytest.mark.parametrize("count", COUNTS)
def test_only_the_shards_that_are_needed_are_read(count: int) -> None:
    old, new = cocoll.ShardLayout(count, 5), cocoll.ShardLayout(count, 3)
    shards = cut(np.arange(count, dtype=np.float32), old)
    for rank in range(3):
        asked: list[int] = []

        def read(owner: int, asked: list[int] = asked) -> np.ndarray:
            asked.append(owner)
            return shards[owner]

        part = cocoll.reshard_state(read, old, new, rank=rank)
        start, stop = new.find_range(rank)
        np.testing.assert_array_equal(part, np.arange(start, stop, dtype=np.float32))
        needed = [r for r, (a, b) in enumerate(old.ranges) if max(a, start) < min(b, stop)]
        assert asked == (needed or [0])


def test_another_alignment_can_be_read() -> None:
    old = cocoll.ShardLayout(1000, 3, alignment=1)
    new = cocoll.ShardLayout(1000, 4)
    vector = np.random.default_rng(1).normal(size=1000)
    shards = cut(vector, old)
    assert [len(shard) for shard in shards] == [334, 334, 332]
    parts = [cocoll.reshard_state(shards, old, new, rank=rank) for rank in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts), vector)


def test_a_communicators_layout_is_its_shard_range() -> None:
    with cocoll.init() as comm:
        layout = comm.shard_layout(1000)
        assert layout == cocoll.ShardLayout(1000, 1)
        assert layout.ranges == (comm.shard_range(1000),)
        with pytest.raises(UsageError):
            comm.shard_layout(-1)


def test_the_parts_of_a_range() -> None:
    layout = cocoll.ShardLayout(100, 4)  # shards of 32 elements
    assert layout.find_parts(0, 100) == [(0, 0, 32), (1, 32, 64), (2, 64, 96), (3, 96, 100)]
    assert layout.find_parts(31, 33) == [(0, 31, 32), (1, 32, 33)]
    assert layout.find_parts(32, 64) == [(1, 32, 64)]
    assert layout.find_parts(7, 7) == []


def test_mistakes_are_refused() -> None:
    old, new = cocoll.ShardLayout(40, 2), cocoll.ShardLayout(40, 3)
    shards = cut(np.zeros(40), old)
    with pytest.raises(BufferMismatchError, match="40 saved elements and 41"):
        cocoll.reshard_state(shards, old, cocoll.ShardLayout(41, 3), rank=0)
    with pytest.raises(BufferMismatchError, match="all 2 ranks"):
        cocoll.reshard_state(shards[:1], old, new, rank=0)
    with pytest.raises(BufferMismatchError, match="shard of rank 0 has 32 elements"):
        cocoll.reshard_state([shards[0][:-1], shards[1]], old, new, rank=0)
    with pytest.raises(DTypeError, match="float64 and, of rank 1, float32"):
        cocoll.reshard_state(
            [shards[0], shards[1].astype(np.float32)], old, cocoll.ShardLayout(40, 1), rank=0
        )
    with pytest.raises(RankError):
        cocoll.reshard_state(shards, old, new, rank=3)
    for wrong in ((-1, 1), (1, 0), (1.0, 1), (True, 1)):
        with pytest.raises(UsageError):
            cocoll.ShardLayout(*wrong)  # type: ignore[arg-type]
