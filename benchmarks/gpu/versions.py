"""The step that says what there is, and opens two ranks: memory must arrive where it is sent."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

import cocoll
from cocoll.cuda.toolkit import open_library

if TYPE_CHECKING:
    from benchmarks.gpu.setting import Setting

__all__ = ["find_versions"]


def find_versions(setting: Setting) -> dict[str, Any]:
    """Give versions and the device's facts; the opening of two ranks tests their memory."""
    toolkit = setting.toolkit()
    library = open_library(toolkit)
    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "numpy": np.__version__,
        "cocoll": cocoll.__version__,
        "devices": library.device_count(),
        "compiler": toolkit.find_compiler().fingerprint().splitlines()[0],
    }
    for name in ("cupy-cuda12x", "cupy-cuda13x", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "torch"):
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = None

    def body(comm: cocoll.Communicator) -> dict[str, Any]:
        side = comm._open_side(None)
        device = side.device
        return {
            "device": device.name.rstrip("\0"),
            "target": device.target,
            "multiprocessors": device.multiprocessors,
            "blocks": side.endpoint.blocks,
        }

    found: dict[str, Any] = setting.run(2, body)[0]
    return facts | found
