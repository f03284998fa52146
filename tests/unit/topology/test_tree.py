"""The tree that people read."""

from __future__ import annotations

import textwrap

from cocoll.topology import Device, Host, Link, Nic, Placement, Port, Topology, load_preset
from cocoll.topology.tree import format_topology
from tests.helpers.topologies import GB, MEMORY, make_hosts


def test_equal_hosts_are_shown_once() -> None:
    shown = format_topology(load_preset("p3.8xlarge:512"))
    assert shown == textwrap.dedent(
        """\
        p3.8xlarge:512: 512 hosts, 2048 ranks (preset p3.8xlarge:512)
        h0 .. h511 (512 equal hosts)
        ├── memory: 76.8 GB/s, read and write together
        ├── NIC eth0: 10 Gbit/s, 15 us, switch network
        ├── GPU 0: V100, memory 900 GB/s, to other GPUs 100 GB/s each way
        │   └── ranks 0; 4; ... over eth0
        ├── GPU 1: V100, memory 900 GB/s, to other GPUs 100 GB/s each way
        │   └── ranks 1; 5; ... over eth0
        ├── GPU 2: V100, memory 900 GB/s, to other GPUs 100 GB/s each way
        │   └── ranks 2; 6; ... over eth0
        └── GPU 3: V100, memory 900 GB/s, to other GPUs 100 GB/s each way
            └── ranks 3; 7; ... over eth0"""
    )


def test_hosts_links_and_interleaved_ranks() -> None:
    links = (Link("a", "b", Port(GB // 8, 5, "half")),)
    racks = make_hosts([1] * 4, switches=["a", "b", "a", "b"], links=links)
    seats = tuple(Placement(rank % 4) for rank in range(12))
    shown = format_topology(Topology("t", racks.hosts, seats, links, "by hand"))
    assert shown == textwrap.dedent(
        """\
        t: 4 hosts, 12 ranks (by hand)
        h0, h2 (2 equal hosts)
        ├── memory: 20 GB/s, read and write together
        └── NIC e0: 8 Gbit/s, 1 us, switch a
            └── ranks 0, 4, 8; 2, 6, 10
        h1, h3 (2 equal hosts)
        ├── memory: 20 GB/s, read and write together
        └── NIC e0: 8 Gbit/s, 1 us, switch b
            └── ranks 1, 5, 9; 3, 7, 11
        link a - b: 1 Gbit/s both ways together, 5 ns"""
    )


def test_one_host_without_a_nic() -> None:
    assert (
        format_topology(load_preset("laptop:1"))
        .splitlines()[0]
        .startswith("laptop:1: 1 host, 1 rank (preset")
    )
    assert format_topology(load_preset("laptop")).splitlines()[-1] == "└── ranks 0-3"


def test_numa_nodes() -> None:
    nics = (Nic("e0", Port(GB)), Nic("e1", Port(GB), numa_node=2))
    gpu = Device("g", GB, Port(GB, duplex="half"), numa_node=2)
    host = Host("h", MEMORY, nics, (gpu, gpu), numa_nodes=3)
    topology = Topology("t", (host,), (Placement(0, 1, 0), Placement(0, 0)))
    assert format_topology(topology).splitlines()[3:] == [
        "├── NUMA node 0",
        "│   └── NIC e0: 8 Gbit/s, 0 ns, switch network",
        "│       └── rank 1",
        "└── NUMA node 2",
        "    ├── NIC e1: 8 Gbit/s, 0 ns, switch network",
        "    ├── GPU 0: g, memory 1 GB/s, to other GPUs 1 GB/s both ways together",
        "    │   └── rank 0 over e1",
        "    └── GPU 1: g, memory 1 GB/s, to other GPUs 1 GB/s both ways together",
    ]


def test_long_lists_are_cut() -> None:
    topology = make_hosts([1, 2] * 10)
    lines = format_topology(topology).splitlines()
    assert lines[1] == "h0, h2, h4, h6, h8, ..., h18 (10 equal hosts)"
    seats = tuple(Placement(rank % 2) for rank in range(40))
    lines = format_topology(Topology("t", make_hosts([1, 2]).hosts, seats)).splitlines()
    assert lines[-1] == "    └── ranks 0, 2, 4, 6, 8, ..., 38; 1, 3, 5, 7, 9, ..., 39"
