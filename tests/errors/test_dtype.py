"""Element types that cocoll does not have, cannot read, or that do not fit each other."""

from __future__ import annotations

import array
import ctypes
import datetime

import ml_dtypes
import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import DTypeError
from tests.helpers.misuse import refuse_on_ranks

UNSUPPORTED = {
    "bool": np.ones(4, np.bool_),
    "int8": np.ones(4, np.int8),
    "int16": np.ones(4, np.int16),
    "uint16": np.ones(4, np.uint16),
    "uint32": np.ones(4, np.uint32),
    "uint64": np.ones(4, np.uint64),
    "longdouble": np.ones(4, np.longdouble),
    "complex64": np.ones(4, np.complex64),
    "complex128": np.ones(4, np.complex128),
    "object": np.array([1, None, "x", []], dtype=object),
    "str": np.array(["a", "bc"]),
    "bytes": np.array([b"a", b"bc"]),
    "datetime64": np.array([datetime.datetime(2020, 1, 1)], dtype="datetime64[ns]"),
    "timedelta64": np.ones(4, "timedelta64[s]"),
    "structured": np.zeros(4, dtype=[("a", "f4"), ("b", "i4")]),
    "void": np.zeros(4, dtype="V4"),
    "subarray": np.zeros(4, dtype=[("a", "f4", (2,))]),
    "float8": np.ones(4, ml_dtypes.float8_e4m3fn),
}


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_an_element_type_that_cocoll_does_not_have(name: str) -> None:
    def misuse(comm):
        x = UNSUPPORTED[name].copy()
        return lambda: cocoll.allreduce(x, comm=comm), [x]

    for error in refuse_on_ranks(misuse, DTypeError, "x must have a dtype out of", "float32"):
        assert isinstance(error, TypeError)
        assert isinstance(error, ValueError)


def test_uint16_is_told_how_to_be_bfloat16() -> None:
    x = np.ones(4, np.uint16)
    refuse_on_ranks(
        lambda comm: (lambda: cocoll.allreduce(x, comm=comm), [x]),
        DTypeError,
        "got uint16",
        "dtype='bfloat16'",
    )


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", ">i4", ">i8"])
@pytest.mark.parametrize("argument", ["x", "out"])
def test_the_other_byte_order(dtype: str, argument: str) -> None:
    def misuse(comm):
        foreign, native = np.arange(6).astype(dtype), np.arange(6).astype(dtype[1:])
        given = {"x": native, argument: foreign}
        return lambda: cocoll.allreduce(comm=comm, **given), [foreign, native]

    refuse_on_ranks(
        misuse,
        DTypeError,
        f"{argument} must have this machine's byte order",
        f"got {dtype}",
        "newbyteorder",
    )


def test_the_other_byte_order_through_the_buffer_protocol() -> None:
    def misuse(comm):
        x = (ctypes.c_float.__ctype_be__ * 4)(1, 2, 3, 4)
        return lambda: cocoll.allreduce(x, comm=comm), [np.frombuffer(x, np.uint8)]

    refuse_on_ranks(misuse, DTypeError, "byte order")


@pytest.mark.parametrize("code", ["h", "H", "I", "L", "b", "u"])
def test_an_array_of_the_standard_library(code: str) -> None:
    x = array.array(code, "ab" if code == "u" else [1, 2])
    refuse_on_ranks(
        lambda comm: (lambda: cocoll.allreduce(x, comm=comm), []),
        DTypeError,
        "x must have a dtype out of",
    )


@pytest.mark.parametrize("function", [cocoll.allreduce, cocoll.broadcast])
@pytest.mark.parametrize("count", [3, 1000, 70_001])
def test_out_of_another_type(function, count: int) -> None:
    def misuse(comm):
        x, out = np.ones(count, np.float32), np.ones(count, np.float64)
        return lambda: function(x, out=out, comm=comm), [x, out]

    refuse_on_ranks(
        misuse, DTypeError, "out must have the input's dtype float32", "got float64", "rank {rank}"
    )


@pytest.mark.parametrize("function", [cocoll.reduce_scatter, cocoll.allgather])
def test_a_block_of_another_type(function) -> None:
    def misuse(comm):
        whole, block = np.ones(8, np.float32), np.ones(4, np.int32)
        x, out = (whole, block) if function is cocoll.reduce_scatter else (block, whole)
        return lambda: function(x, out=out, comm=comm), [x, out]

    refuse_on_ranks(misuse, DTypeError, "out must have the input's dtype", "rank {rank}")


@pytest.mark.parametrize("given", ["float31", "", "FLOAT32 ", np.float32, 7])
def test_a_name_that_is_no_type(given: object) -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        return lambda: cocoll.allreduce(x, comm=comm, dtype=given), [x]

    refuse_on_ranks(misuse, DTypeError, "wanted a dtype out of", "bfloat16", repr(str(given)))


@pytest.mark.parametrize("given", ["float64", "bfloat16", "int32"])
@pytest.mark.parametrize("bound", [False, True])
def test_a_name_that_is_not_the_array_s(given: str, bound: bool) -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        if bound:
            return lambda: comm.bind(cocoll.allreduce, x, dtype=given), [x]
        return lambda: cocoll.allreduce(x, comm=comm, dtype=given), [x]

    refuse_on_ranks(misuse, DTypeError, f"dtype={given!r}", "float32", "rank {rank}")


@pytest.mark.parametrize("name", ["int16", "datetime64", "object", "complex64"])
def test_an_epilogue_s_array_of_an_unknown_type(name: str) -> None:
    def misuse(comm):
        x, param = np.ones(40, np.float32), np.ones(40, np.float32)
        buffer = np.resize(UNSUPPORTED[name], 40)
        names = {"param": param, "momentum_buffer": buffer, "lr": 0.1}
        return (
            lambda: cocoll.allreduce_fused(x, epilogues.sgd(momentum=0.9), comm=comm, **names),
            [x, param, buffer],
        )

    refuse_on_ranks(misuse, DTypeError, "momentum_buffer must have a dtype out of", f"got {name}")


@pytest.mark.parametrize("argument", ["x", "out", "param"])
def test_integers_in_an_epilogue(argument: str) -> None:
    def misuse(comm):
        arrays = {"x": np.ones(40, np.float32)}
        if argument == "param":
            arrays["param"] = np.ones(40, np.float32)
            epilogue = epilogues.sgd(lr=0.1)
        else:
            arrays["out"] = np.ones(40, np.float32)
            epilogue = epilogues.relu()
        arrays[argument] = np.ones(40, np.int32)
        return (
            lambda: cocoll.allreduce_fused(epilogue=epilogue, comm=comm, **arrays),
            arrays.values(),
        )

    refuse_on_ranks(misuse, DTypeError, "int32", "floating")
