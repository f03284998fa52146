"""Lower bounds: numbers that can be worked out by hand, and why they hold."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocoll.resharding import lower_bound, multicast_task
from cocoll.resharding.bounds import lower_bounds
from cocoll.resharding.problem import Problem
from cocoll.resharding.senders import divide_among_senders
from cocoll.topology import Topology, load_topology
from cocoll.topology.parts import Host, Link, Nic, Placement, Port

P3 = load_topology("p3.8xlarge:8")
NIC_LATENCY_NANOSECONDS = 30_000


def bound_of(tasks: list, topology: Topology = P3):
    return lower_bound(Problem(tasks, topology))


def test_a_receiver_s_nic() -> None:
    # Two senders, one receiving host: its NIC takes both.
    bound = bound_of([multicast_task([0], [8], 10**9), multicast_task([4], [9], 10**9)])
    assert bound.nanoseconds == 1_600_000_000 + NIC_LATENCY_NANOSECONDS
    assert bound.reason == "2000000000 bytes: what host h2 lacks, through its NICs"


def test_a_sender_s_nic_carries_a_byte_once_however_many_need_it() -> None:
    bound = bound_of([multicast_task([0], list(range(4, 32)), 10**9)])
    assert bound.nanoseconds == 800_000_000 + NIC_LATENCY_NANOSECONDS


def test_hall_s_condition_names_the_senders_in_need() -> None:
    # Hosts 0 and 1 share three units among them; host 2 could help with one more only.
    tasks = [
        multicast_task([0, 4], [12], 10**9),
        multicast_task([0, 4], [16], 10**9),
        multicast_task([0, 4], [20], 10**9),
        multicast_task([4, 8], [24], 10**9),
    ]
    bound = bound_of(tasks)
    assert bound.nanoseconds == 1_200_000_000 + NIC_LATENCY_NANOSECONDS
    assert bound.reason == "3000000000 bytes: what only hosts h0, h1 have, out of their NICs"


def test_all_nics_of_those_who_take_part_count() -> None:
    topology = load_topology("dgx-h100:2")
    one = bound_of([multicast_task([0], [8], 10**9)], topology)
    # Rank 1 takes part in another task, and its NIC could relay.
    two = bound_of([multicast_task([0], [8], 10**9), multicast_task([1], [9], 1)], topology)
    assert one.nanoseconds == 20_000_000 + 2_000
    assert 10_000_000 <= two.nanoseconds <= 10_010_000


def test_gpus_and_memories_inside_a_host() -> None:
    topology = load_topology("dgx-h100:1")
    bound = bound_of([multicast_task([0], [1, 2, 3], 450 * 10**6)], topology)
    assert bound.nanoseconds == 1_000_000 + 1_000
    # Three copies read and write 20 GB/s of memory.
    laptop = load_topology("laptop:4")
    assert bound_of([multicast_task([0], [1, 2, 3], 10**9)], laptop).nanoseconds == 300_000_100


def test_links_between_switches() -> None:
    hosts = [
        Host("a", Port(10**10, 0, "half"), (Nic("e", Port(10**9), switch),))
        for switch in ("left", "left", "right", "right")
    ]
    topology = Topology(
        "two switches",
        tuple(hosts),
        tuple(Placement(host) for host in range(4)),
        (Link("left", "right", Port(10**8)),),
    )
    bound = bound_of([multicast_task([0, 1], [2, 3], 10**8)], topology)
    assert bound.nanoseconds == 1_000_000_000
    assert "left > right" in bound.reason


def test_a_small_message_takes_its_latency() -> None:
    bound = bound_of([multicast_task([0], [4, 8], 1)])
    assert bound.nanoseconds == NIC_LATENCY_NANOSECONDS
    assert bound_of([multicast_task([0], [0], 10**9)]).nanoseconds == 0
    assert lower_bounds(Problem([multicast_task([0], [4], 0)], P3)) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 1000)),
        min_size=1,
        max_size=7,
    ),
    st.lists(st.integers(1, 9), min_size=5, max_size=5),
)
def test_divisions_among_senders_meet_hall_s_condition(
    sizes: list[tuple[set[int], int]], rates: list[int]
) -> None:
    found = divide_among_senders(
        [(tuple(sorted(senders)), nbytes) for senders, nbytes in sizes], dict(enumerate(rates))
    )
    # Every set of senders, one by one.
    worst = max(
        Fraction(
            sum(nbytes for senders, nbytes in sizes if senders <= set(inside)),
            sum(rates[sender] for sender in inside),
        )
        for count in range(1, 6)
        for inside in combinations(range(5), count)
    )
    assert found.seconds == worst
    carried = [0] * 5
    for (senders, nbytes), share in zip(sizes, found.shares, strict=True):
        assert set(share) <= senders
        assert sum(share.values()) == nbytes
        for sender, part in share.items():
            carried[sender] += part
    for sender in range(5):
        assert carried[sender] <= rates[sender] * worst + 2


@pytest.mark.parametrize("count", [1, 3])
def test_equal_tasks_add_up(count: int) -> None:
    tasks = [multicast_task([0], [4], 10**9)] * count
    assert bound_of(tasks).nanoseconds == count * 800_000_000 + NIC_LATENCY_NANOSECONDS
