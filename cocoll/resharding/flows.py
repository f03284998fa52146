"""A time that no schedule beats, from all ports together: the best flows with relays, fractional.

A cut looks at one set of ports. Where ports are short in turn (a half-duplex NIC that relays what
it receives carries it twice) all of them together prove more. The bytes of a schedule go over arcs
between ranks; to each needer lead as many of these as make a flow of all that it needs, and flows
to several needers may share what goes over an arc. A linear program gives the least time in which
ports carry such amounts, and no schedule takes less.

References
----------
N. Maculan, "The Steiner problem in graphs", Annals of Discrete Mathematics 31, 1987 (a flow to each
terminal); A. Neumaier, O. Shcherbina, "Safe bounds in linear and mixed-integer linear programming",
Mathematical Programming 99, 2004 (a bound that holds though the solver rounds).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cocoll.resharding.bounds import Bound, Latencies, nics_of
from cocoll.resharding.sources import Demand, demands_of, sources_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cocoll.resharding.problem import Problem

__all__ = ["MOST_VARIABLES", "flow_bound"]

#: Larger programs are not built.
MOST_VARIABLES = 6_000

_NANOSECONDS = 10**9
# Shares of ports are counted in parts of 2**-20, so that schedules may be that much shorter.
_ROUNDING = 1e-6


class _Network(NamedTuple):
    """Places with arcs from each to each.

    Attributes
    ----------
    name : str
        What places are.
    arcs : list of (int, int)
        From which place to which.
    crossed : list of tuple of (int, int)
        Of each arc: resources, and how often a byte crosses each.
    rates : sequence of int
        Bytes per second of each resource.
    demands : list of Demand
        What must go.
    latency_nanoseconds : int
        Of any message.
    """

    name: str
    arcs: list[tuple[int, int]]
    crossed: list[tuple[tuple[int, int], ...]]
    rates: Sequence[int]
    demands: list[Demand]
    latency_nanoseconds: int


def flow_bound(problem: Problem, known_nanoseconds: int) -> Bound | None:
    """Give the time of the best flows.

    Parameters
    ----------
    problem : Problem
        What is to be done.
    known_nanoseconds : int
        The makespan of a schedule; nothing above it is looked for.

    Returns
    -------
    Bound or None
        Between ranks where that program is small enough, else between hosts; None where that one
        is too large as well, where SciPy is missing, or where HiGHS finds nothing.
    """
    if not problem.moving or known_nanoseconds <= 0:
        return None
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        return None
    network = _network(problem)
    seconds = None if network is None else _least_seconds(network, known_nanoseconds / _NANOSECONDS)
    if network is None or seconds is None:
        return None
    nbytes = sum([demand.nbytes for demand in network.demands])
    return Bound(
        int(seconds * (1 - _ROUNDING) * _NANOSECONDS) + network.latency_nanoseconds,
        f"{nbytes} bytes: the best flows between {network.name}, relayed by any, through all ports "
        "together",
    )


def _network(problem: Problem) -> _Network | None:
    """Give the network of ranks, or that of hosts, which is smaller and proves less."""
    sources = sources_of(problem)
    latencies = Latencies(problem)
    ranks = problem.participants
    demands = _that_move(demands_of(sources, range(problem.topology.world_size)))
    if _is_small(len(ranks), demands):
        arcs = [(one, other) for one in ranks for other in ranks if one != other]
        crossed = [problem.crossing(*arc).ports for arc in arcs]
        return _Network("ranks", arcs, crossed, problem.rates, demands, latencies.least)
    demands = _that_move(demands_of(sources, problem.hosts))
    if _is_small(len(problem.members), demands):
        return _of_hosts(problem, demands, latencies.between_hosts)
    return None


def _that_move(demands: Iterable[Demand]) -> list[Demand]:
    return [demand for demand in demands if not demand.needers <= demand.holders]


def _is_small(places: int, demands: Iterable[Demand]) -> bool:
    """Say whether a program has few enough variables: arcs of each demand, and of each flow."""
    flows = [len(demand.needers - demand.holders) for demand in demands]
    variables = places * (places - 1) * sum([count + (count > 1) for count in flows])
    return 0 < variables <= MOST_VARIABLES


def _of_hosts(problem: Problem, demands: list[Demand], latency: int) -> _Network:
    """Let all NICs of a host be one, as wide as they are together."""
    rates: list[int] = []
    sides: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for host in problem.members:
        out, into = (set(nics_of(problem, [host], out=leaving)) for leaving in (True, False))
        both = [len(rates), len(rates) + 1]
        rates += [sum([problem.rates[port] for port in side]) for side in (out, into)]
        if out & into:
            # What comes and what goes share them.
            rates.append(sum([problem.rates[port] for port in out | into]))
            sides[host] = (both[0], len(rates) - 1), (both[1], len(rates) - 1)
        else:
            sides[host] = (both[0],), (both[1],)
    hosts = list(problem.members)
    arcs = [(one, other) for one in hosts for other in hosts if one != other]
    crossed = [
        tuple([(resource, 1) for resource in (*sides[one][0], *sides[other][1])])
        for one, other in arcs
    ]
    return _Network("hosts", arcs, crossed, rates, demands, latency)


class _Rows:
    """Rows of a sparse matrix."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, float]] = []
        self.count = 0

    def add(self, coefficients: Iterable[tuple[int, float]]) -> None:
        """Append one."""
        self._entries += [(self.count, variable, value) for variable, value in coefficients]
        self.count += 1

    def matrix(self, variables: int) -> NDArray[np.float64]:
        """Give them, in scipy.sparse's form."""
        from scipy.sparse import csr_array

        rows, columns, values = zip(*self._entries, strict=True)
        found: NDArray[np.float64] = csr_array(
            (values, (rows, columns)), shape=(self.count, variables)
        )
        return found


