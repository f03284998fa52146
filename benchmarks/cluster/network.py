"""The network of a cluster: switches are bridges, NICs are pairs of virtual devices with limits."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cluster.namespaces import inside_network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.cluster.options import Cluster

__all__ = ["LAUNCHER_ADDRESS", "NetworkError", "make_network"]

LAUNCHER_ADDRESS = "10.77.0.1"
_SUBNET, _SUBNET_BITS = "10.77.0.0/16", 16

# What may wait in a NIC, and pass it at once after a pause. Longer, and a short message would wait
# for long behind others, and much of a small vector would pass above the rate; shorter, and a timer
# that is late is not caught up with.
_QUEUE_SECONDS = 0.65e-3
_MIN_BURST_BYTES, _MIN_QUEUE_BYTES, _MAX_QUEUE_BYTES = 32 << 10, 8 << 10, 1 << 20
_MAX_PACKET_BYTES = 64 << 10
_SETTINGS = Path("/proc/sys/net")
_IPV6 = _SETTINGS / "ipv6"


class NetworkError(RuntimeError):
    """The kernel refused a device, an address, a route or a limit."""


def make_network(cluster: Cluster, inits: Sequence[int]) -> None:
    """Make switches, NICs and limits.

    Each NIC has an address, sends only what comes from it, and answers only for it; the limit for
    what it sends is on the host's end of the pair, the one for what it receives on the switch's.

    Parameters
    ----------
    cluster : Cluster
        What is wanted.
    inits : sequence of int
        Of each host, its first process.

    Raises
    ------
    NetworkError
        The kernel refused something; the message says what.
    """
    switches = ("s0",) if cluster.core_bits_per_second is None else ("s0", "s1")
    commands = ["link set lo up"]
    for switch in switches:
        commands += [f"link add {switch} type bridge", f"link set {switch} up"]
    commands.append(f"address add {LAUNCHER_ADDRESS}/{_SUBNET_BITS} dev s0")
    limits: list[str] = []
    if cluster.core_bits_per_second is not None:
        # Both ends send into the one link: each limits one direction.
        commands.append("link add core0 type veth peer name core1")
        for number, switch in enumerate(switches):
            commands.append(f"link set core{number} master {switch} up")
            limits += _limit(f"core{number}", cluster.core_bits_per_second)
    for number, (host, init) in enumerate(zip(cluster.hosts, inits, strict=True)):
        for nic in host.nics:
            port = f"{host.name}{nic}"
            switch = switches[cluster.switch_of(number)]
            commands.append(f"link add {port} type veth peer name {nic} netns {init}")
            commands.append(f"link set {port} master {switch} up")
            limits += _limit(port, cluster.nic_bits_per_second)
    _batch("ip", commands)
    _batch("tc", limits)
    for host, init in zip(cluster.hosts, inits, strict=True):
        with inside_network(init):
            _configure_host(host.nics, host.addresses, cluster.nic_bits_per_second)


def _configure_host(nics: Sequence[str], addresses: Sequence[str], bits_per_second: int) -> None:
    queue_bytes = _bytes_in(_QUEUE_SECONDS, bits_per_second)
    queue_bytes = min(max(queue_bytes, _MIN_QUEUE_BYTES), _MAX_QUEUE_BYTES)
    packet_bytes = min(queue_bytes // 2, _MAX_PACKET_BYTES)
    commands = ["link set lo up"]
    limits: list[str] = []
    for number, (nic, address) in enumerate(zip(nics, addresses, strict=True)):
        table = 100 + number
        commands += [
            f"address add {address}/{_SUBNET_BITS} dev {nic}",
            f"link set {nic} gso_max_size {packet_bytes} up",
            f"route add {_SUBNET} dev {nic} src {address} table {table}",
            f"rule add from {address} table {table}",
        ]
        limits += _limit(nic, bits_per_second)
    for nic in ("all", *nics):
        # A NIC neither asks nor answers on behalf of another one of its host.
        for setting, value in (("arp_ignore", 1), ("arp_announce", 2), ("rp_filter", 0)):
            _set(f"ipv4/conf/{nic}/{setting}", value)
    if _IPV6.exists():
        # It would announce itself, and be counted.
        _set("ipv6/conf/all/disable_ipv6", 1)
    _set("ipv4/tcp_limit_output_bytes", queue_bytes)
    # Every kernel has it; BBR, the default of some, slows down now and then to probe.
    _set("ipv4/tcp_congestion_control", "reno")
    _batch("ip", commands)
    _batch("tc", limits)


def _limit(device: str, bits_per_second: int) -> list[str]:
    burst_bytes = max(_MIN_BURST_BYTES, _bytes_in(_QUEUE_SECONDS, bits_per_second))
    return [
        f"qdisc add dev {device} root handle 1: htb default 1",
        f"class add dev {device} parent 1: classid 1:1 htb rate {bits_per_second}bit"
        f" burst {burst_bytes} cburst {burst_bytes} quantum 60000",
    ]


def _bytes_in(seconds: float, bits_per_second: int) -> int:
    return int(bits_per_second / 8 * seconds)


def _set(setting: str, value: object) -> None:
    (_SETTINGS / setting).write_text(str(value), encoding="ascii")


def _batch(program: str, commands: Sequence[str]) -> None:
    done = subprocess.run(
        [program, "-batch", "-"],
        input="".join(f"{command}\n" for command in commands),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NetworkError(f"{program} refused: {done.stderr.strip()}")
