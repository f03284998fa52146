"""Says why an algorithm serves a collective: its lower bound, its prediction, the alternatives."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cocoll.errors import SimulationError, UsageError
from cocoll.simulation.finding import Plans, find_roles, plan_getter
from cocoll.simulation.simulator import simulate
from cocoll.topology.cost import (
    CollectiveKind,
    lower_bound_nanoseconds,
    port_bytes_bound,
    transfer_nanoseconds,
)

if TYPE_CHECKING:
    from cocoll.simulation.outcome import Simulation
    from cocoll.topology.graph import Topology

__all__ = ["Alternative", "Bound", "Explanation", "KindOfPorts", "explain"]

# Up to so many ports the JSON form has each; above, it has their kinds.
_LISTED_PORTS = 256


@dataclass(frozen=True, slots=True)
class Bound:
    """A time that no algorithm beats.

    Attributes
    ----------
    nanoseconds : int
        The time.
    port : str or None
        The port that gives it; None where it is a latency.
    bytes : int
        What that port carries at least.
    bandwidth_bytes_per_second : int
        Of that port.
    """

    nanoseconds: int
    port: str | None
    bytes: int
    bandwidth_bytes_per_second: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way, and what it would take.

    Attributes
    ----------
    name : str
        The algorithm.
    nanoseconds : int or None
        The prediction; None where it does not run.
    why : str
        What speaks for it, or why it does not run.
    """

    name: str
    nanoseconds: int | None
    why: str


@dataclass(frozen=True, slots=True)
class KindOfPorts:
    """All ports of one kind.

    Attributes
    ----------
    kind : str
        As in `PortUse.kind`.
    ports : int
        How many have carried anything.
    bytes : int
        What all have carried together.
    busiest : str
        The one that was busy longest.
    busiest_bytes, busiest_nanoseconds : int
        What that one carried, and how long it takes for that at full rate.
    """

    kind: str
    ports: int
    bytes: int
    busiest: str
    busiest_bytes: int
    busiest_nanoseconds: int


