"""The catalogue of optimizers that need norms: of tensors (LAMB, LARS), or of all gradients.

They are epilogues with totals: one call, which makes its second pass when all ranks have added up
their shards. Of a list of tensors each has its own norms.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from cocoll.epilogues import functions
from cocoll.epilogues.assembly import OUTPUT
from cocoll.epilogues.optimizers import bind_adam, check_range
from cocoll.epilogues.trace import Epilogue
from cocoll.errors import TraceError, UsageError

__all__ = ["clip_by_global_norm", "lamb", "lars", "unscaled"]

#: What :func:`unscaled` calls its total.
NONFINITE = "nonfinite"

# What an epilogue around another one does: with its function, the gradient, the arrays by name, its
# scalars and the own ones.
_Body: TypeAlias = Callable[
    [Callable[..., Any], Any, Mapping[str, Any], dict[str, Any], dict[str, Any]], Any
]


def lamb(
    *,
    lr: float | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 1e-2,
) -> Epilogue:
    """Give LAMB: Adam whose step each tensor scales by its norm over that of the update.

    Parameters
    ----------
    lr : float, optional
        The learning rate; if not given, it is given with each call.
    betas : tuple of two floats, default (0.9, 0.999)
        The decay of the two moments.
    eps : float, default 1e-6
        What is added to the root of the second moment, after its bias is corrected.
    weight_decay : float, default 1e-2
        The factor of the parameter that is added to the update.

    Returns
    -------
    Epilogue
        Arrays: ``param``, replicated; ``m`` and ``v``, sharded; ``master``, sharded and optional.
        Scalars: ``lr``, ``step`` (1 at the first step), ``beta1``, ``beta2``, ``eps``,
        ``weight_decay``. Updates every array that is given.

    Raises
    ------
    UsageError
        A number is out of range.

    Notes
    -----
    The trust ratio is 1 where one of the two norms is 0. Two passes: the gradient is read in the
    first one alone, the moments and parameters in both.

    References
    ----------
    .. [1] Y. You et al., Large batch optimization for deep learning: training BERT in 76 minutes,
       ICLR 2020, algorithm 2.
    """
    return bind_adam(_LAMB, lr, betas, eps, weight_decay)


def _ratio(numerator: Any, denominator: Any) -> Any:
    """Give a ratio of norms, 1 where one of them is 0."""
    is_defined = (numerator > 0.0) & (denominator > 0.0)
    return functions.where(is_defined, numerator / denominator, 1.0)


def _lamb(
    g: Any,
    param: Any,
    m: Any,
    v: Any,
    master: Any = None,
    *,
    lr: Any,
    step: Any,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    eps: Any = 1e-6,
    weight_decay: Any = 1e-2,
) -> dict[str, Any]:
    p = param if master is None else master
    m = beta1 * m + (1.0 - beta1) * g
    v = beta2 * v + (1.0 - beta2) * (g * g)
    to_mean = 1.0 / (1.0 - beta1**step)
    to_root = 1.0 / functions.sqrt(1.0 - beta2**step)
    update = (m * to_mean) / (functions.sqrt(v) * to_root + eps) + weight_decay * p
    step_size = lr * _ratio(functions.norm(p), functions.norm(update))
    p = p - step_size * update
    updated = {"param": p, "m": m, "v": v}
    return updated if master is None else {**updated, "master": p}


def lars(
    *,
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    trust_coefficient: float = 1e-3,
    eps: float = 1e-8,
) -> Epilogue:
    """Give LARS: momentum whose step each tensor scales by its norm over that of its gradient.

    Parameters
    ----------
    lr : float, optional
        The learning rate; if not given, it is given with each call.
    momentum : float, default 0.9
        The factor of the momentum buffer.
    weight_decay : float, default 1e-4
        The factor of the parameter that is added to the gradient.
    trust_coefficient : float, default 1e-3
        How far the layer is trusted to change at one step.
    eps : float, default 1e-8
        What is added to the denominator of the ratio.

    Returns
    -------
    Epilogue
        Arrays: ``param``, replicated; ``momentum_buffer``, sharded; ``master``, sharded and
        optional. Scalars: ``lr``, ``momentum``, ``weight_decay``, ``trust_coefficient``, ``eps``.
        Updates every array that is given.

    Raises
    ------
    UsageError
        A number is out of range.

    Notes
    -----
    The ratio is trust_coefficient |p| / (|g| + weight_decay |p| + eps), and 1 where |p| or |g| is
    0. The reduced gradient is kept between the two passes: one array of a shard's length.

    References
    ----------
    .. [1] Y. You, I. Gitman, B. Ginsburg, Large batch training of convolutional networks,
       arXiv:1708.03888, algorithm 1.
    """
    scalars = {
        "momentum": momentum,
        "weight_decay": weight_decay,
        "trust_coefficient": trust_coefficient,
        "eps": eps,
    }
    if lr is not None:
        scalars["lr"] = lr
    for name, value in scalars.items():
        check_range("lars", name, value)
    return _LARS.bind(**scalars)


def _lars(
    g: Any,
    param: Any,
    momentum_buffer: Any,
    master: Any = None,
    *,
    lr: Any,
    momentum: Any = 0.9,
    weight_decay: Any = 1e-4,
    trust_coefficient: Any = 1e-3,
    eps: Any = 1e-8,
) -> dict[str, Any]:
    p = param if master is None else master
    of_param, of_gradient = functions.norm(p), functions.norm(g)
    is_defined = (of_param > 0.0) & (of_gradient > 0.0)
    ratio = trust_coefficient * of_param / (of_gradient + weight_decay * of_param + eps)
    local = lr * functions.where(is_defined, ratio, 1.0)
    buffer = momentum * momentum_buffer + local * (g + weight_decay * p)
    p = p - buffer
    updated = {"param": p, "momentum_buffer": buffer}
    return updated if master is None else {**updated, "master": p}


def clip_by_global_norm(optimizer: Epilogue, max_norm: float | None = None) -> Epilogue:
    """Give an optimizer whose gradients, of all tensors together, have at most a given norm.

    Parameters
    ----------
    optimizer : Epilogue
        What is given the gradient; any epilogue.
    max_norm : float, optional
        The largest norm; if not given, it is given with each call.

    Returns
    -------
    Epilogue
        With the arrays and scalars of `optimizer`, and the scalar ``max_norm``.

    Raises
    ------
    UsageError
        `max_norm` is negative, or `optimizer` has a scalar of this name already.

    Notes
    -----
    As ``torch.nn.utils.clip_grad_norm_``: the gradient is multiplied by
    min(1, max_norm / (norm + 1e-6)). The reduced gradient is kept between the two passes. A list is
    clipped by the norm of all its tensors; calls that are separate are clipped apart.
    """
    if max_norm is not None:
        check_range("clip_by_global_norm", "max_norm", max_norm)

    def clip(
        inner: Callable[..., Any],
        g: Any,
        arrays: Mapping[str, Any],
        scalars: dict[str, Any],
        own: dict[str, Any],
    ) -> Any:
        total = functions.norm(g, over="all")
        factor = functions.minimum(own["max_norm"] / (total + 1e-6), 1.0)
        return inner(g * factor, *arrays.values(), **scalars)

    return _around(optimizer, "clip_by_global_norm", clip, {"max_norm": max_norm})


def unscaled(optimizer: Epilogue, loss_scale: float | None = None) -> Epilogue:
    """Give an optimizer for a loss that was scaled: it unscales, and skips what is not finite.

    Parameters
    ----------
    optimizer : Epilogue
        What is given the gradient; it returns a dict of what it updates.
    loss_scale : float, optional
        What the loss was multiplied by; if not given, it is given with each call.

    Returns
    -------
    Epilogue
        With the arrays and scalars of `optimizer`, and the scalar ``loss_scale``. If any reduced
        gradient of any tensor is infinite or not a number, nothing is updated on any rank;
        `Work.totals` then has ``"nonfinite"`` above 0: the number of such elements.

    Raises
    ------
    UsageError
        `loss_scale` is negative, or `optimizer` has a scalar of this name already.

    Notes
    -----
    The reduced gradient is kept between the two passes.

    References
    ----------
    .. [1] P. Micikevicius et al., Mixed precision training, ICLR 2018, section 3.2.
    """
    if loss_scale is not None:
        check_range("unscaled", "loss_scale", loss_scale)

    def unscale(
        inner: Callable[..., Any],
        g: Any,
        arrays: Mapping[str, Any],
        scalars: dict[str, Any],
        own: dict[str, Any],
    ) -> Any:
        g = g * (1.0 / own["loss_scale"])
        # An infinity or a NaN minus itself is a NaN, which equals nothing.
        bad = functions.where(g - g == 0.0, 0.0, 1.0)
        is_bad = functions.sum(bad, over="all", name=NONFINITE) > 0.0
        updated = inner(g, *arrays.values(), **scalars)
        if not isinstance(updated, Mapping) or OUTPUT in updated:
            raise TraceError(
                f"unscaled wants an epilogue that returns a dict of arrays that it updates; "
                f"{optimizer.name!r} has an output"
            )
        return {
            name: functions.where(is_bad, arrays[name], value) for name, value in updated.items()
        }

    return _around(optimizer, "unscaled", unscale, {"loss_scale": loss_scale})


def _around(inner: Epilogue, name: str, body: _Body, own: Mapping[str, float | None]) -> Epilogue:
    """Give an epilogue with the arrays and scalars of another, and more scalars."""
    parameters = inspect.signature(inner.function).parameters
    taken = sorted(set(own) & set(parameters))
    if taken:
        raise UsageError(f"{name}: epilogue {inner.name!r} has {taken[0]!r} already")
    names = list(parameters)[1 : 1 + len(inner.array_names)]

    def function(g: Any, *arrays: Any, **scalars: Any) -> Any:
        taken_out = {scalar: scalars.pop(scalar) for scalar in own}
        by_name = dict(zip(names, arrays, strict=True))
        return body(inner.function, g, by_name, scalars, taken_out)

    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *parameters.values(),
            *(inspect.Parameter(scalar, inspect.Parameter.KEYWORD_ONLY) for scalar in own),
        ]
    )
    defaults = {
        scalar: value
        for scalar, value in {**inner.scalar_defaults, **own}.items()
        if value is not None
    }
    return Epilogue(function, inner.sharded, defaults=defaults, name=f"{name}_{inner.name}")


_LAMB = Epilogue(_lamb, ("m", "v", "master"), name="lamb")
_LARS = Epilogue(_lars, ("momentum_buffer", "master"), name="lars")
