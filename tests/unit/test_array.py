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

NAMES = [dtype.label for dtype in DType if dtype.carrier is None]
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


CARRIED = [dtype for dtype in DType if dtype.carrier is not None]


@pytest.mark.parametrize("dtype", CARRIED, ids=lambda dtype: dtype.label)
def test_floats_that_numpy_lacks(dtype: DType) -> None:
    carrier = dtype.carrier
    assert carrier is not None
    array = np.arange(6).astype(getattr(ml_dtypes, dtype.label))
    assert describe_array(array, "x", NONE).dtype is dtype
    raw = array.view(carrier.label)
    for given_array in (raw, OnlyDlpack(raw)):
        assert describe_array(given_array, "x", dtype).dtype is dtype
        # Without the word they are integers, and with another one too.
        assert describe_array(given_array, "x", NONE).dtype is carrier
        assert describe_array(given_array, "x", DType.FLOAT32).dtype is carrier
    assert describe_array(np.ones(2, np.int16), "x", dtype).dtype is DType.INT16


@pytest.mark.long
@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
def test_torch_tensors(dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros((3, 4), dtype=getattr(torch, dtype.label)).T
    description = describe_array(tensor, "x", NONE)
    assert description.dtype is dtype
    assert description.address == tensor.data_ptr()
    assert description.shape == (4, 3)
    assert make_output(tensor, (5,), dtype).dtype is tensor.dtype


@pytest.mark.parametrize(
    "value",
    [
        bytearray(8),
        standard.array("f", [1, 2]),
        (ctypes.c_double * 3)(),
        (ctypes.c_bool * 3)(),
        standard.array("h", [1, 2]),
        standard.array("Q", [1, 2]),
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
    for value, kind in (("text", UsageError), (np.ones(2, "m8[s]"), DTypeError)):
        with pytest.raises(kind, match=r"^momentum must"):
            describe_array(value, "momentum", NONE)


def test_dimensions_have_a_limit() -> None:
    assert describe_array(np.ones((1,) * 8), "x", NONE).shape == (1,) * 8
    for value in (np.ones((1,) * 9), OnlyDlpack(np.ones((1,) * 9))):
        with pytest.raises(BufferMismatchError, match=re.escape("8 dimensions; got 9")):
            describe_array(value, "x", NONE)


@pytest.mark.parametrize("name", [dtype.label for dtype in DType])
def test_outputs(name: str) -> None:
    dtype = DType.parse(name)
    made = make_output(np.ones(3, np.float32), (4, 5), dtype)
    assert made.shape == (4, 5)
    assert made.dtype == numpy_dtype(dtype)


@pytest.mark.parametrize("dtype", CARRIED, ids=lambda dtype: dtype.label)
def test_outputs_of_raw_floats(dtype: DType) -> None:
    assert dtype.carrier is not None
    made = make_output(np.ones(3, dtype.carrier.label), (2,), dtype)
    assert made.dtype == dtype.carrier.label
