"""The catalogue of activations: epilogues that give an output of the shape of their input.

Every entry is a function that gives an :class:`~cocoll.epilogues.Epilogue`. Inside another epilogue
it can be called on a value: ``relu()(x + bias)``. Computation is in the accumulate type: float32
for 16-bit inputs.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from cocoll.dtypes import DType
from cocoll.epilogues import functions
from cocoll.epilogues.trace import Epilogue
from cocoll.errors import DTypeError, UsageError

__all__ = ["bias_dropout_residual", "cast", "gelu", "relu", "scale", "silu"]


def scale(factor: float | None = None) -> Epilogue:
    """Give an epilogue that multiplies the reduced value by a number.

    Parameters
    ----------
    factor : float, optional
        The number; if not given, it is given with each call.

    Returns
    -------
    Epilogue
        Scalars: ``factor``. Returns the output.

    References
    ----------
    .. [1] Own.
    """
    return _SCALE if factor is None else _SCALE.bind(factor=factor)


def _scale(x: Any, *, factor: float) -> Any:
    return x * factor


_SCALE = Epilogue(_scale, name="scale")


def cast(dtype: DType | str) -> Epilogue:
    """Give an epilogue that rounds the reduced value to another floating dtype.

    Parameters
    ----------
    dtype : DType or str
        The dtype of the output, such as ``"bfloat16"``.

    Returns
    -------
    Epilogue
        No scalars. Returns the output, to nearest even.

    Raises
    ------
    DTypeError
        `dtype` is no supported floating dtype.

    References
    ----------
    .. [1] IEEE Std 754-2019, section 4.3.1: round to nearest, ties to even.
    """
    parsed = DType.parse(dtype) if isinstance(dtype, str) else dtype
    if not parsed.is_floating:
        raise DTypeError(f"cast: wanted a floating dtype, got {parsed.label}")
    return _cast(parsed)


@functools.cache
def _cast(dtype: DType) -> Epilogue:
    def cast_to(x: Any) -> Any:
        return functions.cast(x, dtype)

    return Epilogue(cast_to, name=f"cast_{dtype.label}")


def relu() -> Epilogue:
    """Give an epilogue that replaces negative values by zero; NaN stays NaN.

    Returns
    -------
    Epilogue
        No scalars. Returns the output.

    References
    ----------
    .. [1] V. Nair, G. E. Hinton, Rectified linear units improve restricted Boltzmann machines,
       ICML 2010, section 2.
    """
    return _RELU


def _relu(x: Any) -> Any:
    return functions.maximum(x, 0.0)


_RELU = Epilogue(_relu, name="relu")


def gelu(approximate: str = "none") -> Epilogue:
    """Give an epilogue of the Gaussian error linear unit, x * Phi(x).

    Parameters
    ----------
    approximate : str, default "none"
        ``"none"`` for the exact form by the error function, ``"tanh"`` for the approximation.

    Returns
    -------
    Epilogue
        No scalars. Returns the output.

    Raises
    ------
    UsageError
        `approximate` is neither of the two.

    References
    ----------
    .. [1] D. Hendrycks, K. Gimpel, Gaussian error linear units (GELUs), 2016, section 2: the
       definition, and the approximation 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
    """
    if approximate not in _GELU:
        raise UsageError(f'gelu: approximate is "none" or "tanh", got {approximate!r}')
    return _GELU[approximate]


def _gelu_exact(x: Any) -> Any:
    return 0.5 * x * (1.0 + functions.erf(x * math.sqrt(0.5)))


_GELU_EXACT = Epilogue(_gelu_exact, name="gelu")


def _gelu_tanh(x: Any) -> Any:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1.0 + functions.tanh(inner))


_GELU_TANH = Epilogue(_gelu_tanh, name="gelu_tanh")


_GELU = {"none": _GELU_EXACT, "tanh": _GELU_TANH}


def silu() -> Epilogue:
    """Give an epilogue of the sigmoid linear unit, x / (1 + exp(-x)).

    Returns
    -------
    Epilogue
        No scalars. Returns the output.

    References
    ----------
    .. [1] S. Elfwing, E. Uchibe, K. Doya, Sigmoid-weighted linear units for neural network
       function approximation in reinforcement learning, Neural Networks 107, 2018, equation 5.
    """
    return _SILU


def _silu(x: Any) -> Any:
    return x / (1.0 + functions.exp(-x))


_SILU = Epilogue(_silu, name="silu")


def bias_dropout_residual(p: float | None = None, *, seed: int = 0) -> Epilogue:
    """Give an epilogue that adds a bias, drops elements and adds a residual.

    Parameters
    ----------
    p : float, optional
        The probability of dropping an element; if not given, it is given with each call.
    seed : int, default 0
        Of the random numbers; calls of one seed draw the same numbers for the same ``step``.

    Returns
    -------
    Epilogue
        Arrays: ``bias`` and ``residual``, replicated, broadcast as in NumPy. Scalars: ``p``,
        ``seed`` and ``step`` (0 unless given). Returns dropout(x + bias, p) + residual.

    References
    ----------
    .. [1] A. Jangda et al., Breaking the computation and communication abstraction barrier in
       distributed machine learning workloads, ASPLOS 2022, section 2: the epilogue of a
       transformer's model-parallel layer.
    """
    scalars = {"seed": float(seed)}
    if p is not None:
        scalars["p"] = p
    return _BIAS_DROPOUT_RESIDUAL.bind(**scalars)


def _bias_dropout_residual(x: Any, bias: Any, residual: Any, *, p: float) -> Any:
    return functions.dropout(x + bias, p) + residual


_BIAS_DROPOUT_RESIDUAL = Epilogue(_bias_dropout_residual, name="bias_dropout_residual")
