"""The order of chunks: no host's port waits for the others'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain

import pytest

from cocoll.resharding import Mesh, multicast_task, plan_multicast, plan_reshard
from cocoll.resharding.chunks import rounds_of
from cocoll.topology import load_topology


@pytest.mark.parametrize("target", ["R,S0", "R,R"])
@pytest.mark.parametrize("solver", ["send_recv", "auto"])
def test_all_hosts_send_from_the_start(target: str, solver: str) -> None:
    topology = load_topology("p3.8xlarge:5")
    mesh = Mesh.arange((20,))
    made = plan_reshard(
        (2000, 2000), (mesh, "S0,R"), (mesh, target), "float32", topology, solver=solver
    )
    hosts = topology.hosts_by_rank
    first: Counter[int] = Counter()
    chunks = [
        chunk
        for rounds in rounds_of(made, [4], 1 << 16, 1 << 18, lambda _, __: True)
        for chunks in rounds
        for chunk in chunks
    ]
    for chunk in chunks:
        crossing = [hop for hop in chunk.hops if hosts[hop[0]] != hosts[hop[1]]]
        if not crossing:
            continue
        first[hosts[crossing[0][0]]] += 1
        # In listing order the first 64 of such messages are all of one host.
        assert max(first.values()) <= 2 * first.total() / 5 + 2
    assert set(first) == set(range(5))
    # The same chunks as ever, each once.
    assert len(set(chunks)) == len(chunks)
    moved = sum((chunk.stop - chunk.first) * 4 * len(chunk.hops) for chunk in chunks)
    assert moved == sum(
        (transfer.stop - transfer.start) * len(transfer.hops)
        for group in made.schedule.groups
        for transfer in group.transfers
    )


def test_chunks_are_long_where_nothing_is_passed_on() -> None:
    topology = load_topology("p3.8xlarge:5")
    hosts = topology.hosts_by_rank
    task = multicast_task([0], [1, 4, 5], 1 << 22)
    made = plan_multicast([task], topology, solver="fan_out")

    def longest(takes_time: Callable[[int, int], bool]) -> int:
        groups = rounds_of(made, [1], 1 << 10, 1 << 20, takes_time)
        return max(one.stop - one.first for rounds in groups for one in chain(*rounds))

    # From host to host once; but from rank 4 to rank 5 in the same way again.
    assert longest(lambda source, destination: hosts[source] != hosts[destination]) == 1 << 20
    assert longest(lambda _, __: True) < 1 << 18
