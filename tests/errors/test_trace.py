"""Epilogues that raise, or that cannot be traced: the offending line is quoted."""

from __future__ import annotations

import math

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.dtypes import DType
from cocoll.errors import TraceError, UsageError
from tests.helpers.misuse import refuse, refuse_on_ranks

N = 40


def raises(x):
    raise RuntimeError("no such thing")  # the line that is quoted: raises


def branches(x):
    if x > 0:  # the line that is quoted: branches
        return x
    return -x


def loops(x):
    total = 0.0
    for part in x:  # the line that is quoted: loops
        total = total + part
    return total


def takes_a_length(x):
    return x * len(x)  # the line that is quoted: takes_a_length


def indexes(x):
    return x[0]  # the line that is quoted: indexes


def calls_math(x):
    return math.exp(x)  # the line that is quoted: calls_math


def calls_numpy(x):
    return np.exp(x)  # the line that is quoted: calls_numpy


def is_not_defined(x):
    return x + undefined_name  # noqa: F821 the line that is quoted: is_not_defined


def has_no_attribute(x):
    return x.sum_over_ranks()  # the line that is quoted: has_no_attribute


def helper(x):
    return x % "three"  # the line that is quoted: calls_a_helper


def calls_a_helper(x):
    return helper(x)


BODIES = [
    raises,
    branches,
    loops,
    takes_a_length,
    indexes,
    calls_math,
    calls_numpy,
    is_not_defined,
    has_no_attribute,
    calls_a_helper,
]


@pytest.mark.parametrize("function", BODIES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("bound", [False, True])
def test_the_line_is_quoted(function, bound: bool) -> None:
    epilogue = epilogues.epilogue(function)

    def misuse(comm):
        x = np.ones(N, np.float32)
        if bound:
            return lambda: comm.bind(cocoll.allreduce_fused, x, epilogue), [x]
        return lambda: cocoll.allreduce_fused(x, epilogue, comm=comm), [x]

    errors = refuse_on_ranks(
        misuse,
        TraceError,
        f"epilogue '{function.__name__}' cannot be traced",
        f"the line that is quoted: {function.__name__}",
        __file__,
    )
    for error in errors:
        assert f"the line that is quoted: {function.__name__}" in error.source_line
        assert error.filename == __file__
        assert error.line_number > 0


def test_the_cause_is_kept() -> None:
    def misuse(comm):
        x = np.ones(N, np.float32)
        return lambda: cocoll.allreduce_fused(x, epilogues.epilogue(raises), comm=comm), [x]

    for error in refuse_on_ranks(misuse, TraceError, "RuntimeError: no such thing"):
        assert isinstance(error.__cause__, RuntimeError)


RETURNS = {
    "nothing": (lambda x: None, "a return statement is missing"),
    "an empty dict": (lambda x: {}, "nothing would be computed"),
    "an unknown name": (lambda x: {"y": x}, "returns 'y'"),
    "a truth value": (lambda x: x > 0, "cocoll.where"),
    "text": (lambda x: "x", "cannot be traced"),
    "a list": (lambda x: [x], "cannot be traced"),
}


@pytest.mark.parametrize("name", sorted(RETURNS))
def test_what_it_returns(name: str) -> None:
    function, part = RETURNS[name]
    epilogue = epilogues.epilogue(function)

    def misuse(comm):
        x = np.ones(N, np.float32)
        return lambda: cocoll.allreduce_fused(x, epilogue, comm=comm), [x]

    refuse_on_ranks(misuse, TraceError, part, __file__)


def test_a_value_that_is_kept_from_another_trace() -> None:
    kept = []

    def keeps(x):
        kept.append(x)
        return kept[0] + x

    epilogue = epilogues.epilogue(keeps)
    epilogue.trace(DType.FLOAT64, {})

    def misuse(comm):
        x = np.ones(N, np.float32)
        return lambda: cocoll.allreduce_fused(x, epilogue, comm=comm), [x]

    refuse_on_ranks(misuse, TraceError, "another trace", "kept[0] + x")


SIGNATURES = {
    "no value": lambda *, p: p,
    "values without a name": lambda *x: x,
    "names without a list": lambda x, **more: x,
    "a default that is a number": lambda x, bias=1.0: x + bias,
    "a value with a default": lambda x=None: x,
    "an array called out": lambda x, out: x + out,
}


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_its_parameters(name: str) -> None:
    refuse(lambda: epilogues.epilogue(SIGNATURES[name]), TraceError, "epilogue", __file__)


def test_sharded_names_that_are_no_arrays() -> None:
    refuse(
        lambda: epilogues.epilogue(sharded=("m",))(lambda x, v: x + v),
        TraceError,
        "'m'",
        "no array",
    )


@pytest.mark.parametrize("given", [3, "relu", None, object()], ids=lambda g: type(g).__name__)
def test_what_is_no_function(given: object) -> None:
    refuse(lambda: epilogues.Epilogue(given), TraceError, "an epilogue is a Python function")


def test_an_epilogue_called_on_arrays() -> None:
    x = np.ones(N, np.float32)
    refuse(
        lambda: epilogues.relu()(x),
        TraceError,
        "runs inside a collective",
        "allreduce_fused",
        arrays=[x],
    )


def test_binding_a_scalar_that_it_has_not() -> None:
    refuse(lambda: epilogues.sgd().bind(gamma=1.0), UsageError, "no scalar 'gamma'", "lr")
