"""What a cluster is to be: options, rates, names, addresses, and how they are told to the ranks."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Cluster",
    "Host",
    "format_bits_per_second",
    "parse_bits_per_second",
    "parse_options",
]

_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_RATE = re.compile(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)")
_MOST_HOSTS, _MOST_NICS = 250, 250


@dataclass(frozen=True, slots=True)
class Host:
    """One emulated host.

    Attributes
    ----------
    name : str
        As the host calls itself.
    nics, addresses : tuple of str
        Its network devices and, in the same order, their addresses.
    ranks : tuple of int
        Who runs there, by local index.
    """

    name: str
    nics: tuple[str, ...]
    addresses: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is asked for.

    Attributes
    ----------
    ranks_per_host : tuple of int
        For each host, how many ranks it has.
    nic_bits_per_second : int
        What each NIC sends, and what it receives, at most.
    nics_per_host : int
        Rank number i of a host uses NIC i % nics_per_host.
    core_bits_per_second : int or None
        If given, hosts are joined by two switches in turn, and those by one link of this rate.
    interleaved : bool
        Whether ranks go round the hosts one by one, instead of filling one after the other.
    """

    ranks_per_host: tuple[int, ...]
    nic_bits_per_second: int
    nics_per_host: int = 1
    core_bits_per_second: int | None = None
    interleaved: bool = False

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts h0, h1, ... with their NICs e0, e1, ..."""
        ranks = self._ranks()
        return tuple(
            Host(
                f"h{number}",
                tuple(f"e{nic}" for nic in range(self.nics_per_host)),
                tuple(f"10.77.{number + 1}.{nic + 1}" for nic in range(self.nics_per_host)),
                ranks[number],
            )
            for number in range(len(self.ranks_per_host))
        )

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return sum(self.ranks_per_host)

    def switch_of(self, host: int) -> int:
        """Which switch the host is joined to."""
        return host % 2 if self.core_bits_per_second is not None else 0

    def to_json(self) -> str:
        """Give what ranks find in ``COCOLL_CLUSTER``."""
        equal = len(set(self.ranks_per_host)) == 1
        fields: dict[str, Any] = {
            "hosts": [
                {
                    "name": host.name,
                    "addresses": host.addresses,
                    "nics": host.nics,
                    "ranks": host.ranks,
                }
                for host in self.hosts
            ],
            "ranks_per_host": self.ranks_per_host[0] if equal else self.ranks_per_host,
            "nic_bits_per_second": self.nic_bits_per_second,
            "core_bits_per_second": self.core_bits_per_second,
        }
        return json.dumps(fields)

    def _ranks(self) -> list[tuple[int, ...]]:
        found: list[list[int]] = [[] for _ in self.ranks_per_host]
        if not self.interleaved:
            first = 0
            for ranks, count in zip(found, self.ranks_per_host, strict=True):
                ranks += range(first, first + count)
                first += count
        else:
            rank = 0
            for turn in range(max(self.ranks_per_host)):
                for ranks, count in zip(found, self.ranks_per_host, strict=True):
                    if turn < count:
                        ranks.append(rank)
                        rank += 1
        return [tuple(ranks) for ranks in found]


def parse_bits_per_second(text: str) -> int:
    """Give the bits a second that `text` names.

    Parameters
    ----------
    text : str
        A number with bit, kbit, mbit or gbit (powers of 1000), as ``tc`` writes them: ``400mbit``.

    Raises
    ------
    ValueError
        `text` is no rate, or below 1 kbit.
    """
    match = _RATE.fullmatch(text.strip().lower())
    bits_per_second = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if bits_per_second < _UNITS["kbit"]:
        raise ValueError(f"wanted a rate such as 400mbit or 10gbit; got {text!r}")
    return bits_per_second


def format_bits_per_second(bits_per_second: int) -> str:
    """Write a rate in the largest unit that divides it: ``400mbit``."""
    for unit, factor in reversed(_UNITS.items()):
        if bits_per_second % factor == 0:
            return f"{bits_per_second // factor}{unit}"
    raise ValueError(f"wanted whole bits per second; got {bits_per_second}")


def parse_options(description: str, arguments: Sequence[str] | None) -> tuple[Cluster, list[str]]:
    """Read the command line: what the cluster is, and the command for every rank."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/cluster/run.py",
        description=description,
        usage="%(prog)s --hosts N --ranks-per-host N [N ...] --nic RATE [options] -- COMMAND",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=int, required=True, metavar="N")
    parser.add_argument(
        "--ranks-per-host",
        type=int,
        nargs="+",
        required=True,
        metavar="N",
        help="one number for all hosts, or one for each",
    )
    parser.add_argument(
        "--nic", type=_rate, required=True, metavar="RATE", help="both ways, such as 400mbit"
    )
    parser.add_argument("--nics-per-host", type=int, default=1, metavar="K")
    parser.add_argument(
        "--oversubscribed-core",
        type=_rate,
        metavar="RATE",
        help="two switches, hosts in turn, joined by one link of this rate",
    )
    parser.add_argument(
        "--interleave", action="store_true", help="rank 0 on host 0, rank 1 on host 1, ..."
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args(arguments)
    command: list[str] = options.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        parser.error("wanted -- and a command")
    counts = tuple(options.ranks_per_host)
    if len(counts) == 1:
        counts *= options.hosts
    if not 1 <= options.hosts <= _MOST_HOSTS:
        parser.error(f"--hosts: wanted 1 to {_MOST_HOSTS}, got {options.hosts}")
    if not 1 <= options.nics_per_host <= _MOST_NICS:
        parser.error(f"--nics-per-host: wanted 1 to {_MOST_NICS}, got {options.nics_per_host}")
    if len(counts) != options.hosts or min(counts) < 1:
        parser.error("--ranks-per-host: wanted one number, or one for each host, at least 1")
    cluster = Cluster(
        counts, options.nic, options.nics_per_host, options.oversubscribed_core, options.interleave
    )
    return cluster, command


def _rate(text: str) -> int:
    try:
        return parse_bits_per_second(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
