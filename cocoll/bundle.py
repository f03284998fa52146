"""Tensors that are moved together, as callers write them: one, a list, or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cocoll.errors import ReshardError
from cocoll.resharding.planner import TensorMove

__all__ = ["Bundle"]


class Bundle:
    """Remembers in which form tensors came.

    Parameters
    ----------
    moves : TensorMove, sequence of TensorMove, or mapping of str to TensorMove
        At least one.

    Attributes
    ----------
    moves : tuple of TensorMove
        In order.
    form : object
        Equal for bundles that are used alike.

    Raises
    ------
    ReshardError
        There is none, or something else among them.
    """

    def __init__(self, moves: TensorMove | Sequence[TensorMove] | Mapping[str, TensorMove]) -> None:
        self._names: tuple[str, ...] | None = None
        self._is_one = isinstance(moves, TensorMove)
        if isinstance(moves, TensorMove):
            moves = (moves,)
        elif isinstance(moves, Mapping):
            self._names = tuple(moves)
            moves = tuple(moves.values())
        self.moves = tuple(moves)
        for move in self.moves:
            if not isinstance(move, TensorMove):
                raise ReshardError(
                    f"wanted a TensorMove, a list of them, or a dict; got {type(move).__name__}"
                )
        if not self.moves:
            raise ReshardError("wanted at least one tensor to reshard; got none")
        self.form = (self._is_one, self._names)

    def word(self, number: int) -> str:
        """Name a tensor in a message, after ``x`` or ``out``."""
        if self._names is not None:
            return f"[{self._names[number]!r}]"
        return "" if self._is_one else f"[{number}]"

    def unpack(self, value: Any, name: str) -> list[Any]:
        """Give one entry for each tensor, None where the caller gave none."""
        count = len(self.moves)
        if value is None:
            return [None] * count
        if self._names is not None:
            if not isinstance(value, Mapping):
                raise ReshardError(f"{name}: wanted a dict, as the tensors have names; got "
                                   f"{type(value).__name__}")  # fmt: skip
            unknown = sorted(set(value) - set(self._names))
            if unknown:
                raise ReshardError(f"{name}: there are no tensors {unknown} in this resharding")
            return [value.get(one) for one in self._names]
        if self._is_one:
            if isinstance(value, (list, tuple)):
                raise ReshardError(f"{name}: wanted one array; got a list of {len(value)}")
            return [value]
        if not isinstance(value, (list, tuple)) or len(value) != count:
            got = f"{len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__
            raise ReshardError(f"{name}: wanted a list of {count} arrays; got {got}")
        return list(value)

    def pack(self, values: Sequence[Any]) -> Any:
        """Give one entry for each tensor in the caller's form."""
        if self._names is not None:
            return dict(zip(self._names, values, strict=True))
        return values[0] if self._is_one else list(values)
