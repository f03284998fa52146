"""What must arrive where, whatever the schedule: tasks with equal holders and needers added up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem

__all__ = ["Demand", "Source", "demands_of", "sources_of"]


class Source(NamedTuple):
    """What tasks with the same holders and needers bring, whoever adds up summands.

    Attributes
    ----------
    holders : tuple of int
        Ranks that have it, or a summand of it.
    needers : tuple of int
        Ranks that must receive it.
    nbytes : int
        Of all tasks together.
    largest_bytes : int
        Of the largest one.
    """

    holders: tuple[int, ...]
    needers: tuple[int, ...]
    nbytes: int
    largest_bytes: int


class Demand(NamedTuple):
    """Bytes that some places have and others need; places are hosts, or ranks.

    Attributes
    ----------
    holders, needers : frozenset of int
        Which places; one with a holder and a needer is in both.
    nbytes : int
        How many.
    """

    holders: frozenset[int]
    needers: frozenset[int]
    nbytes: int


def sources_of(problem: Problem) -> list[Source]:
    """Give what must arrive, in the order in which tasks ask for it.

    Parameters
    ----------
    problem : Problem
        The tasks.
    """
    total: dict[tuple[int, tuple[int, ...]], tuple[int, int, int]] = {}
    for number in problem.moving:
        task = problem.tasks[number]
        if task.adds:
            continue
        parts = tuple([problem.tasks[before].holders[0] for before in task.after])
        key = problem.kinds[number], parts
        first, nbytes, largest = total.get(key, (number, 0, 0))
        total[key] = first, nbytes + task.nbytes, max(largest, task.nbytes)
    found = []
    for (_, parts), (first, nbytes, largest) in total.items():
        holders, needers = problem.tasks[first].holders, problem.tasks[first].needers
        if parts:
            # The owner that was chosen is the planner's own: all whose summands it adds have it.
            holders = (*holders, *parts)
            needers = tuple([rank for rank in needers if rank not in parts])
        if needers:
            found.append(Source(holders, needers, nbytes, largest))
    return found


def demands_of(sources: Iterable[Source], place_of: Sequence[int]) -> list[Demand]:
    """Give what must go from places to places, equal ones added up.

    Parameters
    ----------
    sources : iterable of Source
        What `sources_of` gave.
    place_of : sequence of int
        The place of each rank.
    """
    total: defaultdict[tuple[frozenset[int], frozenset[int]], int] = defaultdict(int)
    # Sources share the tuples of their ranks.
    places: dict[int, frozenset[int]] = {}
    for source in sources:
        for ranks in (source.holders, source.needers):
            if id(ranks) not in places:
                places[id(ranks)] = frozenset([place_of[rank] for rank in ranks])
        total[places[id(source.holders)], places[id(source.needers)]] += source.nbytes
    return [Demand(holders, needers, nbytes) for (holders, needers), nbytes in total.items()]
