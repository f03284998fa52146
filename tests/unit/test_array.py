"""What callers pass as arrays: where it lies, what it holds, and what cannot be used."""

from __future__ import annotations

import array as standard
import ctypes
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocoll.array import describe_array, make_output, numpy_dtype
from cocoll.dtypes import DType
from cocoll.errors import BufferMismatchError, DTypeError, UsageError

NAMES = ["float16", "float32", "float64", "int32", "int64", "uint8"]
NONE = -1


class OnlyDlpack:
    """An array that has no other protocol, as a tensor of a framework."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)


def read_back(description) -> np.ndarray:
    """Give the array that a description tells of."""
    dtype = numpy_dtype(description.dtype)
    interface = {
        "shape": description.shape,
        "strides": description.stride_bytes,
        "typestr": dtype.str if description.dtype != DType.BFLOAT16 else "<u2",
        "data": (description.address, description.readonly),
        "version": 3,
    }
    return np.asarray(type("View", (), {"__array_interface__": interface})())


VIEWS = {
    "whole": lambda a: a,
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1, :, ::-1],
    "stepped": lambda a: a[1::2, :, ::3],
    "empty": lambda a: a[:0],
    "one element": lambda a: a[1, 2, 3],
    "broadcast": lambda a: np.broadcast_to(a[0], (5, *a.shape[1:])),
}


@pytest.mark.parametrize("view", sorted(VIEWS))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrap", [lambda a: a, OnlyDlpack], ids=["numpy", "dlpack"])
def test_views_are_read_as_they_are(name: str, view: str, wrap) -> None:
    array = np.asarray(VIEWS[view](np.arange(4 * 5 * 6).reshape(4, 5, 6).astype(name)))
    if wrap is OnlyDlpack and not array.flags.writeable:
        array = array.copy()
    description = describe_array(wrap(array), "x", NONE)
    assert description.dtype.label == name
    assert description.shape == array.shape
    if array.size:
        np.testing.assert_array_equal(read_back(description), array)
        assert description.address == array.__array_interface__["data"][0]
    if wrap is not OnlyDlpack:
        assert description.readonly == (not array.flags.writeable)


@given(
    st.integers(0, 8).flatmap(
        lambda dims: st.tuples(*[st.integers(1, 4)] * dims).flatmap(
            lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))))
        )
    )
)
def test_any_order_of_dimensions(case: tuple[tuple[int, ...], list[int]]) -> None:
    shape, order = case
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(np.float32)
    array = array.transpose(order) if order else array
    for given_array in (array, OnlyDlpack(array)):
        np.testing.assert_array_equal(read_back(describe_array(given_array, "x", NONE)), array)


def test_bfloat16() -> None:
    array = np.arange(6).astype(ml_dtypes.bfloat16)
    assert describe_array(array, "x", NONE).dtype is DType.BFLOAT16
    raw = array.view(np.uint16)
    assert describe_array(raw, "x", DType.BFLOAT16).dtype is DType.BFLOAT16
    assert describe_array(OnlyDlpack(raw), "x", DType.BFLOAT16).dtype is DType.BFLOAT16
    for given_array in (raw, OnlyDlpack(raw)):
        with pytest.raises(DTypeError):
            describe_array(given_array, "x", NONE)


@pytest.mark.parametrize(
    "value",
    [
        bytearray(8),
        standard.array("f", [1, 2]),
        (ctypes.c_double * 3)(),
        memoryview(np.arange(6, dtype=np.int32).reshape(2, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_buffer_protocol(value: object) -> None:
    expected = np.asarray(value)
    description = describe_array(value, "x", NONE)
    assert description.address == expected.__array_interface__["data"][0]
    assert (description.shape, description.stride_bytes) == (expected.shape, expected.strides)
    assert description.dtype.label == str(expected.dtype)


def test_the_argument_is_named() -> None:
    for value, kind in (("text", UsageError), (np.ones(2, bool), DTypeError)):
        with pytest.raises(kind, match=r"^momentum must"):
            describe_array(value, "momentum", NONE)


def test_dimensions_have_a_limit() -> None:
    assert describe_array(np.ones((1,) * 8), "x", NONE).shape == (1,) * 8
    for value in (np.ones((1,) * 9), OnlyDlpack(np.ones((1,) * 9))):
        with pytest.raises(BufferMismatchError, match=re.escape("8 dimensions; got 9")):
            describe_array(value, "x", NONE)


@pytest.mark.parametrize("name", [*NAMES, "bfloat16"])
def test_outputs(name: str) -> None:
    dtype = DType.parse(name)
    made = make_output(np.ones(3, np.float32), (4, 5), dtype)
    assert made.shape == (4, 5)
    assert made.dtype == numpy_dtype(dtype)


def test_outputs_of_raw_bfloat16() -> None:
    made = make_output(np.ones(3, np.uint16), (2,), DType.BFLOAT16)
    assert made.dtype == np.uint16
