"""The graph: what is refused, what paths cross, who is equal, and what parts of it look like."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocoll.errors import RankError, TopologyError, UsageError
from cocoll.topology import Device, Host, Link, Nic, Placement, Port, Topology, load_preset
from cocoll.topology.graph import Path
from tests.helpers.topologies import GB, MEMORY, make_hosts, topologies

GPU = Device("gpu", 900 * GB, Port(100 * GB, 500))


def names(topology: Topology, path: Path) -> list[str]:
    return [topology.ports[port].name for port in path.ports]


def two_racks(rate: int = GB // 2, latency_nanoseconds: int = 7_000) -> Topology:
    links = (Link("a", "b", Port(rate, latency_nanoseconds)),)
    return make_hosts([2, 1, 1], switches=["a", "b", "a"], links=links)


# ---- parts ----


@pytest.mark.parametrize(
    "make",
    [
        lambda: Port(0),
        lambda: Port(-1),
        lambda: Port(1.5),  # type: ignore[arg-type]
        lambda: Port(True),
        lambda: Port(1, -1),
        lambda: Port(1, 0, "both"),  # type: ignore[arg-type]
        lambda: Nic("", Port(1)),
        lambda: Nic("e0", Port(1), ""),
        lambda: Nic("e0", Port(1), numa_node=-1),
        lambda: Device("gpu", 0, Port(1)),
        lambda: Host("", MEMORY),
        lambda: Host("h", MEMORY, numa_nodes=0),
        lambda: Host("h", MEMORY, (Nic("e0", Port(1), numa_node=1),)),
        lambda: Host("h", MEMORY, devices=(replace(GPU, numa_node=2),), numa_nodes=2),
        lambda: Host("h", MEMORY, (Nic("e0", Port(1)), Nic("e0", Port(2)))),
        lambda: Link("a", "a", Port(1)),
        lambda: Link("", "a", Port(1)),
    ],
)
def test_impossible_parts_are_refused(make: object) -> None:
    with pytest.raises(TopologyError):
        make()  # type: ignore[operator]


def test_memory_is_half_duplex_whatever_is_said() -> None:
    assert Host("h", Port(GB, 5, "full")).memory == Port(GB, 5, "half")


# ---- what is checked ----


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ([Placement(2)], r"rank 0: wanted a host in \[0, 2\); got 2"),
        ([Placement(-1)], r"rank 0: wanted a host"),
        ([Placement(0), Placement(1, 1)], r"rank 1 on host h1: wanted a NIC in \[0, 1\); got 1"),
        ([Placement(0, 0, 0), Placement(1)], r"rank 0 on host h0: wanted a device in \[0, 0\)"),
        ([Placement(0)], r"host h1 has no rank"),
        ([], "at least one host and one rank"),
    ],
)
def test_ranks_must_stand_somewhere(placements: list[Placement], message: str) -> None:
    hosts = make_hosts([1, 1]).hosts
    with pytest.raises(TopologyError, match=message):
        Topology("t", hosts, tuple(placements))


def test_a_topology_error_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError):
        Topology("t", (), ())


def test_hosts_without_a_way_are_named() -> None:
    with pytest.raises(TopologyError, match=r"hosts h0 and h1 cannot reach each other.*a.*b") as e:
        make_hosts([1, 1, 1], switches=["a", "b", "a"])
    assert e.value.fields["hosts"] == (0, 1)


def test_a_host_whose_other_nic_is_out_of_reach_is_named() -> None:
    both = Host("x", MEMORY, (Nic("e0", Port(1), "a"), Nic("e1", Port(1), "b")))
    one = Host("y", MEMORY, (Nic("e0", Port(1), "a"),))
    # Only NICs that carry a rank's messages must lead somewhere.
    Topology("t", (both, one), (Placement(0, 0), Placement(1)))
    with pytest.raises(TopologyError, match="hosts x and y cannot reach each other"):
        Topology("t", (both, one), (Placement(0, 0), Placement(0, 1), Placement(1)))


def test_a_host_without_a_nic_is_alone() -> None:
    bare, other = Host("x", MEMORY), make_hosts([1]).hosts[0]
    assert Topology("t", (bare,), (Placement(0), Placement(0))).world_size == 2
    with pytest.raises(TopologyError, match="h0 and x cannot reach each other: x has no NIC"):
        Topology("t", (other, bare), (Placement(0), Placement(1)))


@pytest.mark.parametrize("ends", [("a", "bb"), ("bb", "c"), ("a", "c")])
def test_a_link_must_lead_somewhere(ends: tuple[str, str]) -> None:
    links = (Link("a", "b", Port(1)), Link(*ends, Port(1)))
    with pytest.raises(TopologyError, match="leads nowhere"):
        make_hosts([1, 1], switches=["a", "b"], links=links)


def test_a_switch_between_switches_needs_no_nic() -> None:
    links = (Link("a", "core", Port(GB, 10)), Link("core", "b", Port(GB, 20)))
    topology = make_hosts([1, 1], switches=["a", "b"], links=links)
    assert names(topology, topology.path(1, 0)) == ["h1 e0 out", "b > core", "core > a", "h0 e0 in"]
    assert topology.path(1, 0).latency_nanoseconds == 2_030


# ---- ports and paths ----


def test_ports_are_numbered_host_by_host_and_links_last() -> None:
    topology = two_racks()
    assert [use.name for use in topology.ports] == [
        "h0 e0 out", "h0 e0 in", "h0 memory", "h1 e0 out", "h1 e0 in", "h1 memory",
        "h2 e0 out", "h2 e0 in", "h2 memory", "a > b", "b > a",
    ]  # fmt: skip
    assert [use.host for use in topology.ports] == [0, 0, 0, 1, 1, 1, 2, 2, 2, None, None]
    assert [use.kind for use in topology.ports[1:4]] == ["nic_in", "memory", "nic_out"]
    assert topology.ports[-1] == topology.ports[10]
    with pytest.raises(IndexError):
        topology.ports[11]


def test_a_message_crosses_both_nics_and_the_links() -> None:
    topology = two_racks()
    assert topology.path(0, 3) == Path((0, 7), 2_000)
    assert topology.path(0, 2) == Path((0, 9, 4), 9_000)
    assert topology.path(2, 1) == Path((3, 10, 1), 9_000)


def test_a_message_inside_a_host_crosses_its_memory() -> None:
    topology = two_racks()
    assert topology.path(0, 1) == topology.memory_path(1, 0) == Path((2,), 100)


def test_half_duplex_has_one_port_for_both_ways() -> None:
    link = Link("a", "b", Port(GB, duplex="half"))
    topology = make_hosts([1, 1], switches=["a", "b"], links=(link,), duplex="half")
    assert [use.kind for use in topology.ports] == ["nic", "memory", "nic", "memory", "link"]
    assert topology.path(0, 1).ports == (0, 4, 2)
    assert topology.path(1, 0).ports == (2, 4, 0)


def test_gpus_reach_each_other_by_their_ports() -> None:
    host = Host("h", MEMORY, devices=(GPU, GPU))
    seats = (Placement(0, 0, 0), Placement(0, 0, 1), Placement(0, 0, 1), Placement(0))
    topology = Topology("t", (host,), seats)
    assert names(topology, topology.memory_path(0, 1)) == ["h gpu1 out", "h gpu0 in"]
    assert topology.memory_path(0, 1).latency_nanoseconds == 1_000
    assert names(topology, topology.memory_path(0, 1, write=True)) == ["h gpu0 out", "h gpu1 in"]
    assert names(topology, topology.path(0, 1)) == ["h gpu0 out", "h gpu1 in"]
    assert names(topology, topology.memory_path(1, 2)) == ["h gpu1 memory"]
    assert names(topology, topology.memory_path(0, 3)) == ["h memory"]


def test_no_memory_is_mapped_across_hosts() -> None:
    with pytest.raises(TopologyError, match="ranks 0 and 2 are on hosts h0 and h1"):
        two_racks().memory_path(0, 2)


@pytest.mark.parametrize("rank", [-1, 4])
def test_ranks_that_do_not_exist(rank: int) -> None:
    topology = two_racks()
    for ask in (
        lambda: topology.host_of(rank),
        lambda: topology.path(0, rank),
        lambda: topology.path(rank, 0),
        lambda: topology.memory_path(rank, 0),
        lambda: topology.subset([0, rank]),
    ):
        with pytest.raises(RankError, match=rf"\[0, 4\); got {rank}"):
            ask()


def test_members_and_hosts_by_rank() -> None:
    topology = make_hosts([1, 1]).subset([0, 1])
    mixed = Topology("t", topology.hosts, tuple(Placement(rank % 2) for rank in range(5)))
    assert mixed.hosts_by_rank == (0, 1, 0, 1, 0)
    assert mixed.hosts_by_rank is mixed.hosts_by_rank
    assert [mixed.members(host) for host in (0, 1)] == [(0, 2, 4), (1, 3)]
    assert mixed.host_of(3) == 1
    with pytest.raises(TopologyError):
        mixed.members(2)


# ---- equal hosts, equal topologies ----


def test_equal_hosts() -> None:
    assert make_hosts([2, 2, 1, 2], rates=[GB, GB, GB, 2 * GB]).equal_hosts() == (0, 0, 1, 2)
    assert two_racks().equal_hosts() == (0, 1, 2)
    racks = make_hosts([1, 1, 1], switches=["a", "b", "a"], links=two_racks().links)
    assert racks.equal_hosts() == (0, 1, 0)


def test_equal_hosts_look_at_seats() -> None:
    nics = (Nic("e0", Port(GB)), Nic("e1", Port(GB)))
    host = Host("h", MEMORY, nics)
    seats = (Placement(0, 0), Placement(0, 1), Placement(1, 1), Placement(1, 0))
    assert Topology("t", (host, host), seats).equal_hosts() == (0, 1)


def test_digest_knows_no_names() -> None:
    topology = two_racks()
    renamed = Topology(
        "other",
        tuple(
            replace(host, name="x", nics=tuple(
                replace(nic, name="y", switch=nic.switch * 2) for nic in host.nics
            ))
            for host in topology.hosts
        ),
        topology.placements,
        (Link("aa", "bb", topology.links[0].port),),
        "elsewhere",
    )  # fmt: skip
    assert renamed != topology
    assert renamed.digest() == topology.digest()


@pytest.mark.parametrize(
    "other",
    [
        two_racks(rate=GB),
        two_racks(latency_nanoseconds=8_000),
        make_hosts([2, 1, 1], switches=["a", "a", "b"], links=two_racks().links),
        make_hosts([2, 2, 1], switches=["a", "b", "a"], links=two_racks().links),
        make_hosts([2, 1, 1], switches=["a", "b", "a"], links=two_racks().links, nics=2),
        make_hosts([2, 1, 1]),
        two_racks().subset([1, 2, 0, 3]),
    ],
)
def test_digest_tells_apart(other: Topology) -> None:
    assert other.digest() != two_racks().digest()


def test_equality_ignores_the_source_alone() -> None:
    topology = two_racks()
    assert replace(topology, source="x") == topology
    assert hash(replace(topology, source="x")) == hash(topology)
    assert replace(topology, name="x") != topology


def test_frozen_and_picklable() -> None:
    topology = two_racks()
    topology.path(0, 2)
    with pytest.raises(AttributeError):
        topology.name = "x"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(topology)) == topology


# ---- parts of a topology ----


def test_subset_drops_hosts_and_links() -> None:
    topology = two_racks()
    assert topology.subset([3, 0]).links == ()
    part = topology.subset([3, 2])
    assert [host.name for host in part.hosts] == ["h1", "h2"]
    assert part.hosts_by_rank == (1, 0)
    assert names(part, part.path(0, 1)) == ["h2 e0 out", "a > b", "h1 e0 in"]


@pytest.mark.parametrize("ranks", [[], [0, 0]])
def test_subset_wants_different_ranks(ranks: list[int]) -> None:
    with pytest.raises(RankError, match="different ranks"):
        two_racks().subset(ranks)


@settings(max_examples=20)
@given(topologies(), st.data())
def test_a_subset_has_the_same_paths(topology: Topology, data: st.DataObject) -> None:
    ranks = data.draw(
        st.lists(st.integers(0, topology.world_size - 1), min_size=1, unique=True), label="ranks"
    )
    part = topology.subset(ranks)
    assert part.world_size == len(ranks)
    for new, old in enumerate(ranks):
        for new_peer, old_peer in enumerate(ranks):
            path, whole = part.path(new, new_peer), topology.path(old, old_peer)
            assert path.latency_nanoseconds == whole.latency_nanoseconds
            for one, other in zip(path.ports, whole.ports, strict=True):
                assert part.ports[one][1:3] == topology.ports[other][1:3]


@settings(max_examples=10)
@given(topologies())
def test_all_ways_of_reading_ports_agree(topology: Topology) -> None:
    listed = list(topology.ports)
    assert listed == [topology.ports[number] for number in range(len(topology.ports))]
    rates = tuple(use.bandwidth_bytes_per_second for use in listed)
    assert topology.bandwidths_bytes_per_second == rates


# ---- size ----


def test_thousands_of_hosts_are_described_once() -> None:
    topology = load_preset("dgx-h100:8192")
    assert topology.world_size == 65_536
    assert len({id(host) for host in topology.hosts}) == 1
    # 8 NICs and 8 GPUs both ways, the GPUs' memories, the host's.
    assert len(topology.ports) == 8192 * (16 + 16 + 8 + 1)
    assert len({id(ports) for ports in topology.ports.of_host}) == 1
    assert names(topology, topology.path(0, 65_535)) == ["h0 mlx5_0 out", "h8191 mlx5_7 in"]
    assert set(topology.equal_hosts()) == {0}
