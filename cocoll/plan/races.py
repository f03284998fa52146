"""Finds two steps that touch the same bytes, at least one writing, in no certain order."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.errors import DependenceError
from cocoll.plan.trace import Event, Moment, Trace, describe_owner, raise_illegal

if TYPE_CHECKING:
    from cocoll.plan.memory import Space

__all__ = ["RaceChecker"]


@dataclass(slots=True)
class _Access:
    """One touch of bytes ``[start, stop)`` between the nodes `begin` and `end`."""

    owner: Event | Moment
    begin: int
    end: int
    start: int
    stop: int
    writes: bool


class RaceChecker:
    """Walks all accesses in an order that fits the graph, byte range by byte range.

    For every range it keeps the last write and the reads since. Checking a new access against
    those alone is enough: what they follow, it follows too.
    """

    def __init__(self, trace: Trace, order: Sequence[int], clocks: list[list[int]]) -> None:
        self._trace = trace
        self._clocks = clocks
        self._chain = trace.chain
        self._position = trace.position
        self._place = [0] * len(order)
        for index, node in enumerate(order):
            self._place[node] = index

    def check(self) -> None:
        """Raise on the first race found."""
        accesses: defaultdict[Space, list[_Access]] = defaultdict(list)
        for event in self._trace.events:
            for extents, writes in ((event.reads, False), (event.writes, True)):
                for extent in extents:
                    access = _Access(
                        event, event.begin, event.end, extent.start, extent.stop, writes
                    )
                    accesses[extent.space].append(access)
        for space, touches in accesses.items():
            self._check_space(space, touches)

    def _user_accesses(self, space: Space, start: int, stop: int) -> list[_Access]:
        """Give what the callers do with a user array before, between and after operations."""
        if space.buffer.is_scratch:
            return []
        accesses = []
        hosts = self._trace.operations[0].plans[0].hosts
        for node in self._trace.user_moments:
            moment = self._trace.owners[node]
            host = 0 if hosts is None else hosts[moment.rank]
            if moment.rank == space.rank or (space.is_shared and host == space.host):
                accesses.append(_Access(moment, node, node, start, stop, not space.is_shared))
        return accesses

    def _check_space(self, space: Space, accesses: list[_Access]) -> None:
        cuts = sorted({access.start for access in accesses} | {one.stop for one in accesses})
        accesses = accesses + self._user_accesses(space, cuts[0], cuts[-1])
        accesses.sort(key=lambda access: self._place[access.begin])
        is_scratch = space.buffer.is_scratch
        writers: list[_Access | None] = [None] * len(cuts)
        readers: list[list[_Access]] = [[] for _ in cuts]
        for access in accesses:
            for index in range(bisect_left(cuts, access.start), bisect_left(cuts, access.stop)):
                writer = writers[index]
                if writer is not None and writer.owner is not access.owner:
                    self._check_ordered(space, writer, access)
                if access.writes:
                    for reader in readers[index]:
                        if reader.owner is not access.owner:
                            self._check_ordered(space, reader, access)
                    writers[index] = access
                    readers[index] = []
                else:
                    if is_scratch and (
                        writer is None or writer.owner.operation != access.owner.operation
                    ):
                        self._raise_unwritten(space, access)
                    readers[index].append(access)

    def _check_ordered(self, space: Space, earlier: _Access, later: _Access) -> None:
        end = earlier.end
        if self._clocks[later.begin][self._chain[end]] >= self._position[end]:
            return
        start, stop = max(earlier.start, later.start), min(earlier.stop, later.stop)
        texts = [
            f"{describe_owner(self._trace, access.owner)} "
            f"({'writes' if access.writes else 'reads'})"
            for access in (earlier, later)
        ]
        raise_illegal(
            DependenceError,
            f"race on bytes [{start}, {stop}) of {space}: {texts[0]}, and {texts[1]}, "
            "with nothing that orders them",
            self._trace,
            [(earlier.owner, "races with the other"), (later.owner, "races with the other")],
        )

    def _raise_unwritten(self, space: Space, access: _Access) -> None:
        raise_illegal(
            DependenceError,
            f"{describe_owner(self._trace, access.owner)} reads bytes "
            f"[{access.start}, {access.stop}) of {space}, some of which no step of this "
            "operation has written",
            self._trace,
            [(access.owner, "reads what nobody wrote")],
        )
