"""What tracing gives: the graph of an epilogue, and what goes in and out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.epilogues.scalars import evaluate_scalars
from cocoll.errors import UsageError

if TYPE_CHECKING:
    from cocoll.dtypes import DType
    from cocoll.epilogues.graph import Node

__all__ = ["Operand", "Result", "ScalarParameter", "Summand", "Traced"]


@dataclass(frozen=True, slots=True)
class Result:
    """An array that every rank receives.

    Parameters
    ----------
    name : str
        ``"out"``, or the replicated array that is updated.
    dtype : DType
        How it is stored.
    node : int
        The node that computes it.
    """

    name: str
    dtype: DType
    node: int


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that an epilogue reads or updates.

    Parameters
    ----------
    name : str
        The parameter.
    dtype : DType
        How it is stored.
    sharded : bool
        Whether the array given is this rank's shard only; it is then updated in place.
    updated : bool
        Whether the function returns a new value for it.
    result_index : int or None
        Which result it is, if it is replicated and updated.
    source_node : int or None
        The node that reads it; None if it is written only.
    node : int or None
        The node that computes its new value, if it is sharded and updated.
    """

    name: str
    dtype: DType
    sharded: bool
    updated: bool
    result_index: int | None
    source_node: int | None
    node: int | None


@dataclass(frozen=True, slots=True)
class ScalarParameter:
    """A number that may change every call without recompiling.

    Parameters
    ----------
    name : str
        The keyword-only parameter.
    default : float or None
        What it is when not given; None if it must be given.
    """

    name: str
    default: float | None


@dataclass(frozen=True, slots=True)
class Summand:
    """A value that a kernel adds up over the elements it sees.

    Parameters
    ----------
    node : int
        The node that computes it.
    squares : bool
        Whether its square is added.
    """

    node: int
    squares: bool


@dataclass(frozen=True)
class Traced:
    """An epilogue for one combination of dtypes and arrays.

    Parameters
    ----------
    name : str
        The function, for people.
    source_dtype : DType
        How the sources of the reduction are stored.
    accumulate : DType
        What they are added in, and the type of the first parameter.
    results : tuple of Result
        What all ranks receive: ``"out"`` first, then in the order of the parameters.
    operands : tuple of Operand
        The arrays, in the order of the parameters.
    scalars : tuple of ScalarParameter
        The numbers, in the order that kernels take them.
    derived : tuple of int
        The scalar nodes that the kernel reads: what ``prepare`` writes.
    source_node : int or None
        The node that reads the reduced value.
    nodes : tuple of Node
        The graph.
    digest : str
        SHA-256 of the graph and all dtypes, in hexadecimal; defaults of scalars do not enter.
    summands : tuple of Summand
        What the kernel adds up: of a stage of an epilogue with totals.
    reads_sources : bool
        Whether the kernel reduces; later stages read what earlier ones have left.
    """

    name: str
    source_dtype: DType
    accumulate: DType
    results: tuple[Result, ...]
    operands: tuple[Operand, ...]
    scalars: tuple[ScalarParameter, ...]
    derived: tuple[int, ...]
    source_node: int | None
    nodes: tuple[Node, ...]
    digest: str
    summands: tuple[Summand, ...] = ()
    reads_sources: bool = True

    def prepare(self, scalars: Mapping[str, float]) -> list[float]:
        """Derive what the kernel reads from the scalars, in float64.

        Parameters
        ----------
        scalars : Mapping of str to float
            A value for every scalar that has no default, and any others.

        Returns
        -------
        list of float
            One number for each of `derived`.

        Raises
        ------
        UsageError
            A scalar is missing or unknown.
        """
        known = {scalar.name: scalar.default for scalar in self.scalars}
        unknown = sorted(set(scalars) - set(known))
        if unknown:
            raise UsageError(f"epilogue {self.name!r} has no scalar {unknown[0]!r}")
        values = {**known, **scalars}
        missing = [name for name, value in values.items() if value is None]
        if missing:
            raise UsageError(f"epilogue {self.name!r} needs the scalar {missing[0]!r}")
        evaluated = evaluate_scalars(self.nodes, {k: v for k, v in values.items() if v is not None})
        return [evaluated[index] for index in self.derived]
