"""Arrays and streams of a device where there is none, or none that cocoll has an executor for."""

from __future__ import annotations

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.cuda.toolkit import Toolkit
from cocoll.errors import UnsupportedError, UsageError
from tests.helpers.misuse import refuse_on_ranks

CUDA, MANAGED, ROCM = 2, 13, 10


class DeviceTensor:
    """What a framework hands out for memory of a device; asking for it must not happen."""

    def __init__(self, device_type: int) -> None:
        self.device_type = device_type

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, 0

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError("the memory of a device was asked for")


class CudaArray:
    """An array that speaks the CUDA array interface alone."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"shape": (4,), "typestr": "<f4", "data": (1 << 40, False), "version": 3}


class CudaStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 1


class TorchStream:
    cuda_stream = 1


DEVICE_ARRAYS = [DeviceTensor(CUDA), DeviceTensor(MANAGED), DeviceTensor(ROCM), CudaArray()]


@pytest.mark.parametrize("given", DEVICE_ARRAYS, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize("argument", ["x", "out"])
def test_an_array_on_a_device(given: object, argument: str) -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        arrays = {"x": x, argument: given}
        return lambda: cocoll.allreduce(comm=comm, **arrays), [x]

    words = [f"{argument} must lie in host memory", "Copy it"]
    if argument == "x" and given in (DEVICE_ARRAYS[0], DEVICE_ARRAYS[-1]):
        words = ["arrays on a GPU need a CUDA driver", "libnone.so", "install"]
    # As on a machine without a driver, whatever this one has.
    refuse_on_ranks(misuse, UnsupportedError, *words, toolkit=Toolkit("libnone.so"))


def test_an_operand_on_a_device() -> None:
    def misuse(comm):
        x = np.ones(40, np.float32)
        names = {"param": DeviceTensor(CUDA), "lr": 0.1}
        return lambda: cocoll.allreduce_fused(x, epilogues.sgd(), comm=comm, **names), [x]

    refuse_on_ranks(misuse, UnsupportedError, "param must lie in host memory", "device 2")


@pytest.mark.parametrize("stream", [CudaStream(), TorchStream()])
@pytest.mark.parametrize("bound", [False, True])
def test_a_stream_of_a_device(stream: object, bound: bool) -> None:
    def misuse(comm):
        x = np.ones(4, np.float32)
        if bound:
            return lambda: comm.bind(cocoll.allreduce, x, stream=stream), [x]
        return lambda: cocoll.allreduce(x, comm=comm, stream=stream), [x]

    refuse_on_ranks(misuse, UnsupportedError, "a CUDA stream", type(stream).__name__)


class NotShared:
    """A tensor that its framework does not give away (requires grad, sparse, conjugated)."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: object) -> object:
        raise self.error


@pytest.mark.parametrize("kind", [BufferError, RuntimeError, TypeError, ValueError])
def test_a_tensor_that_is_not_shared(kind: type[Exception]) -> None:
    def misuse(comm):
        x = NotShared(kind("it requires grad"))
        return lambda: cocoll.allreduce(x, comm=comm), []

    refuse_on_ranks(
        misuse, UsageError, "x cannot be shared through DLPack", "it requires grad", "detached"
    )


class NoCapsule(NotShared):
    def __init__(self) -> None:
        pass

    def __dlpack__(self, **_: object) -> object:
        return object()


def test_a_tensor_that_gives_no_capsule() -> None:
    refuse_on_ranks(
        lambda comm: (lambda: cocoll.allreduce(NoCapsule(), comm=comm), []),
        UsageError,
        "x cannot be shared through DLPack",
    )