def _least_seconds(network: _Network, known_seconds: float) -> float | None:
    """Solve the program; give what its dual proves. Time is counted in what is known."""
    import numpy as np
    from scipy.optimize import linprog

    smaller, equal = _Rows(), _Rows()
    ends: list[float] = []
    loads: dict[int, list[tuple[int, float]]] = {}
    # Variable 0 is the time.
    variables = 1
    for demand in network.demands:
        useful = [place for place, arc in enumerate(network.arcs) if arc[1] not in demand.holders]
        used = {place: variables + number for number, place in enumerate(useful)}
        variables += len(useful)
        for place, variable in used.items():
            for resource, times in network.crossed[place]:
                value = demand.nbytes * times / (network.rates[resource] * known_seconds)
                loads.setdefault(resource, []).append((variable, value))
        needers = sorted(demand.needers - demand.holders)
        for needer in needers:
            flow = used
            if len(needers) > 1:
                flow = {place: variables + number for number, place in enumerate(useful)}
                variables += len(useful)
                for place, variable in flow.items():
                    smaller.add([(variable, 1.0), (used[place], -1.0)])
            _conserve(network.arcs, flow, needer, equal, ends)
    for coefficients in loads.values():
        smaller.add([(0, -1.0), *coefficients])
    cost = np.zeros(variables)
    cost[0] = 1.0
    upper, exact = smaller.matrix(variables), equal.matrix(variables)
    solved = linprog(
        cost,
        A_ub=upper,
        b_ub=np.zeros(smaller.count),
        A_eq=exact,
        b_eq=np.array(ends),
        bounds=(0.0, 1.0),
        method="highs",
    )
    if solved.x is None:
        return None
    # Whatever the solver's multipliers are, they prove this: no variable is above 1.
    prices = np.minimum(solved.ineqlin.marginals, 0.0)
    gains = solved.eqlin.marginals
    left = cost - upper.T @ prices - exact.T @ gains
    proved = float(gains @ np.array(ends)) + float(np.minimum(left, 0.0).sum())
    return max(0.0, proved) * known_seconds


def _conserve(
    arcs: Sequence[tuple[int, int]],
    flow: dict[int, int],
    needer: int,
    rows: _Rows,
    ends: list[float],
) -> None:
    """Let what comes to a place go on from there, but for one unit that stays with the needer."""
    at: dict[int, list[tuple[int, float]]] = {}
    for place, variable in flow.items():
        source, destination = arcs[place]
        at.setdefault(destination, []).append((variable, 1.0))
        at.setdefault(source, []).append((variable, -1.0))
    reached = {arcs[place][1] for place in flow}
    for place in sorted(reached):
        rows.add(at[place])
        ends.append(1.0 if place == needer else 0.0)
