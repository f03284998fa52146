"""Objects that are no arrays."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import UsageError
from tests.helpers.misuse import refuse_on_ranks

OBJECTS = [None, 1.5, 3, [1.0, 2.0], (1.0,), "text", {"a": 1}, object(), np.float32, range(4)]


def wanted(name: str, given: object) -> tuple[str, str]:
    """Say what a refusal says; of a list it is the first of its arrays that is none."""
    if isinstance(given, list | tuple):
        return f"{name}[0] must be an array", "got float"
    return f"{name} must be an array", f"got {type(given).__name__}"


@pytest.mark.parametrize("given", OBJECTS, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize(
    "function", [cocoll.allreduce, cocoll.broadcast, cocoll.reduce_scatter, cocoll.allgather]
)
def test_as_input(function, given: object) -> None:
    refuse_on_ranks(
        lambda comm: (lambda: function(given, comm=comm), []),
        UsageError,
        *wanted("x", given),
    )


@pytest.mark.parametrize("given", OBJECTS[1:], ids=lambda given: type(given).__name__)
def test_as_output(given: object) -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        return lambda: cocoll.allreduce(x, out=given, comm=comm), [x]

    refuse_on_ranks(misuse, UsageError, *wanted("out", given))


@pytest.mark.parametrize("given", OBJECTS[1:], ids=lambda given: type(given).__name__)
@pytest.mark.parametrize("call", [cocoll.allreduce_fused, cocoll.reduce_scatter_fused])
def test_as_an_epilogue_s_array(call, given: object) -> None:
    @epilogues.epilogue
    def add(x, bias):
        return x + bias

    def misuse(comm):
        x = np.ones(40, np.float32)
        return lambda: call(x, add, bias=given, comm=comm), [x]

    refuse_on_ranks(misuse, UsageError, *wanted("bias", given))


@pytest.mark.parametrize("given", OBJECTS, ids=lambda given: type(given).__name__)
def test_as_an_epilogue(given: object) -> None:
    def misuse(comm):
        x = np.ones(40, np.float32)
        return lambda: cocoll.allreduce_fused(x, given, comm=comm), [x]

    refuse_on_ranks(
        misuse,
        UsageError,
        "epilogue must come from cocoll.epilogues",
        "@cocoll.epilogue",
        type(given).__name__,
    )


@pytest.mark.parametrize("given", [None, "0.1", [0.1], np.ones(2)], ids=str)
@pytest.mark.parametrize("bound", [False, True])
def test_as_a_scalar(given: object, bound: bool) -> None:
    def misuse(comm):
        x, param = np.ones(40, np.float32), np.ones(40, np.float32)
        sgd = epilogues.sgd()
        if bound:
            operation = comm.bind(cocoll.allreduce_fused, x, sgd, param=param)
            return lambda: operation(lr=given), [x, param]
        return (
            lambda: cocoll.allreduce_fused(x, sgd, param=param, lr=given, comm=comm),
            [x, param],
        )

    refuse_on_ranks(misuse, UsageError, "scalar 'lr'")
