"""A peer's collectives, bound to arrays: a bound call is what is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Adam", "Call", "Collectives", "MpiCollectives", "NumpyAdam"]

Call = Callable[[], object]

# As much as the caches of a core hold of the five arrays.
_BLOCK_ELEMENTS = 1 << 14


class Collectives(Protocol):
    """A library under one setting. Arrays are whole vectors, blocks the ranks' equal parts."""

    def broadcast(self, array: NDArray[Any]) -> Call:
        """Bind a broadcast from rank 0, in place."""

    def allgather(self, block: NDArray[Any], array: NDArray[Any]) -> Call:
        """Bind a gather; `block` is this rank's own part of `array`."""

    def reduce_scatter(self, array: NDArray[Any], block: NDArray[Any]) -> Call:
        """Bind a sum of which each rank gets its block."""

    def allreduce(self, array: NDArray[Any]) -> Call:
        """Bind a sum over all ranks, in place."""


class Adam(Protocol):
    """An optimizer over memory of the caller's."""

    def reset(self) -> None:
        """Forget all steps."""

    def step(self) -> None:
        """Take one step."""


class MpiCollectives:
    """MPI, called as Python users call it: mpi4py's upper-case methods.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        With the setting.
    in_place : object
        ``MPI.IN_PLACE``.
    unequal : bool
        Whether to reduce and scatter with the function for unequal blocks, of which there are more
        algorithms.
    """

    def __init__(self, comm: Any, in_place: Any, *, unequal: bool = False) -> None:
        self._comm = comm
        self._in_place = in_place
        self._unequal = unequal

    def broadcast(self, array: NDArray[Any]) -> Call:
        """``Bcast``."""
        broadcast = self._comm.Bcast
        return lambda: broadcast(array, 0)

    def allgather(self, block: NDArray[Any], array: NDArray[Any]) -> Call:
        """``Allgather`` in place."""
        del block
        allgather, in_place = self._comm.Allgather, self._in_place
        return lambda: allgather(in_place, array)

    def reduce_scatter(self, array: NDArray[Any], block: NDArray[Any]) -> Call:
        """``Reduce_scatter_block``, or ``Reduce_scatter``."""
        if not self._unequal:
            reduce_scatter_block = self._comm.Reduce_scatter_block
            return lambda: reduce_scatter_block(array, block)
        reduce_scatter = self._comm.Reduce_scatter
        counts = [block.size] * self._comm.Get_size()
        return lambda: reduce_scatter(array, block, counts)

    def allreduce(self, array: NDArray[Any]) -> Call:
        """``Allreduce`` in place."""
        allreduce, in_place = self._comm.Allreduce, self._in_place
        return lambda: allreduce(in_place, array)


class NumpyAdam:
    """Adam as NumPy's users without torch write it, a block at a time so that it stays in caches.

    Parameters
    ----------
    param : ndarray of float32
        Updated in place.
    gradient : ndarray of float32
        Read by :meth:`step`; the caller fills it.
    m, v : ndarray of float32
        The state, of the same length.
    constants : dict of str to float
        lr, beta1, beta2, eps.
    """

    def __init__(
        self,
        param: NDArray[np.float32],
        gradient: NDArray[np.float32],
        m: NDArray[np.float32],
        v: NDArray[np.float32],
        constants: dict[str, float],
    ) -> None:
        self._arrays = param, gradient, m, v
        self._constants = {name: np.float32(value) for name, value in constants.items()}
        self._steps = 0
        self._betas = constants["beta1"], constants["beta2"]
        self._scratch = np.empty((2, min(_BLOCK_ELEMENTS, param.size)), np.float32)

    def reset(self) -> None:
        """Forget all steps."""
        self._steps = 0
        for state in self._arrays[2:]:
            state[...] = 0

    def step(self) -> None:
        """Take one step."""
        self._steps += 1
        beta1, beta2 = self._constants["beta1"], self._constants["beta2"]
        eps = self._constants["eps"]
        correction = 1 - self._betas[1] ** self._steps
        rate = np.float32(self._constants["lr"] / (1 - self._betas[0] ** self._steps))
        scale = np.float32(1 / correction)
        rest1, rest2 = np.float32(1 - self._betas[0]), np.float32(1 - self._betas[1])
        for start in range(0, self._arrays[0].size, _BLOCK_ELEMENTS):
            param, gradient, m, v = (
                array[start : start + _BLOCK_ELEMENTS] for array in self._arrays
            )
            one, two = (row[: param.size] for row in self._scratch)
            np.multiply(gradient, rest1, out=one)
            m *= beta1
            m += one
            np.multiply(gradient, gradient, out=one)
            one *= rest2
            v *= beta2
            v += one
            np.multiply(v, scale, out=one)
            np.sqrt(one, out=one)
            one += eps
            np.divide(m, one, out=two)
            two *= rate
            param -= two
