"""From what each rank sees of its machine to the topology of the job."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cocoll.errors import TopologyError
from cocoll.topology.assumptions import (
    ASSUMED_DEVICE_BYTES_PER_SECOND,
    ASSUMED_DEVICE_LATENCY_NANOSECONDS,
    ASSUMED_DEVICE_MEMORY_BYTES_PER_SECOND,
    ASSUMED_MEMORY,
    ASSUMED_NIC,
    ASSUMED_NIC_LATENCY_NANOSECONDS,
)
from cocoll.topology.graph import Topology
from cocoll.topology.nics import read_nics, select_nic
from cocoll.topology.nvml import open_nvml, read_gpus
from cocoll.topology.parts import Device, Host, Nic, Placement, Port

__all__ = ["assemble", "local_facts"]


def local_facts(root: Path = Path("/")) -> dict[str, Any]:
    """Look at this machine as this rank sees it. Local; reads /sys and asks for GPUs.

    Parameters
    ----------
    root : Path, optional
        Where ``sys`` is mounted.

    Returns
    -------
    dict
        ``hostname`` (for people: it decides nothing), ``numa_nodes``, ``nics`` and ``gpus`` (lists
        of dicts, the fields of `NicFacts` and `GpuFacts`), and ``nic``, the name of the one that
        MPI was told to use, or None. It can be written as JSON.
    """
    nodes = (root / "sys/devices/system/node").glob("node[0-9]*")
    return {
        "hostname": socket.gethostname(),
        "numa_nodes": max([1, *(int(path.name.removeprefix("node")) + 1 for path in nodes)]),
        "nics": [asdict(nic) for nic in read_nics(root)],
        "gpus": [asdict(gpu) for gpu in read_gpus(open_nvml(), root)],
        "nic": select_nic(os.environ),
    }


def assemble(
    facts_by_rank: Sequence[dict[str, Any]],
    host_of_rank: Sequence[int],
    *,
    device_of_rank: Sequence[int | None] | None = None,
    name: str = "job",
) -> Topology:
    """Make the topology of a job from what its ranks have seen. Pure.

    Parameters
    ----------
    facts_by_rank : sequence of dict
        What `local_facts` gave on each rank.
    host_of_rank : sequence of int
        Who maps whose memory: ranks of equal numbers do. Numbers from 0 on, none left out.
    device_of_rank : sequence of int or None, optional
        The GPU of each rank, None for one that computes on processors. Default: none has one.
    name : str, default "job"
        For people.

    Returns
    -------
    Topology
        All NICs are on one switch. A rank has the NIC that its MPI was told to use; without such a
        word the fastest NICs of its host take turns, by local index. Where rates are assumed,
        `source` says so.

    Raises
    ------
    TopologyError
        Host numbers are missing, there is no such GPU, or a rank was told to use a NIC that its
        host does not have.
    """
    world_size = len(facts_by_rank)
    if len(host_of_rank) != world_size or not world_size:
        raise TopologyError(
            f"wanted the host of each rank; got {len(host_of_rank)} for {world_size} ranks"
        )
    if sorted(set(host_of_rank)) != list(range(max(host_of_rank) + 1)):
        raise TopologyError(f"wanted hosts numbered from 0 on; got {sorted(set(host_of_rank))}")
    count = max(host_of_rank) + 1
    leaders = [host_of_rank.index(host) for host in range(count)]
    assumed: dict[str, None] = {"memory": None}
    hosts = [_host(facts_by_rank[rank], count > 1, assumed) for rank in leaders]
    turns = [_fastest(facts_by_rank[rank]) for rank in leaders]
    seen = [0] * count
    placements = []
    for rank, (facts, host) in enumerate(zip(facts_by_rank, host_of_rank, strict=True)):
        told = facts["nic"]
        names = [nic.name for nic in hosts[host].nics]
        if told is None:
            nic = turns[host][seen[host] % len(turns[host])]
        elif told in names:
            nic = names.index(told)
        elif count == 1:
            nic = 0
        else:
            raise TopologyError(
                f"MPI of rank {rank} was told to use the NIC {told}; host {hosts[host].name} has "
                f"{', '.join(names)}"
            )
        seen[host] += 1
        device = None if device_of_rank is None else device_of_rank[rank]
        placements.append(Placement(host, nic, device))
    source = f"gathered; rates of {' and '.join(assumed)} are assumed"
    return Topology(name, tuple(hosts), tuple(placements), source=source)


def _host(facts: dict[str, Any], several: bool, assumed: dict[str, None]) -> Host:
    nics = [_nic(nic, assumed) for nic in facts["nics"]]
    if several and not nics:
        assumed["NICs"] = None
        nics = [Nic("nic", ASSUMED_NIC)]
    numa_nodes = max(
        facts["numa_nodes"],
        *(part["numa_node"] + 1 for part in [*facts["nics"], *facts["gpus"]]),
        1,
    )
    return Host(
        name=facts["hostname"] or "host",
        memory=ASSUMED_MEMORY,
        nics=tuple(nics),
        devices=tuple(_device(gpu, assumed) for gpu in facts["gpus"]),
        numa_nodes=numa_nodes,
    )


def _nic(facts: dict[str, Any], assumed: dict[str, None]) -> Nic:
    rate = facts["bytes_per_second"]
    if rate is None:
        assumed["NICs"] = None
        return Nic(facts["name"], ASSUMED_NIC, numa_node=facts["numa_node"])
    return Nic(
        facts["name"], Port(rate, ASSUMED_NIC_LATENCY_NANOSECONDS), numa_node=facts["numa_node"]
    )


def _device(facts: dict[str, Any], assumed: dict[str, None]) -> Device:
    rate, memory = facts["bytes_per_second"], facts["memory_bytes_per_second"]
    if rate is None or memory is None:
        assumed["GPUs"] = None
    return Device(
        facts["name"],
        memory or ASSUMED_DEVICE_MEMORY_BYTES_PER_SECOND,
        Port(rate or ASSUMED_DEVICE_BYTES_PER_SECOND, ASSUMED_DEVICE_LATENCY_NANOSECONDS),
        facts["numa_node"],
    )


def _fastest(facts: dict[str, Any]) -> list[int]:
    """Give the NICs that ranks take turns on: a slow one beside fast ones is for management."""
    rates = [nic["bytes_per_second"] or 0 for nic in facts["nics"]]
    return [index for index, rate in enumerate(rates) if rate == max(rates)] or [0]
