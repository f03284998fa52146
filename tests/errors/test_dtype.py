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
    "longdouble": np.ones(4, np.longdouble),
    "clongdouble": np.ones(4, np.clongdouble),
    "object": np.array([1, None, "x", []], dtype=object),
    "str": np.array(["a", "bc"]),
    "bytes": np.array([b"a", b"bc"]),
    "datetime64": np.array([datetime.datetime(2020, 1, 1)], dtype="datetime64[ns]"),
    "timedelta64": np.ones(4, "timedelta64[s]"),
    "structured": np.zeros(4, dtype=[("a", "f4"), ("b", "i4")]),
    "void": np.zeros(4, dtype="V4"),
    "subarray": np.zeros(4, dtype=[("a", "f4", (2,))]),
    # Of its size, and neither of the two that cocoll has.
    "float8_e4m3": np.ones(4, ml_dtypes.float8_e4m3),
    "float8_e5m2fnuz": np.ones(4, ml_dtypes.float8_e5m2fnuz),
    "int4": np.ones(4, ml_dtypes.int4),
}


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_an_element_type_that_cocoll_does_not_have(name: str) -> None:
    def misuse(comm):
        x = UNSUPPORTED[name].copy()
        return lambda: cocoll.allreduce(x, comm=comm), [x]

    for error in refuse_on_ranks(misuse, DTypeError, "x must have a dtype out of", "float32"):
        assert isinstance(error, TypeError)
        assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("op", "dtype", "words"),
    [
        ("min", "complex64", "needs a dtype with an order"),
        ("max", "complex128", "needs a dtype with an order"),
        ("avg", "bool", "needs numbers"),
    ],
)
@pytest.mark.parametrize("count", [1, 300, 70_001])
def test_a_reduction_without_a_meaning(op: str, dtype: str, words: str, count: int) -> None:
    def misuse(comm):
        x = np.ones(2 * count, dtype)
        out = np.zeros(count, dtype)
        call = cocoll.reduce_scatter if count == 300 else cocoll.allreduce
        out = out if count == 300 else np.zeros_like(x)
        if comm.world_size == 2 and count == 1:
            return lambda: comm.bind(cocoll.allreduce, x, op), [x]
        return lambda: call(x, op, out=out, comm=comm), [x, out]

    refuse_on_ranks(misuse, DTypeError, f"op={op!r} {words}", f"got {dtype}")


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


def test_an_array_of_the_standard_library() -> None:
    x = array.array("u", "ab")
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("datetime64", "momentum_buffer must have a dtype out of"),
        ("object", "momentum_buffer must have a dtype out of"),
        ("int16", "an epilogue's arrays have a dtype out of"),
        ("complex64", "an epilogue's arrays have a dtype out of"),
        ("bool", "an epilogue's arrays have a dtype out of"),
    ],
)
def test_an_epilogue_s_array_of_an_unknown_type(name: str, words: str) -> None:
    def misuse(comm):
        x, param = np.ones(40, np.float32), np.ones(40, np.float32)
        buffer = np.resize(UNSUPPORTED.get(name, np.ones(4, np.float32)), 40)
        if name not in UNSUPPORTED:
            buffer = buffer.astype(name)
        names = {"param": param, "momentum_buffer": buffer, "lr": 0.1}
        return (
            lambda: cocoll.allreduce_fused(x, epilogues.sgd(momentum=0.9), comm=comm, **names),
            [x, param, buffer],
        )

    refuse_on_ranks(misuse, DTypeError, words, f"got {name}")


@pytest.mark.parametrize("argument", ["x", "out", "param"])
@pytest.mark.parametrize("dtype", ["int32", "uint16", "bool", "complex64"])
def test_no_floats_in_an_epilogue(argument: str, dtype: str) -> None:
    def misuse(comm):
        arrays = {"x": np.ones(40, np.float32)}
        if argument == "param":
            arrays["param"] = np.ones(40, np.float32)
            epilogue = epilogues.sgd(lr=0.1)
        else:
            arrays["out"] = np.ones(40, np.float32)
            epilogue = epilogues.relu()
        arrays[argument] = np.ones(40, dtype)
        return (
            lambda: cocoll.allreduce_fused(epilogue=epilogue, comm=comm, **arrays),
            arrays.values(),
        )

    refuse_on_ranks(misuse, DTypeError, dtype, "float")
