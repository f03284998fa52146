"""Tracing: what goes in and out, digests, and errors that quote the offending line."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from cocoll import epilogues
from cocoll.dtypes import DType
from cocoll.epilogues import functions
from cocoll.epilogues.trace import Epilogue, epilogue
from cocoll.errors import DTypeError, TraceError, UsageError

F32, F64, BF16, F16 = DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT16


@epilogue(sharded=("velocity",))
def momentum(g: Any, param: Any, velocity: Any, *, lr: Any, mu: Any = 0.9) -> Any:
    """Update a parameter."""
    velocity = mu * velocity + g
    return {"param": param - lr * velocity, "velocity": velocity}


def test_results_operands_and_scalars() -> None:
    traced = momentum.trace(F32, {"param": F32, "velocity": F32})
    assert traced.accumulate is F32
    assert [(r.name, r.dtype) for r in traced.results] == [("param", F32)]
    param, velocity = traced.operands
    assert (param.name, param.sharded, param.updated, param.result_index) == (
        "param",
        False,
        True,
        0,
    )
    assert (velocity.name, velocity.sharded, velocity.updated, velocity.result_index) == (
        "velocity",
        True,
        True,
        None,
    )
    assert [(s.name, s.default) for s in traced.scalars] == [("lr", None), ("mu", 0.9)]
    assert len(traced.digest) == 64


def test_sixteen_bit_sources_accumulate_in_float32() -> None:
    traced = momentum.trace(BF16, {"param": BF16, "velocity": F32})
    assert traced.accumulate is F32
    assert traced.results[0].dtype is BF16


def test_the_output_comes_first_then_parameters_in_order() -> None:
    @epilogue(sharded=("s",))
    def everything(x: Any, b: Any, a: Any, s: Any) -> Any:
        return {"s": s + x, "a": a + x, "b": b - x, "out": x}

    traced = everything.trace(F32, {"a": F32, "b": F32, "s": F32})
    assert [result.name for result in traced.results] == ["out", "b", "a"]
    assert [operand.name for operand in traced.operands] == ["b", "a", "s"]
    assert [operand.result_index for operand in traced.operands] == [1, 2, None]


def test_dtype_of_the_output() -> None:
    @epilogue
    def double(x: Any) -> Any:
        return 2 * x

    assert double.trace(BF16, {}).results[0].dtype is BF16
    assert double.trace(BF16, {}, out_dtype=F64).results[0].dtype is F64
    assert epilogues.cast("float16").trace(F32, {}).results[0].dtype is F16
    assert epilogues.cast("float16").trace(F32, {}, out_dtype=F32).results[0].dtype is F32


def test_a_trace_is_kept() -> None:
    arrays = {"param": F32, "velocity": F32}
    assert momentum.trace(F32, arrays) is momentum.trace(F32, dict(reversed(arrays.items())))
    assert momentum.trace(F32, arrays) is not momentum.trace(F64, arrays)


def test_digests_tell_graphs_apart_and_ignore_defaults() -> None:
    arrays = {"param": F32, "m": F32, "v": F32}
    base = epilogues.adam().trace(F32, arrays).digest
    assert (
        epilogues.adam(betas=(0.5, 0.6), eps=1.0, weight_decay=0.1).trace(F32, arrays).digest
        == base
    )
    assert epilogues.adamw().trace(F32, arrays).digest != base
    assert epilogues.adam().trace(BF16, arrays).digest != base
    assert epilogues.adam().trace(F32, {**arrays, "m": BF16}).digest != base
    assert epilogues.adam().trace(F32, {**arrays, "master": F32}).digest != base

    @epilogue
    def plus_zero(x: Any) -> Any:
        return x + 0.0

    @epilogue
    def plus_minus_zero(x: Any) -> Any:
        return x + -0.0

    @epilogue
    def named_differently(value: Any) -> Any:
        return value + 0.0

    digest = plus_zero.trace(F32, {}).digest
    assert plus_minus_zero.trace(F32, {}).digest != digest
    assert named_differently.trace(F32, {}).digest == digest


def test_digests_are_equal_in_every_process() -> None:
    code = (
        "from cocoll import epilogues; from cocoll.dtypes import DType as D; "
        "print(epilogues.adam().trace(D.BFLOAT16, {'param': D.BFLOAT16, 'm': D.FLOAT32, "
        "'v': D.FLOAT32, 'master': D.FLOAT32}).digest)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    here = epilogues.adam().trace(BF16, {"param": BF16, "m": F32, "v": F32, "master": F32}).digest
    assert found == {f"{here}\n"}


def test_bound_scalars_become_defaults() -> None:
    bound = momentum.bind(lr=0.5)
    traced = bound.trace(F32, {"param": F32, "velocity": F32})
    assert [(s.name, s.default) for s in traced.scalars] == [("lr", 0.5), ("mu", 0.9)]
    assert momentum(lr=0.5).scalar_defaults == bound.scalar_defaults
    with pytest.raises(UsageError, match="no scalar 'beta'"):
        momentum.bind(beta=1.0)
    with pytest.raises(UsageError, match="wants a number, got str"):
        momentum.bind(lr="high")


def test_scalars_alone_are_evaluated_once_in_float64() -> None:
    traced = epilogues.adam().trace(F32, {"param": F32, "m": F32, "v": F32})
    derived = traced.prepare({"lr": 1e-3, "step": 7})
    assert lr_over_correction(1e-3, 0.9, 7) in derived
    assert 1.0 / math.sqrt(1.0 - 0.999**7) in derived
    with pytest.raises(UsageError, match="needs the scalar 'lr'"):
        traced.prepare({"step": 1})
    with pytest.raises(UsageError, match="no scalar 'momentum'"):
        traced.prepare({"lr": 1.0, "step": 1, "momentum": 0.9})


def lr_over_correction(lr: float, beta: float, step: int) -> float:
    return lr / (1.0 - beta**step)


def test_dropout_adds_seed_and_step_unless_they_are_declared() -> None:
    @epilogue
    def own_step(x: Any, *, step: Any, p: Any = 0.5) -> Any:
        return functions.dropout(x, p) * step

    names = [(s.name, s.default) for s in own_step.trace(F32, {}).scalars]
    assert names == [("step", None), ("p", 0.5), ("seed", 0.0)]
    bound = epilogues.bias_dropout_residual(0.1, seed=9).trace(F32, {"bias": F32, "residual": F32})
    assert [(s.name, s.default) for s in bound.scalars] == [
        ("p", 0.1),
        ("seed", 9.0),
        ("step", 0.0),
    ]


def test_optional_arrays() -> None:
    adam = epilogues.adam()
    arrays = {"param": BF16, "m": F32, "v": F32}
    assert len(adam.trace(BF16, arrays).operands) == 3
    with_master = adam.trace(BF16, {**arrays, "master": F32})
    param = with_master.operands[0]
    # With a master copy the parameter is written only.
    assert param.source_node is None
    assert param.result_index == 0


def test_missing_and_unknown_arrays_are_named() -> None:
    with pytest.raises(UsageError, match="needs the array 'velocity'"):
        momentum.trace(F32, {"param": F32})
    with pytest.raises(UsageError, match="no array 'grad'; its arrays: param, velocity"):
        momentum.trace(F32, {"param": F32, "velocity": F32, "grad": F32})


def test_dtypes_that_cannot_be() -> None:
    with pytest.raises(DTypeError, match="wanted a floating dtype for the reduced array"):
        epilogues.relu().trace(DType.INT32, {})
    with pytest.raises(DTypeError, match="for the output, got uint8"):
        epilogues.relu().trace(F32, {}, out_dtype=DType.UINT8)
    with pytest.raises(DTypeError, match="only floating arrays can be updated"):
        momentum.trace(F32, {"param": F32, "velocity": DType.INT32})
    with pytest.raises(DTypeError, match="wanted a floating dtype, got int32"):
        epilogues.cast("int32")
    with pytest.raises(DTypeError, match="got 'float8'"):
        epilogues.cast("float8")


def test_an_epilogue_can_be_used_inside_another() -> None:
    @epilogue
    def outer(x: Any, bias: Any) -> Any:
        return epilogues.relu()(epilogues.scale()(x + bias, factor=2.0))

    @epilogue
    def written_out(x: Any, bias: Any) -> Any:
        return functions.maximum((x + bias) * 2.0, 0.0)

    arrays = {"bias": F32}
    assert outer.trace(F32, arrays).digest == written_out.trace(F32, arrays).digest


def test_numpy_scalars_are_numbers() -> None:
    @epilogue
    def scaled(x: Any) -> Any:
        return np.float64(0.25) * x + np.int32(2)

    assert len(scaled.trace(F32, {}).results) == 1


# ---- errors ------------------------------------------------------------------------------------


def branches(x: Any) -> Any:
    if x > 0:  # offending
        return x
    return -x


def branches_on_a_scalar(x: Any, *, step: Any) -> Any:
    return x if step == 1 else 2 * x  # offending


def iterates(x: Any) -> Any:
    total = 0.0
    for element in x:  # offending
        total = total + element
    return total


def uses_numpy(x: Any) -> Any:
    return np.sin(x)  # offending


def uses_math(x: Any) -> Any:
    return math.exp(x)  # offending


def raises(x: Any) -> Any:
    value = x + 1
    raise LookupError("no such table")  # offending
    return value


def indexes(x: Any) -> Any:
    return x[0]  # offending


def closes_over_an_array(x: Any) -> Any:
    return x + np.ones(3)  # offending


def helper(value: Any) -> Any:
    return float(value)  # offending


def fails_in_a_helper(x: Any) -> Any:
    return helper(x)


def uses_an_unknown_operator(x: Any) -> Any:
    return x % 2  # offending


def drops_with_an_array(x: Any, residual: Any) -> Any:
    return functions.dropout(x, residual)  # offending


def selects_by_a_number(x: Any) -> Any:
    return functions.where(x, 1.0, 0.0)  # offending


def adds_a_truth_value(x: Any) -> Any:
    return (x > 0) + x  # offending


def adds_integers(x: Any, mask: Any) -> Any:
    return x * (mask + mask)  # offending


OFFENDERS = [
    (branches, {}, "cannot branch on its values"),
    (branches_on_a_scalar, {}, "cannot branch on its values"),
    (iterates, {}, "stands for every element at once"),
    (uses_numpy, {}, "does not support ufuncs"),
    (uses_math, {}, "cannot be turned into a Python number"),
    (raises, {}, "LookupError: no such table"),
    (indexes, {}, "nor be indexed"),
    (closes_over_an_array, {}, "arrays come in as positional parameters"),
    (fails_in_a_helper, {}, "cannot be turned into a Python number"),
    (uses_an_unknown_operator, {}, "unsupported operand"),
    (drops_with_an_array, {"residual": F32}, "a number or a keyword-only parameter as p"),
    (selects_by_a_number, {}, "wants a comparison as its condition"),
    (adds_a_truth_value, {}, "got a truth value"),
    (adds_integers, {"mask": DType.INT32}, "cast one first"),
]


@pytest.mark.parametrize(
    ("function", "arrays", "reason"), OFFENDERS, ids=lambda v: getattr(v, "__name__", "")
)
def test_errors_quote_the_offending_line(
    function: Any, arrays: dict[str, DType], reason: str
) -> None:
    with pytest.raises(TraceError) as caught:
        Epilogue(function).trace(F32, arrays)
    message = str(caught.value)
    assert reason in message
    assert function.__name__ in message
    assert message.rstrip().endswith("# offending")
    assert "test_trace.py" in message
    restored = pickle.loads(pickle.dumps(caught.value))
    assert restored.source_line.endswith("# offending")


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (lambda x: {"weight": x}, "returns 'weight', which it cannot update; allowed: out"),
        (lambda x: None, "a return statement is missing"),
        (lambda x: {}, "returns an empty dict"),
        (lambda x: x > 0, "returns a truth value"),
        (lambda x: [x, x], "wanted a value of the epilogue or a number, got list"),
    ],
)
def test_wrong_returns(returned: Any, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        Epilogue(returned).trace(F32, {})


def test_an_optional_array_that_is_not_given_cannot_be_updated() -> None:
    @epilogue
    def careless(x: Any, extra: Any = None) -> Any:
        return {"out": x, "extra": x}

    careless.trace(F32, {"extra": F32})
    with pytest.raises(TraceError, match="'extra', an optional array that was not given"):
        careless.trace(F32, {})


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda *values: values[0], r"\*values is not supported"),
        (lambda x, **rest: x, r"\*rest is not supported"),
        (lambda: 0, "needs a positional parameter"),
        (lambda x=1: x, "the reduced value 'x' cannot have a default"),
        (lambda x, lr=0.1: x * lr, "put it behind a \\*"),
        (lambda x, out: x + out, 'no array can be called "out"'),
    ],
)
def test_wrong_parameters(function: Any, reason: str) -> None:
    with pytest.raises(TraceError, match=reason) as caught:
        Epilogue(function)
    assert "test_trace.py" in str(caught.value)


def test_sharded_names_must_be_arrays() -> None:
    with pytest.raises(TraceError, match="sharded= names 'speed'"):
        epilogue(sharded=("speed",))(lambda x, velocity: x + velocity)


def test_functions_outside_an_epilogue() -> None:
    for function in (functions.sqrt, functions.exp, functions.tanh, functions.erf, functions.log):
        with pytest.raises(TraceError, match="works on the values inside an epilogue"):
            function(2.0)
    with pytest.raises(TraceError):
        functions.where(True, 1.0, 2.0)
    with pytest.raises(TraceError):
        functions.dropout(np.ones(3), 0.5)
    with pytest.raises(TraceError):
        functions.cast(np.ones(3), "float16")
    with pytest.raises(TraceError, match="runs inside a collective"):
        epilogues.relu()(np.ones(3))


def test_a_value_of_another_trace_is_refused() -> None:
    kept = []

    @epilogue
    def leaking(x: Any) -> Any:
        kept.append(x)
        return x + kept[0]

    leaking.trace(F32, {})
    with pytest.raises(TraceError, match="another trace"):
        leaking.trace(F64, {})


@pytest.mark.parametrize(
    "make",
    [
        lambda: epilogues.adam(betas=(1.0, 0.9)),
        lambda: epilogues.adam(eps=-1.0),
        lambda: epilogues.adamw(weight_decay=-0.1),
        lambda: epilogues.adam(lr=math.nan),
        lambda: epilogues.sgd(nesterov=True),
        lambda: epilogues.sgd(momentum=0.9, dampening=0.1, nesterov=True),
        lambda: epilogues.sgd(momentum=-0.1),
        lambda: epilogues.gelu(approximate="sigmoid"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()
