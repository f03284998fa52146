"""Whether fused steps give the right parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from benchmarks.common.runner import Runner

__all__ = ["check_fused"]

_PARAM_SEED, _GRADIENT_SEED = 900, 901


def check_fused(
    runner: Runner,
    form: str,
    elements: int,
    barrier: Callable[[], None],
    steps: int = 2,
    compare: Callable[..., str | None] = checks.check_adam,
) -> tuple[str | None, NDArray[Any], float]:
    """Take some steps over known gradients, and compare with float64.

    Parameters
    ----------
    runner : Runner
        Prepared.
    form : str
        Of a fused operation.
    elements : int
        Number of parameters.
    barrier : callable
        Waits for all ranks.
    steps : int, default 2
        How many.
    compare : callable, default check_adam
        Says what is wrong with the parameters.

    Returns
    -------
    tuple of (str or None, ndarray, float)
        What is wrong in this rank's part, or None; the parameters; the seconds of the last step.
    """
    buffers = runner.fused_buffers(form)
    is_bfloat16 = buffers.param.dtype == np.uint16

    def first_param(first: int, count: int) -> NDArray[np.float32]:
        block = np.empty(count, np.float32)
        checks.fill_random(block, _PARAM_SEED, 0, first)
        if is_bfloat16:
            return checks.bfloat16_to_float32(checks.float32_to_bfloat16(block))
        return block

    runner.reset(form, first_param(0, elements))
    seeds = [_GRADIENT_SEED + step for step in range(steps)]
    seconds = 0.0
    for seed in seeds:
        checks.fill_quantized(buffers.gradient, seed, runner.rank)
        barrier()
        seconds = runner.measure(form)
        barrier()  # a peer may still be reading this rank's gradient
    wrong = compare(
        buffers.param,
        first_param,
        seeds,
        runner.world_size,
        runner.rank,
        averages=buffers.averages,
    )
    return wrong, buffers.param, seconds
