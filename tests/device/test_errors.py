"""Bad input on the emulated device: refused before anything is launched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.device.array import DeviceArray
from cocoll.dtypes import DType
from cocoll.errors import (
    AbortedError,
    BufferMismatchError,
    BufferOverlapError,
    CocollError,
    CollectiveMismatchError,
    CommTimeoutError,
    CompilerNotFoundError,
    DTypeError,
    RankError,
    UnsupportedError,
    UsageError,
)
from cocoll.testing import run_ranks
from tests.helpers.on_device import TUNING, make_array, put, same_bits

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit

Misuse = Callable[[cocoll.Communicator, DeviceArray], Any]


class Strided:
    """A view of every second element, as CuPy shows one."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        interface = array.__cuda_array_interface__
        self.__cuda_array_interface__ = interface | {
            "shape": (array.size // 2,),
            "strides": (8,),
        }


class Shown:
    """An array with something else in its interface."""

    def __init__(self, array: DeviceArray, **other: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__ | other


def part(array: DeviceArray, first: int, count: int) -> DeviceArray:
    """Give a range of a float32 array."""
    return DeviceArray(
        array._device, array._address + 4 * first, (count,), DType.FLOAT32, array, array.stream
    )


def host(count: int) -> np.ndarray[Any, Any]:
    return np.ones(count, np.float32)


def square(array: DeviceArray, first: int = 0) -> DeviceArray:
    """Give two by two elements."""
    return DeviceArray(
        array._device, array._address + 4 * first, (2, 2), DType.FLOAT32, array, array.stream
    )


@epilogues.epilogue
def add_y(x: Any, y: Any) -> Any:
    return x + y


@epilogues.epilogue
def add_five(x: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return x + a + b + c + d + e


LAYOUTS = ((0, 4), (4, 0), (0, 0), (4, 4), (8, 4))

MISUSES: dict[str, tuple[type[CocollError], str, Misuse]] = {
    "strided": (
        BufferMismatchError,
        "contiguous",
        lambda comm, x: cocoll.allreduce(Strided(x)),
    ),
    "read-only": (
        UsageError,
        "writable",
        lambda comm, x: cocoll.allreduce(
            Shown(x, data=(x.__cuda_array_interface__["data"][0], True))
        ),
    ),
    "masked": (UsageError, "mask", lambda comm, x: cocoll.allreduce(Shown(x, mask=x))),
    "byte order": (
        DTypeError,
        "byte order",
        lambda comm, x: cocoll.allreduce(Shown(x, typestr=">f4")),
    ),
    "dtype": (
        DTypeError,
        "must have a dtype out of",
        lambda comm, x: cocoll.allreduce(Shown(x, typestr="<f16", shape=(5,))),
    ),
    "memory of no GPU": (
        UsageError,
        "memory of no GPU",
        lambda comm, x: cocoll.allreduce(
            Shown(x, data=(host(20).__array_interface__["data"][0], False))
        ),
    ),
    "out on the host": (
        UsageError,
        "must lie on the GPU",
        lambda comm, x: cocoll.allreduce(x, out=host(x.size)),
    ),
    "x on the host": (
        UnsupportedError,
        "must lie in host memory, as the other arrays of the call do",
        lambda comm, x: cocoll.allreduce(host(x.size), out=x),
    ),
    "operand on the host": (
        UsageError,
        "bias must lie on the GPU",
        lambda comm, x: cocoll.allreduce_fused(
            x, epilogues.bias_dropout_residual(), bias=host(20), residual=x, p=0.0
        ),
    ),
    "out of another length": (
        BufferMismatchError,
        "20 elements; got 10",
        lambda comm, x: cocoll.allreduce(x, out=make_array(comm, (10,), "float32", "ordinary")),
    ),
    "out of another dtype": (
        DTypeError,
        "input's dtype float32; got float64",
        lambda comm, x: cocoll.allreduce(x, out=make_array(comm, (20,), "float64", "ordinary")),
    ),
    "partial overlap": (
        BufferOverlapError,
        "partial overlap",
        lambda comm, x: cocoll.allreduce(part(x, 0, 10), out=part(x, 5, 10)),
    ),
    "nine dimensions": (
        BufferMismatchError,
        "8 dimensions; got 9",
        lambda comm, x: cocoll.allreduce(Shown(x, shape=(1,) * 8 + (20,))),
    ),
    "not aligned": (
        BufferMismatchError,
        "aligned to its elements",
        lambda comm, x: cocoll.allreduce(Shown(x, data=(x._address + 2, False), shape=(10,))),
    ),
    "dtype= of another dtype": (
        DTypeError,
        "that dtype='float64' names; got float32",
        lambda comm, x: cocoll.allreduce(x, dtype="float64"),
    ),
    "a read-only array that is updated": (
        UsageError,
        "param must be writable",
        lambda comm, x: cocoll.allreduce_fused(
            x, epilogues.sgd(), param=Shown(x, data=(x._address, True)), lr=0.1
        ),
    ),
    "an output over a transposed operand": (
        BufferOverlapError,
        "the output overlaps y",
        lambda comm, x: cocoll.allreduce_fused(
            square(x), add_y, out=square(x, 4), y=Shown(square(x, 4), shape=(2, 2), strides=(4, 8))
        ),
    ),
    "five kinds of layouts": (
        UnsupportedError,
        "at most 4 kinds; got 5",
        lambda comm, x: cocoll.allreduce_fused(
            Shown(x, shape=(5, 4)),
            add_five,
            **{
                name: Shown(x, shape=(5, 4), strides=strides)
                for name, strides in zip("abcde", LAYOUTS, strict=True)
            },
        ),
    ),
    "a scalar that is a string": (
        UsageError,
        "'factor' must be a number; got str",
        lambda comm, x: cocoll.allreduce_fused(x, epilogues.scale(), factor="2"),
    ),
    "op": (UsageError, "op must be one of", lambda comm, x: cocoll.allreduce(x, "median")),
    "root": (RankError, r"rank in \[0, 2\)", lambda comm, x: cocoll.broadcast(x, 2)),
    "root that is no int": (UsageError, "root", lambda comm, x: cocoll.broadcast(x, "0")),
    "blocks": (
        BufferMismatchError,
        "equal blocks",
        lambda comm, x: cocoll.reduce_scatter(part(x, 0, 19)),
    ),
    "shard": (
        BufferMismatchError,
        "this rank's shard",
        lambda comm, x: cocoll.allreduce_fused(
            x, epilogues.adam(), param=put(comm, host(20), "ordinary"), m=x, v=x, lr=0.1, step=1
        ),
    ),
    "no such scalar": (
        UsageError,
        "no array or scalar 'speed'",
        lambda comm, x: cocoll.allreduce_fused(x, epilogues.scale(), factor=1.0, speed=1.0),
    ),
    "a scalar that is missing": (
        UsageError,
        "needs the scalar 'factor'",
        lambda comm, x: cocoll.allreduce_fused(x, epilogues.scale()),
    ),
    "zero_grad over the output": (
        UsageError,
        "zero_grad would erase",
        lambda comm, x: cocoll.allreduce_fused(x, epilogues.relu(), zero_grad=True),
    ),
    "replicated": (
        UnsupportedError,
        "copy of its own",
        lambda comm, x: comm.empty(4, device="cuda", replicated=True),
    ),
    "device": (UsageError, "'cuda' or 'cuda:N'", lambda comm, x: comm.empty(4, device="gpu")),
    "another GPU": (
        UsageError,
        "has GPU 0",
        lambda comm, x: comm.empty(4, device="cuda:1"),
    ),
    "set of another shape": (
        BufferMismatchError,
        "wanted an array of shape",
        lambda comm, x: x.set(host(3)),
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse(name: str, toolkit: Toolkit) -> None:
    error, words, misuse = MISUSES[name]

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, host(20), "symmetric")
        with pytest.raises(error, match=words):
            misuse(comm, x)
        # Nothing has moved, and the communicator works.
        cocoll.allreduce(x).wait()
        same_bits(x.get(), host(20) * comm.world_size)

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


MISMATCHES: dict[str, Misuse] = {
    "op": lambda comm, x: cocoll.allreduce(x, ("sum", "max")[comm.rank]),
    "count": lambda comm, x: cocoll.allreduce(part(x, 0, 10 + comm.rank)),
    "memory": lambda comm, x: cocoll.allreduce(
        x if comm.rank else make_array(comm, (3000,), "float32", "ordinary")
    ),
    "op of ordinary arrays": lambda comm, x: cocoll.allreduce(
        put(comm, host(3000), "ordinary"), ("sum", "max")[comm.rank], out=x
    ),
    "count of ordinary arrays": lambda comm, x: cocoll.allreduce(
        put(comm, host(2000 + 500 * comm.rank), "ordinary"), out=part(x, 0, 2000 + 500 * comm.rank)
    ),
    "place": lambda comm, x: cocoll.allreduce(part(x, 4 * comm.rank, 2000)),
    "root": lambda comm, x: cocoll.broadcast(x, comm.rank),
    "kind": lambda comm, x: (
        cocoll.broadcast(x) if comm.rank else cocoll.reduce_scatter(x, layout="shard")
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_ranks_that_disagree(name: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, host(3000), "symmetric")
        cocoll.barrier()
        before = x.get()
        work = MISMATCHES[name](comm, x)
        with pytest.raises((CollectiveMismatchError, AbortedError)):
            work.wait()
        same_bits(x.get(), before)
        assert comm.closed

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_a_rank_that_does_not_come(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> type[BaseException] | None:
        x = put(comm, host(3000), "symmetric")
        cocoll.allreduce(x).wait()
        if comm.rank == 1:
            return None
        error = cocoll.allreduce(x).exception()
        return type(error)

    found = run_ranks(2, body, toolkit=toolkit, tuning=TUNING, timeout_seconds=2.0)
    assert found == [CommTimeoutError, None]


def test_a_rank_that_raises_frees_the_others(toolkit: Toolkit) -> None:
    seen: list[type[BaseException]] = []

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, host(3000), "symmetric")
        try:
            # The other may be told while it still waits for the first one.
            cocoll.allreduce(x).wait()
            if comm.rank == 1:
                raise KeyError("planted")
            cocoll.allreduce(x).wait()
        except CocollError as error:
            seen.append(type(error))
            raise

    with pytest.raises(KeyError, match="planted"):
        run_ranks(2, body, toolkit=toolkit, tuning=TUNING, timeout_seconds=60.0)
    assert seen == [AbortedError]


def test_allocations_that_disagree(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        with pytest.raises(CollectiveMismatchError, match=r"empty\(\(5,\)"):
            comm.empty(4 + comm.rank, device="cuda")
        same_bits(put(comm, host(4), "symmetric").get(), host(4))

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_no_compiler_on_one_rank(toolkit: Toolkit, tmp_path: Path) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, host(10), "ordinary")
        if comm.rank == 1:
            with pytest.raises(CompilerNotFoundError, match="COCOLL_NO_COMPILE"):
                cocoll.allreduce(x)
            # As where it leaves the script.
            comm.abort()
        else:
            with pytest.raises(AbortedError):
                cocoll.allreduce(x).wait()

    def start(comm: cocoll.Communicator) -> None:
        comm.settings = replace(
            comm.settings, cache_dir=tmp_path / str(comm.rank), no_compile=comm.rank == 1
        )
        body(comm)

    run_ranks(2, start, toolkit=toolkit, tuning=TUNING)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"COCOLL_EMULATED_DEVICES": "0"}, "there is no GPU"),
        ({"COCOLL_EMULATED_DRIVER_VERSION": "11040"}, "CUDA 12"),
    ],
    ids=["no GPU", "old driver"],
)
def test_what_drives_no_gpu(environment: dict[str, str], words: str, toolkit: Toolkit) -> None:
    script = f"""
import cocoll
from cocoll.cuda.toolkit import Toolkit
comm = cocoll.init(toolkit=Toolkit({toolkit.driver_path!r}))
try:
    comm.empty(4, device="cuda")
except cocoll.errors.UnsupportedError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert words in ran.stdout


def test_no_driver_at_all() -> None:
    from cocoll.cuda.toolkit import Toolkit

    def body(comm: cocoll.Communicator) -> None:
        with pytest.raises(UnsupportedError, match=r"libnone\.so.*install NVIDIA's driver"):
            comm.empty(4, device="cuda")
        # The host's executor does not need one.
        cocoll.allreduce(host(4))

    run_ranks(2, body, toolkit=Toolkit("libnone.so"))
