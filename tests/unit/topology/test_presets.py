"""Presets have the ports that their machines are sold with."""

from __future__ import annotations

import time

import pytest

from cocoll.errors import TopologyError
from cocoll.topology import PRESETS, load_preset
from tests.helpers.topologies import GB


@pytest.mark.parametrize(
    ("spec", "ranks", "nics", "nic_gbit", "nvlink", "memory"),
    [
        ("p3.8xlarge:5", 20, 1, 10, 100, 900),
        ("dgx2:16", 256, 8, 100, 150, 900),
        ("dgx-h100:4", 32, 8, 400, 450, 3350),
        ("gb200-nvl72:2", 144, 72, 400, 900, 8000),
    ],
)
def test_ports(spec: str, ranks: int, nics: int, nic_gbit: int, nvlink: int, memory: int) -> None:
    topology = load_preset(spec)
    host = topology.hosts[0]
    assert topology.world_size == ranks
    assert topology.source == f"preset {spec}"
    assert len(host.nics) == nics
    assert {nic.port.bandwidth_bytes_per_second for nic in host.nics} == {nic_gbit * GB // 8}
    assert {gpu.port.bandwidth_bytes_per_second for gpu in host.devices} == {nvlink * GB}
    assert {gpu.memory_bytes_per_second for gpu in host.devices} == {memory * GB}
    # Every GPU has one rank, and every NIC equally many.
    assert [place.device for place in topology.placements[: len(host.devices)]] == list(
        range(len(host.devices))
    )
    of_first = [place.nic for place in topology.placements if place.host == 0]
    assert {of_first.count(nic) for nic in range(nics)} == {len(host.devices) // nics}
    # A GPU's NIC hangs on the same NUMA node.
    for place in topology.placements:
        assert place.device is not None
        assert host.nics[place.nic].numa_node == host.devices[place.device].numa_node or nics == 1


def test_laptop_counts_ranks() -> None:
    assert load_preset("laptop").world_size == 4
    assert load_preset("laptop:6").world_size == 6
    assert len(load_preset("laptop:6").hosts) == 1


@pytest.mark.parametrize(
    "spec", ["dgx2:0", "dgx2:", "dgx2:-1", "dgx2:2.5", "dgx2:many", "dgx2:9999999"]
)
def test_numbers_that_are_refused(spec: str) -> None:
    with pytest.raises(
        TopologyError, match=f"preset dgx2: wanted a number from 1 to .*; got {spec[5:]!r}"
    ):
        load_preset(spec)


def test_unknown_preset() -> None:
    with pytest.raises(TopologyError, match=r"laptop:N; got 'desktop'"):
        load_preset("desktop")


@pytest.mark.parametrize("name", PRESETS)
def test_the_default_is_one_of_each(name: str) -> None:
    assert load_preset(name) == load_preset(f"{name}:{PRESETS[name].default}")


@pytest.mark.long
def test_thousands_of_hosts_take_no_time() -> None:
    started = time.process_time()
    topology = load_preset("dgx-h100:8192")
    for rank in range(0, topology.world_size, 7):
        topology.path(rank, topology.world_size - 1 - rank)
    topology.equal_hosts(), topology.digest(), topology.hosts_by_rank
    # Under 2 s on the slowest machine seen; the margin is for others.
    assert time.process_time() - started < 20
