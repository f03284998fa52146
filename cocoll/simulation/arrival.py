"""How long it takes until all ranks know that all have come."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology

__all__ = ["arrival_nanoseconds"]


def arrival_nanoseconds(topology: Topology) -> int:
    """Give the time from the last rank's arrival until all ranks go on.

    Within a host each rank reads the others' lines. Between hosts one rank of each takes part in a
    dissemination [1]_: in round k, host h tells host h + 2^k what it has heard, so that after
    ceil(log2(hosts)) small messages everyone has heard of everyone; then it tells its own host.

    Parameters
    ----------
    topology : Topology
        Where the ranks are.

    Returns
    -------
    int
        Nanoseconds: every round as long as its slowest message; 0 for a single rank.

    References
    ----------
    .. [1] D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization",
       International Journal of Parallel Programming 17(1), 1988.
    """
    hosts = len(topology.hosts)
    classes = topology.equal_hosts()
    within = max(_within_nanoseconds(topology, classes.index(one)) for one in set(classes))
    if hosts == 1:
        return within
    # From any of equal hosts the way to the others is the same.
    senders = range(hosts) if len(set(classes)) > 1 else range(1)
    leaders = [topology.members(host)[0] for host in range(hosts)]
    total = 2 * within
    step = 1
    while step < hosts:
        total += max(
            topology.path(leaders[host], leaders[(host + step) % hosts]).latency_nanoseconds
            for host in senders
        )
        step *= 2
    return total


def _within_nanoseconds(topology: Topology, host: int) -> int:
    first, *others = topology.members(host)
    return max(
        (topology.memory_path(first, other).latency_nanoseconds for other in others), default=0
    )
