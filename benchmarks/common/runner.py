"""What an implementation has to offer to be measured: the class its job's ranks carry."""

from __future__ import annotations

import abc
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from benchmarks.common.cases import Entry, Group

__all__ = ["ADAM", "FusedBuffers", "Runner"]

#: The optimizer's constants, equal for everyone.
ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


class FusedBuffers:
    """What a fused step works on, as the checks see it.

    Parameters
    ----------
    gradient, param : ndarray
        This rank's gradient and the whole parameters (bfloat16 as uint16).
    averages : bool
        Whether the implementation divides the sum by the number of ranks.
    """

    def __init__(
        self, gradient: NDArray[Any], param: NDArray[Any], *, averages: bool = False
    ) -> None:
        self.gradient = gradient
        self.param = param
        self.averages = averages


class Runner(abc.ABC):
    """One implementation on one rank.

    A job calls, in this order and on all ranks alike: ``open`` once; for every group ``prepare``,
    then for each form ``reset``, ``call``, ``result``; ``release``; at the end ``close``.
    """

    rank: int = 0
    world_size: int = 1

    @abc.abstractmethod
    def open(self) -> None:
        """Start the library; afterwards ``rank`` and ``world_size`` hold."""

    @abc.abstractmethod
    def prepare(self, group: Group) -> list[Entry]:
        """Allocate for `group` and name the forms to time; equal on all ranks."""

    @abc.abstractmethod
    def inputs(self, form: str) -> list[NDArray[Any]]:
        """Give the arrays of this rank that a producer would rewrite before each call."""

    @abc.abstractmethod
    def call(self, form: str) -> Callable[[], object]:
        """Give the call to time, as the library's users would write it."""

    @abc.abstractmethod
    def result(self, form: str) -> NDArray[Any]:
        """Give the output of the last call, whole, on this rank."""

    @abc.abstractmethod
    def release(self) -> None:
        """Drop the group's memory."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the library."""

    def versions(self) -> dict[str, str]:
        """Name the libraries and versions that run."""
        return {}

    def fused_buffers(self, form: str) -> FusedBuffers:
        """Give the buffers of a fused step, for the check."""
        raise NotImplementedError(f"{type(self).__name__} has no fused form {form!r}")

    def reset(self, form: str, param: NDArray[np.float32]) -> None:
        """Begin a fused optimisation again from `param` (float32), with zero state, at step 1."""
        raise NotImplementedError(f"{type(self).__name__} has no fused form {form!r}")

    def measure(self, form: str) -> float:
        """Carry out one call of `form` and give this rank's seconds.

        Overridden where what counts is not one call (a whole step less its forward and backward).
        """
        call = self.call(form)
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
