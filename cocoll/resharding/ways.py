"""Many ways at once: their hops in arrays, for groups of so many that one by one takes too long."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cocoll.resharding.problem import Problem
    from cocoll.resharding.schedule import Hop, Transfer

__all__ = ["Traffic", "Ways", "traffic_of"]

# Fewer hops are looked at one by one.
_MANY_HOPS = 4096


class Ways:
    """Ways, hop by hop.

    Parameters
    ----------
    problem : Problem
        The ports.
    ways : sequence of tuple of (int, int)
        In each, a hop's source is the way's first one, or where an earlier hop leads to, or a rank
        that has the bytes by itself.

    Attributes
    ----------
    way : ndarray of int, shape (hops,)
        Which way a hop is of.
    pair : ndarray of int, shape (hops,)
        Which pair of ranks it leads from and to.
    latency_nanoseconds : ndarray of int, shape (pairs,)
        Of each pair.
    ports, times : ndarray of int, shape (pairs, most ports)
        What bytes from one to the other cross, and how often; times are 0 where there is no more.
    """

    def __init__(self, problem: Problem, ways: Sequence[tuple[Hop, ...]]) -> None:
        counts = np.array([len(hops) for hops in ways], dtype=np.int64)
        total = int(counts.sum())
        flat = chain.from_iterable(chain.from_iterable(ways))
        ends = np.fromiter(flat, dtype=np.int64, count=2 * total).reshape(total, 2)
        self.way = np.repeat(np.arange(len(ways)), counts)
        self._count = len(ways)
        self._world_size = problem.topology.world_size
        self._source, self._destination = ends[:, 0], ends[:, 1]
        pairs, self.pair = np.unique(
            self._source * self._world_size + self._destination, return_inverse=True
        )
        crossed = [problem.crossing(*divmod(pair, self._world_size)) for pair in pairs.tolist()]
        self.latency_nanoseconds = np.array(
            [crossing.latency_nanoseconds for crossing in crossed], dtype=np.int64
        )
        widest = max([len(crossing.ports) for crossing in crossed], default=0)
        self.ports = np.zeros((len(crossed), widest), dtype=np.int64)
        self.times = np.zeros((len(crossed), widest), dtype=np.int64)
        for number, crossing in enumerate(crossed):
            for place, (port, times) in enumerate(crossing.ports):
                self.ports[number, place] = port
                self.times[number, place] = times

    @cached_property
    def _parents(self) -> NDArray[np.int64]:
        """For each hop the one that leads to its source; the number of hops where there is none."""
        reached = self.way * self._world_size + self._destination
        begun = self.way * self._world_size + self._source
        order = np.argsort(reached, kind="stable")
        place = np.searchsorted(reached[order], begun)
        place = np.minimum(place, max(0, len(order) - 1))
        found = order[place] if len(order) else order
        hops = len(self.way)
        # A rank that a later hop leads to has the bytes by itself, or the way is none.
        is_parent = (reached[found] == begun) & (found < np.arange(hops))
        return np.where(is_parent, found, hops)

    def carried(self, nbytes: Sequence[int]) -> dict[int, int]:
        """Give the bytes that cross each port.

        Parameters
        ----------
        nbytes : sequence of int
            On each way.

        Returns
        -------
        dict of int to int
            By port; ports that no hop crosses are left out.
        """
        of_way = np.array(nbytes, dtype=np.int64)
        of_pair = np.zeros(len(self.latency_nanoseconds), dtype=np.int64)
        np.add.at(of_pair, self.pair, of_way[self.way])
        found: dict[int, int] = {}
        for ports, times, amount in zip(
            self.ports.tolist(), self.times.tolist(), of_pair.tolist(), strict=True
        ):
            for port, count in zip(ports, times, strict=True):
                if count:
                    found[port] = found.get(port, 0) + count * amount
        return found

    def begins(self, time: dict[int, int], rounds: int) -> NDArray[np.int64]:
        """Give when each hop begins, from the beginning of a group, in nanoseconds.

        Parameters
        ----------
        time : dict of int to int
            How long each port is busy with the group, in nanoseconds.
        rounds : int
            Of the group: a hop has its first chunk after one of them.
        """
        longest = np.zeros(len(self.latency_nanoseconds), dtype=np.int64)
        if self.ports.size:
            of_port = np.zeros(int(self.ports.max()) + 1, dtype=np.int64)
            used = np.array(sorted(time), dtype=np.int64)
            of_port[used] = [time[port] for port in used.tolist()]
            longest = np.where(self.times > 0, of_port[self.ports], 0).max(axis=1)
        later = self.latency_nanoseconds + -(-longest // rounds)
        # What lies between a hop's beginning and that of its parent; then of its parent's parent,
        # of the fourth before it, and so on: a chain of n hops takes log n sums.
        hops = len(self.way)
        parents: NDArray[np.int64] = np.append(self._parents, hops)
        waits = np.append(later[self.pair], 0)
        begins = waits[parents]
        while bool((parents != hops).any()):
            begins = begins + begins[parents]
            parents = parents[parents]
        return begins[:hops]

    def by_port(self, begins: NDArray[np.int64]) -> tuple[dict[int, int], dict[int, int]]:
        """Give for each port when the first and the last hop over it begin.

        Parameters
        ----------
        begins : ndarray of int, shape (hops,)
            As the method of that name gives them.
        """
        pairs = len(self.latency_nanoseconds)
        never = np.iinfo(np.int64).max
        low, high = np.full(pairs, never), np.full(pairs, -1)
        np.minimum.at(low, self.pair, begins)
        np.maximum.at(high, self.pair, begins)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for ports, times, begin, end in zip(
            self.ports.tolist(), self.times.tolist(), low.tolist(), high.tolist(), strict=True
        ):
            for port, count in zip(ports, times, strict=True):
                if count:
                    first[port] = min(begin, first.get(port, begin))
                    last[port] = max(end, last.get(port, end))
        return first, last

    def loads(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Give what a byte on each way does to ports.

        Returns
        -------
        tuple of ndarray, each of shape (entries,)
            Way, port, and how often a byte crosses the port; by way, then by port.
        """
        ports = int(self.ports.max(initial=0)) + 1
        key = (self.way[:, None] * ports + self.ports[self.pair]).ravel()
        times = self.times[self.pair].ravel()
        entries, place = np.unique(key[times > 0], return_inverse=True)
        counts = np.bincount(place, weights=times[times > 0]).astype(np.int64)
        return entries // ports, entries % ports, counts


