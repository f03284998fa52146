"""The functions that epilogues are written with, beside the operators of their values.

Every one of them takes values of an epilogue and numbers and gives a value. Called with numbers
alone, as outside an epilogue, they raise :class:`~cocoll.errors.TraceError`.
"""

from __future__ import annotations

from typing import Any

from cocoll.dtypes import DType
from cocoll.epilogues.expr import Expression, arithmetic, drop, round_to, select, unary
from cocoll.epilogues.totals import total
from cocoll.errors import DTypeError

__all__ = [
    "cast",
    "dropout",
    "erf",
    "exp",
    "log",
    "maximum",
    "minimum",
    "norm",
    "sqrt",
    "sum",
    "tanh",
    "where",
]


def sqrt(x: Any) -> Expression:
    """Give the square root, correctly rounded; NaN below zero.

    Parameters
    ----------
    x : Expression
        A value inside an epilogue.

    Returns
    -------
    Expression
        The root, in the type that `x` is computed in.

    Raises
    ------
    TraceError
        `x` is no value of an epilogue, or a truth value.
    """
    return unary("sqrt", x)


def exp(x: Any) -> Expression:
    """Give e to the power `x`, within 1 ulp, with the same bits on every processor.

    Parameters
    ----------
    x : Expression
        A value inside an epilogue.

    Returns
    -------
    Expression
        The power, in the type that `x` is computed in.

    Raises
    ------
    TraceError
        `x` is no value of an epilogue, or a truth value.
    """
    return unary("exp", x)


def tanh(x: Any) -> Expression:
    """Give the hyperbolic tangent, within 3 ulp, with the same bits on every processor.

    Parameters
    ----------
    x : Expression
        A value inside an epilogue.

    Returns
    -------
    Expression
        The tangent, in the type that `x` is computed in.

    Raises
    ------
    TraceError
        `x` is no value of an epilogue, or a truth value.
    """
    return unary("tanh", x)


def erf(x: Any) -> Expression:
    """Give the error function, within 2 ulp, with the same bits on every processor.

    Parameters
    ----------
    x : Expression
        A value inside an epilogue.

    Returns
    -------
    Expression
        erf(x), in the type that `x` is computed in.

    Raises
    ------
    TraceError
        `x` is no value of an epilogue, or a truth value.
    """
    return unary("erf", x)


def log(x: Any) -> Expression:
    """Give the natural logarithm, within 1 ulp, with the same bits on every processor.

    Parameters
    ----------
    x : Expression
        A value inside an epilogue; zero gives minus infinity, less than zero NaN.

    Returns
    -------
    Expression
        log(x), in the type that `x` is computed in.

    Raises
    ------
    TraceError
        `x` is no value of an epilogue, or a truth value.
    """
    return unary("log", x)


def minimum(a: Any, b: Any) -> Expression:
    """Give the smaller of two values, or NaN where either is NaN.

    Parameters
    ----------
    a, b : Expression or float
        Values inside an epilogue; at most one is a number.

    Returns
    -------
    Expression
        The smaller, element by element.

    Raises
    ------
    TraceError
        Neither is a value of an epilogue, or one is a truth value.
    """
    return arithmetic("min", a, b)


def maximum(a: Any, b: Any) -> Expression:
    """Give the larger of two values, or NaN where either is NaN.

    Parameters
    ----------
    a, b : Expression or float
        Values inside an epilogue; at most one is a number.

    Returns
    -------
    Expression
        The larger, element by element.

    Raises
    ------
    TraceError
        Neither is a value of an epilogue, or one is a truth value.
    """
    return arithmetic("max", a, b)


def where(condition: Any, a: Any, b: Any) -> Expression:
    """Give `a` where a condition holds and `b` elsewhere; both are computed.

    Parameters
    ----------
    condition : Expression
        A comparison, or several joined by ``&``, ``|`` and ``~``.
    a, b : Expression or float
        What to choose between.

    Returns
    -------
    Expression
        The chosen values.

    Raises
    ------
    TraceError
        `condition` is no comparison, or a choice is a truth value.
    """
    return select(condition, a, b)


def cast(x: Any, dtype: DType | str) -> Expression:
    """Round to the values of a floating dtype, to nearest even.

    Computation goes on in the accumulate type of `dtype`: float32 for 16-bit types. An epilogue
    that returns a cast as its output gives that dtype to an output that is made for it.

    Parameters
    ----------
    x : Expression
        A value inside an epilogue.
    dtype : DType or str
        A floating dtype, such as ``"bfloat16"``.

    Returns
    -------
    Expression
        The rounded value.

    Raises
    ------
    TraceError
        `x` is no value of an epilogue, or a truth value.
    DTypeError
        `dtype` is no supported floating dtype.
    """
    if isinstance(dtype, str):
        dtype = DType.parse(dtype)
    if not isinstance(dtype, DType):
        raise DTypeError(f"cast: wanted the name of a dtype, got {type(dtype).__name__}")
    return round_to(x, dtype)


def dropout(x: Any, p: Any) -> Expression:
    """Zero each element with probability `p` and scale the others by 1 / (1 - p).

    The decisions are Philox numbers of (seed, place of this dropout in the epilogue, step, index of
    the element in the whole tensor): the same for every chunk, rank count and processor. The
    epilogue gets two scalars, ``seed`` and ``step``, both 0 unless given, unless it declares them
    itself.

    Parameters
    ----------
    x : Expression
        A floating array inside an epilogue.
    p : Expression or float
        The probability, from 0 to 1: a number or a keyword-only parameter. 0 keeps everything
        unchanged and 1 nothing; outside this range every element becomes NaN.

    Returns
    -------
    Expression
        The thinned values.

    Raises
    ------
    TraceError
        `x` is no floating array of an epilogue, or `p` is an array.

    References
    ----------
    .. [1] J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, Parallel random numbers: as easy as
       1, 2, 3, SC 2011, section 3.3.
    """
    return drop(x, p)


def sum(x: Any, *, over: str = "tensor", name: str | None = None) -> Expression:
    """Add up all elements of the tensor, over all ranks.

    The call then makes its passes one after the other: what needs the sum runs when all ranks have
    added up their shards. Elements are added in float64, in an order that depends on the number of
    ranks alone: the same bits on all ranks, in every run, for every chunk.

    Parameters
    ----------
    x : Expression
        A value inside an epilogue that differs from element to element.
    over : {"tensor", "all"}, default "tensor"
        Of a list of tensors, each alone or all of them.
    name : str, optional
        The name under which `Work.totals` gives the sum to the caller.

    Returns
    -------
    Expression
        A scalar.

    Raises
    ------
    TraceError
        `x` is no array of an epilogue, `over` is neither of the two, or `name` is no word.
    """
    return total(x, squares=False, over=over, name=name)


def norm(x: Any, *, over: str = "tensor") -> Expression:
    """Give the Euclidean norm of the tensor, over all ranks.

    Elements are squared in float64 and added as by `sum`.

    Parameters
    ----------
    x : Expression
        A value inside an epilogue that differs from element to element.
    over : {"tensor", "all"}, default "tensor"
        Of a list of tensors, each alone or all of them.

    Returns
    -------
    Expression
        A scalar.

    Raises
    ------
    TraceError
        `x` is no array of an epilogue, or `over` is neither of the two.
    """
    return sqrt(total(x, squares=True, over=over))
