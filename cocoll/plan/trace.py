"""The steps that all ranks run in a sequence of operations, as a graph to reason and report on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from cocoll.plan.listing import OPENING, Place, describe_step, render_plan

if TYPE_CHECKING:
    from cocoll.errors import ScheduleError
    from cocoll.plan.ir import Plan, Step
    from cocoll.plan.memory import Aliasing, Extent

#: The lane index of what is no step: arrivals, ends, the caller's own work.
TRUNK = OPENING - 1

__all__ = [
    "TRUNK",
    "Event",
    "Moment",
    "Operation",
    "Trace",
    "describe_owner",
    "raise_illegal",
]


@dataclass(frozen=True)
class Operation:
    """The plans of all ranks for one operation, and the memory they are called with.

    Parameters
    ----------
    plans : tuple of Plan
        One per rank.
    aliasing : Aliasing
        Which of the caller's arrays share memory.
    zero_source : bool
        Whether a reduce stores zeros over the SOURCE elements it has read.
    late_opening : bool
        Whether the opening may also run after arrival.
    """

    plans: tuple[Plan, ...]
    aliasing: Aliasing
    zero_source: bool
    late_opening: bool


class Event:
    """One step of one iteration of one rank in one operation; `begin` and `end` are its nodes."""

    __slots__ = (
        "begin",
        "end",
        "first",
        "iteration",
        "operation",
        "place",
        "rank",
        "reads",
        "step",
        "stop",
        "writes",
    )

    def __init__(
        self, operation: int, rank: int, place: Place, iteration: int, step: Step, node: int
    ) -> None:
        self.operation = operation
        self.rank = rank
        self.place = place
        self.iteration = iteration
        self.step = step
        self.begin = node
        self.end = node
        self.first = 0
        self.stop = 0
        self.reads: list[Extent] = []
        self.writes: list[Extent] = []


@dataclass(frozen=True, slots=True)
class Moment:
    """A node that is no step: the caller's own work, an arrival, the end of an operation."""

    operation: int
    rank: int
    what: str


class Trace:
    """The nodes of a sequence of operations and the edges between them.

    Attributes
    ----------
    chain, position : list of int
        Each node's chain (a lane or opening of a rank, or what lies between: nodes in sequence)
        and its place there, from 1.
    before : list of list of int
        For each node, nodes that certainly ended before it.
    meets : dict of int to list of int
        More nodes that a node needs under rendezvous, which eager delivery would not wait for.
    owners : list of Event or Moment
        What each node is part of.
    events : list of Event
        All steps.
    user_moments : list of int
        The nodes at which a rank's caller may touch all its arrays.
    """

    def __init__(self, operations: Sequence[Operation], count: int) -> None:
        self.operations = operations
        self.count = count
        self.world_size = len(operations[0].plans)
        lanes = max(
            len(plan.fragment.lanes) for operation in operations for plan in operation.plans
        )
        # Where messages of a lane overlap, their ends are a sequence of their own.
        overlap = any(
            lane.in_flight > 1
            for operation in operations
            for plan in operation.plans
            for lane in plan.fragment.lanes
        )
        self._ends = lanes if overlap else 0
        self.chains_per_rank = lanes + self._ends + 2
        self.chain: list[int] = []
        self.position: list[int] = []
        self.before: list[list[int]] = []
        self.meets: dict[int, list[int]] = {}
        self.owners: list[Event | Moment] = []
        self.events: list[Event] = []
        self.user_moments: list[int] = []
        self._lengths = [0] * (self.chains_per_rank * self.world_size)

    @property
    def chain_count(self) -> int:
        """How many chains there are."""
        return len(self._lengths)

    def add_node(
        self,
        rank: int,
        lane: int,
        owner: Event | Moment,
        before: list[int],
        *,
        ends: bool = False,
    ) -> int:
        """Append a node to a lane of a rank, to its opening, or to its `TRUNK`.

        `ends`: to the sequence of ends of a lane whose messages overlap.
        """
        chain = rank * self.chains_per_rank + lane - TRUNK + ends * self._ends
        self._lengths[chain] += 1
        self.chain.append(chain)
        self.position.append(self._lengths[chain])
        self.before.append(before)
        self.owners.append(owner)
        return len(self.before) - 1


def raise_illegal(
    error: type[ScheduleError],
    message: str,
    trace: Trace,
    notes: Iterable[tuple[Event | Moment, str]],
) -> NoReturn:
    """Raise `error` with the plans concerned as detail, the steps of `notes` marked."""
    marks: dict[tuple[int, int], dict[Place, str]] = {}
    for owner, note in notes:
        places = marks.setdefault((owner.operation, owner.rank), {})
        if isinstance(owner, Event):
            text = f"{note} (iteration {owner.iteration})"
            earlier = places.get(owner.place)
            places[owner.place] = text if earlier is None else f"{earlier}; {text}"
    detail = "\n".join(
        f"operation {operation}: " + render_plan(trace.operations[operation].plans[rank], places)
        for (operation, rank), places in sorted(marks.items())
    )
    raise error(f"{message}; with {trace.count} elements", detail=detail, count=trace.count)


def describe_owner(trace: Trace, owner: Event | Moment) -> str:
    """Say which rank does what, and where that stands."""
    if isinstance(owner, Moment):
        return f"rank {owner.rank}, operation {owner.operation}: {owner.what}"
    lanes = trace.operations[owner.operation].plans[owner.rank].fragment.lanes
    lane = "opening" if owner.place.lane == OPENING else f"lane {lanes[owner.place.lane].name!r}"
    return (
        f"rank {owner.rank}, operation {owner.operation}, {lane}, iteration {owner.iteration}: "
        f"{describe_step(owner.step, lanes)}"
    )
