"""Reductions without an epilogue: every op and dtype, layouts, aliasing, stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocoll.dtypes import DType
from cocoll.errors import DTypeError
from cocoll.kernels import catalogue
from cocoll.kernels.build import Kernel, KernelLoader
from cocoll.kernels.spec import OPS, KernelSpec, distinct_kernels, render_library
from tests.helpers.kernel_runner import (
    NUMPY_DTYPES,
    STREAMING,
    ZERO_SOURCES,
    bits,
    random_values,
    run,
)
from tests.helpers.references import reduce_in_rank_order

# Around one vector, one tile, and the second tile.
SIZES = (0, 1, 3, 7, 17, 511, 512, 513, 1030)
PAIRS = [(spec.op, spec.source_dtype) for spec in catalogue.specs() if spec.traced is None]


class Kernels:
    """All plain kernels of one loader, compiled together where there is no catalogue."""

    def __init__(self, loader: KernelLoader) -> None:
        self.loader = loader

    def get(self, op: str, dtype: DType) -> Kernel:
        return self.loader.load(KernelSpec(op, dtype))


@pytest.fixture(scope="module")
def kernels(loader: KernelLoader) -> Kernels:
    return Kernels(loader)


def reduced(op: str, dtype: DType, sources: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Give the reduction in rank order, in the accumulate type."""
    assert sources[0].dtype == NUMPY_DTYPES[dtype]
    return reduce_in_rank_order(sources, op)


