"""A ring over one leader of each host, which gives its host's other needers what it gets.

References
----------
NVIDIA, nccl-extensions, ``ncclReshard`` with its RING staging: replicas take turns as senders,
chunks of 256 KiB go round, nothing is searched for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.resharding.routes import errands_of, sender_choices
from cocoll.resharding.schedule import Group, Hop, Schedule, Transfer

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem

__all__ = ["pass_round"]

CHUNK_BYTES = 256 << 10


def pass_round(problem: Problem) -> Schedule:
    """Let all tasks go at once, each from the replica whose turn it is, round a ring of leaders.

    Parameters
    ----------
    problem : Problem
        Tasks and ports.

    Returns
    -------
    Schedule
        One group; two where summands are added first.
    """
    stages: tuple[list[Transfer], list[Transfer]] = ([], [])
    for turn, number in enumerate(problem.moving):
        task = problem.tasks[number]
        for errand in errands_of(problem, task.holders, task.needers):
            senders = sender_choices(problem, errand)
            hosts: dict[int, list[int]] = {}
            for rank in errand.needers:
                hosts.setdefault(problem.hosts[rank], []).append(rank)
            members = list(hosts.values())
            first = turn % len(members)
            head = senders[turn % len(senders)]
            hops: list[Hop] = []
            for ranks in (*members[first:], *members[:first]):
                hops.append((head, ranks[0]))
                head = ranks[0]
                hops += [(head, rank) for rank in ranks[1:]]
            stages[0 if task.adds else 1].append(Transfer(number, 0, task.nbytes, tuple(hops)))
    groups = []
    for transfers in stages:
        if transfers:
            longest = max(transfer.stop for transfer in transfers)
            groups.append(Group(tuple(transfers), -(-longest // CHUNK_BYTES)))
    return Schedule("leader_ring", tuple(groups))
