"""What a simulation gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cocoll.plan.roles import Roles
    from cocoll.plan.timeline import Span

__all__ = ["Simulation"]


@dataclass(frozen=True)
class Simulation:
    """How one operation goes.

    Attributes
    ----------
    makespan_nanoseconds : int
        From its beginning until the last rank has ended it.
    spans : list of Span
        Every step of every iteration, in the order of their ends; with roles, of the
        representatives alone. Empty where they were not asked for.
    messages : int
        How many were sent between ranks, by all of them.
    steps : int
        How many steps all ranks ran.
    lanes : dict of int to tuple of str
        The names of the lanes of the ranks that were simulated.
    roles : Roles
        Who stood for whom.
    """

    makespan_nanoseconds: int
    spans: list[Span]
    messages: int
    steps: int
    lanes: Mapping[int, tuple[str, ...]]
    roles: Roles
    _class_bytes: Mapping[int, int] = field(repr=False)
    _native_bytes: Mapping[int, int] = field(repr=False)

    @property
    def seconds(self) -> float:
        """The makespan."""
        return self.makespan_nanoseconds / 1e9

    @cached_property
    def port_bytes(self) -> tuple[int, ...]:
        """The bytes that crossed each of the topology's ports.

        Native collectives count with the least that they need.
        """
        spread = self.roles.spread(self._class_bytes)
        native = self._native_bytes
        return tuple(moved + native.get(port, 0) for port, moved in enumerate(spread))