def assert_same(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Compare bits, except that any NaN equals any other."""
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    if found.dtype.kind == "c":
        for part in ("real", "imag"):
            assert_same(np.array(getattr(found, part)), np.array(getattr(expected, part)))
        return
    with np.errstate(all="ignore"):
        is_nan = np.isnan(expected.astype(np.float64))
        np.testing.assert_array_equal(np.isnan(found.astype(np.float64)), is_nan)
    np.testing.assert_array_equal(bits(found)[~is_nan], bits(expected)[~is_nan])


@pytest.mark.parametrize(("op", "dtype"), PAIRS, ids=lambda value: getattr(value, "label", value))
def test_against_numpy(kernels: Kernels, op: str, dtype: DType) -> None:
    rng = np.random.default_rng(5)
    kernel = kernels.get(op, dtype)
    for world_size in (1, 2, 3, 4, 5):
        for size in SIZES:
            sources = [random_values(rng, dtype, size) for _ in range(world_size)]
            for destination_count in (1, 2, 3):
                destinations = [np.zeros_like(sources[0]) for _ in range(destination_count)]
                kept = [source.copy() for source in sources]
                run(kernel, sources, [destinations])
                expected = reduced(op, dtype, sources)
                for destination in destinations:
                    assert_same(destination, expected)
                for source, copy in zip(sources, kept, strict=True):
                    np.testing.assert_array_equal(bits(source), bits(copy))


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_in_place(kernels: Kernels, dtype: DType, world_size: int) -> None:
    # As in a two-shot all-reduce: every source is a destination.
    rng = np.random.default_rng(6)
    for op in ("sum", "avg", "max"):
        if (op, dtype) not in PAIRS:
            continue
        for size in (1, 513, 1500):
            sources = [random_values(rng, dtype, size) for _ in range(world_size)]
            expected = reduced(op, dtype, sources)
            run(kernels.get(op, dtype), sources, [sources])
            for source in sources:
                assert_same(source, expected)


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("flags", [STREAMING, ZERO_SOURCES, STREAMING | ZERO_SOURCES])
def test_streaming_and_zeroing(kernels: Kernels, dtype: DType, flags: int) -> None:
    rng = np.random.default_rng(7)
    kernel = kernels.get("sum", dtype)
    for world_size in (1, 2, 3):
        for size, offset in [(0, 0), (1, 3), (40, 1), (600, 0), (600, 5), (2000, 9)]:
            sources = [random_values(rng, dtype, size) for _ in range(world_size)]
            expected = reduced("sum", dtype, sources)
            kept = [source.copy() for source in sources]
            # Elements around the range must not be touched, at any alignment to a cache line.
            marked = random_values(rng, dtype, size + 32)
            buffers = [marked.copy() for _ in range(2)]
            destinations = [buffer[offset : offset + size] for buffer in buffers]
            run(kernel, sources, [destinations], flags=flags)
            for buffer, destination in zip(buffers, destinations, strict=True):
                assert_same(destination, expected)
                np.testing.assert_array_equal(bits(buffer[:offset]), bits(marked[:offset]))
                np.testing.assert_array_equal(
                    bits(buffer[offset + size :]), bits(marked[offset + size :])
                )
            for source, before in zip(sources, kept, strict=True):
                left = np.zeros_like(before) if flags & ZERO_SOURCES else before
                np.testing.assert_array_equal(bits(source), bits(left))


def test_zeroing_a_source_that_is_a_destination_keeps_the_result(kernels: Kernels) -> None:
    rng = np.random.default_rng(8)
    for world_size in (1, 2, 3):
        sources = [random_values(rng, DType.FLOAT32, 700) for _ in range(world_size)]
        expected = reduced("sum", DType.FLOAT32, sources)
        run(kernels.get("sum", DType.FLOAT32), sources, [[sources[0]]], flags=ZERO_SOURCES)
        np.testing.assert_array_equal(sources[0], expected)
        for source in sources[1:]:
            assert not source.any()


@pytest.mark.parametrize(
    "dtype", [d for d in DType if ("avg", d) in PAIRS], ids=lambda dtype: dtype.label
)
def test_average_divides_by_the_world_size(kernels: Kernels, dtype: DType) -> None:
    # R07: the length differs from the rank count, and once equals it.
    kernel = kernels.get("avg", dtype)
    for size in (5, 4):
        sources = [np.full(size, rank, NUMPY_DTYPES[dtype]) for rank in range(4)]
        destination = np.empty_like(sources[0])
        run(kernel, sources, [[destination]])
        expected = 1 if dtype.is_integer else 1.5
        np.testing.assert_array_equal(destination.astype(np.complex128), np.full(size, expected))


def test_integer_averages_are_exact_and_truncate_toward_zero(kernels: Kernels) -> None:
    base = np.array([1, 0, -1, -2, 7], np.int32)
    sources = [base + np.int32(rank) for rank in range(4)]
    destination = np.empty_like(base)
    run(kernels.get("avg", DType.INT32), sources, [[destination]])
    # Sums 10, 6, 2, -2, 34.
    np.testing.assert_array_equal(destination, [2, 1, 0, 0, 8])
    for value in (2**60 + 1, -(2**60) - 1, 2**63 - 1, -(2**63), 0, -1):
        wide = np.full(6, value, np.int64)
        target = np.empty_like(wide)
        run(kernels.get("avg", DType.INT64), [wide.copy() for _ in range(4)], [[target]])
        np.testing.assert_array_equal(target, wide)
    bytes_200 = np.full(40, 200, np.uint8)
    target = np.empty_like(bytes_200)
    run(kernels.get("avg", DType.UINT8), [bytes_200.copy() for _ in range(4)], [[target]])
    np.testing.assert_array_equal(target, bytes_200)


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_integer], ids=lambda d: d.label)
@given(data=st.data())
def test_averages_against_exact_integers(
    kernels: Kernels, dtype: DType, data: st.DataObject
) -> None:
    limits = np.iinfo(NUMPY_DTYPES[dtype])
    column = st.lists(st.integers(int(limits.min), int(limits.max)), min_size=17, max_size=17)
    columns = data.draw(st.lists(column, min_size=1, max_size=7))
    sources = [np.array(column, NUMPY_DTYPES[dtype]) for column in columns]
    target = np.empty_like(sources[0])
    run(kernels.get("avg", dtype), sources, [[target]])
    np.testing.assert_array_equal(target, reduced("avg", dtype, sources))


@pytest.mark.parametrize("dtype", [DType.UINT32, DType.UINT64], ids=lambda d: d.label)
def test_averages_of_the_largest_unsigned_integers(kernels: Kernels, dtype: DType) -> None:
    # Quotients on both sides of where the signed type of their size ends.
    half, most = 1 << (8 * dtype.itemsize_bytes - 1), (1 << (8 * dtype.itemsize_bytes)) - 1
    values = [0, 1, half - 1, half, half + 1, most - 1, most]
    sources = [np.array(values * 9, NUMPY_DTYPES[dtype]) for _ in range(3)]
    sources[2] = np.roll(sources[2], 1)
    target = np.empty_like(sources[0])
    run(kernels.get("avg", dtype), sources, [[target]])
    np.testing.assert_array_equal(target, reduced("avg", dtype, sources))


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_truth_values_of_any_bits(kernels: Kernels, op: str) -> None:
    # Whatever a byte holds that others have made, it is true or false, and stored as 1 or 0.
    patterns = np.array([0, 1, 2, 128, 255], np.uint8)
    a, b = (grid.reshape(-1).copy() for grid in np.meshgrid(patterns, patterns))
    for sources in ([a, b], [a], [a, b, a]):
        target = np.empty(a.size, np.bool_)
        run(kernels.get(op, DType.BOOL), [s.view(np.bool_) for s in sources], [[target]])
        truth = [source != 0 for source in sources]
        wanted = (np.any if op in ("sum", "max") else np.all)(truth, axis=0)
        np.testing.assert_array_equal(target.view(np.uint8), wanted.view(np.uint8))


def test_reductions_that_have_no_meaning() -> None:
    refused = [(op, dtype) for op in OPS for dtype in DType if (op, dtype) not in PAIRS]
    assert len(refused) == 5
    for op, dtype in refused:
        with pytest.raises(DTypeError, match=f"op='{op}' needs .* got {dtype.label}"):
            KernelSpec(op, dtype)


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_floating], ids=lambda d: d.label)
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_from_any_rank_at_any_position(kernels: Kernels, op: str, dtype: DType) -> None:
    # R08: with sign and payload bits, in the vector body and in its tail.
    kernel = kernels.get(op, dtype)
    rng = np.random.default_rng(9)
    quiet = {
        DType.FLOAT8_E4M3FN: 0xFF,
        DType.FLOAT8_E5M2: 0x7E,
        DType.FLOAT16: 0x7E01,
        DType.BFLOAT16: 0x7FC3,
        DType.FLOAT32: 0xFFC01234,
        DType.FLOAT64: 0xFFF8000000000123,
    }[dtype]
    for size in (1, 2, 5, 8, 33, 515):
        clean = [random_values(rng, dtype, size) for _ in range(4)]
        without = reduced(op, dtype, clean)
        for rank in range(4):
            for position in {0, size // 2, size - 1}:
                sources = [source.copy() for source in clean]
                bits(sources[rank])[position] = quiet
                destinations = [np.empty_like(clean[0]) for _ in range(2)]
                run(kernel, sources, [destinations])
                found = bits(destinations[0])
                assert found[position] == quiet
                np.testing.assert_array_equal(found, bits(destinations[1]))
                others = np.arange(size) != position
                np.testing.assert_array_equal(found[others], bits(without)[others])


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda d: d.label)
@pytest.mark.parametrize(
    "constant", [0.0, -0.0, 2.0**-24, 2.0**-11, 15.9921875, 16.0, -65504.0, np.inf, np.nan]
)
def test_sums_of_every_pattern_and_a_constant(
    kernels: Kernels, dtype: DType, constant: float
) -> None:
    # R09.
    half = NUMPY_DTYPES[dtype]
    patterns = np.arange(65536, dtype=np.uint16).view(half)
    other = np.full(65536, constant).astype(half)
    destination = np.empty_like(patterns)
    run(kernels.get("sum", dtype), [patterns, other], [[destination]])
    with np.errstate(all="ignore"):
        expected = (patterns.astype(np.float32) + other.astype(np.float32)).astype(half)
    assert_same(destination, expected)


def test_sums_of_halves_near_the_largest_and_near_ties(kernels: Kernels) -> None:
    # R09: the single cases.
    kernel = kernels.get("sum", DType.FLOAT16)
    cases = [
        ([65504.0, 15.9921875], 65504.0),
        ([65504.0, 16.0], np.inf),
        ([1.9990234375, 2.0**-11], 2.0),
        ([2.0**-24, 2.0**-24], 2.0**-23),
        ([60000.0, 60000.0, -60000.0], 60000.0),
    ]
    for values, expected in cases:
        for size in (1, 8, 11):
            sources = [np.full(size, value, np.float16) for value in values]
            destination = np.empty(size, np.float16)
            run(kernel, sources, [[destination]])
            np.testing.assert_array_equal(destination, np.full(size, expected, np.float16))


def strided_views(rng: np.random.Generator, dtype: DType) -> list[np.ndarray[Any, Any]]:
    """Give arrays of shape (6, 7, 25) with all kinds of strides."""
    shape = (6, 7, 25)
    values = random_values(rng, dtype, 6 * 7 * 25 * 8)
    return [
        values[: 6 * 7 * 25].reshape(shape),
        values[: 6 * 7 * 25].reshape(25, 7, 6).T,
        values[: 6 * 7 * 25].reshape(shape)[::-1, ::-1, ::-1],
        values[: 6 * 7 * 50].reshape(6, 7, 50)[:, :, ::2],
        values[: 6 * 14 * 25].reshape(6, 14, 25)[:, 1::2, :],
        np.broadcast_to(values[:25], shape),
        np.broadcast_to(values[:7].reshape(7, 1), shape),
        np.broadcast_to(values[:6].reshape(6, 1, 1), shape),
        np.broadcast_to(values[0], shape),
    ]


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
def test_strided_and_broadcast_sources(kernels: Kernels, dtype: DType) -> None:
    rng = np.random.default_rng(10)
    kernel = kernels.get("sum", dtype)
    views = strided_views(rng, dtype)
    other = random_values(rng, dtype, 6 * 7 * 25)
    for view in views:
        expected = reduced("sum", dtype, [view.reshape(-1), other])
        whole = np.zeros_like(other)
        run(kernel, [view, other], [[whole]])
        assert_same(whole, expected)
        # In chunks that start anywhere.
        chunked = np.zeros_like(other)
        for begin, end in [(0, 1), (1, 130), (130, 137), (137, 1050)]:
            run(kernel, [view, other], [[chunked]], begin=begin, count=end - begin)
        assert_same(chunked, expected)
        alone = np.zeros_like(other)
        run(kernel, [view], [[alone]])
        assert_same(alone, reduced("sum", dtype, [view.reshape(-1)]))


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("flags", [0, STREAMING])
def test_strided_destinations(kernels: Kernels, dtype: DType, flags: int) -> None:
    rng = np.random.default_rng(11)
    kernel = kernels.get("sum", dtype)
    sources = [random_values(rng, dtype, 6 * 7 * 25) for _ in range(2)]
    expected = reduced("sum", dtype, sources)
    for place in range(5):
        target = strided_views(np.random.default_rng(12), dtype)[place]
        base = target.base
        assert base is not None
        before = base.copy()
        plain = np.empty_like(sources[0])
        run(kernel, sources, [[target, plain]], flags=flags)
        assert_same(np.ascontiguousarray(target).reshape(-1), expected)
        assert_same(plain, expected)
        # What lies between the elements is untouched.
        target[...] = 0
        untouched = base != 0
        np.testing.assert_array_equal(bits(base[untouched]), bits(before[untouched]))


def test_an_unaligned_array_goes_by_its_layout(kernels: Kernels) -> None:
    raw = np.zeros(4 * 700 + 1, np.uint8)
    unaligned = raw[1:].view(np.float32)
    assert unaligned.ctypes.data % 4 != 0
    unaligned[...] = np.arange(700)
    destination = np.empty(700, np.float32)
    run(kernels.get("sum", DType.FLOAT32), [unaligned, unaligned], [[destination]])
    np.testing.assert_array_equal(destination, 2 * np.arange(700, dtype=np.float32))


def test_zeroing_strided_sources(kernels: Kernels) -> None:
    base = np.ones((40, 60), np.float32)
    source = base[:, ::3]
    destination = np.empty(800, np.float32)
    run(kernels.get("sum", DType.FLOAT32), [source], [[destination]], flags=ZERO_SOURCES)
    np.testing.assert_array_equal(destination, 1.0)
    np.testing.assert_array_equal(base[:, ::3], 0.0)
    np.testing.assert_array_equal(np.delete(base, np.s_[::3], axis=1), 1.0)


def test_integer_sums_and_products_wrap(kernels: Kernels) -> None:
    for dtype in (dtype for dtype in DType if dtype.is_integer):
        numpy_dtype = NUMPY_DTYPES[dtype]
        largest = np.full(19, np.iinfo(numpy_dtype).max, numpy_dtype)
        destination = np.empty_like(largest)
        for op, exact in (("sum", 2 * int(largest[0])), ("prod", int(largest[0]) ** 2)):
            run(kernels.get(op, dtype), [largest, largest], [[destination]])
            wrapped = exact % 2 ** (8 * dtype.itemsize_bytes)
            expected = np.array([wrapped], np.uint64).astype(numpy_dtype)[0]
            np.testing.assert_array_equal(destination, expected)


def test_a_library_of_all_plain_kernels_renders_once() -> None:
    specs = [KernelSpec(op, dtype) for op, dtype in PAIRS]
    text = render_library(specs)
    assert text.count("COCOLL_KERNEL(") == len(distinct_kernels(specs)) < len(specs)
    assert text.count('    {"') == len(specs)
    assert text == render_library(specs)
