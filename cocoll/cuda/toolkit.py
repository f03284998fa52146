"""What a GPU is driven with: the driver's library and the compiler of kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.errors import CudaError, UnsupportedError
from cocoll.kernels.nvrtc import find_nvrtc

if TYPE_CHECKING:
    from cocoll.cuda.binding import Library
    from cocoll.kernels.grid_loader import GridCompiler

__all__ = ["Toolkit", "open_library"]

# The values of LoadStatus in cuda/driver.h, and what to do.
_ADVICE = {
    1: "install NVIDIA's driver; packages from PyPI do not bring it",
    2: "it is too old or no driver: cocoll needs one for CUDA 12 or later",
    3: "cocoll needs a driver for CUDA 12 (12000) or later",
    4: "see what nvidia-smi says",
    5: "there is no GPU: leave device= out and use arrays in host memory",
}


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The libraries below the executor for GPUs.

    Attributes
    ----------
    driver_path : str
        The library of the driver.
    find_compiler : callable
        Gives the compiler when a kernel is first needed.
    """

    driver_path: str = "libcuda.so.1"
    find_compiler: Callable[[], GridCompiler] = find_nvrtc


def open_library(toolkit: Toolkit) -> Library:
    """Load the driver.

    Parameters
    ----------
    toolkit : Toolkit
        Which.

    Returns
    -------
    Library
        Ready to use.

    Raises
    ------
    UnsupportedError
        There is none, or none that serves.
    """
    from cocoll.cuda.binding import Library

    try:
        return Library(toolkit.driver_path)
    except CudaError as error:
        raise UnsupportedError(
            f"arrays on a GPU need a CUDA driver: {error}; {_ADVICE.get(error.status, '')}"
        ) from error
