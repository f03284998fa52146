"""Dividing bytes among those who could send them, so that the busiest is done soonest.

References
----------
W. Dinkelbach, "On nonlinear fractional programming", Management Science 13(7), 1967; L. Ford,
D. Fulkerson, "Flows in networks", 1962 (augmenting paths).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

__all__ = ["Division", "divide_among_senders"]


class Division(NamedTuple):
    """Who sends how much.

    Attributes
    ----------
    shares : list of dict of int to int
        For each size the bytes of each sender.
    worst : tuple of int
        The senders that are busy longest: between them they must send what nobody else has.
    seconds : Fraction
        How long they take.
    """

    shares: list[dict[int, int]]
    worst: tuple[int, ...]
    seconds: Fraction


def divide_among_senders(
    sizes: Sequence[tuple[Sequence[int], int]], rates: Mapping[int, int]
) -> Division:
    """Divide sizes among senders so that the busiest is done as soon as can be.

    Parameters
    ----------
    sizes : sequence of (sequence of int, int)
        Who could send it, and how many bytes it is.
    rates : mapping of int to int
        Bytes per second of each sender, above 0.

    Returns
    -------
    Division
        Best but for a byte of rounding at each sender.
    """
    total = sum(nbytes for _, nbytes in sizes)
    worst = tuple(sorted({sender for senders, _ in sizes for sender in senders}))
    seconds = Fraction(total, sum(rates[sender] for sender in worst)) if worst else Fraction(0)
    while True:
        room = {sender: -(-rates[sender] * seconds.numerator // seconds.denominator) + 1
                for sender in rates}  # fmt: skip
        flow = _Flow(sizes, room)
        tight = flow.fill()
        if not tight:
            return Division(flow.shares, worst, seconds)
        inside = set(tight)
        load = sum(nbytes for senders, nbytes in sizes if inside.issuperset(senders))
        longer = Fraction(load, sum(rates[sender] for sender in tight))
        if longer <= seconds:
            # Nothing but rounding is left.
            return Division(flow.shares, worst, seconds)
        worst, seconds = tuple(sorted(tight)), longer


class _Flow:
    """Bytes of sizes given to senders up to the room of each."""

    def __init__(self, sizes: Sequence[tuple[Sequence[int], int]], room: dict[int, int]) -> None:
        self._sizes = sizes
        self._room = room
        self.shares: list[dict[int, int]] = [{} for _ in sizes]
        self._given: dict[int, dict[int, None]] = {}

    def fill(self) -> list[int]:
        """Give out all bytes; where that cannot be, give the senders that are full then."""
        order = sorted(range(len(self._sizes)), key=lambda number: len(self._sizes[number][0]))
        left = {}
        for number in order:
            senders, nbytes = self._sizes[number]
            for sender in sorted(senders, key=lambda one: (-self._room[one], one)):
                part = min(nbytes, self._room[sender])
                if part > 0:
                    self._move(number, sender, part)
                    self._room[sender] -= part
                    nbytes -= part
            if nbytes:
                left[number] = nbytes
        for number, nbytes in left.items():
            while nbytes:
                path, reached = self._search(number)
                if not path:
                    return reached
                nbytes -= self._augment(path, nbytes)
        return []

    def _move(self, number: int, sender: int, nbytes: int) -> None:
        share = self.shares[number]
        now = share.get(sender, 0) + nbytes
        if now:
            share[sender] = now
            self._given.setdefault(sender, {})[number] = None
        else:
            del share[sender]
            del self._given[sender][number]

    def _search(self, start: int) -> tuple[list[tuple[int, int]], list[int]]:
        """Find a way from a size to a sender with room: (size, sender) pairs, last one first."""
        came: dict[int, int] = {}
        from_sender: dict[int, int | None] = {start: None}
        front = deque([start])
        while front:
            number = front.popleft()
            for sender in self._sizes[number][0]:
                if sender in came:
                    continue
                came[sender] = number
                if self._room[sender] > 0:
                    return self._trace(sender, came, from_sender), []
                for other in self._given.get(sender, ()):
                    if other not in from_sender:
                        from_sender[other] = sender
                        front.append(other)
        return [], list(came)

    def _trace(
        self, sender: int, came: dict[int, int], from_sender: dict[int, int | None]
    ) -> list[tuple[int, int]]:
        path = []
        at: int | None = sender
        while at is not None:
            number = came[at]
            path.append((number, at))
            at = from_sender[number]
        return path

    def _augment(self, path: list[tuple[int, int]], nbytes: int) -> int:
        """Let each size of a way give to its sender there what it takes from the one before."""
        part = min(nbytes, self._room[path[0][1]])
        for (number, _), (_, before) in itertools.pairwise(path):
            part = min(part, self.shares[number][before])
        self._room[path[0][1]] -= part
        for number, sender in path:
            self._move(number, sender, part)
        for (number, _), (_, before) in itertools.pairwise(path):
            self._move(number, before, -part)
        return part
