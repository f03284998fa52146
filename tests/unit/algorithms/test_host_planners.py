"""Planners for several hosts: verified, run against exact sums, and their messages counted."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Sequence

import pytest

from cocoll.algorithms import ReduceSpec, hierarchical, hierarchical_broadcast, recursive_doubling
from cocoll.algorithms.chain import Links, Relay, add_relay, chain_links
from cocoll.algorithms.hierarchy import Hierarchy, make_hierarchy
from cocoll.algorithms.tree import binomial_links
from cocoll.errors import UsageError
from cocoll.plan import Aliasing, Builder, Plan, Relation, Span, verify
from cocoll.plan.ir import WHOLE_VECTOR
from cocoll.topology import Topology
from cocoll.topology.cost import port_bytes_bound
from tests.helpers.host_cases import (
    CHUNK,
    DOUBLING_LAYOUTS,
    LAYOUTS,
    host_counts,
    make_host_cases,
    messages_of,
    received_bytes,
    runs_by_share,
)
from tests.helpers.plan_cases import verify_operation
from tests.helpers.plan_runner import Operation, run_operations
from tests.helpers.topologies import make_hosts


def cases(share: int) -> list[object]:
    """Give all cases; all but one in `share` of them for the long run."""
    return [
        pytest.param(
            layout,
            name,
            marks=() if runs_by_share(f"{share} {layout} {name}", share) else pytest.mark.long,
        )
        for layout in sorted({*LAYOUTS, *DOUBLING_LAYOUTS})
        for name in make_host_cases(layout)
    ]


def counts_of(operation: Operation, seed: str, number: int) -> list[int]:
    return random.Random(zlib.crc32(seed.encode())).sample(host_counts(operation), number)


@pytest.mark.parametrize(("layout", "name"), cases(100))
def test_verified(layout: str, name: str) -> None:
    operation = make_host_cases(layout)[name]()
    verify_operation(operation, counts_of(operation, f"{layout} {name}", 2))


@pytest.mark.parametrize(("layout", "name"), cases(60))
def test_computes_the_right_thing(layout: str, name: str) -> None:
    operation = make_host_cases(layout)[name]()
    (count,) = counts_of(operation, f"run {layout} {name}", 1)
    run_operations([operation] * 2, count, zlib.crc32(name.encode()))


# ---- in sequence ----

SEQUENCE = (
    "allreduce-plain_in_place",
    "allreduce_staged-two_results",
    "allreduce_ring_staged-adam",
    "allreduce_ring-plain_replicated",
    "reduce_scatter_staged-plain-align1",
    "allgather_ring_staged-align16",
    "allgather-align1",
    "broadcast_chain_staged-root0",
    "broadcast_tree-root0",
)


def pairs(share: int) -> list[object]:
    return [
        pytest.param(one, two, marks=() if runs_by_share(one + two, share) else pytest.mark.long)
        for place, one in enumerate(SEQUENCE)
        for two in SEQUENCE[place + 1 :]
    ]


@pytest.mark.parametrize(("one", "two"), pairs(12))
def test_in_both_orders(one: str, two: str) -> None:
    made = make_host_cases("uneven")
    verify_operation(made[one](), (37,), made[two]())


@pytest.mark.parametrize("name", SEQUENCE)
def test_after_and_before_recursive_doubling(name: str) -> None:
    made = make_host_cases("uneven")
    verify_operation(made[name](), (37,), made["recursive_doubling-plain_in_place"]())


@pytest.mark.parametrize("layout", ["pairs", "interleaved"])
def test_a_mix_computes_the_right_thing(layout: str) -> None:
    made = make_host_cases(layout)
    names = [name for name in SEQUENCE if name in made and "replicated" not in name]
    random.Random(layout).shuffle(names)
    run_operations([made[name]() for name in names], 37, 3)


# ---- chains and trees of any ranks ----


def multicast(ranks: Sequence[int], *, tree: bool, in_flight: int, world_size: int) -> list[Plan]:
    """Give plans that bring the source of the first of `ranks` to the others."""
    plans = []
    for rank in range(world_size):
        builder = Builder(rank, world_size, name="multicast", hosts=tuple(range(world_size)))
        source, result = builder.source(itemsize_bytes=4), builder.result(itemsize_bytes=4)
        if rank == ranks[0]:
            with builder.lane("own"), builder.loop(span=Span.WHOLE, chunk_elements=7):
                builder.copy(source=source, destination=result)
        links = (binomial_links if tree else chain_links)(ranks, rank)
        add_relay(
            builder,
            [Relay(WHOLE_VECTOR, links, source if rank == ranks[0] else result, result)],
            name="relay",
            span=Span.WHOLE,
            chunk_elements=CHUNK,
            in_flight=in_flight,
        )
        plans.append(builder.build())
    return plans


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize(
    "ranks", [(3, 0, 4, 1, 2), (1, 0), (5, 4, 3, 2, 1, 0), (2, 6, 1, 0, 3, 5, 4)]
)
def test_multicast_among_ranks_in_any_order(ranks: tuple[int, ...], tree: bool) -> None:
    plans = multicast(ranks, tree=tree, in_flight=2, world_size=len(ranks))
    for aliasing in (Aliasing(), Aliasing(Relation.IDENTICAL)):
        operation = Operation("broadcast", tuple(plans), 4, (4,), (), aliasing, ranks[0])
        verify(plans, counts=[0, 1, CHUNK, 23], aliasing=aliasing)
        run_operations([operation] * 2, 23, len(ranks))
    # Everybody but the first hears it once, and nobody speaks to more than the tree allows.
    sent = [list(messages_of(plan, 23)) for plan in plans]
    heard = Counter(peer for messages in sent for peer, _, _ in messages)
    assert heard == dict.fromkeys(ranks[1:], 5)
    busiest = max(len({peer for peer, _, _ in messages}) for messages in sent)
    assert busiest == ((len(ranks) - 1).bit_length() if tree else 1)


@pytest.mark.parametrize("size", range(1, 18))
def test_a_binomial_tree_is_as_deep_as_the_logarithm(size: int) -> None:
    ranks = list(range(100, 100 + size))
    links = {rank: binomial_links(ranks, rank) for rank in ranks}
    # Round by round: whoever has the data gives it to its next child.
    pending = {rank: list(links[rank].children) for rank in ranks}
    having, rounds = [ranks[0]], 0
    while any(pending[rank] for rank in having):
        having += [pending[rank].pop(0) for rank in having if pending[rank]]
        rounds += 1
    assert sorted(having) == ranks
    assert rounds == (size - 1).bit_length()
    assert all(rank in links[links[rank].parent].children for rank in ranks[1:])


@pytest.mark.parametrize("make", [chain_links, binomial_links])
@pytest.mark.parametrize("ranks", [(0, 1), (0, 2, 1, 2)])
def test_a_rank_stands_in_a_multicast_once(make, ranks: tuple[int, ...]) -> None:
    assert make((2,), 2) == Links(None, ())
    with pytest.raises(UsageError, match="rank 2 once"):
        make(ranks, 2)


# ---- what goes over the wire, counted ----

ITEMSIZE = 4
EVEN = {
    "one rank": ([1, 1, 1], 1),
    "pairs": ([2, 2], 1),
    "three pairs": ([2, 2, 2], 1),
    "two NICs": ([2, 2, 2], 2),
    "four on two NICs": ([4, 4], 2),
    "five hosts": ([1] * 5, 1),
}


def carried_by_nics(topology: Topology, plans: Sequence[Plan], count: int) -> dict[int, int]:
    """Give the payload bytes of every port of a NIC, from the plans' messages."""
    carried = {
        port: 0 for port, use in enumerate(topology.ports) if use.kind in ("nic_out", "nic_in")
    }
    for plan in plans:
        for peer, _, nbytes in messages_of(plan, count):
            for port in topology.path(plan.rank, peer).ports:
                carried[port] += nbytes
    assert sum(received_bytes(plan, count) for plan in plans) == sum(carried.values()) // 2
    return carried


