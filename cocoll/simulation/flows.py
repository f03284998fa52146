"""Bytes on their way through ports, which are shared max-min fairly.

A *route* is the set of ports that some bytes cross. All flows of one route have the same rate, for
nothing tells them apart, so a route keeps one clock: how many bytes each of its flows has moved
since the route came into use. A flow ends when that clock has gone as far as the flow is long, and
a change of rates costs as much as there are routes, however many flows they carry.

Numbers are whole: nanoseconds, and work units so fine that rounding is never seen. So nothing
depends on the order of sums.

References
----------
D. Bertsekas, R. Gallager: Data Networks, 2nd edition, 1992, section 6.5.2 (max-min fairness and
progressive filling).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["Route", "Traffic"]

_NANOSECONDS_PER_SECOND = 10**9
# A rate of b bytes a second is b << _SHIFT units a nanosecond. Shares are rounded down, so a flow
# counts as ended with less than a millionth of a nanosecond to go.
_SHIFT = 40
_SLACK_SHIFT = 20
_UNITS_PER_BYTE = _NANOSECONDS_PER_SECOND << _SHIFT


class _Port:
    """A port and the routes that carry flows through it."""

    __slots__ = ("capacity", "load", "residual", "routes", "visit")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # A dict for its order: the same in every run.
        self.routes: dict[Route, None] = {}
        self.visit = 0
        self.residual = 0
        self.load = 0


class Route:
    """The ports that some flows cross; made by :meth:`Traffic.add_route`.

    Attributes
    ----------
    active : int
        How many flows are under way.
    carried_bytes : int
        What all flows so far are long together.
    ports : tuple of int
        The numbers of the ports, each once.
    weights : tuple of int
        How many flows cross each of them for each flow that was started.
    """

    __slots__ = (
        "active",
        "carried_bytes",
        "crossed",
        "due",
        "ports",
        "progress",
        "rate",
        "settled",
        "since",
        "targets",
        "touched",
        "visit",
        "weights",
    )

    def __init__(
        self, ports: tuple[int, ...], weights: tuple[int, ...], crossed: tuple[_Port, ...]
    ) -> None:
        self.ports = ports
        self.weights = weights
        self.crossed = tuple(zip(crossed, weights, strict=True))
        self.active = 0
        self.carried_bytes = 0
        # How many flows the present rates were worked out for.
        self.settled = 0
        self.rate = 0
        self.progress = 0
        self.since = 0
        # (progress at which the flow ends, order of beginning, whose it is)
        self.targets: list[tuple[int, int, Any]] = []
        self.due = -1
        self.touched = False
        self.visit = 0

    @property
    def bytes_per_second(self) -> float:
        """The present rate of each flow."""
        return self.rate / (1 << _SHIFT)

    def advance(self, now: int) -> None:
        """Bring the clock up to `now`, in nanoseconds."""
        self.progress += self.rate * (now - self.since)
        self.since = now


class Traffic:
    """All flows, and when the next of them end.

    Parameters
    ----------
    bandwidths_bytes_per_second : sequence of int
        Of every port, by number.
    """

    def __init__(self, bandwidths_bytes_per_second: Sequence[int]) -> None:
        self._bandwidths = bandwidths_bytes_per_second
        self._ports: dict[int, _Port] = {}
        self._routes: dict[tuple[tuple[int, ...], tuple[int, ...]], Route] = {}
        self._touched: list[Route] = []
        self._started = 0
        self._visit = 0
        # (when, number, route): a route whose `due` is another time by now has been put off.
        self._ends: list[tuple[int, int, Route]] = []
        self._pushed = 0

    def add_route(self, ports: Sequence[int], weights: Sequence[int]) -> Route:
        """Give the route over some ports: the same object for the same ports and weights.

        Parameters
        ----------
        ports : sequence of int
            Numbers of the ports that its flows cross, at least one; a port may stand there twice.
        weights : sequence of int
            For each of them, how many flows cross it for each flow that is started here: 1, unless
            a flow stands for several of equal ranks (:mod:`cocoll.simulation.roles`).

        Returns
        -------
        Route
            Without flows where it is new.
        """
        combined: dict[int, int] = {}
        for number, weight in zip(ports, weights, strict=True):
            combined[number] = combined.get(number, 0) + weight
        key = (tuple(combined), tuple(combined.values()))
        route = self._routes.get(key)
        if route is None:
            crossed = tuple(self._port(number) for number in combined)
            route = self._routes[key] = Route(*key, crossed)
        return route

    @property
    def routes(self) -> Iterable[Route]:
        """All routes, in the order in which they were made."""
        return self._routes.values()

    def _port(self, number: int) -> _Port:
        port = self._ports.get(number)
        if port is None:
            port = self._ports[number] = _Port(self._bandwidths[number] << _SHIFT)
        return port

    def start(self, route: Route, length_bytes: int, owner: object, now: int) -> None:
        """Begin a flow; its rate and its end are known after :meth:`settle`.

        Parameters
        ----------
        route : Route
            Which ports it crosses.
        length_bytes : int
            At least 1.
        owner : object
            What :meth:`pop_ended` gives back.
        now : int
            Nanoseconds.
        """
        if route.active:
            route.advance(now)
        else:
            route.progress = 0
            route.since = now
        self._started += 1
        end = route.progress + length_bytes * _UNITS_PER_BYTE
        heapq.heappush(route.targets, (end, self._started, owner))
        route.active += 1
        route.carried_bytes += length_bytes
        self._touch(route)

    def _touch(self, route: Route) -> None:
        if not route.touched:
            route.touched = True
            self._touched.append(route)

    def next_end(self) -> int | None:
        """Give when the next flow ends, in nanoseconds; None: nothing moves.

        Only right after :meth:`settle`.
        """
        ends = self._ends
        while ends and ends[0][2].due != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] if ends else None

    def pop_ended(self, now: int) -> list[Any]:
        """End the flows that have moved everything at `now`; give their owners, first begun first.

        Parameters
        ----------
        now : int
            Nanoseconds; what :meth:`next_end` gave.
        """
        ended: list[tuple[int, Any]] = []
        ends = self._ends
        while ends and ends[0][0] == now:
            route = heapq.heappop(ends)[2]
            if route.due != now:
                continue
            route.due = -1
            route.advance(now)
            targets = route.targets
            reached = route.progress + (route.rate >> _SLACK_SHIFT)
            while targets and targets[0][0] <= reached:
                _, number, owner = heapq.heappop(targets)
                ended.append((number, owner))
                route.active -= 1
            self._touch(route)
        if len(ended) > 1:
            ended.sort(key=lambda one: one[0])
        return [owner for _, owner in ended]

    def settle(self, now: int) -> None:
        """Work out the rates again where flows have begun or ended since the last time.

        Only what shares a port with those, directly or through others, is looked at; and nothing
        where as many flows began on a route as ended.

        Parameters
        ----------
        now : int
            Nanoseconds.
        """
        touched, self._touched = self._touched, []
        changed = []
        for route in touched:
            route.touched = False
            if route.active != route.settled:
                changed.append(route)
        if changed:
            self._refill(changed, now)
        for route in touched:
            self._schedule(route, now)

    def _refill(self, changed: list[Route], now: int) -> None:
        for route in changed:
            if not route.active:
                for port, _ in route.crossed:
                    del port.routes[route]
                route.rate = 0
            elif not route.settled:
                for port, _ in route.crossed:
                    port.routes[route] = None
            route.settled = route.active
        routes, ports = self._component(changed)
        for route in routes:
            route.advance(now)
        if len(routes) == 1:
            (route,) = routes
            share = min(port.capacity // (weight * route.active) for port, weight in route.crossed)
            route.rate = max(1, share)
        elif routes:
            _fill(routes, ports)
        for route in routes:
            self._schedule(route, now)

    def _component(self, changed: list[Route]) -> tuple[list[Route], list[_Port]]:
        """Give the routes with flows that are tied to the changed ones by ports they share."""
        self._visit += 1
        visit = self._visit
        routes: list[Route] = []
        ports: list[_Port] = []
        for route in changed:
            for port, _ in route.crossed:
                if port.visit != visit:
                    port.visit = visit
                    ports.append(port)
        for port in ports:  # grows meanwhile
            for route in port.routes:
                if route.visit != visit:
                    route.visit = visit
                    routes.append(route)
                    for other, _ in route.crossed:
                        if other.visit != visit:
                            other.visit = visit
                            ports.append(other)
        return routes, ports

    def _schedule(self, route: Route, now: int) -> None:
        due = -1
        if route.active:
            reached = route.progress + (route.rate >> _SLACK_SHIFT)
            due = now - (reached - route.targets[0][0]) // route.rate
        if due != route.due:
            route.due = due
            if due >= 0:
                self._pushed += 1
                heapq.heappush(self._ends, (due, self._pushed, route))


def _fill(routes: Sequence[Route], ports: Sequence[_Port]) -> None:
    """Set the rates of a connected set of routes by progressive filling.

    The rates of all flows rise together until a port is full; its flows keep theirs, the others
    rise on. Ports that fill at the same rate are taken together, so that what remains of them by
    rounding does not depend on an order.
    """
    for port in ports:
        port.residual = port.capacity
        port.load = 0
    for route in routes:
        route.rate = 0
        for port, weight in route.crossed:
            port.load += weight * route.active
    filling = [port for port in ports if port.load]
    while filling:
        share = min(port.residual // port.load for port in filling)
        full = [port for port in filling if port.residual // port.load == share]
        for port in full:
            for route in port.routes:
                if not route.rate:
                    route.rate = max(1, share)
                    for crossed, weight in route.crossed:
                        flows = weight * route.active
                        crossed.load -= flows
                        crossed.residual -= flows * share
        filling = [port for port in filling if port.load]