class Traffic(NamedTuple):
    """The ways that some transfers take, each once.

    Attributes
    ----------
    ways : list of tuple of (int, int)
        In the order of the transfers; told apart by identity, which many transfers share.
    nbytes : list of int
        On each way.
    arrays : Ways or None
        All of them, where they have many hops.
    """

    ways: list[tuple[Hop, ...]]
    nbytes: list[int]
    arrays: Ways | None

    def carried(self, problem: Problem) -> dict[int, int]:
        """Give the bytes that cross each port, by its number.

        Parameters
        ----------
        problem : Problem
            The ports.
        """
        if self.arrays is not None:
            return self.arrays.carried(self.nbytes)
        found: dict[int, int] = {}
        for hops, nbytes in zip(self.ways, self.nbytes, strict=True):
            for source, destination in hops:
                for port, times in problem.crossing(source, destination).ports:
                    found[port] = found.get(port, 0) + times * nbytes
        return found


def traffic_of(problem: Problem, transfers: tuple[Transfer, ...]) -> Traffic:
    """Give the ways of some transfers.

    Parameters
    ----------
    problem : Problem
        The ports; it keeps the last traffic of many hops, which is asked for several times.
    transfers : tuple of Transfer
        Of a group.
    """
    kept = problem.last_traffic
    if kept is not None and kept[0] is transfers:
        return kept[1]
    found: dict[int, tuple[tuple[Hop, ...], int]] = {}
    for _, start, stop, hops in transfers:
        known = found.get(id(hops))
        found[id(hops)] = hops, stop - start + (known[1] if known else 0)
    ways = [hops for hops, _ in found.values()]
    nbytes = [amount for _, amount in found.values()]
    if sum([len(hops) for hops in ways]) < _MANY_HOPS:
        return Traffic(ways, nbytes, None)
    traffic = Traffic(ways, nbytes, Ways(problem, ways))
    problem.last_traffic = transfers, traffic
    return traffic
