"""Facts of this machine: processors that may be used, caches, memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["AvailableCpus", "available_cpus", "last_level_cache_bytes", "memory_bytes"]

_DEFAULT_CACHE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class AvailableCpus:
    """What this process may run on.

    Attributes
    ----------
    ids : list of int
        The processors of its affinity mask.
    quota : float
        Processors' worth of time that its control groups allow; infinite where there is no limit.
    """

    ids: list[int]
    quota: float


def available_cpus(root: Path = Path("/")) -> AvailableCpus:
    """Read affinity and control groups; ``os.cpu_count()`` knows of neither.

    Parameters
    ----------
    root : Path, optional
        Where ``proc`` and ``sys`` are mounted.

    Returns
    -------
    AvailableCpus
        Of this process.
    """
    return AvailableCpus(sorted(os.sched_getaffinity(0)), _cgroup_quota(root))


def _cgroup_quota(root: Path) -> float:
    quota = float("inf")
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return quota
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, read = mounted, _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = mounted / controllers, _quota_v1
        else:
            continue
        group = base / path.lstrip("/")
        # A limit on any group above holds too. Inside a container the path may not exist; the
        # mounted root is then the container's own group.
        for folder in (group, *group.parents):
            if folder == base.parent:
                break
            quota = min(quota, read(folder))
    return quota


def _quota_v2(folder: Path) -> float:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return float("inf")
    return float("inf") if limit == "max" else int(limit) / int(period)


def _quota_v1(folder: Path) -> float:
    try:
        limit = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return float("inf")
    return float("inf") if limit <= 0 or period <= 0 else limit / period


def last_level_cache_bytes(root: Path = Path("/")) -> int:
    """Give the size of the largest cache of the first processor.

    Parameters
    ----------
    root : Path, optional
        Where ``sys`` is mounted.

    Returns
    -------
    int
        In bytes; a common size where the system does not say.
    """
    largest = 0
    for folder in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            text = (folder / "size").read_text().strip()
        except OSError:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdigit():
            largest = max(largest, int(digits) * unit)
    return largest or _DEFAULT_CACHE_BYTES


def memory_bytes() -> int:
    """Give the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
