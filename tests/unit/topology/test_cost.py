"""Costs and bounds, against what is worked out by hand and against real ways of doing it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocoll.errors import RankError, UsageError
from cocoll.topology import Device, Host, Link, Nic, Placement, Port, Topology, load_preset
from cocoll.topology.cost import (
    lower_bound_nanoseconds,
    memory_nanoseconds,
    message_nanoseconds,
    port_bytes_bound,
    transfer_nanoseconds,
)
from cocoll.topology.demands import spread
from tests.helpers.topologies import GB, MEMORY, kinds_carried, make_hosts, topologies

KINDS = ("broadcast", "allgather", "reduce_scatter", "allreduce")
FAST_MEMORY = Port(10**15, 0, "half")


def network(topology: Topology, carried: tuple[int, ...]) -> tuple[list[int], list[int]]:
    found = kinds_carried(topology, carried)
    return found["nic_out"], found["nic_in"]


# ---- single transfers ----


def test_transfers_round_up() -> None:
    assert transfer_nanoseconds(0, 7) == 0
    assert transfer_nanoseconds(1, 10**9) == 1
    assert transfer_nanoseconds(1, 10**9 + 1) == 1
    assert transfer_nanoseconds(2, 3 * 10**9) == 1
    assert transfer_nanoseconds(10**12, 1) == 10**21


def test_a_message_is_as_fast_as_its_slowest_port() -> None:
    links = (Link("a", "b", Port(GB // 4, 500)),)
    topology = make_hosts([2, 1], switches=["a", "b"], links=links)
    assert message_nanoseconds(topology, 0, 2, 1_000) == 1_000 + 500 + 1_000 + 4_000
    assert message_nanoseconds(topology, 0, 1, 2_000) == 100 + 100
    assert memory_nanoseconds(topology, 0, 1, 2_000, write=True) == 200


# ---- bounds by hand; the memory is fast enough not to matter ----

SIZE = 12 * 2**20


def bound(kind: Any, topology: Topology, nbytes: int = SIZE, **options: Any) -> tuple[int, ...]:
    return port_bytes_bound(kind, topology, nbytes, **options)


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_equal_hosts(hosts: int) -> None:
    topology = make_hosts([2] * hosts, memory=FAST_MEMORY)
    part = SIZE // hosts
    assert network(topology, bound("allreduce", topology)) == ([2 * (SIZE - part)] * hosts,) * 2
    for kind in ("allgather", "reduce_scatter"):
        assert network(topology, bound(kind, topology)) == ([SIZE - part] * hosts,) * 2
    out, into = network(topology, bound("broadcast", topology, root=2))
    assert into == [SIZE, 0, *[SIZE] * (hosts - 2)]
    assert max(out) == out[1] == SIZE


def test_time_is_that_of_the_busiest_port_and_a_message() -> None:
    topology = make_hosts([2, 2, 2], rates=[50_000_000] * 3, memory=FAST_MEMORY)
    seconds = Fraction(4 * SIZE, 3 * 50_000_000)
    assert lower_bound_nanoseconds("allreduce", topology, SIZE) == int(seconds * 10**9) + 2_000
    assert lower_bound_nanoseconds("allreduce", topology, 0) == 0


def test_several_nics_share() -> None:
    topology = make_hosts([4, 4], nics=2, memory=FAST_MEMORY)
    assert network(topology, bound("allreduce", topology)) == ([SIZE // 2] * 4,) * 2
    # A NIC that carries no rank's messages is no help.
    one_each = make_hosts([1, 1], nics=2, memory=FAST_MEMORY)
    assert network(one_each, bound("allreduce", one_each)) == ([SIZE, 0, SIZE, 0],) * 2


def test_uneven_ranks() -> None:
    topology = make_hosts([1, 2, 3], memory=FAST_MEMORY)
    block = SIZE // 6
    out, into = network(topology, bound("allgather", topology))
    # Each host lacks the others' blocks, and all must send what all receive.
    assert into == [5 * block, 4 * block, 3 * block]
    assert sum(out) == sum(into)
    out, into = network(topology, bound("reduce_scatter", topology))
    assert out == [5 * block, 4 * block, 3 * block]
    assert sum(out) == sum(into)


def test_a_slow_host_does_the_least() -> None:
    # All-reduce over 3 hosts moves 4 sizes; the slow one sends its own only, the others the rest.
    topology = make_hosts([1, 1, 1], rates=[GB, GB // 100, GB], memory=FAST_MEMORY)
    assert network(topology, bound("allreduce", topology)) == (
        [3 * SIZE // 2, SIZE, 3 * SIZE // 2],
    ) * 2  # fmt: skip
    nanoseconds = lower_bound_nanoseconds("allreduce", topology, SIZE)
    assert nanoseconds == SIZE * 10**9 // (GB // 100) + 2_000


def test_blocks_are_rounded_up_and_the_last_is_short() -> None:
    topology = make_hosts([1, 1, 1], memory=FAST_MEMORY)
    _, into = network(topology, bound("allgather", topology, 10))
    assert into == [10 - 4, 10 - 4, 10 - 2]
    _, into = network(topology, bound("allgather", topology, 1))
    assert into == [0, 1, 1]


def test_half_duplex_carries_both() -> None:
    topology = make_hosts([1, 1], duplex="half", memory=FAST_MEMORY)
    assert kinds_carried(topology, bound("allreduce", topology))["nic"] == [2 * SIZE] * 2
    assert kinds_carried(topology, bound("broadcast", topology))["nic"] == [SIZE] * 2


@pytest.mark.parametrize(
    ("kind", "there", "back"),
    [
        ("broadcast", SIZE, 0),
        ("allgather", SIZE // 4, 3 * SIZE // 4),
        ("reduce_scatter", 3 * SIZE // 4, SIZE // 4),
        ("allreduce", SIZE, SIZE),
    ],
)
def test_a_slow_core(kind: Any, there: int, back: int) -> None:
    slow = Port(GB // 10)
    topology = make_hosts([1, 1, 2], switches=["a", "b", "b"], links=(Link("a", "b", slow),))
    assert kinds_carried(topology, bound(kind, topology))["link"] == [there, back]
    assert lower_bound_nanoseconds(kind, topology, SIZE) == max(there, back) * 10 + 2_000
    # From the other side it is the same, the other way round.
    turned = make_hosts([1, 1, 2], switches=["a", "b", "b"], links=(Link("b", "a", slow),))
    assert kinds_carried(turned, bound(kind, turned))["link"] == [back, there]


def test_parallel_links_share_and_a_ring_is_cut_at_its_switches() -> None:
    double = (Link("a", "b", Port(3)), Link("a", "b", Port(1)))
    topology = make_hosts([1, 1], switches=["a", "b"], links=double)
    assert kinds_carried(topology, bound("allreduce", topology, 8))["link"] == [6, 6, 2, 2]
    ring = tuple(Link(one, other, Port(5)) for one, other in ("ab", "bc", "ca"))
    topology = make_hosts([1, 1, 1], switches=["a", "b", "c"], links=ring)
    assert kinds_carried(topology, bound("allreduce", topology, 8))["link"] == [4] * 6


def test_a_host_on_both_sides_is_a_way_round() -> None:
    links = (Link("a", "b", Port(1)),)
    apart = make_hosts([2, 2], nics=1, switches=["a", "b"], links=links)
    host = Host("h", MEMORY, (Nic("e0", Port(GB), "a"), Nic("e1", Port(GB), "b")))
    seats = tuple(Placement(rank // 2, rank % 2) for rank in range(4))
    both = Topology("t", (host, host), seats, links)
    assert kinds_carried(both, bound("allreduce", both))["link"] == [0, 0]
    assert kinds_carried(apart, bound("allreduce", apart))["link"] == [SIZE, SIZE]


@pytest.mark.parametrize(
    ("kind", "alone", "replicated"),
    [("broadcast", 3, 1), ("allgather", 3, 1), ("reduce_scatter", 4, 4), ("allreduce", 6, 4)],
)
def test_memory_of_one_host(kind: Any, alone: int, replicated: int) -> None:
    topology = make_hosts([3])
    (memory,) = kinds_carried(topology, bound(kind, topology))["memory"]
    assert memory == alone * SIZE
    (memory,) = kinds_carried(topology, bound(kind, topology, replicated=True))["memory"]
    assert memory == replicated * SIZE
    assert lower_bound_nanoseconds(kind, topology, SIZE) == alone * SIZE // 20


def test_memory_of_several_hosts_is_what_nics_do_not_move() -> None:
    topology = make_hosts([3, 3])
    found = kinds_carried(topology, bound("allreduce", topology))
    assert found["memory"] == [6 * SIZE - 2 * SIZE] * 2


def test_fast_nics_could_move_what_slow_memory_does_not() -> None:
    # By way of the NICs, all that ranks read and write, at 9 GB/s each way, instead of 2 GB/s.
    topology = make_hosts([3, 3], rates=[9 * GB] * 2, memory=Port(2 * GB))
    found = kinds_carried(topology, bound("allreduce", topology))
    assert found["memory"] == [6 * SIZE * 2 // (2 + 18)] * 2


def test_fast_nics_could_move_what_slow_gpu_ports_do_not() -> None:
    host = Host("h", MEMORY, (Nic("e0", Port(3 * GB)),), (Device("gpu", GB, Port(GB)),) * 2)
    seats = tuple(Placement(rank // 2, 0, rank % 2) for rank in range(4))
    topology = Topology("t", (host, host), seats)
    found = kinds_carried(topology, bound("allreduce", topology))
    # Each GPU sends 3/2 of the size, a quarter of it by its own port.
    assert found["device_out"] == [SIZE * 3 // 2 // 4] * 4
    assert found["nic_out"] == [SIZE] * 2


def test_one_rank_does_nothing() -> None:
    for topology in (make_hosts([1]), load_preset("dgx-h100").subset([3])):
        for kind in KINDS:
            assert set(bound(kind, topology)) == {0}
            assert lower_bound_nanoseconds(kind, topology, SIZE) == 0  # type: ignore[arg-type]


def test_gpus_of_one_host() -> None:
    topology = load_preset("dgx-h100")
    found = kinds_carried(topology, bound("allreduce", topology))
    assert found["device_out"] == found["device_in"] == [2 * 7 * SIZE // 8] * 8
    assert set(found["nic_out"] + found["memory"] + found["device_memory"]) == {0}
    assert lower_bound_nanoseconds("allreduce", topology, SIZE) == 7 * SIZE // 4 // 450


def test_gpus_of_several_hosts() -> None:
    topology = load_preset("p3.8xlarge:5")
    found = kinds_carried(topology, bound("allreduce", topology))
    # The network is the slowest by far: the rest of each GPU's share crosses NVLink.
    assert found["nic_out"] == [8 * SIZE // 5] * 5
    assert found["device_out"] == [2 * 19 * SIZE // 20 - 8 * SIZE // 5 // 4] * 20
    assert lower_bound_nanoseconds("allreduce", topology, SIZE) == (
        8 * SIZE // 5 * 10**9 // 1_250_000_000 + 30_000
    )


@pytest.mark.parametrize("kind", ["scatter", "", "Allreduce"])
def test_unknown_collectives(kind: Any) -> None:
    with pytest.raises(UsageError, match="broadcast, allgather, reduce_scatter, allreduce; got"):
        bound(kind, make_hosts([2]))


def test_bad_arguments() -> None:
    with pytest.raises(UsageError, match="at least 0 bytes"):
        bound("allreduce", make_hosts([2]), -1)
    for root in (-1, 2):
        with pytest.raises(RankError, match=r"a root in \[0, 2\)"):
            bound("broadcast", make_hosts([2]), root=root)


# ---- no way of doing it beats the bound ----


class Count:
    """Counts the bytes on each port; an access inside a host crosses its memory or its GPUs."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.carried = [0] * len(topology.ports)

    def add(self, ports: tuple[int, ...], nbytes: int) -> None:
        for port in ports:
            self.carried[port] += nbytes

    def move(self, source: int, destination: int, nbytes: int) -> None:
        """Move bytes from one rank's memory to another's; on one host by a read and a write."""
        if self.topology.host_of(source) != self.topology.host_of(destination):
            self.add(self.topology.path(source, destination).ports, nbytes)
        elif source != destination:
            self.add(self.topology.memory_path(destination, source).ports, nbytes)
            self.add(self.topology.memory_path(destination, destination).ports, nbytes)

    def seconds(self) -> Fraction:
        rates = self.topology.bandwidths_bytes_per_second
        return max(Fraction(c, r) for c, r in zip(self.carried, rates, strict=True))


