"""How much of each errand takes which of its trees, so that the busiest port is idle soonest.

A fractional packing: a number for each tree, those of an errand adding up to its bytes. An equal
division comes first, which is the best where everything is symmetric. Elsewhere a price of each
port that rises steeply with its load leads to good divisions within a few dozen rounds, and SciPy's
HiGHS gives the best one where SciPy is there.

References
----------
N. Garg, J. Könemann, "Faster and simpler algorithms for multicommodity flow and other fractional
packing problems", FOCS 1998 (prices exponential in loads); M. Frank, P. Wolfe, "An algorithm for
quadratic programming", Naval Research Logistics Quarterly 3, 1956 (the steps); Q. Huangfu,
J. Hall, "Parallelizing the dual revised simplex method", Mathematical Programming Computation 10,
2018 (HiGHS).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Packing", "divide_equally", "divide_exactly", "divide_priced"]

# How steeply prices rise: a port is priced at the power of its load.
_STEEPNESS = 40.0
_STEPS = 160
_MOST_ENTRIES = 200_000


class Packing(NamedTuple):
    """Trees and what they load; arrays have an entry for each (tree, port).

    Attributes
    ----------
    errand_of : ndarray of int, shape (trees,)
        Whose tree it is; the trees of an errand stand together.
    nbytes : ndarray of float, shape (errands,)
        Of each errand.
    tree, port : ndarray of int, shape (entries,)
        Which tree loads which port.
    seconds : ndarray of float, shape (entries,)
        How long the port is busy with one byte of the tree.
    ports : int
        How many there are.
    """

    errand_of: NDArray[np.int64]
    nbytes: NDArray[np.float64]
    tree: NDArray[np.int64]
    port: NDArray[np.int64]
    seconds: NDArray[np.float64]
    ports: int

    @classmethod
    def build(
        cls,
        nbytes: Sequence[int],
        errand_of: Sequence[int],
        loads: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
        rates: Sequence[int],
    ) -> Packing:
        """Put trees into arrays.

        Parameters
        ----------
        nbytes : sequence of int
            Of each errand.
        errand_of : sequence of int
            The errand of each tree.
        loads : tuple of ndarray, each of shape (entries,)
            Tree, port, and how often a byte of the tree crosses the port.
        rates : sequence of int
            Bytes per second of each port.
        """
        import numpy as np

        tree, port, times = loads
        used, place = np.unique(port, return_inverse=True)
        seconds = times / np.array(rates, dtype=np.float64)[port]
        return cls(
            np.array(errand_of, dtype=np.int64),
            np.array(nbytes, dtype=np.float64),
            tree,
            place,
            seconds,
            len(used),
        )

    def without_idle_ports(self, goal_seconds: float) -> Packing:
        """Leave out ports that are done by some time whatever the division.

        Parameters
        ----------
        goal_seconds : float
            That time.

        Returns
        -------
        Packing
            With the same trees; where the busiest port is busy for longer, it is the same one.
        """
        import numpy as np

        keys, place = np.unique(
            self.errand_of[self.tree] * self.ports + self.port, return_inverse=True
        )
        most = np.zeros(len(keys))
        np.maximum.at(most, place, self.seconds)
        weights = most * self.nbytes[keys // max(1, self.ports)]
        loads = np.bincount(keys % max(1, self.ports), weights=weights, minlength=self.ports)
        busy = loads > goal_seconds
        kept = busy[self.port]
        number = np.cumsum(busy) - 1
        return self._replace(
            tree=self.tree[kept],
            port=number[self.port[kept]],
            seconds=self.seconds[kept],
            ports=int(busy.sum()),
        )

    def loads(self, amounts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Give how long each port is busy, in seconds, with some bytes on each tree."""
        import numpy as np

        weights = self.seconds * amounts[self.tree]
        carried: NDArray[np.float64] = np.bincount(
            self.port, weights=weights, minlength=self.ports
        ).astype(np.float64)
        return carried


def divide_equally(packing: Packing) -> NDArray[np.float64]:
    """Give every tree of an errand the same.

    Returns
    -------
    ndarray of float, shape (trees,)
        Bytes of each tree.
    """
    import numpy as np

    counts = np.bincount(packing.errand_of, minlength=len(packing.nbytes))
    shares: NDArray[np.float64] = (packing.nbytes / np.maximum(counts, 1))[packing.errand_of]
    return shares


