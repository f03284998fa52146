"""What is found on a machine, from trees and a library that are made for it, and put together."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from cocoll.errors import TopologyError
from cocoll.topology import Placement, assemble, local_facts
from cocoll.topology.assumptions import ASSUMED_MEMORY, ASSUMED_NIC
from cocoll.topology.nics import NicFacts, read_nics, select_nic
from cocoll.topology.nvml import GpuFacts, open_nvml, read_gpus

UP = {"type": "1", "flags": "0x1003", "operstate": "up", "ifindex": "2", "iflink": "2"}
HARDWARE = {**UP, "device/numa_node": "-1"}
VETH = {**UP, "iflink": "9", "speed": "10000"}


def make_nics(root: Path, nics: dict[str, dict[str, str]]) -> Path:
    for name, files in nics.items():
        for file, text in files.items():
            path = root / "sys/class/net" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
    return root


def found(root: Path, nics: dict[str, dict[str, str]]) -> list[NicFacts]:
    return read_nics(make_nics(root, nics))


# ---- NICs ----


def test_hardware_is_believed(tmp_path: Path) -> None:
    nics = {
        "eth10": {**HARDWARE, "speed": "25000", "device/numa_node": "1"},
        "eth9": {**HARDWARE, "speed": "-1"},
        "lo": {**UP, "type": "772"},
    }
    assert found(tmp_path, nics) == [NicFacts("eth9", None, 0), NicFacts("eth10", 3_125_000_000, 1)]


def test_virtual_ones_count_where_there_is_no_hardware(tmp_path: Path) -> None:
    assert found(tmp_path / "a", {"e0": VETH, "e1": VETH}) == [
        NicFacts("e0", None, 0),
        NicFacts("e1", None, 0),
    ]
    assert found(tmp_path / "b", {"e0": VETH, "eth0": HARDWARE}) == [NicFacts("eth0", None, 0)]


@pytest.mark.parametrize(
    "nic",
    [
        {**HARDWARE, "operstate": "down"},
        {**HARDWARE, "flags": "0x1002"},
        {**HARDWARE, "type": "65534"},
        {**HARDWARE, "master/bonding/mode": "1"},
        {**VETH, "master/bridge/bridge_id": "8000"},
        {**VETH, "bridge/bridge_id": "8000"},
        {**VETH, "tun_flags": "0x1"},
        UP,  # tied to nothing: a dummy
        {},
    ],
    ids=["down", "off", "tunnel", "bonded", "plugged", "bridge", "tap", "dummy", "empty"],
)
def test_what_leads_nowhere_is_left_out(tmp_path: Path, nic: dict[str, str]) -> None:
    assert found(tmp_path, {"x": {"uevent": "", **nic}}) == []


def test_hardware_in_a_bridge_leads_out(tmp_path: Path) -> None:
    nics = {"eth0": {**HARDWARE, "speed": "1000", "master/bridge/bridge_id": "8000"}}
    assert found(tmp_path, nics) == [NicFacts("eth0", 125_000_000, 0)]


def test_a_bond_has_the_speed_of_its_members(tmp_path: Path) -> None:
    nics = {
        "bond0": {**UP, "bonding/mode": "802.3ad", "speed": "20000"},
        "eth0": {**HARDWARE, "speed": "10000", "master/bonding/mode": "802.3ad"},
    }
    assert found(tmp_path, nics) == [NicFacts("bond0", 2_500_000_000, 0)]


def test_infiniband(tmp_path: Path) -> None:
    port = "device/infiniband/mlx5_0/ports/2/rate"
    nics = {"ib0": {**HARDWARE, "type": "32", "dev_port": "1", port: "400 Gb/sec (4X NDR)"}}
    make_nics(tmp_path, nics)
    for adapter, state in (("mlx5_1", "4: ACTIVE"), ("mlx5_2", "1: DOWN"), ("mlx5_3", "4: ACTIVE")):
        folder = tmp_path / "sys/class/infiniband" / adapter
        (folder / "ports/1").mkdir(parents=True)
        (folder / "ports/1/state").write_text(f"{state}\n")
        (folder / "ports/1/rate").write_text("100 Gb/sec (4X EDR)\n")
        (folder / "device").mkdir()
        (folder / "device/numa_node").write_text("1\n")
    # Its network interface is told apart already.
    (tmp_path / "sys/class/infiniband/mlx5_3/device/net").mkdir()
    assert read_nics(tmp_path) == [
        NicFacts("ib0", 50_000_000_000, 0),
        NicFacts("mlx5_1", 12_500_000_000, 1),
    ]


def test_no_sys_at_all(tmp_path: Path) -> None:
    assert read_nics(tmp_path) == []


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"OMPI_MCA_btl_tcp_if_include": "e1"}, "e1"),
        ({"UCX_NET_DEVICES": "mlx5_0:1"}, "mlx5_0"),
        ({"UCX_NET_DEVICES": "all", "FI_TCP_IFACE": "e2"}, "e2"),
        ({"OMPI_MCA_btl_tcp_if_include": "e0,e1"}, None),
        ({"OMPI_MCA_btl_tcp_if_include": "10.77.0.0/16"}, None),
        ({"MPICH_NETWORK_IFACE": " e3 "}, "e3"),
    ],
)
def test_the_nic_that_mpi_was_told(environ: dict[str, str], expected: str | None) -> None:
    assert select_nic(environ) == expected


# ---- GPUs ----


class FakeNvml:
    """Answers as the library does: numbers into pointers, 0 for success."""

    def __init__(self, gpus: list[dict[str, Any]], status: int = 0) -> None:
        self.gpus = gpus
        self.status = status
        self.open = 0

    def nvmlInit_v2(self) -> int:
        self.open += self.status == 0
        return self.status

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 15 if self.gpus[index.value].get("lost") else 0

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, length: ctypes.c_uint) -> int:
        assert length.value >= 64
        buffer.value = self._of(handle)["name"].encode()
        return 0

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: ctypes.c_uint, value: Any) -> int:
        return self._put(handle, "clock", value) if kind.value == 2 else 2

    def nvmlDeviceGetMemoryBusWidth(self, handle: Any, value: Any) -> int:
        return self._put(handle, "width", value)

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: ctypes.c_uint, value: Any) -> int:
        states = self._of(handle).get("links", [])
        if link.value >= len(states):
            return 2
        value._obj.value = states[link.value]
        return 0

    def nvmlDeviceGetNvLinkVersion(self, handle: Any, link: ctypes.c_uint, value: Any) -> int:
        return self._put(handle, "version", value)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, value: Any) -> int:
        return self._put(handle, "generation", value)

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, value: Any) -> int:
        return self._put(handle, "lanes", value)

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        if "bus" not in self._of(handle):
            return 3
        info._obj.domain, info._obj.bus, info._obj.device = 0, self._of(handle)["bus"], 0
        return 0

    def _of(self, handle: Any) -> dict[str, Any]:
        return self.gpus[handle.value - 1]

    def _put(self, handle: Any, name: str, value: Any) -> int:
        if name not in self._of(handle):
            return 3
        value._obj.value = self._of(handle)[name]
        return 0


def test_gpus(tmp_path: Path) -> None:
    node = tmp_path / "sys/bus/pci/devices/0000:1a:00.0/numa_node"
    node.parent.mkdir(parents=True)
    node.write_text("1\n")
    library = FakeNvml(
        [
            # 18 links of the fourth generation, one of them down.
            {"name": "H100", "clock": 2619, "width": 5120, "links": [1] * 17 + [0], "version": 6,
             "bus": 0x1A},
            {"name": "lost", "lost": True},
            {"name": "L4", "generation": 4, "lanes": 16},
            {"name": "odd"},
        ]
    )  # fmt: skip
    assert read_gpus(library, tmp_path) == [
        GpuFacts("H100", 2 * 2_619_000_000 * 640, 17 * 25 * 10**9, 1),
        GpuFacts("L4", None, 31_504_000_000, 0),
        GpuFacts("odd", None, None, 0),
    ]
    assert library.open == 0


def test_no_gpus() -> None:
    assert read_gpus(None) == []
    # The library is there and the driver is not.
    assert read_gpus(FakeNvml([{"name": "x"}], status=9)) == []


def test_the_library_of_this_machine_or_none() -> None:
    assert isinstance(read_gpus(open_nvml()), list)


# ---- together ----


def facts(hostname: str = "a", **fields: Any) -> dict[str, Any]:
    made = {"hostname": hostname, "numa_nodes": 1, "nics": [], "gpus": [], "nic": None, **fields}
    return json.loads(json.dumps(made))  # as it travels


def nic(name: str, rate: int | None = None, numa_node: int = 0) -> dict[str, Any]:
    return {"name": name, "bytes_per_second": rate, "numa_node": numa_node}


def test_facts_of_this_machine_travel_as_json(tmp_path: Path) -> None:
    make_nics(tmp_path, {"e0": VETH})
    for number in (0, 1, 10):
        (tmp_path / f"sys/devices/system/node/node{number}").mkdir(parents=True)
    seen = local_facts(tmp_path)
    assert json.loads(json.dumps(seen)) == seen
    assert seen["numa_nodes"] == 11
    assert seen["nics"] == [nic("e0")]
    assert assemble([seen], [0]).hosts[0].nics[0].name == "e0"


def test_one_host() -> None:
    topology = assemble([facts(), facts()], [0, 0])
    assert topology.placements == (Placement(0), Placement(0))
    assert topology.hosts[0].memory == ASSUMED_MEMORY
    assert topology.source == "gathered; rates of memory are assumed"


def test_several_hosts_interleaved() -> None:
    rates = [nic("e0", 10**9), nic("e1", 10**9)]
    ranks = [facts("a", nics=rates), facts("b", nics=rates)] * 3
    topology = assemble(ranks, [0, 1] * 3)
    assert topology.hosts_by_rank == (0, 1) * 3
    assert [place.nic for place in topology.placements] == [0, 0, 1, 1, 0, 0]
    assert topology.host_names == ("a", "b")
    assert topology.path(0, 1).ports == (0, 6)
    assert topology.source == "gathered; rates of memory are assumed"


def test_unknown_rates_are_assumed_and_said_so() -> None:
    topology = assemble([facts("a", nics=[nic("e0")]), facts("b")], [0, 1])
    assert [host.nics[0].port for host in topology.hosts] == [ASSUMED_NIC] * 2
    assert topology.source == "gathered; rates of memory and NICs are assumed"


def test_a_slow_nic_beside_fast_ones_is_left_to_management() -> None:
    nics = [nic("eno1", 125_000_000), nic("ib0", 50 * 10**9), nic("ib1", 50 * 10**9), nic("x")]
    topology = assemble([facts(nics=nics)] * 3 + [facts(nics=nics, nic="eno1")], [0] * 4)
    assert [place.nic for place in topology.placements] == [1, 2, 1, 0]


def test_ranks_use_the_nic_that_mpi_was_told() -> None:
    nics = [nic("e0"), nic("e1")]
    topology = assemble([facts(nics=nics, nic="e1"), facts("b", nics=nics, nic="e0")], [0, 1])
    assert [place.nic for place in topology.placements] == [1, 0]
    with pytest.raises(TopologyError, match="MPI of rank 1 was told to use the NIC e2; host b has"):
        assemble([facts(nics=nics), facts("b", nics=nics, nic="e2")], [0, 1])
    # Within one host no message needs it.
    assert assemble([facts(nics=nics, nic="lo")], [0]).placements == (Placement(0),)


def test_gpus_and_their_ranks() -> None:
    gpu = {"name": "g", "memory_bytes_per_second": 9, "bytes_per_second": None, "numa_node": 1}
    topology = assemble([facts(gpus=[gpu, gpu])] * 3, [0] * 3, device_of_rank=[1, None, 0])
    assert [place.device for place in topology.placements] == [1, None, 0]
    assert topology.hosts[0].numa_nodes == 2
    assert topology.hosts[0].devices[0].memory_bytes_per_second == 9
    assert "GPUs" in topology.source
    with pytest.raises(TopologyError, match=r"rank 0 .*wanted a device in \[0, 2\); got 2"):
        assemble([facts(gpus=[gpu, gpu])], [0], device_of_rank=[2])


@pytest.mark.parametrize(
    ("ranks", "hosts"), [(0, []), (2, [0]), (2, [0, 2]), (1, [1]), (2, [-1, 0])]
)
def test_hosts_are_numbered_from_zero(ranks: int, hosts: list[int]) -> None:
    with pytest.raises(TopologyError, match="wanted"):
        assemble([facts()] * ranks, hosts)