@dataclass(frozen=True)
class Explanation:
    """Why an algorithm, and what it takes; `str` gives it for people.

    Attributes
    ----------
    kind : str
        The collective.
    topology : str
        The name of the topology.
    ranks, hosts, bytes : int
        What is to be done, and where: the bytes are those of the whole vector.
    algorithm, why : str
        The choice, and what speaks for it.
    bound : Bound
        What cannot be beaten.
    predicted_nanoseconds : int
        What the simulation says.
    alternatives : tuple of Alternative
        The others, in the order of the candidates.
    port_kinds : tuple of KindOfPorts
        What has crossed ports, by their kinds.
    messages, steps : int
        Of all ranks.
    simulated_ranks : int
        How many ranks ran; each stood for all of equal roles.
    simulation : Simulation
        With the timeline.
    """

    kind: str
    topology: str
    ranks: int
    hosts: int
    bytes: int
    algorithm: str
    why: str
    bound: Bound
    predicted_nanoseconds: int
    alternatives: tuple[Alternative, ...]
    port_kinds: tuple[KindOfPorts, ...]
    messages: int
    steps: int
    simulated_ranks: int
    simulation: Simulation = field(repr=False)

    @property
    def fraction(self) -> float:
        """The lower bound over the prediction: 1 cannot be beaten."""
        predicted = self.predicted_nanoseconds
        return self.bound.nanoseconds / predicted if predicted else 1.0

    @property
    def port_bytes(self) -> tuple[int, ...]:
        """The bytes that crossed each port of the topology."""
        return self.simulation.port_bytes

    def __str__(self) -> str:
        bound = self.bound
        limit = "a message's latency"
        if bound.port is not None:
            rate = f"{bound.bandwidth_bytes_per_second / 1e9:.6g} GB/s"
            limit = f"{bound.port} carries {bound.bytes} bytes at {rate}"
        ranks = f"{self.ranks} rank{'s' * (self.ranks != 1)}"
        hosts = f"{self.hosts} host{'s' * (self.hosts != 1)}"
        lines = [
            f"{self.kind} of {self.bytes} bytes on {self.topology}: {ranks} on {hosts}",
            f"  algorithm     {self.algorithm}: {self.why}",
            f"  lower bound   {_format_time(bound.nanoseconds)}: {limit}",
            f"  predicted     {_format_time(self.predicted_nanoseconds)}, "
            f"{self.fraction:.2f} of the lower bound's speed",
        ]
        for number, other in enumerate(self.alternatives):
            title = "alternatives" if number == 0 else ""
            time = "does not run" if other.nanoseconds is None else _format_time(other.nanoseconds)
            lines.append(f"  {title:<12}  {time}  {other.name}: {other.why}")
        if not self.alternatives:
            lines.append("  alternatives  none")
        for number, kind in enumerate(self.port_kinds):
            title = "ports" if number == 0 else ""
            lines.append(
                f"  {title:<12}  {kind.kind}: {kind.ports} carry {kind.bytes} bytes, "
                f"{kind.busiest} {kind.busiest_bytes} in {_format_time(kind.busiest_nanoseconds)}"
            )
        how = (
            "all ranks simulated"
            if self.simulated_ranks == self.ranks
            else f"{self.simulated_ranks} simulated, for all of equal roles"
        )
        lines.append(f"  messages      {self.messages}, steps {self.steps}, {how}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Give everything but the timeline as JSON.

        Returns
        -------
        str
            An object; `port_bytes` by name of port where there are at most 256 of them.
        """
        ports = self.simulation.roles.topology.ports
        found: dict[str, Any] = {
            "kind": self.kind,
            "topology": self.topology,
            "ranks": self.ranks,
            "hosts": self.hosts,
            "bytes": self.bytes,
            "algorithm": self.algorithm,
            "why": self.why,
            "lower_bound": _as_dict(self.bound),
            "predicted_nanoseconds": self.predicted_nanoseconds,
            "fraction": self.fraction,
            "alternatives": [_as_dict(one) for one in self.alternatives],
            "port_kinds": [_as_dict(one) for one in self.port_kinds],
            "messages": self.messages,
            "steps": self.steps,
            "simulated_ranks": self.simulated_ranks,
        }
        if len(ports) <= _LISTED_PORTS:
            names = [port.name for port in ports]
            found["port_bytes"] = dict(zip(names, self.port_bytes, strict=True))
        return json.dumps(found, indent=2)


def explain(
    kind: CollectiveKind,
    candidates: Sequence[tuple[str, Plans]],
    topology: Topology,
    count: int,
    *,
    nbytes: int,
    root: int = 0,
    replicated: bool = False,
    chosen: str | None = None,
    reasons: Mapping[str, str] | None = None,
) -> Explanation:
    """Predict every candidate and say what the choice among them is worth.

    Parameters
    ----------
    kind : {"broadcast", "allgather", "reduce_scatter", "allreduce"}
        What is to be done, for its lower bound.
    candidates : sequence of (str, plans)
        Algorithms by name, with the plan of each rank: a sequence, a mapping, or what makes them.
    topology : Topology
        Where.
    count : int
        Elements of the vector.
    nbytes : int
        Its bytes, in the element type of the source.
    root : int, default 0
        Of a broadcast.
    replicated : bool, default False
        Whether the ranks of a host have one copy of the result between them.
    chosen : str, optional
        Which candidate to explain. Default: the fastest by prediction, of equals the first.
    reasons : mapping of str to str, optional
        What speaks for each candidate.

    Returns
    -------
    Explanation
        Pure: no clock, no file.

    Raises
    ------
    UsageError
        There are no candidates, none is named `chosen`, or two have one name.
    SimulationError
        The one to be explained does not run.
    """
    names = [name for name, _ in candidates]
    if not names or len(set(names)) != len(names):
        raise UsageError(f"wanted candidates of different names, at least one; got {names}")
    if chosen is not None and chosen not in names:
        raise UsageError(f"wanted one of {', '.join(names)}; got {chosen!r}")
    reasons = reasons or {}
    simulations: dict[str, Simulation] = {}
    failures: dict[str, SimulationError] = {}
    for name, plans in candidates:
        try:
            simulations[name] = _predict(plans, topology, count)
        except SimulationError as error:
            failures[name] = error
    best = chosen or min(
        simulations, key=lambda name: simulations[name].makespan_nanoseconds, default=names[0]
    )
    if best in failures:
        raise failures[best]
    simulation = simulations[best]
    return Explanation(
        kind=kind,
        topology=topology.name,
        ranks=topology.world_size,
        hosts=len(topology.hosts),
        bytes=nbytes,
        algorithm=best,
        why=reasons.get(best, "given by the caller"),
        bound=_find_bound(kind, topology, nbytes, root, replicated=replicated),
        predicted_nanoseconds=simulation.makespan_nanoseconds,
        alternatives=tuple(
            Alternative(name, None, str(failures[name]))
            if name in failures
            else Alternative(
                name,
                simulations[name].makespan_nanoseconds,
                reasons.get(name, "given by the caller"),
            )
            for name in names
            if name != best
        ),
        port_kinds=_sum_up(topology, simulation.port_bytes),
        messages=simulation.messages,
        steps=simulation.steps,
        simulated_ranks=len(simulation.lanes),
        simulation=simulation,
    )


def _predict(plans: Plans, topology: Topology, count: int) -> Simulation:
    # Plans of many ranks take longer to make than to simulate.
    plan_of = functools.cache(plan_getter(plans, topology))
    roles = find_roles(plan_of, topology, count)
    return simulate(plan_of, topology, count, roles=roles, check_roles=False)


def _find_bound(
    kind: CollectiveKind, topology: Topology, nbytes: int, root: int, *, replicated: bool
) -> Bound:
    nanoseconds = lower_bound_nanoseconds(kind, topology, nbytes, root, replicated=replicated)
    carried = port_bytes_bound(kind, topology, nbytes, root, replicated=replicated)
    rates = topology.bandwidths_bytes_per_second
    times = [transfer_nanoseconds(*one) for one in zip(carried, rates, strict=True)]
    busiest = times.index(max(times))
    if nanoseconds > times[busiest]:
        # Longer than any port takes: it is that of the network, and a latency.
        network = [
            time if port.kind.startswith(("nic", "link")) else -1
            for time, port in zip(times, topology.ports, strict=True)
        ]
        busiest = network.index(max(network))
    if not carried[busiest]:
        return Bound(nanoseconds, None, 0, 0)
    name = topology.ports[busiest].name
    return Bound(nanoseconds, name, carried[busiest], rates[busiest])


def _sum_up(topology: Topology, port_bytes: Sequence[int]) -> tuple[KindOfPorts, ...]:
    kinds: dict[str, list[int]] = {}
    for number, (port, carried) in enumerate(zip(topology.ports, port_bytes, strict=True)):
        if carried:
            kinds.setdefault(port.kind, []).append(number)
    rates = topology.bandwidths_bytes_per_second
    found = []
    for kind, numbers in kinds.items():
        times = [transfer_nanoseconds(port_bytes[number], rates[number]) for number in numbers]
        longest = max(times)
        busiest = numbers[times.index(longest)]
        found.append(
            KindOfPorts(
                kind,
                len(numbers),
                sum(port_bytes[number] for number in numbers),
                topology.ports[busiest].name,
                port_bytes[busiest],
                longest,
            )
        )
    return tuple(found)


def _as_dict(one: Bound | Alternative | KindOfPorts) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def _format_time(nanoseconds: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.4g} {unit}"
    return f"{nanoseconds} ns"
