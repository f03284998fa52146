"""What a suite says of itself: which groups, peers, limits and cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.common.cases import Group, View
    from benchmarks.common.driver import Settings
    from benchmarks.common.records import Record
    from benchmarks.common.streams import LimitSpec
    from benchmarks.common.tracks import GroupResult

__all__ = ["External", "Suite"]


@dataclass(frozen=True, slots=True)
class External:
    """A program that is run once a turn and times itself.

    It prints one JSON object: ``median_nanoseconds`` of a call and, if it knows,
    ``one_way_nanoseconds`` (a ping-pong between its ranks; without it the sample takes the state of
    the one before).
    """

    implementation: str
    row: str
    command: tuple[str, ...]


def _no_externals(group: Group) -> list[External]:
    del group
    return []


def _same_settings(group: Group, settings: Settings) -> Settings:
    del group
    return settings


def _same_records(result: GroupResult, records: list[Record]) -> list[Record]:
    del result
    return records


def _no_problems(records: Sequence[Record]) -> list[str]:
    del records
    return []


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite.

    Attributes
    ----------
    name : str
        As on the command line.
    peers : tuple of str
        Implementations that must run.
    default_ranks : tuple of int
        World sizes.
    groups : callable
        ``(ranks, sizes_bytes or None, dtypes or None) -> list of Group``; None means the default
        cases. Raises ValueError for a size or dtype that the suite cannot serve.
    limits, views : callable
        For a group, its bare loops and its cases.
    uses_adam : bool
        Whether jobs run torch's optimizer.
    externals : callable
        For a group, programs that time themselves. Raises RuntimeError or ImportError if there
        should be one and it cannot be built.
    settings : callable
        For a group, how long to measure it, given what the command line says.
    complete : callable
        Gives the records of a case what only the suite knows.
    problems : callable
        What the suite finds wrong with the records of a case, besides what holds for all suites.
    """

    name: str
    peers: tuple[str, ...]
    default_ranks: tuple[int, ...]
    groups: Callable[[int, Sequence[int] | None, Sequence[str] | None], list[Group]]
    limits: Callable[[Group], list[LimitSpec]]
    views: Callable[[Group], list[View]]
    uses_adam: bool = False
    externals: Callable[[Group], list[External]] = _no_externals
    settings: Callable[[Group, Settings], Settings] = _same_settings
    complete: Callable[[GroupResult, list[Record]], list[Record]] = _same_records
    problems: Callable[[Sequence[Record]], list[str]] = _no_problems
