"""The catalogue of optimizers: epilogues that update parameters from reduced gradients.

Every entry is a function that gives an :class:`~cocoll.epilogues.Epilogue`. ``param`` is
replicated: its new value reaches all ranks. State is sharded: each rank holds its shard and updates
it in place. With the optional array ``master``, a sharded float32 copy of the parameters, ``param``
may be of a 16-bit type: it is then rounded from the master copy and never read. Computation is in
the accumulate type: float32 for 16-bit gradients.

Numbers bound here are scalars like any other: other numbers need no other kernel, and a call may
give them anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cocoll.epilogues import functions
from cocoll.epilogues.trace import Epilogue
from cocoll.errors import UsageError

__all__ = ["adam", "adamw", "bind_adam", "check_range", "sgd"]


def check_range(optimizer: str, name: str, value: float, *, below_one: bool = False) -> None:
    """Refuse a hyperparameter that is negative, or that is no decay where one is wanted."""
    if not value >= 0.0 or (below_one and not value < 1.0):
        limit = "0 <= value < 1" if below_one else "value >= 0"
        raise UsageError(f"{optimizer}: wanted {limit} for {name}, got {value!r}")


def sgd(
    *,
    lr: float | None = None,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> Epilogue:
    """Give stochastic gradient descent, with momentum if a buffer for it is given.

    Parameters
    ----------
    lr : float, optional
        The learning rate; if not given, it is given with each call.
    momentum : float, default 0.0
        The factor of the momentum buffer.
    dampening : float, default 0.0
        One minus the factor of the gradient that enters the buffer. If it is not 0, the call takes
        the scalar ``step``, and at step 1 the gradient enters whole, as PyTorch does.
    weight_decay : float, default 0.0
        The factor of the parameter that is added to the gradient.
    nesterov : bool, default False
        Look ahead by one step of momentum; needs `momentum` above 0 and no `dampening`.

    Returns
    -------
    Epilogue
        Arrays: ``param``, replicated; ``momentum_buffer`` and ``master``, sharded and optional.
        Scalars: ``lr``, ``momentum``, ``weight_decay``; with dampening also ``dampening`` and
        ``step``. Updates every array that is given.

    Raises
    ------
    UsageError
        A number is out of range, or `nesterov` without momentum or with dampening.

    Notes
    -----
    The formulas are those of ``torch.optim.SGD``: g = g + weight_decay * p; b = momentum * b +
    (1 - dampening) * g; p = p - lr * (g + momentum * b if nesterov else b). A buffer of zeros is
    the state before the first step.

    References
    ----------
    .. [1] I. Sutskever, J. Martens, G. Dahl, G. Hinton, On the importance of initialization and
       momentum in deep learning, ICML 2013, equations 1 to 4.
    """
    check_range("sgd", "momentum", momentum)
    check_range("sgd", "weight_decay", weight_decay)
    if nesterov and (momentum <= 0.0 or dampening != 0.0):
        raise UsageError("sgd: nesterov wants a momentum above 0 and no dampening")
    scalars = {"momentum": momentum, "weight_decay": weight_decay}
    if lr is not None:
        check_range("sgd", "lr", lr)
        scalars["lr"] = lr
    if dampening != 0.0:
        scalars["dampening"] = dampening
    return _sgd(nesterov, dampening != 0.0).bind(**scalars)


@functools.cache
def _sgd(nesterov: bool, dampened: bool) -> Epilogue:
    def step_parameters(
        g: Any,
        param: Any,
        momentum_buffer: Any,
        master: Any,
        lr: Any,
        momentum: Any,
        weight_decay: Any,
        share: Any,
    ) -> dict[str, Any]:
        p = param if master is None else master
        g = g + weight_decay * p
        updated = {}
        if momentum_buffer is not None:
            entering = g if share is None else share * g
            buffer = momentum * momentum_buffer + entering
            updated["momentum_buffer"] = buffer
            g = g + momentum * buffer if nesterov else buffer
        updated["param"] = p - lr * g
        if master is not None:
            updated["master"] = updated["param"]
        return updated

    if dampened:

        def sgd_dampened(
            g: Any,
            param: Any,
            momentum_buffer: Any = None,
            master: Any = None,
            *,
            lr: Any,
            momentum: Any = 0.0,
            weight_decay: Any = 0.0,
            dampening: Any = 0.0,
            step: Any,
        ) -> dict[str, Any]:
            share = functions.where(step <= 1.0, 1.0, 1.0 - dampening)
            return step_parameters(
                g, param, momentum_buffer, master, lr, momentum, weight_decay, share
            )

        function: Callable[..., Any] = sgd_dampened
    else:

        def sgd_plain(
            g: Any,
            param: Any,
            momentum_buffer: Any = None,
            master: Any = None,
            *,
            lr: Any,
            momentum: Any = 0.0,
            weight_decay: Any = 0.0,
        ) -> dict[str, Any]:
            return step_parameters(
                g, param, momentum_buffer, master, lr, momentum, weight_decay, None
            )

        function = sgd_plain
    return Epilogue(function, ("momentum_buffer", "master"), name="sgd")


def adam(
    *,
    lr: float | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Epilogue:
    """Give Adam, with bias correction and, if asked for, L2 regularisation.

    Parameters
    ----------
    lr : float, optional
        The learning rate; if not given, it is given with each call.
    betas : tuple of two floats, default (0.9, 0.999)
        The decay of the two moments.
    eps : float, default 1e-8
        What is added to the root of the second moment, after its bias is corrected.
    weight_decay : float, default 0.0
        The factor of the parameter that is added to the gradient.

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
    The formulas are those of ``torch.optim.Adam``; what depends on scalars alone is evaluated once
    an operation in float64.

    References
    ----------
    .. [1] D. P. Kingma, J. Ba, Adam: a method for stochastic optimization, ICLR 2015, algorithm 1.
    """
    return bind_adam(_ADAM, lr, betas, eps, weight_decay)


def adamw(
    *,
    lr: float | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> Epilogue:
    """Give AdamW: Adam with weight decay decoupled from the gradient.

    Parameters
    ----------
    lr : float, optional
        The learning rate; if not given, it is given with each call.
    betas : tuple of two floats, default (0.9, 0.999)
        The decay of the two moments.
    eps : float, default 1e-8
        What is added to the root of the second moment, after its bias is corrected.
    weight_decay : float, default 1e-2
        The parameter is multiplied by 1 - lr * weight_decay before the step.

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
    The formulas are those of ``torch.optim.AdamW``; what depends on scalars alone is evaluated once
    an operation in float64.

    References
    ----------
    .. [1] I. Loshchilov, F. Hutter, Decoupled weight decay regularization, ICLR 2019, algorithm 2.
    """
    return bind_adam(_ADAMW, lr, betas, eps, weight_decay)


def bind_adam(
    optimizer: Epilogue,
    lr: float | None,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> Epilogue:
    """Give an optimizer with Adam's scalars its defaults, after checking them."""
    beta1, beta2 = betas
    name = optimizer.name
    check_range(name, "betas[0]", beta1, below_one=True)
    check_range(name, "betas[1]", beta2, below_one=True)
    check_range(name, "eps", eps)
    check_range(name, "weight_decay", weight_decay)
    scalars = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
    if lr is not None:
        check_range(name, "lr", lr)
        scalars["lr"] = lr
    return optimizer.bind(**scalars)


