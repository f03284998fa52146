"""What a NIC lets through, and which NIC it goes through.

A limit shows as a time that cannot be undercut, however slow the machine is.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cluster.conftest import Cluster

MESSAGE_BYTES = 2 << 20
# What the two ends of a pair may let through at once.
AT_ONCE_BYTES = 2 * (64 << 10)

SEND = """
    block = np.zeros(MESSAGE_BYTES, np.uint8)
    phases = []
    for pairs in PHASES:
        counters = [(nic, way) for nic in mine["nics"] for way in ("tx", "rx")]
        before = [count(*counter) for counter in counters]
        comm.Barrier()
        start = time.perf_counter()
        requests = []
        for source, target in pairs:
            if rank == target:
                requests.append(comm.Irecv(np.empty_like(block), source))
            if rank == source:
                requests.append(comm.Isend(block, target))
        MPI.Request.Waitall(requests)
        seconds = time.perf_counter() - start
        comm.Barrier()
        after = [count(*counter) for counter in counters]
        messages = [(b - a) / MESSAGE_BYTES for a, b in zip(before, after)]
        phases.append({
            "seconds": seconds,
            "messages": {
                f"{nic} {way}": number for (nic, way), number in zip(counters, messages)
            },
        })
    limits = [
        subprocess.run(["tc", "class", "show", "dev", nic], capture_output=True, text=True).stdout
        for nic in mine["nics"]
    ]
    tell({"phases": phases, "limits": limits})
"""


def send(cluster: Cluster, options: str, *phases: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Send messages between pairs of ranks, phase by phase."""
    head = f"    PHASES, MESSAGE_BYTES = {phases}, {MESSAGE_BYTES}"
    return cluster.run(options, head + SEND)


def messages(told: list[dict[str, Any]], phase: int, counter: str) -> list[float]:
    return [rank["phases"][phase]["messages"][counter] for rank in told]


def slowest(told: list[dict[str, Any]], phase: int) -> float:
    return float(max(rank["phases"][phase]["seconds"] for rank in told))


def least_seconds(messages: int, bits_per_second: float) -> float:
    return (messages * MESSAGE_BYTES - AT_ONCE_BYTES) * 8 / bits_per_second


def test_a_nic_is_limited_both_ways(cluster: Cluster) -> None:
    told = send(
        cluster, "--hosts 3 --ranks-per-host 1 --nic 200mbit", [(0, 1), (0, 2)], [(1, 0), (2, 0)]
    )
    for phase, (host_0, others) in enumerate((("tx", "rx"), ("rx", "tx"))):
        assert slowest(told, phase) >= least_seconds(2, 200e6)
        assert messages(told, phase, f"e0 {host_0}")[0] == pytest.approx(2, rel=0.06)
        assert messages(told, phase, f"e0 {others}")[1:] == pytest.approx([1, 1], rel=0.06)
    for host in told:
        (limit,) = host["limits"]
        assert re.findall(r"class htb 1:1 root .* rate (\w+) ceil (\w+)", limit) == [
            ("200Mbit", "200Mbit")
        ]


def test_each_rank_has_its_nic(cluster: Cluster) -> None:
    told = send(
        cluster,
        "--hosts 2 --ranks-per-host 2 --nics-per-host 2 --nic 200mbit",
        [(0, 2), (1, 3), (1, 2)],
    )
    # Who sends chooses the NIC to leave by, and who receives the one to enter by.
    wanted = {"e0 tx": [1, 0], "e1 tx": [2, 0], "e0 rx": [0, 2], "e1 rx": [0, 1]}
    for counter, of_hosts in wanted.items():
        assert messages(told, 0, counter)[::2] == pytest.approx(of_hosts, rel=0.06, abs=0.06)
    assert slowest(told, 0) >= least_seconds(2, 200e6)


@pytest.mark.long
def test_the_core_is_shared(cluster: Cluster) -> None:
    # Hosts 0 and 2 have one switch, hosts 1 and 3 the other; each NIC could do twice as much.
    told = send(
        cluster,
        "--hosts 4 --ranks-per-host 1 --nic 400mbit --oversubscribed-core 200mbit",
        [(0, 1), (2, 3)],
        [(1, 0), (3, 2)],
    )
    assert slowest(told, 0) >= least_seconds(2, 200e6)
    assert slowest(told, 1) >= least_seconds(2, 200e6)
