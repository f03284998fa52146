"""What a GPU is driven with: the driver's library, NCCL, and the compiler of kernels."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.errors import CudaError, NcclError, UnsupportedError
from cocoll.kernels.nvrtc import find_nvrtc

if TYPE_CHECKING:
    from cocoll.cuda.binding import Library, NcclLibrary
    from cocoll.kernels.grid_loader import GridCompiler

__all__ = ["Toolkit", "find_nccl", "open_library", "open_nccl"]

# The values of LoadStatus in cuda/driver.h, and what to do.
_ADVICE = {
    1: "install NVIDIA's driver; packages from PyPI do not bring it",
    2: "it is too old or no driver: cocoll needs one for CUDA 12 or later",
    3: "cocoll needs a driver for CUDA 12 (12000) or later",
    4: "see what nvidia-smi says",
    5: "there is no GPU: leave device= out and use arrays in host memory",
}
_NCCL = "libnccl.so.2"
_NCCL_ADVICE = "wanted NCCL 2.19 or later: install cocoll[cuda13] or cocoll[cuda12]"
# dlopen gives a library only if it is loaded already (Linux).
_RTLD_NOLOAD = 4


def find_nccl() -> str:
    """Find NCCL: what the process has loaded, then what cuda-pathfinder finds, then the system's.

    Returns
    -------
    str
        A path or name that dlopen takes.
    """
    try:
        # torch and CuPy bring one: two NCCLs in a process work, and waste memory.
        ctypes.CDLL(_NCCL, mode=_RTLD_NOLOAD)
    except OSError:
        pass
    else:
        return _NCCL
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        found = pathfinder.load_nvidia_dynamic_lib("nccl").abs_path
    except (ImportError, RuntimeError):
        # Not installed, or it knows no such library here.
        return _NCCL
    return found or _NCCL


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The libraries below the executor for GPUs.

    Attributes
    ----------
    driver_path : str
        The library of the driver.
    find_compiler : callable
        Gives the compiler when a kernel is first needed.
    find_nccl : callable
        Gives the path of NCCL when it is first needed.
    """

    driver_path: str = "libcuda.so.1"
    find_compiler: Callable[[], GridCompiler] = find_nvrtc
    find_nccl: Callable[[], str] = find_nccl


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


def open_nccl(toolkit: Toolkit) -> NcclLibrary:
    """Load NCCL.

    Parameters
    ----------
    toolkit : Toolkit
        Which.

    Returns
    -------
    NcclLibrary
        Ready to use.

    Raises
    ------
    UnsupportedError
        There is none, or one that is too old.
    """
    from cocoll.cuda.binding import NcclLibrary

    try:
        return NcclLibrary(toolkit.find_nccl())
    except NcclError as error:
        raise UnsupportedError(f"{error}; {_NCCL_ADVICE}") from error