def divide_priced(
    packing: Packing, amounts: NDArray[np.float64], goal_seconds: float
) -> NDArray[np.float64]:
    """Move bytes to trees whose ports are idle, until the busiest is near its goal.

    Parameters
    ----------
    packing : Packing
        The trees.
    amounts : ndarray of float, shape (trees,)
        Where to start.
    goal_seconds : float
        It stops when the busiest port is within 0.2 % of this.

    Returns
    -------
    ndarray of float, shape (trees,)
        The best that was found.
    """
    import numpy as np

    loads = packing.loads(amounts)
    best, lowest = amounts, float(loads.max(initial=0.0))
    starts = np.flatnonzero(np.diff(packing.errand_of, prepend=-1))
    for _ in range(_STEPS):
        if lowest <= goal_seconds * 1.002:
            break
        prices = (loads / loads.max()) ** _STEEPNESS
        costs = np.bincount(
            packing.tree,
            weights=packing.seconds * prices[packing.port],
            minlength=len(amounts),
        )
        # The cheapest tree of each errand, the first of equals.
        cheap = costs <= np.minimum.reduceat(costs, starts)[packing.errand_of]
        count: NDArray[np.int64] = np.cumsum(cheap)
        before = (count - cheap)[starts][packing.errand_of]
        chosen = cheap & (count == before + 1)
        target = np.where(chosen, packing.nbytes[packing.errand_of], 0.0)
        of_target = packing.loads(target)
        step = _best_step(loads, of_target)
        if step <= 0.0:
            break
        amounts = amounts + step * (target - amounts)
        # Loads move as amounts do; adding them up anew would take as long as all the rest.
        loads = loads + step * (of_target - loads)
        peak = float(loads.max())
        if peak < lowest:
            best, lowest = amounts, peak
    return best


def _best_step(now: NDArray[np.float64], target: NDArray[np.float64]) -> float:
    """Give how far to go so that a smooth maximum of the loads is least."""
    import numpy as np

    low, high = 0.0, 1.0
    scale = float(max(now.max(), target.max()))
    direction = (target - now) / scale
    base = now / scale
    for _ in range(14):
        middle = (low + high) / 2
        loads = base + middle * direction
        slope = float(np.sum((loads / loads.max()) ** (_STEEPNESS - 1) * direction))
        if slope < 0:
            low = middle
        else:
            high = middle
    return low


def divide_exactly(packing: Packing) -> NDArray[np.float64] | None:
    """Give the best division, by linear programming.

    Parameters
    ----------
    packing : Packing
        The trees.

    Returns
    -------
    ndarray of float, shape (trees,) or None
        Bytes of each tree; None where SciPy is missing or the packing is too large for it.
    """
    try:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array
    except ImportError:
        return None
    import numpy as np

    trees, entries = len(packing.errand_of), len(packing.tree)
    if entries > _MOST_ENTRIES:
        return None
    # Bytes are counted in parts of all, and time in what all would take on average: HiGHS wants
    # numbers near one.
    unit = float(packing.nbytes.sum())
    scale = float(packing.loads(divide_equally(packing)).max())
    minus_time = np.full(packing.ports, -1.0)
    upper = csr_array(
        (
            np.concatenate([packing.seconds * (unit / scale), minus_time]),
            (
                np.concatenate([packing.port, np.arange(packing.ports)]),
                np.concatenate([packing.tree, np.full(packing.ports, trees)]),
            ),
        ),
        shape=(packing.ports, trees + 1),
    )
    equal = csr_array(
        (np.ones(trees), (packing.errand_of, np.arange(trees))),
        shape=(len(packing.nbytes), trees + 1),
    )
    cost = np.zeros(trees + 1)
    cost[-1] = 1.0
    solved = linprog(
        cost,
        A_ub=upper,
        b_ub=np.zeros(packing.ports),
        A_eq=equal,
        b_eq=packing.nbytes / unit,
        method="highs",
        options={"presolve": True},
    )
    if solved.x is None:
        return None
    amounts: NDArray[np.float64] = np.maximum(solved.x[:-1], 0.0) * unit
    return amounts
