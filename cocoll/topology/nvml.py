"""The GPUs of this machine, asked of NVIDIA's management library where there is one.

The library comes with the driver and is opened by name: no package is needed, and without a GPU
there is nothing to open.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["GpuFacts", "open_nvml", "read_gpus"]

_MEMORY_CLOCK = 2  # NVML_CLOCK_MEM
_MOST_LINKS = 18  # NVML_NVLINK_MAX_LINKS
_GB = 10**9

# nvmlNvlinkVersion_t to bytes per second of one link, each way: NVLink 1, 2, 2.2, 3, 3.1, 4, 5.
_LINK_BYTES_PER_SECOND = {
    1: 20 * _GB, 2: 25 * _GB, 3: 25 * _GB, 4: 25 * _GB, 5: 25 * _GB, 6: 25 * _GB, 7: 50 * _GB,
}  # fmt: skip
# PCIe generation to bytes per second of one lane, each way, less the encoding.
_LANE_BYTES_PER_SECOND = {
    1: 250_000_000, 2: 500_000_000, 3: 984_600_000, 4: 1_969_000_000, 5: 3_938_000_000,
    6: 7_563_000_000,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU.

    Attributes
    ----------
    name : str
        Of the model.
    memory_bytes_per_second : int or None
        What its memory carries, from clock and width of the bus.
    bytes_per_second : int or None
        What joins it to other GPUs carries each way: all its active NVLinks, else PCIe.
    numa_node : int
        The NUMA node that it hangs on.
    """

    name: str
    memory_bytes_per_second: int | None
    bytes_per_second: int | None
    numa_node: int


def open_nvml() -> Any:
    """Open the library.

    Returns
    -------
    ctypes.CDLL or None
        None where there is none.
    """
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


def read_gpus(library: Any, root: Path = Path("/")) -> list[GpuFacts]:
    """Ask for all GPUs.

    Parameters
    ----------
    library : ctypes.CDLL or None
        What `open_nvml` gives.
    root : Path, optional
        Where ``sys`` is mounted.

    Returns
    -------
    list of GpuFacts
        In the library's order; empty without a library, a driver or a GPU.
    """
    if library is None:
        return []
    with _started(library) as works:
        if not works:
            return []
        count = _number(library.nvmlDeviceGetCount_v2) or 0
        return [gpu for gpu in (_read(library, index, root) for index in range(count)) if gpu]


@contextlib.contextmanager
def _started(library: Any) -> Iterator[bool]:
    # 9: the library is there and the driver is not loaded; 18: their versions differ.
    if library.nvmlInit_v2() != 0:
        yield False
        return
    try:
        yield True
    finally:
        library.nvmlShutdown()


def _number(function: Any, *arguments: Any) -> int | None:
    """Give the number that a function writes; None where the GPU does not have that fact."""
    value = ctypes.c_uint(0)
    return value.value if function(*arguments, ctypes.byref(value)) == 0 else None


def _text(function: Any, handle: Any) -> str:
    buffer = ctypes.create_string_buffer(96)
    if function(handle, buffer, ctypes.c_uint(len(buffer))) != 0:
        return ""
    return buffer.value.decode(errors="replace")


def _read(library: Any, index: int, root: Path) -> GpuFacts | None:
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        # One that has fallen off the bus, or that this container may not use.
        return None
    clock_mhz = _number(library.nvmlDeviceGetMaxClockInfo, handle, ctypes.c_uint(_MEMORY_CLOCK))
    width_bits = _number(library.nvmlDeviceGetMemoryBusWidth, handle)
    memory = None
    if clock_mhz and width_bits:
        # Two transfers a clock.
        memory = 2 * clock_mhz * 10**6 * width_bits // 8
    return GpuFacts(
        name=_text(library.nvmlDeviceGetName, handle) or f"GPU {index}",
        memory_bytes_per_second=memory,
        bytes_per_second=_nvlink_rate(library, handle) or _pcie_rate(library, handle),
        numa_node=_numa_node(library, handle, root),
    )


def _nvlink_rate(library: Any, handle: Any) -> int:
    total = 0
    for link in range(_MOST_LINKS):
        if _number(library.nvmlDeviceGetNvLinkState, handle, ctypes.c_uint(link)):
            version = _number(library.nvmlDeviceGetNvLinkVersion, handle, ctypes.c_uint(link))
            total += _LINK_BYTES_PER_SECOND.get(version or 0, 0)
    return total


def _pcie_rate(library: Any, handle: Any) -> int | None:
    generation = _number(library.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    lanes = _number(library.nvmlDeviceGetMaxPcieLinkWidth, handle)
    return _LANE_BYTES_PER_SECOND.get(generation or 0, 0) * (lanes or 0) or None


class _PciInfo(ctypes.Structure):
    # nvmlPciInfo_t of nvmlDeviceGetPciInfo_v3
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


def _numa_node(library: Any, handle: Any, root: Path) -> int:
    info = _PciInfo()
    if library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(info)) != 0:
        return 0
    folder = f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
    try:
        text = (root / "sys/bus/pci/devices" / folder / "numa_node").read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
