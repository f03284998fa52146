"""Facts of a machine, read from trees that are made for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cocoll.topology.host import available_cpus, last_level_cache_bytes, memory_bytes

UNLIMITED = float("inf")


def make_tree(root: Path, membership: str | None, files: dict[str, str]) -> Path:
    if membership is not None:
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(membership)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


TREES = {
    "no control groups": (None, {}, UNLIMITED),
    "nothing is said": ("", {}, UNLIMITED),
    "v2, no limit": ("0::/job\n", {"job/cpu.max": "max 100000\n"}, UNLIMITED),
    "v2, half a processor": ("0::/job\n", {"job/cpu.max": "50000 100000\n"}, 0.5),
    "v2, three processors": ("0::/job\n", {"job/cpu.max": "300000 100000\n"}, 3.0),
    "v2, a limit above": (
        "0::/user/job/step\n",
        {"user/cpu.max": "150000 100000\n", "user/job/cpu.max": "max 100000\n"},
        1.5,
    ),
    "v2, the least of several": (
        "0::/user/job/step\n",
        {"user/cpu.max": "200000 100000\n", "user/job/step/cpu.max": "25000 100000\n"},
        0.25,
    ),
    "v2, the root of a container": ("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),
    "v2, a path that is outside the container": (
        "0::/docker/0123\n",
        {"cpu.max": "200000 100000\n"},
        2.0,
    ),
    "v2, above the namespace": ("0::/../other\n", {"cpu.max": "200000 100000\n"}, 2.0),
    "v2, a neighbour's limit": ("0::/job\n", {"job2/cpu.max": "1000 100000\n"}, UNLIMITED),
    "v2, a colon in the path": ("0::/a:b\n", {"a:b/cpu.max": "100000 100000\n"}, 1.0),
    "v2, no sense": ("0::/job\n", {"job/cpu.max": "much\n"}, UNLIMITED),
    "v1": (
        "4:memory:/job\n3:cpu,cpuacct:/job\n0::/job\n",
        {
            "cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        },
        0.5,
    ),
    "v1, no limit": (
        "3:cpu:/job\n",
        {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
        UNLIMITED,
    ),
    "v1, a limit above": (
        "3:cpu:/job/step\n",
        {
            "cpu/job/cpu.cfs_quota_us": "400000\n",
            "cpu/job/cpu.cfs_period_us": "100000\n",
            "cpu/job/step/cpu.cfs_quota_us": "-1\n",
            "cpu/job/step/cpu.cfs_period_us": "100000\n",
        },
        4.0,
    ),
    "v1, cpuset is another controller": (
        "3:cpuset:/job\n",
        {"cpuset/job/cpu.cfs_quota_us": "1\n", "cpuset/job/cpu.cfs_period_us": "100000\n"},
        UNLIMITED,
    ),
    "both, the tighter": (
        "3:cpu:/job\n0::/job\n",
        {
            "cpu/job/cpu.cfs_quota_us": "400000\n",
            "cpu/job/cpu.cfs_period_us": "100000\n",
            "job/cpu.max": "100000 100000\n",
        },
        1.0,
    ),
}


@pytest.mark.parametrize("name", sorted(TREES))
def test_quota(name: str, tmp_path: Path) -> None:
    membership, files, quota = TREES[name]
    assert available_cpus(make_tree(tmp_path, membership, files)).quota == quota


def test_affinity(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    assert available_cpus(tmp_path).ids == sorted(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cpus(tmp_path).ids == [min(allowed)]
    finally:
        os.sched_setaffinity(0, allowed)


def test_this_machine() -> None:
    cpus = available_cpus()
    assert cpus.ids
    assert cpus.quota > 0
    assert memory_bytes() > 1 << 20
    assert last_level_cache_bytes() >= 1 << 15


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"index0": "32K", "index2": "1024K", "index3": "36M"}, 36 << 20),
        ({"index0": "32K\n", "index1": "512K\n"}, 512 << 10),
        ({"index0": "48K", "index3": "1G"}, 1 << 30),
        ({"index0": "65536"}, 65536),
        ({"index0": ""}, 32 << 20),
        ({}, 32 << 20),
    ],
)
def test_caches(sizes: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in sizes.items():
        folder = tmp_path / "sys/devices/system/cpu/cpu0/cache" / name
        folder.mkdir(parents=True)
        (folder / "size").write_text(text)
    assert last_level_cache_bytes(tmp_path) == expected
