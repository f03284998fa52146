"""Ways for the bytes of one task: chains over hosts, and relays that serve the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cocoll.resharding.problem import Problem
    from cocoll.resharding.schedule import Hop

__all__ = [
    "MOST_TREES",
    "Errand",
    "RailSender",
    "chain_hops",
    "errands_of",
    "joint_trees",
    "relay_trees",
    "sender_choices",
]

#: Of one errand, that a solver chooses among.
MOST_TREES = 48
# Above this many hosts a relay that serves all others has too many hops; chains take over.
_MOST_RELAYED_HOSTS = 8
_MOST_ROTATIONS = 4


class Errand(NamedTuple):
    """A part of a task's needers that is served by itself.

    Attributes
    ----------
    holders : tuple of int
        Who may send.
    needers : tuple of int
        Who must get it.
    local : bool
        Whether all of them are on one host.
    served : tuple of int, default ()
        Needers of the task that others serve: they get everything there, so they cannot relay.
    """

    holders: tuple[int, ...]
    needers: tuple[int, ...]
    local: bool
    served: tuple[int, ...] = ()


def errands_of(problem: Problem, holders: Sequence[int], needers: Sequence[int]) -> list[Errand]:
    """Divide needers into those that have a holder on their host, host by host, and the others.

    Parameters
    ----------
    problem : Problem
        Where ranks are.
    holders, needers : sequence of int
        Of a task.

    Returns
    -------
    list of Errand
        Bytes that are on a host already do not come by its NIC again.
    """
    hosts = problem.hosts
    having: dict[int, list[int]] = {}
    for rank in holders:
        having.setdefault(hosts[rank], []).append(rank)
    local: dict[int, list[int]] = {}
    remote = []
    for rank in needers:
        if hosts[rank] in having:
            local.setdefault(hosts[rank], []).append(rank)
        else:
            remote.append(rank)
    found = [Errand(tuple(having[host]), tuple(ranks), True) for host, ranks in local.items()]
    if remote:
        served = tuple([rank for errand in found for rank in errand.needers])
        found.append(Errand(tuple(holders), tuple(remote), False, served))
    return found


def sender_choices(problem: Problem, errand: Errand) -> tuple[int, ...]:
    """Give holders that differ in the ports by which they send; the first of each kind.

    Parameters
    ----------
    problem : Problem
        The ports.
    errand : Errand
        Who holds and who needs.
    """
    needer = errand.needers[0]
    kinds: dict[object, int] = {}
    for holder in errand.holders:
        kinds.setdefault(problem.crossing(holder, needer).ports[:-1] or holder, holder)
    return tuple(kinds.values())


def chain_hops(problem: Problem, root: int, needers: Sequence[int]) -> tuple[Hop, ...]:
    """Give the chain from a rank through all needers, host by host.

    Parameters
    ----------
    problem : Problem
        Where ranks are.
    root : int
        Who has the bytes.
    needers : sequence of int
        Who needs them; those on the root's host come first.

    Returns
    -------
    tuple of (int, int)
        The chain enters a host once, and goes on to the next from its first rank there.
    """
    hops: list[Hop] = []
    head = root
    for members in _by_host(problem, root, needers):
        if problem.hosts[members[0]] != problem.hosts[root]:
            hops.append((head, members[0]))
            head = members[0]
            hops += itertools.pairwise(members)
        else:
            hops += zip((root, *members), members, strict=False)
    return tuple(hops)


def _by_host(problem: Problem, root: int, needers: Sequence[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {problem.hosts[root]: []}
    for rank in needers:
        found.setdefault(problem.hosts[rank], []).append(rank)
    return [members for members in found.values() if members]


def relay_trees(
    problem: Problem, errand: Errand, turn: int, most: int = MOST_TREES
) -> list[tuple[Hop, ...]]:
    """Give trees that together can keep all ports busy: one for each sender and each first needer.

    Parameters
    ----------
    problem : Problem
        The ports.
    errand : Errand
        Who holds and who needs.
    turn : int
        Which trees are taken where there are too many, and who sends where several could alike.
    most : int, default MOST_TREES
        How many trees at most.

    Returns
    -------
    list of tuple of (int, int)
        In each tree the first needer (the first host, where they are on others) passes on to all
        others, so that the sender's port carries each byte once and no way is longer than two
        hops, and one more inside a host.
    """
    if errand.local:
        return _local_trees(errand, turn, most)
    rails = problem.rails
    groups = _by_host(problem, errand.holders[0], errand.needers)
    widest = max(len(rails[problem.hosts[group[0]]]) for group in groups)
    firsts = len(groups) if len(groups) <= _MOST_RELAYED_HOSTS else _MOST_ROTATIONS
    key = errand.holders, errand.served, widest
    lanes = problem.lanes.get(key)
    if lanes is None:
        senders = _rail_senders(problem, errand)
        # Where a host has more NICs than its senders' one, each of its NICs receives a part.
        lanes = [(sender, rail) for sender in senders for rail in _rails_for(sender, widest)]
        problem.lanes[key] = lanes
    places = _spread(len(lanes) * firsts, most, turn)
    chosen = {(*lanes[place // firsts], place % firsts): None for place in dict.fromkeys(places)}
    return [
        _remote_tree(
            problem, groups, sender.ranks(turn), rail, first * len(groups) // firsts, number + turn
        )
        for number, (sender, rail, first) in enumerate(chosen)
    ]


def joint_trees(
    problem: Problem, errands: Sequence[Errand], turn: int, most: int = MOST_TREES
) -> list[tuple[Hop, ...]]:
    """Give trees that serve all errands of a task at once, so that a needer may relay to a NIC.

    Parameters
    ----------
    problem : Problem
        The ports.
    errands : sequence of Errand
        As `errands_of` gives them, the remote one last.
    turn, most : int
        As in `relay_trees`.

    Returns
    -------
    list of tuple of (int, int)
        Each begins with a tree to the hosts without a holder; needers beside holders that it has
        not reached by then are served by these.
    """
    trees = relay_trees(problem, errands[-1]._replace(served=()), turn, most)
    found = []
    for number, hops in enumerate(trees):
        reached = {destination for _, destination in hops}
        whole = list(hops)
        for errand in errands[:-1]:
            place = number + turn
            head = next((rank for rank in errand.needers if rank in reached), None)
            if head is None:
                head = errand.needers[place % len(errand.needers)]
                whole.append((errand.holders[place % len(errand.holders)], head))
            whole += [
                (head, rank) for rank in errand.needers if rank != head and rank not in reached
            ]
        found.append(tuple(whole))
    return found


def _spread(count: int, most: int, turn: int) -> Sequence[int]:
    """Take some of many ways, from all over the list; another turn begins at another one."""
    if count <= most:
        return range(count)
    # Steps of the golden section leave no part of the list out, however few steps there are.
    begin = turn * max(1, round(count * 0.618033988749895)) % count
    return [(number * count // most + begin) % count for number in range(most)]


def _local_trees(errand: Errand, turn: int, most: int) -> list[tuple[Hop, ...]]:
    found = []
    holders, needers = errand.holders, errand.needers
    for place in dict.fromkeys(_spread(len(holders) * len(needers), most, turn)):
        first = needers[place // len(holders)]
        others = [(first, needer) for needer in needers if needer != first]
        found.append(((holders[place % len(holders)], first), *others))
    return found


class RailSender(NamedTuple):
    """Who sends by one of a host's NICs.

    Attributes
    ----------
    rail : int
        Which NIC.
    rails : int
        How many the host has.
    own : tuple of int
        Holders that send by it.
    free : tuple of int
        Where there are none, other ranks that do.
    roots : tuple of int
        And the holders that give them what they send.
    """

    rail: int
    rails: int
    own: tuple[int, ...]
    free: tuple[int, ...]
    roots: tuple[int, ...]

    def ranks(self, turn: int) -> tuple[int, int]:
        """Give the holder and the rank that sends, one of those that could alike."""
        if self.own:
            return (self.own[turn % len(self.own)],) * 2
        return self.roots[(turn + self.rail) % len(self.roots)], self.free[turn % len(self.free)]


def _rails_for(sender: RailSender, widest: int) -> range:
    # The NICs of a receiving host that go with one NIC of a sending host which may have fewer.
    return range(sender.rail, max(widest, sender.rail + 1), sender.rails)


def _rail_senders(problem: Problem, errand: Errand) -> list[RailSender]:
    """Give who sends by each NIC of each holders' host."""
    having: dict[int, list[int]] = {}
    for rank in errand.holders:
        having.setdefault(problem.hosts[rank], []).append(rank)
    served = set(errand.served)
    found = []
    for host, holders in having.items():
        rails = problem.rails[host]
        here = set(holders)
        for number, ranks in enumerate(rails):
            own = tuple([rank for rank in ranks if rank in here])
            free = () if own else tuple([rank for rank in ranks if rank not in served])
            if own or free:
                found.append(RailSender(number, len(rails), own, free, tuple(holders)))
    return found


def _remote_tree(
    problem: Problem,
    groups: Sequence[Sequence[int]],
    way: tuple[int, int],
    rail: int,
    first: int,
    turn: int,
) -> tuple[Hop, ...]:
    root, sender = way
    hops: list[Hop] = [] if root == sender else [(root, sender)]
    ordered = [*groups[first:], *groups[:first]]
    entries = [_entry(problem, group, rail, turn) for group in ordered]
    hops.append((sender, entries[0]))
    if len(groups) <= _MOST_RELAYED_HOSTS:
        hops += [(entries[0], entry) for entry in entries[1:]]
    else:
        hops += itertools.pairwise(entries)
    for entry, group in zip(entries, ordered, strict=True):
        hops += [(entry, needer) for needer in group if needer != entry]
    return tuple(hops)


def _entry(problem: Problem, group: Sequence[int], rail: int, turn: int) -> int:
    """Give the rank of a host that receives what comes by one of its NICs."""
    rails = problem.rails[problem.hosts[group[0]]]
    ranks = rails[rail % len(rails)]
    needing = [rank for rank in group if rank in ranks]
    return needing[turn % len(needing)] if needing else ranks[turn % len(ranks)]
