"""The optimizers: each is an epilogue of the catalogue and its hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from cocoll import epilogues
from cocoll.errors import UsageError
from cocoll.torch.optimizer import FusedOptimizer
from cocoll.torch.recipe import Recipe

if TYPE_CHECKING:
    from cocoll.epilogues import Epilogue

__all__ = ["FusedAdam", "FusedAdamW", "FusedLAMB", "FusedSGD"]

_Group = Mapping[str, Any]


def _adam_scalars(group: _Group, step: int) -> dict[str, float]:
    beta1, beta2 = group["betas"]
    return {
        "lr": float(group["lr"]),
        "step": float(step),
        "beta1": float(beta1),
        "beta2": float(beta2),
        "eps": float(group["eps"]),
        "weight_decay": float(group["weight_decay"]),
    }


def _adam_state(group: _Group) -> dict[str, str]:
    del group
    return {"m": "exp_avg", "v": "exp_avg_sq"}


def _adam_epilogue(make: Callable[..., Epilogue]) -> Callable[[_Group], Epilogue]:
    def make_epilogue(group: _Group) -> Epilogue:
        # The numbers are checked here, and given anew with each call.
        return make(
            lr=float(group["lr"]),
            betas=tuple(map(float, group["betas"])),
            eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
        )

    return make_epilogue


def _no_structure(group: _Group) -> Hashable:
    del group
    return ()


_ADAM = Recipe(
    "FusedAdam",
    torch.optim.Adam,
    _adam_epilogue(epilogues.adam),
    _adam_scalars,
    _adam_state,
    _no_structure,
)
_ADAMW = Recipe(
    "FusedAdamW",
    torch.optim.AdamW,
    _adam_epilogue(epilogues.adamw),
    _adam_scalars,
    _adam_state,
    _no_structure,
)


_LAMB = Recipe(
    "FusedLAMB",
    torch.optim.Adam,
    _adam_epilogue(epilogues.lamb),
    _adam_scalars,
    _adam_state,
    _no_structure,
    per_tensor=True,
)


def _sgd_epilogue(group: _Group) -> Epilogue:
    return epilogues.sgd(
        lr=float(group["lr"]),
        momentum=float(group["momentum"]),
        dampening=float(group["dampening"]),
        weight_decay=float(group["weight_decay"]),
        nesterov=bool(group["nesterov"]),
    )


def _sgd_scalars(group: _Group, step: int) -> dict[str, float]:
    names = ["lr", "momentum", "weight_decay"]
    scalars = {}
    if group["dampening"] != 0:
        names.append("dampening")
        scalars["step"] = float(step)
    return {**scalars, **{name: float(group[name]) for name in names}}


def _sgd_state(group: _Group) -> dict[str, str]:
    return {"momentum_buffer": "momentum_buffer"} if group["momentum"] != 0 else {}


def _sgd_structure(group: _Group) -> Hashable:
    return bool(group["nesterov"]), group["dampening"] != 0


_SGD = Recipe("FusedSGD", torch.optim.SGD, _sgd_epilogue, _sgd_scalars, _sgd_state, _sgd_structure)


class FusedAdam(FusedOptimizer):
    """Adam, run inside the all-reduce of the gradients. Making one is collective.

    It computes what ``torch.optim.Adam`` computes on averaged gradients. `FusedOptimizer` says what
    all optimizers have in common.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter, or of dict
        Parameters, or parameter groups; the same on all ranks.
    lr : float, default 1e-3
        The learning rate.
    betas : tuple of two floats, default (0.9, 0.999)
        The decay of the two moments.
    eps : float, default 1e-8
        What is added to the root of the second moment.
    weight_decay : float, default 0
        The factor of the parameter that is added to the gradient.
    **options : object
        Of `FusedOptimizer`.

    Raises
    ------
    UsageError
        A number is out of range, or what `FusedOptimizer` raises.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, _ADAM, **options)


class FusedAdamW(FusedOptimizer):
    """AdamW, run inside the all-reduce of the gradients. Making one is collective.

    It computes what ``torch.optim.AdamW`` computes on averaged gradients. `FusedOptimizer` says
    what all optimizers have in common.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter, or of dict
        Parameters, or parameter groups; the same on all ranks.
    lr : float, default 1e-3
        The learning rate.
    betas : tuple of two floats, default (0.9, 0.999)
        The decay of the two moments.
    eps : float, default 1e-8
        What is added to the root of the second moment.
    weight_decay : float, default 0.01
        The parameter is multiplied by 1 - lr * weight_decay before the step.
    **options : object
        Of `FusedOptimizer`.

    Raises
    ------
    UsageError
        A number is out of range, or what `FusedOptimizer` raises.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, _ADAMW, **options)


class FusedLAMB(FusedOptimizer):
    """LAMB, run inside the all-reduce of the gradients. Making one is collective.

    Adam whose step each parameter scales by the ratio of its norm to that of its update, on
    averaged gradients (`cocoll.epilogues.lamb`). `FusedOptimizer` says what all optimizers have in
    common. ``torch.optim`` has no LAMB: `consolidate` gives the state in the form of Adam's.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter, or of dict
        Parameters, or parameter groups; the same on all ranks.
    lr : float, default 1e-3
        The learning rate.
    betas : tuple of two floats, default (0.9, 0.999)
        The decay of the two moments.
    eps : float, default 1e-6
        What is added to the root of the second moment.
    weight_decay : float, default 0.01
        The factor of the parameter that is added to the update.
    **options : object
        Of `FusedOptimizer`.

    Raises
    ------
    UsageError
        A number is out of range, or what `FusedOptimizer` raises.

    References
    ----------
    .. [1] Y. You et al., Large batch optimization for deep learning: training BERT in 76 minutes,
       ICLR 2020, algorithm 2.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, _LAMB, **options)


class FusedSGD(FusedOptimizer):
    """Gradient descent, run inside the all-reduce of the gradients. Making one is collective.

    It computes what ``torch.optim.SGD`` computes on averaged gradients. `FusedOptimizer` says what
    all optimizers have in common.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter, or of dict
        Parameters, or parameter groups; the same on all ranks.
    lr : float, default 1e-3
        The learning rate.
    momentum : float, default 0
        The factor of the momentum buffer. A group that begins with 0 has no buffer.
    dampening : float, default 0
        One minus the factor of the gradient that enters the buffer.
    weight_decay : float, default 0
        The factor of the parameter that is added to the gradient.
    nesterov : bool, default False
        Look ahead by one step of momentum; needs `momentum` above 0 and no `dampening`.
    **options : object
        Of `FusedOptimizer`.

    Raises
    ------
    UsageError
        A number is out of range, or what `FusedOptimizer` raises.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        if nesterov and (momentum <= 0 or dampening != 0):
            raise UsageError("FusedSGD: nesterov wants a momentum above 0 and no dampening")
        super().__init__(params, defaults, _SGD, **options)