def _adam_step(
    g: Any, p: Any, m: Any, v: Any, lr: Any, step: Any, beta1: Any, beta2: Any, eps: Any
) -> tuple[Any, Any, Any]:
    """Give the new parameter and moments."""
    m = beta1 * m + (1.0 - beta1) * g
    v = beta2 * v + (1.0 - beta2) * (g * g)
    # The two bias corrections depend on scalars alone.
    to_root = 1.0 / functions.sqrt(1.0 - beta2**step)
    step_size = lr / (1.0 - beta1**step)
    return p - step_size * (m / (functions.sqrt(v) * to_root + eps)), m, v


def _adam(
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
    eps: Any = 1e-8,
    weight_decay: Any = 0.0,
) -> dict[str, Any]:
    p = param if master is None else master
    p, m, v = _adam_step(g + weight_decay * p, p, m, v, lr, step, beta1, beta2, eps)
    updated = {"param": p, "m": m, "v": v}
    return updated if master is None else {**updated, "master": p}


def _adamw(
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
    eps: Any = 1e-8,
    weight_decay: Any = 1e-2,
) -> dict[str, Any]:
    p = param if master is None else master
    decayed = p * (1.0 - lr * weight_decay)
    p, m, v = _adam_step(g, decayed, m, v, lr, step, beta1, beta2, eps)
    updated = {"param": p, "m": m, "v": v}
    return updated if master is None else {**updated, "master": p}


_ADAM = Epilogue(_adam, ("m", "v", "master"), name="adam")
_ADAMW = Epilogue(_adamw, ("m", "v", "master"), name="adamw")