def plans_for(kind: str, topology: Topology, *, second: bool, staged: bool) -> list[Plan]:
    """Give plans; `second`: along rings, or trees."""
    hierarchy = make_hierarchy(topology)
    made = []
    for rank in range(topology.world_size):
        common = {"chunk_elements": CHUNK, "staged": staged}
        if kind == "allreduce":
            spec = ReduceSpec(ITEMSIZE, (ITEMSIZE,))
            made.append(hierarchical.plan_allreduce(rank, hierarchy, spec, ring=second, **common))
        elif kind == "reduce_scatter":
            spec = ReduceSpec(ITEMSIZE, (ITEMSIZE,))
            made.append(
                hierarchical.plan_reduce_scatter(rank, hierarchy, spec, ring=second, **common)
            )
        elif kind == "allgather":
            made.append(
                hierarchical.plan_allgather(rank, hierarchy, ITEMSIZE, ring=second, **common)
            )
        else:
            made.append(
                hierarchical_broadcast.plan_broadcast(
                    rank, hierarchy, topology.world_size - 1, ITEMSIZE, tree=second, **common
                )
            )
    return made


@pytest.mark.parametrize("kind", ["allreduce", "reduce_scatter", "allgather"])
@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("layout", EVEN)
def test_bytes_on_every_port_are_those_of_the_lower_bound(
    kind: str, ring: bool, layout: str
) -> None:
    ranks, nics = EVEN[layout]
    topology = make_hosts(ranks, nics=nics)
    count = topology.world_size * 16 * 3
    wanted = port_bytes_bound(kind, topology, count * ITEMSIZE)
    # By hand too: every host sends and receives the share of the other hosts, once or twice.
    share = count * ITEMSIZE * (len(ranks) - 1) // len(ranks) * (1 + (kind == "allreduce"))
    for staged in (False, True):
        plans = plans_for(kind, topology, second=ring, staged=staged)
        carried = carried_by_nics(topology, plans, count)
        for port, nbytes in carried.items():
            assert nbytes == wanted[port] == share // nics, topology.ports[port]


