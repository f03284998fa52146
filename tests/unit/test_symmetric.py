"""The symmetric heap: no block overlaps another, every rank finds the same, everything returns."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

import cocoll
from cocoll.bootstrap import SelfBootstrap
from cocoll.symmetric import Allocation, SymmetricHeap
from cocoll.testing import run_ranks

PAGE = 4096
HUGE = 2 << 20
SIZES = st.one_of(
    st.integers(0, 3 * PAGE), st.integers(0, 20 * HUGE), st.sampled_from([HUGE // 2, HUGE, 1 << 44])
)


class Heaps(RuleBasedStateMachine):
    """Three ranks' heaps, in step, and what their callers believe."""

    blocks = Bundle("blocks")

    @initialize(start=st.sampled_from([0, PAGE, 3 * PAGE, HUGE, 5 * HUGE + PAGE]))
    def start(self, start: int) -> None:
        self.begin = start
        self.heaps = [SymmetricHeap(start) for _ in range(3)]
        self.live: dict[int, Allocation] = {}
        self.marks: list[set[int]] = [set(), set(), set()]

    @rule(target=blocks, size=SIZES)
    def allocate(self, size: int) -> int:
        # A collective: marks are exchanged, then all allocate.
        marks = [heap.marks for heap in self.heaps]
        for heap in self.heaps:
            heap.reclaim(marks)
        for key in set.intersection(*self.marks):
            del self.live[key]
            for owned in self.marks:
                owned.discard(key)
        made = [heap.allocate(size) for heap in self.heaps]
        assert made[0] == made[1] == made[2]
        block = made[0]
        assert block.span_start_bytes >= self.begin
        assert block.span_start_bytes <= block.offset_bytes
        assert block.offset_bytes + size <= block.span_stop_bytes
        assert block.span_stop_bytes > block.span_start_bytes
        assert block.offset_bytes % 64 == 0
        large = size >= HUGE // 2
        assert block.span_start_bytes % (HUGE if large else PAGE) == 0
        # Padding is bounded: a stagger below 64 steps of 37 lines, and a rounding.
        limit = size + 64 * 37 * 64 + HUGE if large else max(size, 1) + PAGE
        assert block.span_stop_bytes - block.span_start_bytes <= limit
        for other in self.live.values():
            assert (
                block.span_stop_bytes <= other.span_start_bytes
                or other.span_stop_bytes <= block.span_start_bytes
            ), (block, other)
        self.live[block.key] = block
        return block.key

    @rule(key=blocks, rank=st.integers(0, 2))
    def mark_on_one_rank(self, key: int, rank: int) -> None:
        self.heaps[rank].mark(key)
        if key in self.live:
            self.marks[rank].add(key)

    @rule(key=consumes(blocks))
    def mark_on_all_ranks(self, key: int) -> None:
        for rank in range(3):
            self.mark_on_one_rank(key, rank)

    @invariant()
    def accounts_agree(self) -> None:
        if not hasattr(self, "heaps"):
            return
        kept = sum(b.span_stop_bytes - b.span_start_bytes for b in self.live.values())
        for rank, heap in enumerate(self.heaps):
            assert heap.live_bytes == kept
            assert heap.marks == sorted(self.marks[rank])
            assert heap.top_bytes == self.heaps[0].top_bytes

    def teardown(self) -> None:
        if not hasattr(self, "heaps"):
            return
        # When all has been dropped, one block may have everything that was ever given out.
        keys = list(self.live)
        for heap in self.heaps:
            for key in keys:
                heap.mark(key)
        marks = [heap.marks for heap in self.heaps]
        for heap in self.heaps:
            heap.reclaim(marks)
            assert heap.live_bytes == 0
            assert heap.marks == []
        top = self.heaps[0].top_bytes
        first = -(-self.begin // PAGE) * PAGE
        if top - first >= PAGE and top - first < HUGE // 2:
            assert self.heaps[0].allocate(top - first).span_start_bytes == first
            assert self.heaps[0].top_bytes == top


TestHeaps = Heaps.TestCase


@given(st.lists(st.integers(1, 4 * HUGE), min_size=1, max_size=12))
def test_what_is_dropped_is_used_again(sizes: list[int]) -> None:
    # The same arrays, made and dropped over and over, take no more than the first few times.
    heap = SymmetricHeap(HUGE)
    tops = []
    for _ in range(6):
        keys = [heap.allocate(size).key for size in sizes]
        for key in keys:
            heap.mark(key)
        heap.reclaim([heap.marks])
        tops.append(heap.top_bytes)
    # A block's stagger depends on its number, so that its span may differ by a huge page.
    assert tops[-1] <= tops[0] + HUGE * len(sizes)


def test_equal_places_fall_on_different_sets() -> None:
    heap = SymmetricHeap(0)
    sets = [heap.allocate(HUGE).offset_bytes // 64 % 64 for _ in range(64)]
    assert len(set(sets)) == 64


def test_marking_what_is_not_there() -> None:
    heap = SymmetricHeap(0)
    heap.mark(7)
    assert heap.marks == []
    key = heap.allocate(1).key
    heap.mark(key)
    heap.mark(key)
    assert heap.marks == [key]
    heap.reclaim([[key], []])
    assert heap.marks == [key]
    heap.reclaim([[key], [key]])
    assert heap.marks == []
    assert heap.live_bytes == 0


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("replicated", [False, True])
def test_memory_returns_when_all_ranks_have_let_go(replicated: bool) -> None:
    def body(comm):
        first = comm.empty(100, replicated=replicated)
        where = address(first)
        if comm.rank == 0:
            del first
            gc.collect()
        # Rank 1 holds it still: nobody may have its place.
        second = comm.empty(100, replicated=replicated)
        assert address(second) != where
        if comm.rank == 1:
            del first
            gc.collect()
        third = comm.empty(100, replicated=replicated)
        assert address(third) == where
        assert address(second) != where

    run_ranks(2, body)


def test_views_keep_the_memory() -> None:
    with cocoll.Communicator(SelfBootstrap()) as comm:
        whole = comm.empty((10, 20))
        where = address(whole)
        part = whole[3:, ::2].T
        del whole
        gc.collect()
        assert address(comm.empty((10, 20))) != where
        part[:] = 7.0
        del part
        gc.collect()
        assert address(comm.empty((10, 20))) == where


def test_shards_are_known_while_they_live() -> None:
    with cocoll.Communicator(SelfBootstrap()) as comm:
        shards = [comm.shard_zeros(count) for count in (0, 1, 100, 1 << 20)]
        assert [comm.shard_counts[address(shard)] for shard in shards] == [0, 1, 100, 1 << 20]
        assert not any(shard.any() for shard in shards)
        views = [shard[:1] for shard in shards]
        del shards
        gc.collect()
        assert len(comm.shard_counts) == 4
        del views
        gc.collect()
        assert comm.shard_counts == {}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (2, 3, 4)])
def test_arrays_have_the_shape_and_dtype_that_was_asked_for(
    dtype: str, shape: tuple[int, ...]
) -> None:
    with cocoll.Communicator(SelfBootstrap()) as comm:
        array = comm.empty(shape, dtype)
        assert (array.shape, str(array.dtype)) == (shape, dtype)
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert comm._is_symmetric(address(array), array.nbytes)
        assert not comm.empty(shape, dtype, replicated=True).flags.writeable
