"""The network interfaces of this machine, as /sys tells them.

What a virtual interface claims as its speed is not believed: a veth pair says 10 Gbit/s whatever
limits it. Such a rate is unknown until it is measured or told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NicFacts", "read_nics", "select_nic"]

# <linux/if_arp.h>: what carries messages between machines. Loopback and tunnels are others.
_ETHERNET, _INFINIBAND = "1", "32"
# <linux/if.h>
_IFF_UP = 0x1

# What tells the common MPI libraries which interface to use.
_VARIABLES = (
    "OMPI_MCA_btl_tcp_if_include",
    "UCX_NET_DEVICES",
    "FI_TCP_IFACE",
    "MPICH_NETWORK_IFACE",
)


@dataclass(frozen=True, slots=True)
class NicFacts:
    """A network interface that is up.

    Attributes
    ----------
    name : str
        As the system calls it.
    bytes_per_second : int or None
        What it carries each way; None where nobody knows.
    numa_node : int
        The NUMA node that it hangs on.
    """

    name: str
    bytes_per_second: int | None
    numa_node: int


def read_nics(root: Path = Path("/")) -> list[NicFacts]:
    """Find the interfaces that lead to other hosts.

    Those of hardware are taken, and the virtual ones only where there are none, as in a container
    or a network namespace. Loopback, bridges, what is plugged into a bridge or a bond, dummies and
    tunnels are left out, and so is what is down.

    Parameters
    ----------
    root : Path, optional
        Where ``sys`` is mounted.

    Returns
    -------
    list of NicFacts
        In the order of their names, numbers by value.
    """
    folders = sorted((root / "sys/class/net").glob("*"), key=lambda folder: _natural(folder.name))
    hardware, virtual = [], []
    for folder in folders:
        if not _carries(folder):
            continue
        if (folder / "device").exists() or (folder / "bonding").exists():
            hardware.append(NicFacts(folder.name, _speed(folder), _numa_node(folder)))
        # A virtual interface that leads out of here is tied to another one; a dummy is not.
        elif _read(folder / "iflink") != _read(folder / "ifindex"):
            virtual.append(NicFacts(folder.name, None, 0))
    return [*hardware, *_bare_infiniband(root)] or virtual


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _carries(folder: Path) -> bool:
    if _read(folder / "type") not in (_ETHERNET, _INFINIBAND):
        return False
    if (folder / "bridge").exists() or (folder / "tun_flags").exists():
        return False
    master = folder / "master"
    # Hardware that is plugged into a bridge still is what leads out; one of a bond is told by it.
    if master.exists() and not ((folder / "device").exists() and (master / "bridge").exists()):
        return False
    flags = _read(folder / "flags")
    up = flags.startswith("0x") and bool(int(flags, 16) & _IFF_UP)
    return up and _read(folder / "operstate") in ("up", "unknown")


def _speed(folder: Path) -> int | None:
    text = _read(folder / "speed")
    # -1 where the driver does not know, in Mbit/s elsewhere.
    if text.isdigit() and int(text) > 0:
        return int(text) * 10**6 // 8
    port = int(_read(folder / "dev_port") or 0) + 1
    for device in sorted((folder / "device/infiniband").glob("*")):
        return _infiniband_rate(device / f"ports/{port}")
    return None


def _bare_infiniband(root: Path) -> list[NicFacts]:
    """Find adapters without a network interface: nobody has set up IP over them."""
    found = []
    for folder in sorted((root / "sys/class/infiniband").glob("*"), key=lambda f: _natural(f.name)):
        if (folder / "device/net").exists():
            continue
        for port in sorted((folder / "ports").glob("*")):
            if "ACTIVE" in _read(port / "state"):
                found.append(NicFacts(folder.name, _infiniband_rate(port), _numa_node(folder)))
                break
    return found


def _infiniband_rate(port: Path) -> int | None:
    # "400 Gb/sec (4X NDR)"
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", _read(port / "rate"))
    return int(float(match[1]) * 10**9) // 8 if match else None


def _numa_node(folder: Path) -> int:
    text = _read(folder / "device/numa_node")
    # -1 where the firmware does not say.
    return int(text) if text.isdigit() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # the driver has no such fact
        return ""


def select_nic(environ: Mapping[str, str]) -> str | None:
    """Give the interface that MPI was told to use.

    Parameters
    ----------
    environ : mapping of str to str
        The environment that MPI was started with.

    Returns
    -------
    str or None
        Its name; None where nothing, a list or a network was named.
    """
    for variable in _VARIABLES:
        name = environ.get(variable, "").partition(":")[0].strip()
        if re.fullmatch(r"[^\s,/^]+", name) and name != "all":
            return name
    return None
