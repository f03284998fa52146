"""Straight to every host, and from the first rank there to its neighbours: nobody waits for relays.

Where all hosts have as much to send as there is to receive, as in an all-gather, relays gain
nothing, and what does not wait for them is done sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.resharding.makespan import group_of
from cocoll.resharding.schedule import Group, Hop, Schedule, Transfer

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem

__all__ = ["send_straight"]


def send_straight(problem: Problem) -> Schedule:
    """Let the holder whose NIC has the least to send so far send a task to every host.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.

    Returns
    -------
    Schedule
        One group; two where summands are added first. Largest tasks choose first.
    """
    groups: list[Group] = []
    for numbers in problem.stages:
        loads: dict[int | None, int] = {}
        largest_first = sorted(numbers, key=lambda number: -problem.tasks[number].nbytes)
        found = {
            number: _transfer(problem, number, turn, loads)
            for turn, number in enumerate(largest_first)
        }
        groups.append(group_of(problem, [found[number] for number in numbers]))
    return Schedule("fan_out", tuple(groups))


def _transfer(problem: Problem, number: int, turn: int, loads: dict[int | None, int]) -> Transfer:
    task = problem.tasks[number]
    of_host: dict[int, list[int]] = {}
    for needer in task.needers:
        of_host.setdefault(problem.hosts[needer], []).append(needer)
    root = min(task.holders, key=lambda holder: _load(problem, holder, loads))
    own = problem.hosts[root]
    # None where there is one host: then nothing leaves it.
    port = problem.nic_out(root)
    loads[port] = loads.get(port, 0) + task.nbytes * len(set(of_host) - {own})
    hops: list[Hop] = []
    behind: list[Hop] = []
    count = len(problem.topology.host_names)
    # Each host begins with the one after it: then all receive from the start.
    for host in sorted(of_host, key=lambda host: (host - own) % count):
        ranks = of_host[host]
        if host == own:
            behind += [(root, rank) for rank in ranks]
            continue
        entry = ranks[turn % len(ranks)]
        hops.append((root, entry))
        behind += [(entry, rank) for rank in ranks if rank != entry]
    return Transfer(number, 0, task.nbytes, (*hops, *behind))


def _load(problem: Problem, holder: int, loads: dict[int | None, int]) -> tuple[int, int]:
    return loads.get(problem.nic_out(holder), 0), holder