@pytest.mark.parametrize("layout", EVEN)
def test_bytes_of_a_chain_are_those_of_the_lower_bound(layout: str) -> None:
    ranks, nics = EVEN[layout]
    topology = make_hosts(ranks, nics=nics)
    count = topology.world_size * 16 * 3
    bound = port_bytes_bound("broadcast", topology, count * ITEMSIZE, topology.world_size - 1)
    plans = plans_for("broadcast", topology, second=False, staged=True)
    carried = carried_by_nics(topology, plans, count)
    # The busiest port is as busy as it must be; all hosts but the root's receive all once.
    busiest = max(bound[port] for port in carried)
    assert max(carried.values()) == busiest == count * ITEMSIZE // nics
    received = [nbytes for port, nbytes in carried.items() if topology.ports[port].kind == "nic_in"]
    assert sorted(received) == [0] * nics + [busiest] * (nics * (len(ranks) - 1))


@pytest.mark.parametrize("kind", ["allreduce", "reduce_scatter", "allgather", "broadcast"])
@pytest.mark.parametrize("second", [False, True])
def test_hosts_of_any_size_receive_nothing_twice(kind: str, second: bool) -> None:
    """Whatever the ranks of each host: every block enters every other host once on its way."""
    topology = make_hosts([1, 3, 2])
    hosts = len(topology.hosts)
    count = topology.world_size * 16 * 2
    plans = plans_for(kind, topology, second=second, staged=True)
    carried = carried_by_nics(topology, plans, count)
    total = sum(nbytes for port, nbytes in carried.items() if topology.ports[port].kind == "nic_in")
    times = 2 if kind == "allreduce" else 1
    assert total == count * ITEMSIZE * (hosts - 1) * times


@pytest.mark.parametrize(("ranks", "nics"), [([2, 2, 2], 1), ([4, 4], 2), ([1, 1, 1, 1], 1)])
@pytest.mark.parametrize("ring", [False, True])
def test_messages_of_every_rank(ranks: list[int], nics: int, ring: bool) -> None:
    topology = make_hosts(ranks, nics=nics)
    hosts = len(ranks)
    count = topology.world_size * 16
    chunks = -(-16 // CHUNK)
    for kind, times in (("allreduce", 2), ("reduce_scatter", 1), ("allgather", 1)):
        for plan in plans_for(kind, topology, second=ring, staged=True):
            messages = list(messages_of(plan, count))
            assert len(messages) == times * (hosts - 1) * chunks
            # On the NIC of the rank alone, both ends.
            for peer, _, _ in messages:
                assert topology.placements[peer].nic == topology.placements[plan.rank].nic


@pytest.mark.parametrize("hosts", range(2, 9))
def test_messages_of_recursive_doubling(hosts: int) -> None:
    """log2 rounds among a power of two; whoever is beyond it sends once and is told once."""
    hierarchy = Hierarchy((*range(hosts), 0, hosts - 1))
    spec = ReduceSpec(ITEMSIZE, (ITEMSIZE,))
    plans = [
        recursive_doubling.plan_allreduce(rank, hierarchy, spec, longest_elements=64)
        for rank in range(hierarchy.world_size)
    ]
    power = 1 << hosts.bit_length() - 1
    extra = hosts - power
    rounds = power.bit_length() - 1
    wanted = [1 if h % 2 == 0 else rounds + 1 for h in range(2 * extra)]
    wanted += [rounds] * (hosts - 2 * extra)
    for plan in plans:
        messages = list(messages_of(plan, 10))
        assert all(nbytes == 10 * ITEMSIZE for _, _, nbytes in messages)
        assert len(messages) == (wanted[plan.rank] if plan.rank < hosts else 0)


# ---- who handles what ----


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_block_has_one_delegate_on_every_host(layout: str) -> None:
    hierarchy = LAYOUTS[layout]
    hosts = range(hierarchy.host_count)
    for owner in range(hierarchy.world_size):
        for host in hosts:
            assert hierarchy.hosts[hierarchy.delegate(host, owner)] == host
        assert hierarchy.delegate(hierarchy.hosts[owner], owner) == owner
    for rank in range(hierarchy.world_size):
        assert [
            owner
            for owner in range(hierarchy.world_size)
            if hierarchy.hosts[owner] != hierarchy.hosts[rank]
            and hierarchy.delegate(hierarchy.hosts[rank], owner) == rank
        ] == sorted(hierarchy.delegated(rank))


@pytest.mark.parametrize("bad", [(0, 2), (1, 1)])
def test_hosts_are_numbered_without_gaps(bad: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="without gaps"):
        Hierarchy(bad)


@pytest.mark.parametrize("order", [(0,), (0, 0), (1, 2)])
def test_an_order_is_of_all_hosts(order: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="order of 2 hosts"):
        Hierarchy((0, 1), order)
