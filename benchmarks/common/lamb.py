"""LAMB over many tensors: how they are cut, the optimizer's constants, and the right result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common.checks import fill_quantized

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["LAMB", "TENSORS", "check_lamb", "cut_tensors"]

#: The optimizer's constants, equal for everyone.
LAMB = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 1e-2}
#: How many tensors the parameters are cut into.
TENSORS = 200


def cut_tensors(elements: int) -> list[int]:
    """Give where tensors of odd sizes begin, and the end of the last one; the same everywhere."""
    draw = np.random.default_rng(200)
    cuts = np.sort(draw.choice(elements - 1, TENSORS - 1, replace=False) + 1)
    return [0, *(int(cut) for cut in cuts), elements]


def check_lamb(
    param: NDArray[Any],
    first_param: Callable[[int, int], NDArray[np.float32]],
    seeds: list[int],
    world_size: int,
    rank: int,
    *,
    averages: bool,
    is_one: bool = False,
) -> str | None:
    """Compare parameters after ``len(seeds)`` LAMB steps with float64, tensor by tensor.

    Parameters
    ----------
    param : ndarray
        The outcome, float32.
    first_param : callable
        Gives elements [first, first + count) of the parameters before the first step.
    seeds : list of int
        Step k's gradient on each rank was ``fill_quantized(seeds[k], rank)``.
    world_size, rank : int
        Of the job; each rank checks every ``world_size``-th tensor.
    averages : bool
        Whether gradients were averaged instead of summed.
    is_one : bool, default False
        Whether all elements are one tensor.

    Returns
    -------
    str or None
        What is wrong, or None: within 16 units in the last place a step everywhere.
    """
    cuts = [0, param.size] if is_one else cut_tensors(param.size)
    eps = float(np.finfo(np.float32).eps)
    for place in range(rank, len(cuts) - 1, world_size):
        first, stop = cuts[place], cuts[place + 1]
        expected = first_param(first, stop - first).astype(np.float64)
        m, v = np.zeros(stop - first), np.zeros(stop - first)
        source = np.empty(stop - first, np.float32)
        for step, seed in enumerate(seeds, start=1):
            gradient = np.zeros(stop - first)
            for peer in range(world_size):
                fill_quantized(source, seed, peer, first)
                gradient += source
            if averages:
                gradient /= world_size
            m = LAMB["beta1"] * m + (1 - LAMB["beta1"]) * gradient
            v = LAMB["beta2"] * v + (1 - LAMB["beta2"]) * gradient**2
            root = np.sqrt(v / (1 - LAMB["beta2"] ** step))
            update = m / (1 - LAMB["beta1"] ** step) / (root + LAMB["eps"])
            update += LAMB["weight_decay"] * expected
            of_param, of_update = np.linalg.norm(expected), np.linalg.norm(update)
            trust = of_param / of_update if of_param > 0 and of_update > 0 else 1.0
            expected = expected - LAMB["lr"] * trust * update
        error = np.abs(param[first:stop].astype(np.float64) - expected)
        bad = np.flatnonzero(~(error <= 16 * len(seeds) * eps * np.maximum(1.0, np.abs(expected))))
        if bad.size:
            one = int(bad[0])
            return (
                f"tensor {place}, element {one}: wanted {expected[one]}, got {param[first + one]} "
                f"({bad.size} of {stop - first} differ)"
            )
    return None
