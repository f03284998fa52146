"""The cluster that the suite runs on, and what its ports have to carry at least."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cluster.options import format_bits_per_second

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.common.cases import Group

__all__ = [
    "COCOLL_ROW",
    "OPERATIONS",
    "PORT_ROW",
    "HostsSetting",
    "count_bytes",
    "is_on_cluster",
    "vector_bytes",
    "vector_elements",
]

_VARIABLE = "COCOLL_CLUSTER"
_SHARD_ALIGNMENT_ELEMENTS = 16

#: The rows of cocoll's samples, which is also its one form, and of the yardstick's.
COCOLL_ROW, PORT_ROW = "symmetric", "port"

#: What the suite measures.
OPERATIONS = ("broadcast", "allgather", "reduce_scatter", "allreduce", "allreduce_fused")


@dataclass(frozen=True, slots=True)
class HostsSetting:
    """What ``COCOLL_CLUSTER`` says.

    Attributes
    ----------
    ranks_of_hosts : tuple of tuple of int
        For each host its ranks, by local index.
    nics : tuple of str
        Of every host.
    addresses : tuple of tuple of str
        For each host, those of its NICs.
    nic_bits_per_second : int
        What each NIC lets through, each way.
    core_bits_per_second : int or None
        What the switches have between them, if that is less than the NICs together.
    """

    ranks_of_hosts: tuple[tuple[int, ...], ...]
    nics: tuple[str, ...]
    addresses: tuple[tuple[str, ...], ...]
    nic_bits_per_second: int
    core_bits_per_second: int | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> HostsSetting:
        """Read the description that every rank of a cluster finds.

        Raises
        ------
        ValueError
            There is none, or it is of a single host.
        """
        text = environment.get(_VARIABLE)
        if not text:
            raise ValueError(
                "wanted to run on a cluster; got no COCOLL_CLUSTER: start it with"
                " benchmarks/cluster/run.py --hosts 3 --ranks-per-host 2 --nic 400mbit --"
                " python benchmarks/run.py hosts"
            )
        fields: dict[str, Any] = json.loads(text)
        hosts = fields["hosts"]
        if len(hosts) < 2:
            raise ValueError(f"wanted at least 2 hosts; got {len(hosts)}")
        return cls(
            ranks_of_hosts=tuple(tuple(host["ranks"]) for host in hosts),
            nics=tuple(hosts[0]["nics"]),
            addresses=tuple(tuple(host["addresses"]) for host in hosts),
            nic_bits_per_second=fields["nic_bits_per_second"],
            core_bits_per_second=fields["core_bits_per_second"],
        )

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return len(self.ranks_of_hosts)

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return sum(map(len, self.ranks_of_hosts))

    @property
    def used_nics(self) -> int:
        """How many NICs of a host its ranks can use: each has one."""
        return min(len(self.nics), *map(len, self.ranks_of_hosts))

    def describe(self) -> str:
        """Give the options that make such a cluster."""
        counts = sorted({len(ranks) for ranks in self.ranks_of_hosts})
        if len(counts) > 1:
            counts = [len(ranks) for ranks in self.ranks_of_hosts]
        words = [f"--hosts {self.hosts}", f"--ranks-per-host {' '.join(map(str, counts))}"]
        words.append(f"--nic {format_bits_per_second(self.nic_bits_per_second)}")
        if len(self.nics) > 1:
            words.append(f"--nics-per-host {len(self.nics)}")
        if self.core_bits_per_second is not None:
            rate = format_bits_per_second(self.core_bits_per_second)
            words.append(f"--oversubscribed-core {rate}")
        return " ".join(words)

    def place(self, rank: int) -> tuple[int, int]:
        """Give a rank's host, and its index there."""
        for host, ranks in enumerate(self.ranks_of_hosts):
            if rank in ranks:
                return host, ranks.index(rank)
        raise ValueError(f"wanted a rank of the cluster; got {rank}")

    def address(self, rank: int) -> str:
        """Give the address of a rank's own NIC."""
        host, index = self.place(rank)
        return self.addresses[host][index % len(self.nics)]

    def port_bytes(self, operation: str, vector_bytes: int) -> int:
        """Give the bytes that the busiest NIC must send, or receive, whatever the algorithm.

        Parameters
        ----------
        operation : str
            One of :data:`OPERATIONS`.
        vector_bytes : int
            Of the whole vector: broadcast, reduced, or gathered.

        Returns
        -------
        int
            Rounded up; hosts use their NICs together and evenly.
        """
        others = Fraction(self.hosts - 1, self.hosts)
        share = {
            # All of it enters every host but one.
            "broadcast": Fraction(1),
            # What the others have enters a host once; what they need leaves it once.
            "allgather": others,
            "reduce_scatter": others,
            "allreduce": 2 * others,
            "allreduce_fused": 2 * others,
        }[operation]
        return -int(-share * vector_bytes // self.used_nics)


def is_on_cluster() -> bool:
    """Say whether this process is a rank of a cluster."""
    return bool(os.environ.get(_VARIABLE))


def vector_elements(size_bytes: int, world_size: int) -> int:
    """Give the float32 elements of a vector of at least `size_bytes` with equal, aligned blocks."""
    unit = _SHARD_ALIGNMENT_ELEMENTS * world_size
    return -(-size_bytes // 4 // unit) * unit


def count_bytes(nics: tuple[str, ...]) -> tuple[int, int]:
    """Give the bytes that this host's NICs have sent and received, all together."""
    folder = Path("/sys/class/net")
    sent, received = (
        sum(int((folder / nic / "statistics" / f"{way}_bytes").read_text()) for nic in nics)
        for way in ("tx", "rx")
    )
    return sent, received


def vector_bytes(group: Group) -> int:
    """Give the bytes of the whole vector: of an allgather's, a rank puts in its part only."""
    parts = group.ranks if group.operation == "allgather" else 1
    return group.input_bytes * parts
