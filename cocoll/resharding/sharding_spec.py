"""How a tensor lies on a mesh: which mesh axes cut which of its dims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cocoll.errors import ReshardError

__all__ = ["ShardingSpec"]

_DIM = re.compile(r"(?:R|S(\d+))(?:\[(\d+(?::\d+)*)\])?")


@dataclass(frozen=True)
class ShardingSpec:
    """For each dim of a tensor, the mesh axes that cut it.

    Mesh axes that cut nothing replicate, unless they stand in `partial`.

    Attributes
    ----------
    dims : tuple of tuple of int
        For each tensor dim its mesh axes, the major one first: ``(0, 1)`` is ``S01``, where the
        dim is cut along axis 0 and each piece along axis 1; ``(1, 0)`` is ``S10``; ``()`` is ``R``.
    partial : tuple of int
        Mesh axes along which ranks hold summands: the tensor is their sum.
    lengths : tuple of (int, tuple of int)
        Tensor dims whose pieces have given lengths, with these. Others are cut as torch.chunk does:
        ceil(n / k) each, the last ones short or empty; with several axes one after the other.

    Examples
    --------
    >>> ShardingSpec.parse("S0,R,S12")
    ShardingSpec('S0,R,S12')
    >>> ShardingSpec.parse("R,S1+P0").partial
    (0,)
    """

    dims: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()
    lengths: tuple[tuple[int, tuple[int, ...]], ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(tuple(axes) for axes in self.dims))
        object.__setattr__(self, "partial", tuple(self.partial))
        lengths = tuple(sorted((dim, tuple(pieces)) for dim, pieces in self.lengths))
        object.__setattr__(self, "lengths", lengths)
        used: dict[int, str] = {}
        uses = [(f"dim {dim}", axis) for dim, axes in enumerate(self.dims) for axis in axes]
        uses += [("partial sums", axis) for axis in self.partial]
        for what, axis in uses:
            if axis in used:
                raise ReshardError(
                    f"spec {self}: mesh axis {axis} is used twice, for {used[axis]} and {what}; "
                    "an axis cuts one dim once"
                )
            used[axis] = what
        for dim, pieces in self.lengths:
            if not 0 <= dim < len(self.dims):
                raise ReshardError(
                    f"spec {self}: lengths are given for dim {dim}; it has {len(self.dims)} dims"
                )
            if any(length < 0 for length in pieces):
                raise ReshardError(
                    f"spec {self}: dim {dim}: wanted lengths of at least 0; got {pieces}"
                )

    @classmethod
    def parse(cls, spec: str | ShardingSpec | Sequence[Any]) -> ShardingSpec:
        """Read a spec as people write it.

        Parameters
        ----------
        spec : str, ShardingSpec or sequence
            ``"S0,R,S12"``: for each dim ``R``, or ``S`` with the mesh axes (each one digit).
            ``S0[3:5]`` gives lengths, ``+P1`` at the end says that axis 1 holds partial sums. A
            sequence holds such a text, or a tuple of axes, for each dim.

        Returns
        -------
        ShardingSpec
            Itself where it is one.

        Raises
        ------
        ReshardError
            It is none.
        """
        if isinstance(spec, ShardingSpec):
            return spec
        partial: tuple[int, ...] = ()
        if isinstance(spec, str):
            body, plus, tail = spec.replace(" ", "").partition("+")
            if plus:
                match = re.fullmatch(r"P(\d+)", tail)
                if match is None:
                    raise ReshardError(
                        f"spec {spec!r}: wanted P and mesh axes after the +, as in R,R+P1; "
                        f"got {tail!r}"
                    )
                partial = tuple(map(int, match[1]))
            parts: Sequence[Any] = body.split(",") if body else ()
        else:
            parts = spec
        dims: list[tuple[int, ...]] = []
        lengths: list[tuple[int, tuple[int, ...]]] = []
        for dim, part in enumerate(parts):
            if not isinstance(part, str):
                dims.append(tuple(part))
                continue
            match = _DIM.fullmatch(part)
            if match is None:
                raise ReshardError(
                    f"spec {spec!r}, dim {dim}: wanted R, or S and mesh axes such as S0 or S01; "
                    f"got {part!r}"
                )
            dims.append(tuple(map(int, match[1] or "")))
            if match[2] is not None:
                lengths.append((dim, tuple(map(int, match[2].split(":")))))
        return cls(tuple(dims), partial, tuple(lengths))

    def with_lengths(self, lengths: Mapping[int, Sequence[int]] | None) -> ShardingSpec:
        """Give the spec whose pieces of some dims have given lengths.

        Parameters
        ----------
        lengths : mapping of int to sequence of int, or None
            By dim, the length of every piece; None changes nothing.

        Returns
        -------
        ShardingSpec
            With them besides its own.
        """
        if not lengths:
            return self
        given = dict(self.lengths)
        given.update((dim, tuple(pieces)) for dim, pieces in lengths.items())
        return ShardingSpec(self.dims, self.partial, tuple(given.items()))

    @property
    def ndim(self) -> int:
        """How many dims a tensor of this spec has."""
        return len(self.dims)

    @property
    def axes(self) -> tuple[int, ...]:
        """The mesh axes that cut a dim, by dim and place."""
        return tuple([axis for axes in self.dims for axis in axes])

    def __str__(self) -> str:
        given = dict(self.lengths)
        parts = []
        for dim, axes in enumerate(self.dims):
            text = "S" + "".join(map(str, axes)) if axes else "R"
            if dim in given:
                text += f"[{':'.join(map(str, given[dim]))}]"
            parts.append(text)
        tail = "+P" + "".join(map(str, self.partial)) if self.partial else ""
        return ",".join(parts) + tail

    def __repr__(self) -> str:
        return f"ShardingSpec({str(self)!r})"
