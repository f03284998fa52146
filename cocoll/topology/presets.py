"""Machines that plans can be made for without having them; every number has its source.

A preset is named with a number of hosts, ``dgx-h100:4``; every GPU is a rank. Vendors add both
directions of NVLink up; here each direction has its own port and thus half of that. Networks are
one switch that never saturates, as the fat trees that these machines are sold with. Where vendors
give no latency it is assumed and said so below.

References
----------
.. [1] AWS, "Amazon EC2 P3 instances", table of instance sizes: p3.8xlarge has 4 GPUs, 200 GB/s of
   NVLink to each and 10 Gbit/s of network, on Intel Xeon E5-2686 v4.
.. [2] Intel, ARK, Xeon E5 v4: four channels of DDR4-2400, 76.8 GB/s a socket.
.. [3] NVIDIA, "Tesla V100 GPU accelerator", data sheet: 900 GB/s of HBM2; NVLink 300 GB/s, six
   links of 25 GB/s each way.
.. [4] NVIDIA, "DGX-2", data sheet: 16 V100, 12 NVSwitches, 2.4 TB/s of bisection bandwidth (so each
   GPU's 150 GB/s each way holds for any pair), 8 ConnectX at 100 Gbit/s, two Xeon Platinum 8168.
.. [5] Intel, ARK, Xeon Platinum 8168: six channels of DDR4-2666, 128 GB/s a socket.
.. [6] NVIDIA, "DGX H100", data sheet: 8 H100, NVLink 900 GB/s a GPU, 8 ConnectX-7 at 400 Gbit/s for
   the GPUs, two Xeon Platinum 8480C; "H100", data sheet: 3.35 TB/s of HBM3.
.. [7] Intel, ARK, Xeon Platinum 8480: eight channels of DDR5-4800, 307.2 GB/s a socket.
.. [8] NVIDIA, "GB200 NVL72", product page: 72 GPUs in one NVLink domain of 130 TB/s (1.8 TB/s a
   GPU), 576 TB/s of HBM3e (8 TB/s a GPU), 36 Grace processors; "DGX GB200": 72 ConnectX-7 at 400
   Gbit/s.
.. [9] NVIDIA, "Grace CPU", data sheet: up to 500 GB/s of LPDDR5X a processor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from cocoll.errors import TopologyError
from cocoll.topology.assumptions import ASSUMED_MEMORY, ASSUMED_NIC_LATENCY_NANOSECONDS
from cocoll.topology.graph import Topology
from cocoll.topology.parts import Device, Host, Nic, Placement, Port

__all__ = ["PRESETS", "Preset", "load_preset"]

_GB = 10**9
_GBIT = 10**9 // 8

# Assumed: 2 us for a small message over InfiniBand between GPUs (half at each end), and 1 us for a
# flag or a load over NVLink.
_INFINIBAND_LATENCY_NANOSECONDS = 1_000
_NVLINK_LATENCY_NANOSECONDS = 500
# Assumed: a load that misses all caches.
_MEMORY_LATENCY_NANOSECONDS = 100

_MOST_RANKS = 2**22


class Preset(NamedTuple):
    """A kind of machine.

    Attributes
    ----------
    summary : str
        What it is, in a few words.
    default : int
        The number that is taken where none is given.
    most : int
        The largest number.
    make : callable
        Gives hosts and placements from the number.
    """

    summary: str
    default: int
    most: int
    make: Callable[[int], tuple[tuple[Host, ...], tuple[Placement, ...]]]


def _repeat(host: Host, count: int) -> tuple[tuple[Host, ...], tuple[Placement, ...]]:
    """Give `count` equal hosts, one rank for each GPU, neighbouring GPUs sharing a NIC."""
    gpus, nics = len(host.devices), len(host.nics)
    seats = [(gpu * nics // gpus, gpu) for gpu in range(gpus)]
    placements = [Placement(number, nic, gpu) for number in range(count) for nic, gpu in seats]
    return (host,) * count, tuple(placements)


def _gpu_host(
    *,
    gpu: str,
    gpus: int,
    gpu_memory_bytes_per_second: int,
    nvlink_bytes_per_second: int,
    nic: str,
    nics: int,
    nic_bytes_per_second: int,
    nic_latency_nanoseconds: int,
    memory_bytes_per_second: int,
    numa_nodes: int,
) -> Host:
    nvlink = Port(nvlink_bytes_per_second, _NVLINK_LATENCY_NANOSECONDS)
    network = Port(nic_bytes_per_second, nic_latency_nanoseconds)
    return Host(
        name="h",
        memory=Port(memory_bytes_per_second, _MEMORY_LATENCY_NANOSECONDS, "half"),
        nics=tuple(
            Nic(f"{nic}{number}", network, numa_node=number * numa_nodes // nics)
            for number in range(nics)
        ),
        devices=tuple(
            Device(gpu, gpu_memory_bytes_per_second, nvlink, numa_node=number * numa_nodes // gpus)
            for number in range(gpus)
        ),
        numa_nodes=numa_nodes,
    )


def _p3_8xlarge(count: int) -> tuple[tuple[Host, ...], tuple[Placement, ...]]:
    host = _gpu_host(
        gpu="V100",
        gpus=4,
        gpu_memory_bytes_per_second=900 * _GB,  # [3]
        nvlink_bytes_per_second=100 * _GB,  # [1], 4 of the 6 links [3]: 2 lead out of the instance
        nic="eth",
        nics=1,
        nic_bytes_per_second=10 * _GBIT,  # [1]
        nic_latency_nanoseconds=ASSUMED_NIC_LATENCY_NANOSECONDS,  # TCP in one data centre
        memory_bytes_per_second=76_800_000_000,  # [2], 32 vCPUs are one socket
        numa_nodes=1,
    )
    return _repeat(host, count)


def _dgx2(count: int) -> tuple[tuple[Host, ...], tuple[Placement, ...]]:
    host = _gpu_host(
        gpu="V100",
        gpus=16,  # [4]
        gpu_memory_bytes_per_second=900 * _GB,  # [3]
        nvlink_bytes_per_second=150 * _GB,  # [3], [4]
        nic="mlx5_",
        nics=8,  # [4]
        nic_bytes_per_second=100 * _GBIT,  # [4]
        nic_latency_nanoseconds=_INFINIBAND_LATENCY_NANOSECONDS,
        memory_bytes_per_second=256 * _GB,  # [5], two sockets [4]
        numa_nodes=2,
    )
    return _repeat(host, count)


def _dgx_h100(count: int) -> tuple[tuple[Host, ...], tuple[Placement, ...]]:
    host = _gpu_host(
        gpu="H100",
        gpus=8,  # [6]
        gpu_memory_bytes_per_second=3_350 * _GB,  # [6]
        nvlink_bytes_per_second=450 * _GB,  # [6]
        nic="mlx5_",
        nics=8,  # [6]
        nic_bytes_per_second=400 * _GBIT,  # [6]
        nic_latency_nanoseconds=_INFINIBAND_LATENCY_NANOSECONDS,
        memory_bytes_per_second=614_400_000_000,  # [7], two sockets [6]
        numa_nodes=2,
    )
    return _repeat(host, count)


def _gb200_nvl72(count: int) -> tuple[tuple[Host, ...], tuple[Placement, ...]]:
    host = _gpu_host(
        gpu="GB200",
        gpus=72,  # [8]
        gpu_memory_bytes_per_second=8_000 * _GB,  # [8]
        nvlink_bytes_per_second=900 * _GB,  # [8]
        nic="mlx5_",
        nics=72,  # [8]
        nic_bytes_per_second=400 * _GBIT,  # [8]
        nic_latency_nanoseconds=_INFINIBAND_LATENCY_NANOSECONDS,
        memory_bytes_per_second=18_000 * _GB,  # [9], 36 processors [8]
        numa_nodes=36,
    )
    return _repeat(host, count)


def _laptop(count: int) -> tuple[tuple[Host, ...], tuple[Placement, ...]]:
    host = Host(name="laptop", memory=ASSUMED_MEMORY)
    return (host,), (Placement(0),) * count


#: By name.
PRESETS = {
    "p3.8xlarge": Preset("hosts of 4 V100, 10 Gbit/s a host", 1, _MOST_RANKS // 4, _p3_8xlarge),
    "dgx2": Preset("hosts of 16 V100, 8 x 100 Gbit/s a host", 1, _MOST_RANKS // 16, _dgx2),
    "dgx-h100": Preset("hosts of 8 H100, 400 Gbit/s each", 1, _MOST_RANKS // 8, _dgx_h100),
    "gb200-nvl72": Preset("racks of 72 GPUs, 400 Gbit/s each", 1, _MOST_RANKS // 72, _gb200_nvl72),
    "laptop": Preset("ranks on the processors of one host", 4, 4096, _laptop),
}


def load_preset(spec: str) -> Topology:
    """Make the topology of a preset.

    Parameters
    ----------
    spec : str
        A name of `PRESETS`, with or without a number: ``"dgx-h100"``, ``"dgx-h100:4"``. It counts
        hosts, of ``laptop`` ranks.

    Returns
    -------
    Topology
        Its hosts are one object.

    Raises
    ------
    TopologyError
        There is no such preset, or the number is none.
    """
    name, colon, number = spec.partition(":")
    preset = PRESETS.get(name)
    if preset is None:
        known = ", ".join(f"{known}:N" for known in PRESETS)
        raise TopologyError(f"wanted a preset out of {known}; got {spec!r}")
    count = preset.default
    if colon:
        count = int(number) if re.fullmatch(r"[0-9]{1,9}", number) else 0
        if not 1 <= count <= preset.most:
            raise TopologyError(
                f"preset {name}: wanted a number from 1 to {preset.most} after the colon; "
                f"got {number!r}"
            )
    hosts, placements = preset.make(count)
    full = f"{name}:{count}"
    return Topology(full, hosts, placements, source=f"preset {full}")
