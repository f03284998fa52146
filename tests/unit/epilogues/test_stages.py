"""Stages: where a pass finds what an earlier one computed, and what it costs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cocoll import epilogues
from cocoll.dtypes import DType
from cocoll.epilogues import functions
from cocoll.epilogues.stages import split_stages
from cocoll.epilogues.trace import Epilogue, epilogue
from cocoll.errors import TraceError

F32, F64, F16 = DType.FLOAT32, DType.FLOAT64, DType.FLOAT16


def stages_of(made: Epilogue, dtype: DType = F32, **arrays: DType) -> Any:
    stages = split_stages(made.trace(dtype, arrays))
    assert stages is not None
    return stages


def reads(stage: Any) -> list[str]:
    return [operand.name for operand in stage.operands if operand.source_node is not None]


def writes(stage: Any) -> list[str]:
    return [operand.name for operand in stage.operands if operand.node is not None]


def test_without_totals_there_is_one_pass() -> None:
    assert split_stages(epilogues.adam().trace(F32, {"param": F32, "m": F32, "v": F32})) is None


def test_lamb_holds_nothing() -> None:
    stages = stages_of(epilogues.lamb(), param=F32, m=F32, v=F32)
    first, last = stages.stages
    assert stages.held == ()
    assert (reads(first), writes(first)) == (["param", "m", "v"], ["m", "v"])
    assert (reads(last), writes(last)) == (["param", "m", "v"], [])
    assert [result.name for result in last.results] == ["param"]
    assert first.results == ()
    assert first.reads_sources
    assert not last.reads_sources
    assert last.source_node is None


def test_state_that_rounds_is_not_read_back() -> None:
    # What the first pass rounds to 16 bits, the second one wants as it was computed.
    stages = stages_of(epilogues.lamb(), param=F32, m=F16, v=F16)
    assert [dtype for _, dtype in stages.held] == [F32]


def test_a_master_copy_is_read_and_updated_in_the_last_pass() -> None:
    first, last = stages_of(epilogues.lamb(), F16, param=F16, m=F32, v=F32, master=F32).stages
    assert reads(first) == ["m", "v", "master"]
    assert writes(last) == ["master"]
    assert [result.dtype for result in last.results] == [F16]


def test_a_clipped_gradient_is_held() -> None:
    clipped = epilogues.clip_by_global_norm(epilogues.adam())
    stages = stages_of(clipped, param=F32, m=F32, v=F32)
    first, last = stages.stages
    assert [dtype for _, dtype in stages.held] == [F32]
    assert reads(first) == []
    assert writes(first) == ["held 0"]
    assert reads(last) == ["param", "m", "v", "held 0"]
    assert writes(last) == ["m", "v"]
    assert [total.per_tensor for total in stages.totals] == [False]


def test_clipped_lamb_has_three_passes() -> None:
    stages = stages_of(epilogues.clip_by_global_norm(epilogues.lamb()), param=F32, m=F32, v=F32)
    assert [len(stage.summands) for stage in stages.stages] == [2, 1, 0]
    assert [writes(stage) for stage in stages.stages] == [["held 0"], ["m", "v"], []]
    # Every pass takes the call's scalars, then all totals known by then.
    counts = [len(stage.scalars) for stage in stages.stages]
    assert [count - counts[0] for count in counts] == [0, 2, 3]


def test_what_can_be_computed_again_is_not_held() -> None:
    @epilogue
    def scaled(x: Any, bias: Any) -> Any:
        offset = functions.exp(bias) * 2.0
        return offset / functions.norm(x + offset)

    stages = stages_of(scaled, bias=F32)
    first, last = stages.stages
    # A pass must store something: it keeps what it adds up, which nobody reads.
    assert len(stages.held) == 1
    assert reads(last) == ["bias"]
    assert len(first.summands) == 1


def test_an_old_value_that_is_overwritten_is_held() -> None:
    @epilogue(sharded=("s",))
    def swap(x: Any, s: Any) -> Any:
        return {"s": x, "out": s / functions.norm(x)}

    stages = stages_of(swap, s=F32)
    first, last = stages.stages
    assert reads(first) == ["s"]
    assert writes(first) == ["s", "held 0"]
    assert reads(last) == ["held 0"]


def test_equal_graphs_have_equal_digests() -> None:
    def digests() -> list[str]:
        made = stages_of(Epilogue(epilogues.lamb().function, ("m", "v")), param=F32, m=F32, v=F32)
        return [stage.digest for stage in made.stages]

    assert digests() == digests()
    assert len(set(digests())) == 2
    other = stages_of(epilogues.lamb(), param=F32, m=F64, v=F64)
    assert not set(digests()) & {stage.digest for stage in other.stages}


def test_stages_are_frozen() -> None:
    stages = stages_of(epilogues.lamb(), param=F32, m=F32, v=F32)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stages.held = ()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x, n: functions.norm(n), "adds up the elements of an array; got a scalar"),
        (lambda x, n: functions.sum(x > 0.0), "got a truth value"),
        (lambda x, n: functions.sum(x, over="rows"), "over 'tensor' or 'all'"),
        (lambda x, n: functions.sum(x, name="two words"), "called by one word"),
    ],
)
def test_what_no_total_is(body: Any, message: str) -> None:
    def function(x: Any, *, n: Any) -> Any:
        return x * body(x, n)

    with pytest.raises(TraceError, match=message):
        Epilogue(function).trace(F32, {})
