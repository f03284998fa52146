"""Slices striped over replicas, NICs and relays, all at once: the fractional optimum, rounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cocoll.resharding.makespan import group_of
from cocoll.resharding.packing import Packing, divide_equally, divide_exactly, divide_priced
from cocoll.resharding.routes import MOST_TREES, Errand, errands_of, joint_trees, relay_trees
from cocoll.resharding.schedule import Group, Hop, Schedule, Transfer
from cocoll.resharding.ways import Ways

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cocoll.resharding.problem import Problem

__all__ = ["stripe"]

# A stripe smaller than this part of its slice, or than this, goes with another one.
_LEAST_PART = 0.01
_LEAST_STRIPE_BYTES = 1 << 10
# Of all trees together.
_MOST_HOPS = 200_000


class _Bundle(NamedTuple):
    """What tasks with the same holders and needers have to do, and ways to do it."""

    tasks: list[int]
    trees: list[tuple[Hop, ...]]


def stripe(problem: Problem, goal_nanoseconds: int = 0) -> Schedule:
    """Cut every slice into stripes that leave by different ports, and let all go together.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.
    goal_nanoseconds : int, default 0
        A lower bound of the busiest port; no better division is looked for within 0.2 % of it.

    Returns
    -------
    Schedule
        One group; two where summands are added first.
    """
    groups: list[Group] = []
    for numbers in problem.stages:
        transfers = _stripes(problem, numbers, goal_nanoseconds)
        groups.append(group_of(problem, transfers))
    return Schedule("striped", tuple(groups))


def _stripes(problem: Problem, numbers: Sequence[int], goal_nanoseconds: int) -> list[Transfer]:
    bundles = _bundles(problem, numbers)
    nbytes = [sum(problem.tasks[task].nbytes for task in bundle.tasks) for bundle in bundles]
    trees = [hops for bundle in bundles for hops in bundle.trees]
    errand_of = [index for index, bundle in enumerate(bundles) for _ in bundle.trees]
    packing = Packing.build(nbytes, errand_of, Ways(problem, trees).loads(), problem.rates)
    goal_seconds = goal_nanoseconds / 1e9
    amounts = _divide(packing.without_idle_ports(goal_seconds), goal_seconds)
    transfers: list[Transfer] = []
    first = 0
    for bundle in bundles:
        shares = amounts[first : first + len(bundle.trees)].tolist()
        first += len(bundle.trees)
        transfers += _cut(problem, bundle, shares)
    return transfers


def _divide(packing: Packing, goal_seconds: float) -> NDArray[np.float64]:
    equal = divide_equally(packing)
    if len(packing.nbytes) == len(equal) or _peak(packing, equal) <= goal_seconds * 1.002:
        return equal
    priced = divide_priced(packing, equal, goal_seconds)
    if _peak(packing, priced) <= goal_seconds * 1.005:
        return priced
    exact = divide_exactly(packing)
    if exact is not None and _peak(packing, exact) < _peak(packing, priced):
        return exact
    return priced


def _peak(packing: Packing, amounts: NDArray[np.float64]) -> float:
    return float(packing.loads(amounts).max(initial=0.0))


def _bundles(problem: Problem, numbers: Sequence[int]) -> list[_Bundle]:
    equal: dict[int, list[int]] = {}
    for number in numbers:
        equal.setdefault(problem.kinds[number], []).append(number)
    bundles = []
    total = sum(problem.tasks[number].nbytes for number in numbers)
    for turn, tasks in enumerate(equal.values()):
        holders, needers = problem.tasks[tasks[0]].holders, problem.tasks[tasks[0]].needers
        # Where there cannot be all trees for all, large bundles have more.
        room = _MOST_HOPS * sum(problem.tasks[task].nbytes for task in tasks) // total
        most = max(1, min(MOST_TREES, room // len(needers)))
        errands = errands_of(problem, holders, needers)
        if _may_relay(problem, errands):
            trees = joint_trees(problem, errands, turn, most)
            bundles.append(_Bundle(tasks, trees))
        else:
            bundles += [
                _Bundle(tasks, relay_trees(problem, errand, turn, most)) for errand in errands
            ]
    return bundles


def _may_relay(problem: Problem, errands: Sequence[Errand]) -> bool:
    """Say whether needers beside a holder have NICs that the holders have not."""
    if len(errands) < 2 or errands[-1].local:
        return False
    out = {problem.nic_out(rank) for rank in errands[-1].holders}
    return any(problem.nic_out(rank) not in out for rank in errands[-1].served)


def _cut(problem: Problem, bundle: _Bundle, shares: Sequence[float]) -> list[Transfer]:
    """Lay the stripes of each tree over the tasks of a bundle, one after the other."""
    total = sum(shares)
    least = max(_LEAST_PART * total, min(_LEAST_STRIPE_BYTES, total))
    kept = [share if share >= least else 0.0 for share in shares]
    if not any(kept):
        kept[max(range(len(shares)), key=lambda tree: (shares[tree], -tree))] = 1.0
    last = max(tree for tree, share in enumerate(kept) if share)
    if sum(map(bool, kept)) == 1:
        hops = bundle.trees[last]
        return [Transfer(task, 0, problem.tasks[task].nbytes, hops) for task in bundle.tasks]
    whole = sum(problem.tasks[task].nbytes for task in bundle.tasks)
    factor = whole / sum(kept)
    ends = []
    reached = 0.0
    for share in kept:
        reached += share * factor
        ends.append(reached)
    transfers = []
    tree, begun = 0, 0
    for number in bundle.tasks:
        nbytes = problem.tasks[number].nbytes
        grain = problem.grain_bytes(number)
        at = 0
        while at < nbytes:
            while tree < last and (not kept[tree] or ends[tree] - begun < at + grain / 2):
                tree += 1
            stop = nbytes
            if tree < last:
                stop = min(nbytes, round((ends[tree] - begun) / grain) * grain)
            if stop > at:
                transfers.append(Transfer(number, at, stop, bundle.trees[tree]))
                at = stop
            if at < nbytes:
                tree += 1
        begun += nbytes
    return transfers