def ring_allreduce(count: Count, size: int, order: list[int]) -> None:
    ranks = len(order)
    for step in range(2 * (ranks - 1)):
        for place, rank in enumerate(order):
            block = size // ranks
            if step < ranks - 1:
                # The receiver reads its own block too, and adds.
                peer = order[(place + 1) % ranks]
                count.add(count.topology.memory_path(peer, peer).ports, block)
            count.move(rank, order[(place + 1) % ranks], block)


def ring_allgather(count: Count, size: int, order: list[int]) -> None:
    ranks = len(order)
    for place, rank in enumerate(order):
        for _ in range(ranks - 1):
            count.move(rank, order[(place + 1) % ranks], size // ranks)


def direct_allgather(count: Count, size: int, order: list[int]) -> None:
    for rank in order:
        for peer in order:
            count.move(rank, peer, size // len(order))


def direct_reduce_scatter(count: Count, size: int, order: list[int]) -> None:
    for owner in order:
        for rank in order:
            count.move(rank, owner, size // len(order))
        count.add(count.topology.memory_path(owner, owner).ports, 2 * size // len(order))


def chain_broadcast(count: Count, size: int, order: list[int]) -> None:
    for one, other in pairwise(order):
        count.move(one, other, size)


def star_broadcast(count: Count, size: int, order: list[int]) -> None:
    for rank in order[1:]:
        count.move(order[0], rank, size)


def tree_allreduce(count: Count, size: int, order: list[int]) -> None:
    for place, rank in enumerate(order[1:], start=1):
        parent = order[(place - 1) // 2]
        count.add(count.topology.memory_path(parent, parent).ports, size)
        count.move(rank, parent, size)
        count.move(parent, rank, size)


WAYS: list[tuple[str, Callable[[Count, int, list[int]], None]]] = [
    ("allreduce", ring_allreduce),
    ("allreduce", tree_allreduce),
    ("allgather", ring_allgather),
    ("allgather", direct_allgather),
    ("reduce_scatter", direct_reduce_scatter),
    ("broadcast", chain_broadcast),
    ("broadcast", star_broadcast),
]


@settings(max_examples=25)
@given(topologies(), st.data())
def test_no_algorithm_is_faster(topology: Topology, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(topology.world_size)))
    size = 5040 * topology.world_size
    for kind, way in WAYS:
        count = Count(topology)
        way(count, size, order)
        carried = port_bytes_bound(kind, topology, size, order[0])  # type: ignore[arg-type]
        rates = topology.bandwidths_bytes_per_second
        least = max(Fraction(c, r) for c, r in zip(carried, rates, strict=True))
        assert least <= count.seconds(), way.__name__


@pytest.mark.parametrize("hosts", [2, 3, 5])
def test_a_ring_of_hosts_reaches_it(hosts: int) -> None:
    topology = make_hosts([1] * hosts, memory=FAST_MEMORY)
    for kind, way in [("allreduce", ring_allreduce), ("allgather", ring_allgather)]:
        count = Count(topology)
        way(count, SIZE * 5, list(range(hosts)))
        found = kinds_carried(topology, tuple(count.carried))
        wanted = kinds_carried(topology, bound(kind, topology, SIZE * 5))
        assert found["nic_out"] == wanted["nic_out"]
        assert found["nic_in"] == wanted["nic_in"]


def test_a_chain_of_hosts_reaches_it() -> None:
    topology = make_hosts([1, 1, 1], memory=FAST_MEMORY)
    count = Count(topology)
    chain_broadcast(count, SIZE, [1, 0, 2])
    assert max(count.carried) == max(bound("broadcast", topology, root=1))


# ---- more bytes take longer, faster ports do not ----


@settings(max_examples=25)
@given(topologies(), st.integers(0, 10**9), st.integers(1, 10**9), st.sampled_from(KINDS))
def test_more_bytes_take_no_less(topology: Topology, size: int, more: int, kind: Any) -> None:
    some = lower_bound_nanoseconds(kind, topology, size)
    assert some <= lower_bound_nanoseconds(kind, topology, size + more)
    assert lower_bound_nanoseconds(kind, topology, size, replicated=True) <= some


def test_spread_fills_the_fast_ones_first() -> None:
    assert spread([0, 0], [3, 1], [1, 1], 8) == [6, 2]
    assert spread([0, 5], [3, 1], [1, 1], 8) == [3, 5]
    assert spread([4, 5], [3, 1], [1, 1], 8) == [4, 5]
    assert spread([0, 1], [1, 1], [3, 1], 9) == [Fraction(9, 4)] * 2


_loads = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=5
)


@settings(max_examples=50)
@given(_loads, st.integers(0, 500))
def test_spread_cannot_be_done_faster(loads: list[tuple[int, int, int]], total: int) -> None:
    least, rates, times = (list(column) for column in zip(*loads, strict=True))
    shares = spread(least, rates, times, total)
    together = sum(share * count for share, count in zip(shares, times, strict=True))
    assert together == max(total, sum(e * c for e, c in zip(least, times, strict=True)))
    assert all(share >= each for share, each in zip(shares, least, strict=True))
    longest = max(share / rate for share, rate in zip(shares, rates, strict=True))
    # In any shorter time somebody's least does not fit, or all together do not.
    too_slow = any(Fraction(each, rate) == longest for each, rate in zip(least, rates, strict=True))
    full = sum(longest * r * c for r, c in zip(rates, times, strict=True)) == total
    assert too_slow or full
