"""Writes plans step by step, with every argument named and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cocoll.errors import RankError, UsageError
from cocoll.plan.ir import (
    SHARD_ALIGNMENT_ELEMENTS,
    After,
    Fragment,
    Lane,
    Loop,
    Plan,
    Span,
    Step,
)
from cocoll.plan.structure import check_plan
from cocoll.plan.verifier import verify
from cocoll.plan.vocabulary import AfterLanes, StepWriter

if TYPE_CHECKING:
    from cocoll.plan.memory import Aliasing

__all__ = ["Builder", "build_all"]

_OPENING = "opening"


@dataclass
class _OpenLoop:
    span: Span
    chunk_elements: int
    begin: int
    end: int | None
    steps: list[tuple[Step, AfterLanes]] = field(default_factory=list)
    # Whether a context manager made it, and not a step that stands outside of any loop.
    explicit: bool = True


class Builder(StepWriter):
    """Builds the plan of one rank.

    Local and pure. Lanes and loops are context managers; a step belongs to the innermost one, and
    one outside of any loop runs once. Names of lanes in `after` may be of lanes not yet written.

    Parameters
    ----------
    rank, world_size : int
        Whose plan this is.
    name : str
        The algorithm, for people.
    alignment_elements : int, default SHARD_ALIGNMENT_ELEMENTS
        What the length of a block is rounded up to, in elements.
    mapped_sources, mapped_results : bool, default False
        Whether steps touch the SOURCE, the RESULT of peers: symmetric memory only.

    Raises
    ------
    RankError
        The rank lies outside the world.

    Examples
    --------
    An all-reduce in which every rank reads all peers' arrays and keeps the sum to itself, which
    must not overwrite the source while a peer still reads it:

    >>> from cocoll.plan import Builder, Flag, Span, build_all
    >>> def allreduce(builder):
    ...     ranks = range(builder.world_size)
    ...     peers = [rank for rank in ranks if rank != builder.rank]
    ...     with builder.lane("reduce"):
    ...         with builder.loop(span=Span.WHOLE, chunk_elements=4096):
    ...             builder.reduce(
    ...                 sources=[builder.source(rank=rank, itemsize_bytes=4) for rank in ranks],
    ...                 destinations=[[builder.result(itemsize_bytes=4)]],
    ...             )
    ...         for peer in peers:
    ...             builder.signal(peer=peer, flag=Flag.DONE)
    ...         for peer in peers:
    ...             builder.wait(peer=peer, flag=Flag.DONE)
    >>> plans = build_all(allreduce, 3, name="read_everything", mapped_sources=True)
    >>> plans[1].name, len(plans)
    ('read_everything', 3)

    The plans have been verified. Without the exchange of flags they are refused: a rank could
    return, and its caller overwrite the source, while a peer still reads.

    >>> def broken(builder):
    ...     ranks = range(builder.world_size)
    ...     with builder.lane("reduce"):
    ...         builder.reduce(
    ...             sources=[builder.source(rank=rank, itemsize_bytes=4) for rank in ranks],
    ...             destinations=[[builder.result(itemsize_bytes=4)]],
    ...         )
    >>> build_all(broken, 3, name="broken", mapped_sources=True)
    Traceback (most recent call last):
        ...
    cocoll.errors.DependenceError: race on bytes ...
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        name: str,
        alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS,
        mapped_sources: bool = False,
        mapped_results: bool = False,
        hosts: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(rank, world_size, name)
        self._frame = Plan(
            rank=rank,
            world_size=world_size,
            body=Fragment(lanes=()),
            name=name,
            alignment_elements=alignment_elements,
            mapped_sources=mapped_sources,
            mapped_results=mapped_results,
            hosts=hosts,
        )
        self._parts: dict[str, list[_OpenLoop]] = {}
        self._in_flight: dict[str, int] = {}
        self._opening: list[_OpenLoop] = []
        self._part: list[_OpenLoop] | None = None
        self._loop: _OpenLoop | None = None

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Write the steps that run before arrival: they may fill this rank's own scratch.

        Raises
        ------
        UsageError
            Another lane or the opening is still open.
        """
        with self._enter(_OPENING, self._opening):
            yield

    @contextmanager
    def lane(self, name: str, *, in_flight: int = 1) -> Iterator[None]:
        """Write an in-order queue of steps; lanes run side by side after arrival.

        Parameters
        ----------
        name : str
            Unique in the plan.
        in_flight : int, default 1
            How many messages may be under way; above 1 the lane sends and receives only.

        Raises
        ------
        UsageError
            The name is taken, or another lane is still open.
        """
        if name in self._parts:
            raise UsageError(f"{self._where()}: there is already a lane {name!r}")
        self._in_flight[name] = in_flight
        self._parts[name] = []
        with self._enter(f"lane {name!r}", self._parts[name]):
            yield

    @contextmanager
    def loop(
        self, *, span: Span, chunk_elements: int = 0, begin: int = 0, end: int | None = None
    ) -> Iterator[None]:
        """Repeat the steps inside over the chunks of their blocks.

        Parameters
        ----------
        span : Span
            What is cut into chunks: BLOCK, WHOLE, or ONCE for no repetition.
        chunk_elements : int
            Elements of one iteration.
        begin, end : int, optional
            The first iteration, and one past the last; default all.

        Raises
        ------
        UsageError
            No lane is open, loops are nested, or a number is out of its range.
        """
        if self._part is None:
            raise UsageError(f"{self._where()}: a loop stands in a lane or in the opening")
        if self._loop is not None:
            raise UsageError(f"{self._where()}: loops do not nest")
        if span is not Span.ONCE and chunk_elements < 1:
            raise UsageError(f"{self._where()}: wanted chunk_elements >= 1, got {chunk_elements}")
        if begin < 0 or (end is not None and end < begin):
            raise UsageError(
                f"{self._where()}: wanted 0 <= begin <= end, got begin {begin}, end {end}"
            )
        self._loop = _OpenLoop(span, chunk_elements, begin, end)
        self._part.append(self._loop)
        try:
            yield
        finally:
            self._loop = None

    @contextmanager
    def _enter(self, title: str, part: list[_OpenLoop]) -> Iterator[None]:
        if self._part is not None:
            raise UsageError(f"{self._where()}: {title} begins inside another lane")
        self._part = part
        try:
            yield
        finally:
            self._part = None

    def _add(self, step: Step, after: AfterLanes | None) -> None:
        if self._part is None:
            raise UsageError(f"{self._where()}: a step stands in a lane or in the opening")
        loop = self._loop
        if loop is None:
            if not self._part or self._part[-1].explicit:
                self._part.append(_OpenLoop(Span.ONCE, 0, 0, None, explicit=False))
            loop = self._part[-1]
        loop.steps.append((step, after or {}))

    def build(self) -> Plan:
        """Give the plan.

        Returns
        -------
        Plan
            Checked alone; :func:`~cocoll.plan.verify` checks it with its peers'.

        Raises
        ------
        UsageError
            A lane is still open, a lane waited for does not exist, or a step is malformed.
        ScheduleError
            The opening does too much, or memory of a peer is touched that is not declared mapped.
        """
        if self._part is not None:
            raise UsageError(f"{self._where()}: a lane is still open")
        numbers = {name: index for index, name in enumerate(self._parts)}
        lanes = tuple(
            Lane(name, tuple(self._close(loop, numbers) for loop in loops), self._in_flight[name])
            for name, loops in self._parts.items()
        )
        opening = tuple(self._close(loop, numbers) for loop in self._opening)
        plan = replace(self._frame, body=Fragment(lanes, opening), _fragment=[])
        check_plan(plan)
        return plan

    def _close(self, loop: _OpenLoop, numbers: Mapping[str, int]) -> Loop:
        steps = []
        for step, after in loop.steps:
            for name in after:
                if name not in numbers:
                    raise UsageError(
                        f"{self._where()}: a step waits for lane {name!r}; "
                        f"there are {', '.join(map(repr, numbers))}"
                    )
            dependences = tuple(After(numbers[name], lag) for name, lag in after.items())
            steps.append(replace(step, after=dependences))
        return Loop(tuple(steps), loop.span, loop.chunk_elements, loop.begin, loop.end)


def build_all(
    program: Callable[[Builder], None],
    world_size: int,
    *,
    name: str,
    alignment_elements: int = SHARD_ALIGNMENT_ELEMENTS,
    mapped_sources: bool = False,
    mapped_results: bool = False,
    hosts: Sequence[int] | None = None,
    counts: Iterable[int] | None = None,
    aliasing: Aliasing | None = None,
) -> list[Plan]:
    """Build the plans of all ranks with one function, and verify them.

    Local and pure: every rank that calls it gets equal plans.

    Parameters
    ----------
    program : callable
        Called once for each rank with its :class:`Builder`.
    world_size : int
        How many ranks.
    name : str
        The algorithm, for people.
    alignment_elements : int, default SHARD_ALIGNMENT_ELEMENTS
        As of :class:`Builder`, as the next two.
    mapped_sources, mapped_results : bool, default False
        Whether steps touch arrays of peers.
    hosts : sequence of int, optional
        The host of every rank; only ranks of one host touch each other's memory.
    counts : iterable of int, optional
        Vector lengths to verify, in elements; default :func:`~cocoll.plan.default_counts`.
    aliasing : Aliasing, optional
        Which arrays share memory; default: none do.

    Returns
    -------
    list of Plan
        In rank order.

    Raises
    ------
    RankError
        ``world_size < 1``, or a step names a rank outside the world.
    UsageError
        A plan is malformed.
    ScheduleError
        The plans do not fit together; ``report()`` shows where.
    """
    if world_size < 1:
        raise RankError(f"wanted world_size >= 1, got {world_size}")
    plans = []
    for rank in range(world_size):
        builder = Builder(
            rank,
            world_size,
            name=name,
            alignment_elements=alignment_elements,
            mapped_sources=mapped_sources,
            mapped_results=mapped_results,
            hosts=None if hosts is None else tuple(hosts),
        )
        program(builder)
        plans.append(builder.build())
    verify(plans, counts=counts, aliasing=aliasing)
    return plans
