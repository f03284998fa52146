"""Fused collectives on the emulated device: the same bits as on the host, by every way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.device.array import DeviceArray
from cocoll.dtypes import DType
from cocoll.testing import run_ranks
from tests.helpers.on_device import MEMORIES, TUNING, fill, make_array, put, same_bits

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit


@epilogues.epilogue
def bias_dropout_residual(x: Any, bias: Any, residual: Any, *, p: Any) -> Any:
    return cocoll.dropout(x + bias, p) + residual


def shard_of(comm: cocoll.Communicator, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    start, stop = comm.shard_range(values.size)
    return values[start:stop].copy()


def step_both(
    comm: cocoll.Communicator, count: int, memories: tuple[str, str], **more: Any
) -> None:
    """Take three steps of Adam on the host and on the GPU."""
    adam = epilogues.adam()
    shard = np.zeros(comm.shard_range(count)[1] - comm.shard_range(count)[0], np.float32)
    host = {"param": fill(9, (count,), "float32"), "m": shard.copy(), "v": shard.copy()}
    gpu = {
        "param": put(comm, host["param"], memories[1]),
        "m": put(comm, shard, "ordinary"),
        "v": put(comm, shard, "ordinary"),
    }
    for step in range(1, 4):
        gradient = fill(comm.rank, (count,), "float32", step)
        x = put(comm, gradient, memories[0])
        cocoll.allreduce_fused(gradient, adam, lr=1e-2, step=step, **host, **more)
        cocoll.allreduce_fused(x, adam, lr=1e-2, step=step, **gpu, **more).wait()
        for name, array in gpu.items():
            same_bits(array.get(), host[name])
        same_bits(x.get(), gradient)


@pytest.mark.parametrize("of_param", MEMORIES)
@pytest.mark.parametrize("of_gradient", MEMORIES)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_adam(world_size: int, of_gradient: str, of_param: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for count in (0, 1, 100, 3001, 30011):
            step_both(comm, count, (of_gradient, of_param))
            step_both(comm, count, (of_gradient, of_param), op="avg")

    run_ranks(world_size, body, toolkit=toolkit, tuning=TUNING)


@pytest.mark.parametrize("memory", MEMORIES)
def test_zero_grad(memory: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for count in (10, 20001):
            step_both(comm, count, (memory, memory), zero_grad=True)

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


@pytest.mark.parametrize("memory", MEMORIES)
def test_bfloat16_with_masters(memory: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        adam = epilogues.adamw()
        count = 9001
        start, stop = comm.shard_range(count)
        param = fill(9, (count,), "bfloat16")
        master = param.astype(np.float32)[start:stop]
        host = {"param": param, "master": master.copy()}
        host |= {name: np.zeros(stop - start, np.float32) for name in ("m", "v")}
        gpu = {name: put(comm, array, "ordinary") for name, array in host.items()}
        gpu["param"] = put(comm, param, memory)
        gradient = fill(comm.rank, (count,), "bfloat16", 1)
        x = put(comm, gradient, memory)
        cocoll.allreduce_fused(gradient, adam, lr=1e-2, step=1, **host)
        cocoll.allreduce_fused(x, adam, lr=1e-2, step=1, **gpu).wait()
        for name, array in gpu.items():
            same_bits(array.get(), host[name])

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("in_place", [True, False])
def test_broadcast_operands_and_dropout(in_place: bool, memory: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for rows in (3, 500):
            shape = (rows, 70)
            values = fill(comm.rank, shape, "float32")
            bias, residual = fill(7, (70,), "float32"), fill(8, shape, "float32")
            wanted = values.copy()
            given = {"p": 0.25, "seed": 5, "step": 3}
            cocoll.allreduce_fused(
                wanted, bias_dropout_residual, bias=bias, residual=residual, **given
            )
            x = put(comm, values, memory)
            out = None if in_place else make_array(comm, shape, "float32", memory)
            cocoll.allreduce_fused(
                x,
                bias_dropout_residual,
                bias=put(comm, bias, "ordinary"),
                residual=put(comm, residual, "ordinary"),
                out=out,
                **given,
            ).wait()
            same_bits((x if out is None else out).get(), wanted)

    run_ranks(3, body, toolkit=toolkit, tuning=TUNING)


@pytest.mark.parametrize("memory", MEMORIES)
def test_reduce_scatter_fused(memory: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for count in (5, 20003):
            values = fill(comm.rank, (count,), "float32")
            wanted = cocoll.reduce_scatter_fused(values, epilogues.gelu()).result()
            x = put(comm, values, memory)
            found = cocoll.reduce_scatter_fused(x, epilogues.gelu()).result()
            same_bits(found.get(), wanted)

    run_ranks(3, body, toolkit=toolkit, tuning=TUNING)


@epilogues.epilogue
def add_three(x: Any, a: Any, b: Any, c: Any) -> Any:
    return x + a + b + c


def test_broadcast_arrays_share_layouts(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        values = fill(comm.rank, (64, 32), "float32")
        rows = {name: fill(seed, (32,), "float32") for seed, name in enumerate("abc")}
        x = put(comm, values, "symmetric")
        cocoll.allreduce_fused(values, add_three, **rows)
        given = {name: put(comm, row, "ordinary") for name, row in rows.items()}
        cocoll.allreduce_fused(x, add_three, **given).wait()
        same_bits(x.get(), values)

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_the_output_may_be_this_rank_s_shard_of_the_input(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        count = 5000
        values = fill(comm.rank, (count,), "float32")
        start, stop = comm.shard_range(count)
        x = put(comm, values, "symmetric")
        wanted = cocoll.reduce_scatter_fused(values, epilogues.relu()).result()
        own = DeviceArray(
            x._device, x._address + 4 * start, (stop - start,), DType.FLOAT32, x, x.stream
        )
        cocoll.reduce_scatter_fused(x, epilogues.relu(), out=own).wait()
        same_bits(own.get(), wanted)

    run_ranks(3, body, toolkit=toolkit, tuning=TUNING)
