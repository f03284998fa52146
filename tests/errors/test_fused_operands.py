"""Arrays and scalars of an epilogue that are missing, unknown or None."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import UsageError
from cocoll.testing import run_ranks
from tests.helpers.misuse import check_usable, refuse, refuse_on_ranks

N = 40


def state(comm, **changes):
    start, stop = comm.shard_range(N)
    names = {
        "param": np.ones(N, np.float32),
        "m": np.ones(stop - start, np.float32),
        "v": np.ones(stop - start, np.float32),
        "lr": 0.1,
        "step": 1,
    }
    names.update(changes)
    return {name: value for name, value in names.items() if value is not ...}


CASES = {
    "no parameters": ({"param": ...}, ["needs the array", "'param'"]),
    "no state": ({"m": ...}, ["needs the array", "'m'"]),
    "no scalar": ({"step": ...}, ["the scalar", "'step'"]),
    "None for parameters": ({"param": None}, ["param must be an array", "got None on rank {rank}"]),
    "None for state": ({"v": None}, ["v must be an array", "an empty shard is an empty array"]),
    "None for a scalar": ({"step": None}, ["the scalar", "'step'"]),
    "None for an optional array": ({"master": None}, ["master must be an array", "Leave it out"]),
    "an unknown array": ({"w": np.ones(N)}, ["no array or scalar 'w'", "param, m, v"]),
    "an unknown scalar": ({"gamma": 0.1}, ["no array or scalar 'gamma'", "lr", "step"]),
    "a scalar for an array": ({"param": 1.0}, ["param must be an array", "got float"]),
    "an array for a scalar": ({"lr": np.ones(N)}, ["the scalar 'lr' must be a number"]),
    "text for a scalar": ({"lr": "fast"}, ["the scalar 'lr' must be a number", "got str"]),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_call(name: str) -> None:
    changes, parts = CASES[name]

    def misuse(comm):
        x, names = np.ones(N, np.float32), state(comm, **changes)
        arrays = [value for value in names.values() if isinstance(value, np.ndarray)]
        call = cocoll.allreduce_fused
        return lambda: call(x, epilogues.adam(), comm=comm, **names), [x, *arrays]

    refuse_on_ranks(misuse, UsageError, *parts)


# What a binding leaves out may still be given when it runs.
LATER = ("no scalar", "None for a scalar")


@pytest.mark.parametrize("name", sorted(set(CASES) - set(LATER)))
def test_a_binding(name: str) -> None:
    changes, parts = CASES[name]

    def misuse(comm):
        x, names = np.ones(N, np.float32), state(comm, **changes)
        return lambda: comm.bind(cocoll.allreduce_fused, x, epilogues.adam(), **names), [x]

    refuse_on_ranks(misuse, UsageError, *parts)


def test_a_bound_scalar_that_is_never_given() -> None:
    def body(comm):
        x, names = np.ones(N, np.float32), state(comm, step=...)
        bound = comm.bind(cocoll.allreduce_fused, x, epilogues.adam(), **names)
        arrays = [value for value in names.values() if isinstance(value, np.ndarray)]
        refuse(bound, UsageError, "the scalar 'step' has not been given", arrays=[x, *arrays])
        refuse(lambda: bound(lr=0.2), UsageError, "'step'", arrays=[x, *arrays])
        refuse(lambda: bound(stepp=2), UsageError, "no scalar 'stepp'", "lr", arrays=[x, *arrays])
        refuse(
            lambda: bound(step="one"),
            UsageError,
            "'step' must be a number",
            "got str",
            arrays=[x, *arrays],
        )
        check_usable(comm)
        bound(step=1)
        assert names["param"][0] != 1.0

    run_ranks(2, body)


def test_the_scalars_of_a_binding_without_any() -> None:
    def misuse(comm):
        x = np.ones(N, np.float32)
        bound = comm.bind(cocoll.allreduce, x)
        return lambda: bound(lr=1.0), [x]

    refuse_on_ranks(misuse, UsageError, "no scalar 'lr'", "it has none")


def test_seventeen_arrays() -> None:
    names = [f"a{index}" for index in range(17)]
    scope: dict[str, object] = {}
    exec(f"def many(x, {', '.join(names)}):\n    return x + {' + '.join(names)}", scope)
    many = epilogues.epilogue(scope["many"])

    def misuse(comm):
        x, arrays = np.ones(N, np.float32), {name: np.ones(N, np.float32) for name in names}
        return lambda: cocoll.allreduce_fused(x, many, comm=comm, **arrays), [x, *arrays.values()]

    refuse_on_ranks(misuse, UsageError, "at most 16 arrays")


def test_nine_results() -> None:
    names = [f"a{index}" for index in range(9)]
    scope: dict[str, object] = {}
    body = ", ".join(f"'{name}': {name} + x" for name in names)
    exec(f"def many(x, {', '.join(names)}):\n    return {{{body}}}", scope)
    many = epilogues.epilogue(scope["many"])

    def misuse(comm):
        x, arrays = np.ones(N, np.float32), {name: np.ones(N, np.float32) for name in names}
        return lambda: cocoll.allreduce_fused(x, many, comm=comm, **arrays), [x, *arrays.values()]

    refuse_on_ranks(misuse, UsageError, "at most", "8 results", "9")


def test_a_reduce_scatter_that_would_have_to_gather() -> None:
    def misuse(comm):
        x, names = np.ones(N, np.float32), state(comm)
        call = cocoll.reduce_scatter_fused
        return lambda: call(x, epilogues.adam(), comm=comm, **names), [x, names["param"]]

    refuse_on_ranks(
        misuse, UsageError, "reduce_scatter_fused gathers nothing", "param", "allreduce_fused"
    )
