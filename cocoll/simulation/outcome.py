"""What a simulation gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from cocoll.simulation.timeline import Span

if TYPE_CHECKING:
    from cocoll.simulation.roles import Roles
    from cocoll.simulation.running import RunningLane
    from cocoll.simulation.tasks import Task

__all__ = ["Record", "Simulation"]

#: A task that has ended: of which lane, which task, its iteration, when it began and ended.
Record: TypeAlias = "tuple[RunningLane, Task, int, int, int]"


@dataclass(frozen=True)
class Simulation:
    """How one operation goes.

    Attributes
    ----------
    makespan_nanoseconds : int
        From its beginning until the last rank has ended it.
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
    messages: int
    steps: int
    lanes: Mapping[int, tuple[str, ...]]
    roles: Roles
    _record: Sequence[Record] = field(repr=False)
    _class_bytes: Mapping[int, int] = field(repr=False)
    _native_bytes: Mapping[int, int] = field(repr=False)

    @property
    def seconds(self) -> float:
        """The makespan."""
        return self.makespan_nanoseconds / 1e9

    @cached_property
    def spans(self) -> list[Span]:
        """Every step of every iteration, in the order of their ends.

        With roles, of the representatives alone; none where they were not kept.
        """
        return self.spans_of(self.lanes)

    def spans_of(self, ranks: Iterable[int]) -> list[Span]:
        """Give the spans of some ranks, in the order of their ends."""
        chosen = set(ranks)
        spans = []
        for lane, task, iteration, begin, end in self._record:
            rank = lane.rank.number
            if rank not in chosen:
                continue
            moved = task.step_bytes(iteration)
            for index, text in enumerate(task.texts):
                spans.append(
                    Span(
                        rank,
                        lane.index,
                        task.loop,
                        task.step + index,
                        iteration,
                        begin,
                        end,
                        moved[index],
                        text,
                    )
                )
        return spans

    @cached_property
    def port_bytes(self) -> tuple[int, ...]:
        """The bytes that crossed each of the topology's ports.

        Native collectives count with the least that they need.
        """
        spread = self.roles.spread(self._class_bytes)
        native = self._native_bytes
        return tuple(moved + native.get(port, 0) for port, moved in enumerate(spread))
