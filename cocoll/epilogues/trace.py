"""Tracing: a Python function, called once on symbolic values, becomes an epilogue's graph."""

from __future__ import annotations

import functools
import inspect
import linecache
import threading
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn, overload

from cocoll.epilogues.assembly import OUTPUT, Request, assemble
from cocoll.epilogues.expr import Expression, lift
from cocoll.epilogues.graph import Graph
from cocoll.epilogues.location import find_offending_place, quote_line
from cocoll.errors import DTypeError, TraceError, UsageError

if TYPE_CHECKING:
    from cocoll.dtypes import DType
    from cocoll.epilogues.traced import Traced

__all__ = ["Epilogue", "epilogue"]


class Epilogue:
    """A computation that rides inside a reduction; made by :func:`epilogue`.

    Parameters
    ----------
    function : callable
        Its first positional parameter is the reduced value, the other positional ones are arrays
        (one with the default None is optional), keyword-only ones are scalars.
    sharded : iterable of str
        Arrays of which each rank holds its shard only.
    defaults : Mapping of str to float, optional
        Defaults of scalars in place of the function's own.
    name : str, optional
        For people; the function's own name if not given.

    Raises
    ------
    TraceError
        The function's parameters are not of this form.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        sharded: Iterable[str] = (),
        *,
        defaults: Mapping[str, float] | None = None,
        name: str | None = None,
    ) -> None:
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.sharded = frozenset(sharded)
        self._lock = threading.Lock()
        self._traces: dict[Any, Traced] = {}
        self._read_signature()
        self.scalar_defaults: dict[str, float | None] = {
            scalar: self._checked_default(scalar, default)
            for scalar, default in self._declared_scalars.items()
        }
        for scalar, value in (defaults or {}).items():
            # A dropout adds seed and step when it is traced.
            if scalar not in self._declared_scalars and scalar not in ("seed", "step"):
                raise UsageError(
                    f"epilogue {self.name!r} has no scalar {scalar!r}; "
                    f"it has {', '.join(self._declared_scalars) or 'none'}"
                )
            self.scalar_defaults[scalar] = self._checked_default(scalar, value)
        functools.update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        """Give the name and the parameters."""
        arrays = ", ".join(self.array_names)
        return f"<cocoll epilogue {self.name}({arrays}; {', '.join(self.scalar_defaults)})>"

    @property
    def array_names(self) -> tuple[str, ...]:
        """All arrays that it can take, in the order of its parameters."""
        return tuple(self._arrays)

    def bind(self, **scalars: float) -> Epilogue:
        """Give an equal epilogue with other defaults for some scalars; nothing is recompiled.

        Parameters
        ----------
        **scalars : float
            The new defaults.

        Returns
        -------
        Epilogue
            The epilogue with these defaults.

        Raises
        ------
        UsageError
            It has no such scalar.
        """
        present = {k: v for k, v in self.scalar_defaults.items() if v is not None}
        return Epilogue(
            self.function, self.sharded, defaults={**present, **scalars}, name=self.name
        )

    def __call__(self, *values: Any, **keywords: Any) -> Any:
        """Use the epilogue inside another one; called with scalars alone, :meth:`bind`.

        Parameters
        ----------
        *values : Expression
            The value and the arrays.
        **keywords : Expression or float
            The scalars.

        Returns
        -------
        Expression or dict of str to Expression, or Epilogue
            What the function returns.

        Raises
        ------
        TraceError
            A value is given and none is a value of an epilogue.
        """
        if not values:
            return self.bind(**keywords)
        if not any(isinstance(value, Expression) for value in values):
            raise TraceError(
                f"epilogue {self.name!r} runs inside a collective: pass it to one, as in "
                f"cocoll.allreduce_fused(x, {self.name}, ...)"
            )
        defaults = {
            scalar: value
            for scalar, value in self.scalar_defaults.items()
            if value is not None and scalar in self._declared_scalars
        }
        return self.function(*values, **{**defaults, **keywords})

    def trace(
        self,
        source_dtype: DType,
        arrays: Mapping[str, DType],
        *,
        out_dtype: DType | None = None,
    ) -> Traced:
        """Give the graph for one combination of dtypes; kept, so that a second call is a look-up.

        Parameters
        ----------
        source_dtype : DType
            How the sources of the reduction are stored.
        arrays : Mapping of str to DType
            The arrays that are given, by the names of the parameters.
        out_dtype : DType, optional
            How the output is stored. The default is the dtype of a returned cast, else
            `source_dtype`.

        Returns
        -------
        Traced
            The graph and what goes in and out.

        Raises
        ------
        UsageError
            An array is missing or unknown.
        DTypeError
            A dtype that an epilogue cannot reduce, update or give.
        TraceError
            The function cannot be traced; quotes the offending line.
        """
        key = (source_dtype, tuple(sorted(arrays.items())), out_dtype)
        with self._lock:
            traced = self._traces.get(key)
            if traced is None:
                self._check_arrays(source_dtype, arrays, out_dtype)
                traced = self._trace(source_dtype, arrays, out_dtype)
                self._traces[key] = traced
            return traced

    # ---- signature ---------------------------------------------------------------------------

    def _read_signature(self) -> None:
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError) as error:
            raise TraceError(
                f"an epilogue is a Python function, got {self.function!r}: {error}"
            ) from error
        self._arrays: dict[str, bool] = {}
        self._declared_scalars: dict[str, Any] = {}
        self._value_name = ""
        for name, parameter in signature.parameters.items():
            default = parameter.default
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                self._refuse_signature(f"*{name} is not supported: name every array and scalar")
            elif parameter.kind is parameter.KEYWORD_ONLY:
                self._declared_scalars[name] = None if default is parameter.empty else default
            elif not self._value_name:
                self._value_name = name
                if default is not parameter.empty:
                    self._refuse_signature(f"the reduced value {name!r} cannot have a default")
            elif default is not parameter.empty and default is not None:
                self._refuse_signature(
                    f"the array {name!r} can have no default but None; "
                    "a number is a keyword-only parameter: put it behind a *"
                )
            else:
                self._arrays[name] = default is None
        if not self._value_name:
            self._refuse_signature("it needs a positional parameter for the reduced value")
        for name in sorted(self.sharded - set(self._arrays)):
            self._refuse_signature(f"sharded= names {name!r}, which is no array of it")
        if OUTPUT in self._arrays:
            self._refuse_signature(f'no array can be called "{OUTPUT}": that is the output')

    def _refuse_signature(self, problem: str) -> NoReturn:
        code = getattr(self.function, "__code__", None)
        message = f"epilogue {self.name!r}: {problem}"
        if isinstance(code, CodeType):
            message = quote_line(message, code.co_filename, code.co_firstlineno, code.co_name)
        raise TraceError(message)

    def _checked_default(self, scalar: str, value: Any) -> float | None:
        if value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UsageError(
                f"epilogue {self.name!r}: scalar {scalar!r} wants a number, "
                f"got {type(value).__name__}"
            ) from None

    # ---- one trace ---------------------------------------------------------------------------

    def _check_arrays(
        self, source_dtype: DType, arrays: Mapping[str, DType], out_dtype: DType | None
    ) -> None:
        missing = [n for n, optional in self._arrays.items() if not optional and n not in arrays]
        if missing:
            raise UsageError(f"epilogue {self.name!r} needs the array {missing[0]!r}")
        unknown = [name for name in arrays if name not in self._arrays]
        if unknown:
            known = ", ".join(self._arrays) or "none"
            raise UsageError(
                f"epilogue {self.name!r} has no array {unknown[0]!r}; its arrays: {known}"
            )
        for what, dtype in (("the reduced array", source_dtype), ("the output", out_dtype)):
            if dtype is not None and not dtype.is_floating:
                raise DTypeError(
                    f"epilogue {self.name!r}: wanted a floating dtype for {what}, got {dtype.label}"
                )

    def _trace(
        self, source_dtype: DType, arrays: Mapping[str, DType], out_dtype: DType | None
    ) -> Traced:
        graph = Graph()
        # The first parameter is the reduced value: no name of an array can be empty.
        value = Expression(graph, graph.add_array("", source_dtype.accumulate))
        given = {
            name: Expression(graph, graph.add_array(name, arrays[name])) if name in arrays else None
            for name in self._arrays
        }
        scalars = {
            name: Expression(graph, graph.add_scalar(name, self.scalar_defaults[name]))
            for name in self._declared_scalars
        }
        try:
            returned = self.function(value, *given.values(), **scalars)
            outputs = self._read_outputs(graph, returned, arrays)
        except Exception as error:
            raise self._located(error) from error
        in_order = {name: arrays[name] for name in self._arrays if name in arrays}
        request = Request(self.name, source_dtype, in_order, self.sharded, out_dtype)
        return assemble(request, graph, outputs, self.scalar_defaults)

    def _read_outputs(
        self, graph: Graph, returned: Any, arrays: Mapping[str, DType]
    ) -> dict[str, Expression]:
        if not isinstance(returned, Mapping):
            returned = {OUTPUT: returned}
        outputs: dict[str, Expression] = {}
        for name, value in returned.items():
            if name != OUTPUT and name not in self._arrays:
                allowed = ", ".join([OUTPUT, *self._arrays])
                raise TraceError(f"it returns {name!r}, which it cannot update; allowed: {allowed}")
            if name != OUTPUT and name not in arrays:
                raise TraceError(f"it returns {name!r}, an optional array that was not given")
            if value is None:
                raise TraceError(f"it returns None for {name!r}: a return statement is missing")
            expression = lift(graph, value)
            if expression.kind.is_boolean:
                raise TraceError(f"it returns a truth value for {name!r}: use cocoll.where")
            if name != OUTPUT and not arrays[name].is_floating:
                raise DTypeError(
                    f"it updates {name!r}, whose dtype is {arrays[name].label}: "
                    "only floating arrays can be updated"
                )
            outputs[name] = expression
        if not outputs:
            raise TraceError("it returns an empty dict: nothing would be computed")
        return outputs

    def _located(self, error: Exception) -> TraceError | DTypeError:
        kind = DTypeError if isinstance(error, DTypeError) else TraceError
        text = str(error)
        if not isinstance(error, TraceError | DTypeError):
            text = f"{type(error).__name__}: {text}"
        message = f"epilogue {self.name!r} cannot be traced: {text}"
        code = getattr(self.function, "__code__", None)
        own_file = code.co_filename if isinstance(code, CodeType) else ""
        place = find_offending_place(error.__traceback__, own_file)
        if place is None and isinstance(code, CodeType):
            place = (code.co_filename, code.co_firstlineno, code.co_name)
        if place is None:
            return kind(message)
        return kind(
            quote_line(message, *place),
            filename=place[0],
            line_number=place[1],
            source_line=linecache.getline(place[0], place[1]).strip(),
        )


@overload
def epilogue(function: Callable[..., Any], /) -> Epilogue: ...


@overload
def epilogue(*, sharded: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Epilogue]: ...


def epilogue(
    function: Callable[..., Any] | None = None, /, *, sharded: Iterable[str] = ()
) -> Epilogue | Callable[[Callable[..., Any]], Epilogue]:
    """Turn a Python function into an epilogue; usable with and without arguments.

    The first positional parameter is the reduced value, in the accumulate type. Other positional
    parameters are arrays: one with the default None is optional. Keyword-only parameters are
    scalars, which may change every call. The function returns a value, the output, or a dict of
    updated arrays by name, where ``"out"`` is the output.

    Parameters
    ----------
    function : callable
        The function.
    sharded : iterable of str, optional
        Arrays of which each rank holds its own shard only, such as optimizer state; they are
        updated in place. An updated array that is not sharded is gathered to all ranks.

    Returns
    -------
    Epilogue
        The epilogue, or a decorator that makes it.

    Raises
    ------
    TraceError
        The parameters of the function are not of this form.

    Examples
    --------
    >>> @epilogue(sharded=("velocity",))
    ... def momentum(g, param, velocity, *, lr, mu=0.9):
    ...     velocity = mu * velocity + g
    ...     return {"param": param - lr * velocity, "velocity": velocity}
    """
    if function is not None:
        return Epilogue(function)
    if isinstance(sharded, str):
        sharded = (sharded,)
    names = tuple(sharded)
    return lambda wrapped: Epilogue(wrapped, names)
