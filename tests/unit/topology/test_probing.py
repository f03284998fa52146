"""Who measures with whom, what follows from it, and the measuring itself over queues."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from cocoll.errors import CommTimeoutError
from cocoll.topology import Link, Placement, Port, Topology, load_preset, measuring
from cocoll.topology.measuring import measure_topology
from cocoll.topology.probing import Sample, apply_samples, level, schedule_pairs
from tests.helpers.topologies import GB, make_hosts, topologies


def host_pairs(topology: Topology, rounds: list[list[tuple[int, int]]]) -> set[tuple[int, int]]:
    return {
        (topology.host_of(one), topology.host_of(other)) for pairs in rounds for one, other in pairs
    }


# ---- the schedule ----


@settings(max_examples=20)
@given(topologies())
def test_pairs_of_a_round_share_no_port(topology: Topology) -> None:
    for pairs in schedule_pairs(topology):
        ports = [
            port
            for one, other in pairs
            for port in {*topology.path(one, other).ports, *topology.path(other, one).ports}
        ]
        assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("hosts", [2, 3, 4, 7, 8])
def test_all_hosts_meet(hosts: int) -> None:
    topology = make_hosts([2] * hosts)
    rounds = schedule_pairs(topology)
    assert host_pairs(topology, rounds) == {(a, b) for b in range(hosts) for a in range(b)}
    # As few rounds as a tournament needs.
    assert len(rounds) == hosts - 1 + hosts % 2


def test_partners_are_limited() -> None:
    topology = load_preset("p3.8xlarge:101")
    rounds = schedule_pairs(topology)
    met = [host for pair in host_pairs(topology, rounds) for host in pair]
    assert {met.count(host) for host in range(101)} <= {7, 8}
    assert len(rounds) <= 16


def test_every_nic_is_measured() -> None:
    two, three = make_hosts([4], nics=2).hosts[0], make_hosts([4], nics=3).hosts[0]
    seats = [Placement(0, rank % 2) for rank in range(4)] + [Placement(1, r % 3) for r in range(4)]
    topology = Topology("t", (two, three), tuple(seats))
    rounds = schedule_pairs(topology)
    assert sorted(pair for pairs in rounds for pair in pairs) == [(0, 4), (0, 6), (1, 5)]
    # The NIC of rank 0 can serve one of them at a time.
    assert [len(pairs) for pairs in rounds] == [2, 1]


def test_a_link_serves_one_pair_at_a_time() -> None:
    links = (Link("a", "b", Port(GB)),)
    topology = make_hosts([1] * 4, switches=["a", "b", "a", "b"], links=links)
    for pairs in schedule_pairs(topology):
        across = [pair for pair in pairs if len(topology.path(*pair).ports) > 2]
        assert len(across) <= 1


def test_one_host_has_nobody_to_measure_with() -> None:
    assert schedule_pairs(make_hosts([4])) == []


# ---- what follows ----


def both_ways(one: int, other: int, there: int, back: int, latency: int) -> list[Sample]:
    return [Sample(one, other, there, latency), Sample(other, one, back, latency)]


def test_a_nic_has_what_its_fastest_messages_had() -> None:
    # The NIC of host 1 is slow: what crosses it says nothing of the others.
    topology = make_hosts([1, 1, 1])
    samples = [
        *both_ways(0, 1, 100, 100, 40), *both_ways(1, 2, 100, 100, 40),
        *both_ways(0, 2, 900, 900, 40),
    ]  # fmt: skip
    made = apply_samples(topology, samples, {0: 5, 1: 5})
    rates = [host.nics[0].port.bandwidth_bytes_per_second for host in made.hosts]
    assert rates == [900, 100, 900]
    assert {host.nics[0].port.latency_nanoseconds for host in made.hosts} == {20}
    assert [host.memory.bandwidth_bytes_per_second for host in made.hosts] == [5, 5, 20 * GB]
    assert made.source == "measured by cocoll topo --probe"


def test_a_port_has_what_both_directions_reach() -> None:
    made = apply_samples(make_hosts([1, 1]), both_ways(0, 1, 100, 50, 0), {})
    assert [host.nics[0].port.bandwidth_bytes_per_second for host in made.hosts] == [50, 50]


def test_links_keep_their_latency() -> None:
    links = (Link("a", "b", Port(GB, 30)),)
    topology = make_hosts([1, 1], switches=["a", "b"], links=links)
    made = apply_samples(topology, both_ways(0, 1, 100, 100, 50), {})
    assert made.path(0, 1).latency_nanoseconds == 50
    assert made.links == links


def test_hosts_that_differ_by_noise_stay_equal() -> None:
    topology = make_hosts([1] * 3)
    samples = [
        *both_ways(0, 1, 1000, 1010, 40), *both_ways(1, 2, 1020, 1005, 44),
        *both_ways(0, 2, 1015, 990, 50),
    ]  # fmt: skip
    made = apply_samples(topology, samples, {0: 100, 1: 104, 2: 98})
    assert made.equal_hosts() == (0, 0, 0)
    assert made.hosts[0].nics[0].port.bandwidth_bytes_per_second in range(990, 1021)


def test_unmeasured_nics_stay() -> None:
    topology = make_hosts([1, 1], nics=2)
    made = apply_samples(topology, both_ways(0, 1, 100, 100, 0), {})
    assert made.hosts[0].nics[1] == topology.hosts[0].nics[1]


def test_level() -> None:
    assert level({"a": 100, "b": 105, "c": 107, "d": 109}, 0.08) == {
        "a": 105, "b": 105, "c": 105, "d": 109,
    }  # fmt: skip
    assert level({}, 0.1) == {}
    assert level({"a": 0, "b": 0, "c": 1}, 0.5) == {"a": 0, "b": 0, "c": 1}


# ---- measuring ----


class FakeRequest:
    """Is done when its test says so."""

    def __init__(self, test: Callable[[], bool]) -> None:
        self.Test = test


class FakeComm:
    """Ranks as threads; messages travel through queues, at once."""

    def __init__(self, world: dict[str, Any], rank: int) -> None:
        self.world, self.rank = world, rank
        self.barriers = 0

    def Get_rank(self) -> int:
        return self.rank

    def Isend(self, buffer: Any, peer: int) -> FakeRequest:
        self.world["sent"].append((self.rank, peer))
        self.world["queues"][self.rank, peer].put(bytes(buffer))
        return FakeRequest(lambda: True)

    def Irecv(self, buffer: Any, peer: int) -> FakeRequest:
        # Messages go to receives in the order in which these were posted.
        pending = self.world["pending"].setdefault((peer, self.rank), [])
        state = {"done": False}
        pending.append((buffer, state))

        def test() -> bool:
            while pending:
                try:
                    message = self.world["queues"][peer, self.rank].get_nowait()
                except queue.Empty:
                    break
                target, target_state = pending.pop(0)
                target[:] = message
                target_state["done"] = True
            return state["done"]

        return FakeRequest(test)

    def Ibarrier(self) -> FakeRequest:
        self.barriers += 1
        wanted = self.barriers
        with self.world["lock"]:
            self.world["arrived"].append(wanted)
        ranks = self.world["ranks"]
        return FakeRequest(lambda: self.world["arrived"].count(wanted) == ranks)

    def allgather(self, value: Any) -> list[Any]:
        self.world["values"][self.rank] = value
        self.world["barrier"].wait(30)
        return [self.world["values"][rank] for rank in range(self.world["ranks"])]


def make_world(ranks: int) -> dict[str, Any]:
    pairs = [(a, b) for a in range(ranks) for b in range(ranks)]
    return {
        "ranks": ranks, "sent": [], "pending": {}, "values": {}, "arrived": [],
        "queues": {pair: queue.Queue() for pair in pairs},
        "lock": threading.Lock(), "barrier": threading.Barrier(ranks),
    }  # fmt: skip


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_MOST_STREAM_BYTES", 1 << 20)
    monkeypatch.setattr(measuring, "_COPY_SECONDS", 0.001)
    monkeypatch.setattr(measuring, "_MOST_COPY_BYTES", 1 << 20)


@pytest.mark.usefixtures("short")
def test_all_ranks_get_the_same_measured_topology() -> None:
    topology = make_hosts([2, 1, 1], nics=2)
    world = make_world(4)
    made: dict[int, Topology] = {}
    steps: list[tuple[int, int]] = []

    def run(rank: int) -> None:
        made[rank] = measure_topology(
            topology, FakeComm(world, rank), timeout_seconds=30,
            progress=lambda done, total: steps.append((done, total)),
        )  # fmt: skip

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 4
    assert len(set(made.values())) == 1
    assert made[0].hosts_by_rank == topology.hosts_by_rank
    # Nothing that was sent has been left behind, and all that sent were paired.
    assert all(waiting.empty() for waiting in world["queues"].values())
    paired = {pair for pairs in schedule_pairs(topology) for pair in pairs}
    assert set(world["sent"]) == paired | {(other, one) for one, other in paired}
    # A second NIC of hosts with one rank carried nothing, and keeps its rate.
    ports = [nic.port for nic in made[0].hosts[1].nics]
    assert ports[0] != topology.hosts[1].nics[0].port
    assert ports[1] == topology.hosts[1].nics[1].port
    assert steps[0][0] == 0
    assert steps[-1][0] == steps[-1][1] == len(schedule_pairs(topology)) + 1


@pytest.mark.usefixtures("short")
def test_a_rank_that_does_not_answer_is_named() -> None:
    comm = FakeComm(make_world(2), 0)
    with pytest.raises(CommTimeoutError, match=r"rank 0 waited 0\.01 s for .* rank 1") as caught:
        measure_topology(make_hosts([1, 1]), comm, timeout_seconds=0.01)
    assert caught.value.ranks == (1,)


@pytest.mark.usefixtures("short")
def test_ranks_that_wait_give_up_too() -> None:
    comm = FakeComm(make_world(2), 0)
    with pytest.raises(CommTimeoutError, match=r"rank 0 waited 0\.01 s for others to measure"):
        measure_topology(make_hosts([2]), comm, timeout_seconds=0.01)
