"""Switches and the links between them: routes, what is connected, and what a link separates."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cocoll.topology.parts import Link

__all__ = ["Cut", "Route", "SwitchGraph"]


class Route(NamedTuple):
    """A way from one switch to another.

    Attributes
    ----------
    ports : tuple of int
        The directed ports of its links, in order.
    latency_nanoseconds : int
        Of all its links.
    """

    ports: tuple[int, ...]
    latency_nanoseconds: int


class Cut(NamedTuple):
    """Links whose removal leaves two sides.

    Attributes
    ----------
    inside : frozenset of str
        The switches of one side.
    links : tuple of int
        All links between that side and the rest.
    """

    inside: frozenset[str]
    links: tuple[int, ...]


class SwitchGraph:
    """The switches, joined by links.

    Routes have the fewest links; of several, the one found first in the order of the links. All
    messages from one switch to another take one route, as static routing does.

    Parameters
    ----------
    links : sequence of Link
        In the topology's order.
    ports : sequence of (int, int)
        The directed ports of each link, from `one` to `other` and back.
    """

    def __init__(self, links: Sequence[Link], ports: Sequence[tuple[int, int]]) -> None:
        self._links = links
        self._ports = ports
        self._beside: dict[str, list[tuple[str, int]]] = {}
        for number, link in enumerate(links):
            self._beside.setdefault(link.one, []).append((link.other, number))
            self._beside.setdefault(link.other, []).append((link.one, number))
        self._routes: dict[tuple[str, str], Route] = {}

    def route(self, start: str, end: str) -> Route:
        """Give the way from one switch to another.

        Raises
        ------
        KeyError
            There is none; a topology that has been checked has one wherever ranks need it.
        """
        if (start, end) not in self._routes:
            self._routes.update(
                ((start, reached), route) for reached, route in self._routes_from(start).items()
            )
        return self._routes[start, end]

    def component(self, start: str) -> set[str]:
        """Give all switches that can be reached from one, itself included."""
        return set(self._routes_from(start))

    def cuts(self, used: Collection[str]) -> list[Cut]:
        """Give the cuts that links make, one for each way in which they separate `used`.

        Both kinds are taken: what hangs together without the links of one pair of switches, and
        each switch against the rest. In a tree these are all cuts by one link.

        Parameters
        ----------
        used : collection of str
            The switches that NICs of ranks are plugged into.

        Returns
        -------
        list of Cut
            In the order of the links.
        """
        sides: dict[frozenset[str], None] = {}
        for link in self._links:
            pair = {link.one, link.other}
            beyond = self._reachable(link.one, without=pair)
            if link.other not in beyond:
                sides[frozenset(beyond)] = None
            for switch in (link.one, link.other):
                sides[frozenset([switch])] = None
        found = []
        for side in sides:
            split = sum(switch in side for switch in used)
            if 0 < split < len(used):
                crossing = tuple(
                    number
                    for number, link in enumerate(self._links)
                    if (link.one in side) != (link.other in side)
                )
                found.append(Cut(side, crossing))
        return found

    def _routes_from(self, start: str) -> dict[str, Route]:
        found = {start: Route((), 0)}
        front = deque([start])
        while front:
            here = front.popleft()
            for there, number in self._beside.get(here, ()):
                if there in found:
                    continue
                link = self._links[number]
                way = self._ports[number][0 if link.one == here else 1]
                found[there] = Route(
                    (*found[here].ports, way),
                    found[here].latency_nanoseconds + link.port.latency_nanoseconds,
                )
                front.append(there)
        return found

    def _reachable(self, start: str, without: set[str]) -> set[str]:
        """Give what hangs together with a switch when the links of one pair are gone."""
        found, front = {start}, deque([start])
        while front:
            here = front.popleft()
            for there, _ in self._beside.get(here, ()):
                if there not in found and {here, there} != without:
                    found.add(there)
                    front.append(there)
        return found
