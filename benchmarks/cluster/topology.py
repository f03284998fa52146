"""The cluster as a topology file of cocoll's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.cluster.options import Cluster

__all__ = ["describe_topology"]

# Of a packet of Ethernet's usual size, what is left beside the headers of IP, TCP and Ethernet; the
# limit counts all of it.
_PAYLOAD_BYTES, _PACKET_BYTES = 1448, 1514
# A small message takes about 50 us from one host to another, and each NIC counts for half.
_NIC_LATENCY_SECONDS = 25e-6
# All hosts share one memory, which a NIC of the usual rates does not come near.
_MEMORY_BYTES_PER_SECOND = 10_000_000_000


def describe_topology(cluster: Cluster) -> str:
    """Give the JSON that ``COCOLL_TOPOLOGY`` names: rates are those of the data that pass.

    Parameters
    ----------
    cluster : Cluster
        Hosts, NICs, and the link in the core if there is one.
    """
    fields: dict[str, Any] = {
        "name": "emulated cluster",
        "hosts": [
            {
                "name": host.name,
                "memory": {"bandwidth_bytes_per_second": _MEMORY_BYTES_PER_SECOND},
                "nics": [
                    {
                        "name": nic,
                        "bandwidth_bytes_per_second": _payload(cluster.nic_bits_per_second),
                        "latency_seconds": _NIC_LATENCY_SECONDS,
                        "switch": f"s{cluster.switch_of(number)}",
                    }
                    for nic in host.nics
                ],
                "ranks": list(host.ranks),
            }
            for number, host in enumerate(cluster.hosts)
        ],
    }
    if cluster.core_bits_per_second is not None:
        core_bytes_per_second = _payload(cluster.core_bits_per_second)
        fields["links"] = [
            {"one": "s0", "other": "s1", "bandwidth_bytes_per_second": core_bytes_per_second}
        ]
    return json.dumps(fields, indent=2) + "\n"


def _payload(bits_per_second: int) -> int:
    return bits_per_second * _PAYLOAD_BYTES // (8 * _PACKET_BYTES)
