"""The way without a meeting on the emulated device: its limits, its bits, and what it finds out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.device.array import DeviceArray
from cocoll.dtypes import DType
from cocoll.errors import AbortedError, CollectiveMismatchError, CommTimeoutError
from cocoll.testing import run_ranks
from tests.helpers.on_device import (
    MEMORIES,
    TUNING,
    fill,
    gpu_stream,
    make_array,
    put,
    same_bits,
)

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit
    from cocoll.testing.graphs import Graphs

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8")
LIMIT_BYTES = TUNING.gpu_ll_bytes


def part(array: DeviceArray, first: int, count: int) -> DeviceArray:
    """Give a range of an array, which may be aligned to its elements alone."""
    dtype = DType.parse(array.dtype)
    address = array._address + dtype.itemsize_bytes * first
    return DeviceArray(array._device, address, (count,), dtype, array, array.stream)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_counts_around_the_limit(world_size: int, dtype: str, toolkit: Toolkit) -> None:
    last = LIMIT_BYTES // DType.parse(dtype).itemsize_bytes

    def body(comm: cocoll.Communicator) -> None:
        for number, count in enumerate((0, 1, 3, last // 2 + 1, last - 1, last, last + 1)):
            for shift in (0, 1):
                values = fill(comm.rank, (count,), dtype, number)
                wanted = values.copy()
                cocoll.allreduce(wanted, "avg")
                room = make_array(comm, (count + 1,), dtype, MEMORIES[number % 2])
                x = part(room, shift, count)
                x.set(values)
                out = make_array(comm, (count,), dtype, "ordinary")
                apart = comm.bind(cocoll.allreduce, x, "avg", out=out)
                in_place = comm.bind(cocoll.allreduce, x, "avg")
                for bound, found in ((apart, out), (in_place, x)):
                    assert bound.algorithm == ("one_shot" if count > last else "low_latency")
                    bound().wait()
                    same_bits(found.get(), wanted)

    run_ranks(world_size, body, toolkit=toolkit, tuning=TUNING)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("world_size", [2, 5, 8])
def test_grids_of_several_blocks(
    world_size: int, threads: int, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_THREADS", str(threads))
    tuning = replace(TUNING, gpu_ll_bytes=32 << 10)

    def body(comm: cocoll.Communicator) -> None:
        for number, count in enumerate((8192, 5, 8191, 2049, 0, 4097)):
            values = fill(comm.rank, (count,), "float32", number)
            x = put(comm, values, "ordinary")
            bound = comm.bind(cocoll.allreduce, x)
            # Above the limit of one-shot: this one holds by itself.
            assert bound.algorithm == "low_latency"
            bound().wait()
            cocoll.allreduce(values)
            same_bits(x.get(), values)

    run_ranks(world_size, body, toolkit=toolkit, tuning=tuning)


def test_where_there_is_none(toolkit: Toolkit) -> None:
    def algorithms(comm: cocoll.Communicator) -> set[str]:
        x = put(comm, np.ones(10, np.float32), "ordinary")
        empty = put(comm, np.ones(0, np.float32), "ordinary")
        return {comm.bind(cocoll.allreduce, array).algorithm for array in (x, empty)}

    assert run_ranks(1, algorithms, toolkit=toolkit, tuning=TUNING) == [{"one_shot"}]
    never = replace(TUNING, gpu_ll_bytes=0)
    assert run_ranks(2, algorithms, toolkit=toolkit, tuning=never) == [{"one_shot"}] * 2


@epilogues.epilogue
def bias_dropout_residual(x: Any, bias: Any, residual: Any, *, p: Any) -> Any:
    return cocoll.dropout(x + bias, p) + residual


@epilogues.epilogue
def add_wide(x: Any, wide: Any) -> Any:
    return {"out": x + 1.0, "wide": wide + x}


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_epilogues(dtype: str, in_place: bool, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for rows in (1, 2, 3):
            shape = (rows, 10)
            values = fill(comm.rank, shape, dtype)
            arrays = {"bias": fill(7, (10,), dtype), "residual": fill(8, shape, dtype)}
            given = {"p": 0.25, "seed": 5, "step": 3}
            x = put(comm, values, "ordinary")
            out = None if in_place else make_array(comm, shape, dtype, "ordinary")
            on_gpu = {name: put(comm, array, "ordinary") for name, array in arrays.items()}
            bound = comm.bind(
                cocoll.allreduce_fused, x, bias_dropout_residual, out=out, **on_gpu, **given
            )
            assert bound.algorithm == "low_latency"
            bound().wait()
            cocoll.allreduce_fused(values, bias_dropout_residual, **arrays, **given)
            same_bits((x if out is None else out).get(), values)

    run_ranks(3, body, toolkit=toolkit, tuning=TUNING)


def test_packs_of_one_word(toolkit: Toolkit) -> None:
    # The widest array moves by sixteen bytes: of the source there are two elements to a pack.
    def body(comm: cocoll.Communicator) -> None:
        for count, way in ((7, "low_latency"), (128, "low_latency"), (129, "one_shot")):
            values = fill(comm.rank, (count,), "float16")
            wide = fill(9, (count,), "float64")
            x, y = put(comm, values, "ordinary"), put(comm, wide, "ordinary")
            bound = comm.bind(cocoll.allreduce_fused, x, add_wide, wide=y)
            assert bound.algorithm == way
            bound().wait()
            cocoll.allreduce_fused(values, add_wide, wide=wide)
            same_bits(x.get(), values)
            same_bits(y.get(), wide)

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_ways_in_turn_are_captured_and_replayed(toolkit: Toolkit, graphs: Graphs) -> None:
    # Each sum is the next one's input: a word of an earlier replay would show.
    sizes = {"low_latency": 60, "one_shot": 100, "two_shot_staged": 3000}
    order = (
        *("low_latency", "one_shot", "low_latency", "two_shot_staged", "low_latency"),
        *("low_latency", "low_latency", "one_shot"),
    )

    def body(comm: cocoll.Communicator) -> None:
        host = [fill(comm.rank, (sizes[way],), "int64", n) for n, way in enumerate(order)]
        with gpu_stream(comm) as stream:
            gpu = [put(comm, values, "ordinary") for values in host]
            bound = [comm.bind(cocoll.allreduce, x, stream=stream) for x in gpu]
            assert tuple(one.algorithm for one in bound) == order
            with graphs.capture(stream) as graph:
                for one in bound:
                    one()
            for _ in range(50):
                graph.launch(stream)
                for values in host:
                    cocoll.allreduce(values)
            # And those of the host's own behind it.
            for one, values in zip(bound, host, strict=True):
                one().wait()
                cocoll.allreduce(values)
            for x, values in zip(gpu, host, strict=True):
                same_bits(x.get(stream), values)

    run_ranks(3, body, toolkit=toolkit, tuning=replace(TUNING, gpu_ll_bytes=512))


def ordinary(comm: cocoll.Communicator, count: int) -> DeviceArray:
    return put(comm, np.ones(count, np.float32), "ordinary")


MISMATCHES: dict[str, Callable[[cocoll.Communicator, DeviceArray], Any]] = {
    "op": lambda comm, x: cocoll.allreduce(x, ("sum", "max")[comm.rank % 2]),
    "count": lambda comm, x: cocoll.allreduce(part(x, 0, 10 + comm.rank)),
    "no elements": lambda comm, x: cocoll.allreduce(part(x, 0, 10 * (comm.rank % 2))),
    "one-shot": lambda comm, x: cocoll.allreduce(ordinary(comm, 200) if comm.rank == 1 else x),
    "two-shot": lambda comm, x: cocoll.allreduce(ordinary(comm, 3000) if comm.rank == 1 else x),
    "kind": lambda comm, x: (
        cocoll.broadcast(ordinary(comm, 40)) if comm.rank == 1 else cocoll.allreduce(x)
    ),
    "barrier": lambda comm, x: cocoll.barrier(stream=0) if comm.rank == 1 else cocoll.allreduce(x),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_ranks_that_disagree(name: str, toolkit: Toolkit) -> None:
    seen: list[type[BaseException] | None] = []

    def body(comm: cocoll.Communicator) -> None:
        x = ordinary(comm, 40)
        cocoll.allreduce(x).wait()
        cocoll.allreduce(ordinary(comm, 3000)).wait()
        cocoll.barrier()
        before = x.get()
        # Nobody waits for the time to be up.
        error = MISMATCHES[name](comm, x).exception(30.0)
        seen.append(type(error))
        same_bits(x.get(), before)
        assert comm.closed

    run_ranks(3, body, toolkit=toolkit, tuning=TUNING, timeout_seconds=120.0)
    assert set(seen) <= {CollectiveMismatchError, AbortedError}
    assert CollectiveMismatchError in seen


def test_a_rank_that_does_not_come(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> Any:
        x = ordinary(comm, 40)
        cocoll.allreduce(x).wait()
        if comm.rank == 2:
            return None
        before = x.get()
        error = cocoll.allreduce(x).exception()
        same_bits(x.get(), before)
        return type(error), getattr(error, "ranks", None)

    found = run_ranks(3, body, toolkit=toolkit, tuning=TUNING, timeout_seconds=2.0)
    assert found[2] is None
    assert (CommTimeoutError, (2,)) in found
    assert {kind for kind, _ in found[:2]} <= {CommTimeoutError, AbortedError}


def test_nothing_is_stored_after_a_failure(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x, y = ordinary(comm, 40), ordinary(comm, 40)
        first = comm.bind(cocoll.allreduce, x, ("sum", "max")[comm.rank])
        second = comm.bind(cocoll.allreduce, y)
        for bound in (first, second):
            bound()
        comm._open_side(None).device.synchronize_all()
        for array in (x, y):
            same_bits(array.get(), np.ones(40, np.float32))

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)
