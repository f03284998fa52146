"""Collective communication in which computation rides inside the communication."""

from cocoll import _core
from cocoll._core import (
    DONE,
    BoundOperation,
    Work,
    allgather,
    allreduce,
    allreduce_fused,
    barrier,
    broadcast,
    reduce_scatter,
    reduce_scatter_fused,
)
from cocoll.collectives import SlowPath
from cocoll.communicator import Communicator, init
from cocoll.stream import Stream
from cocoll.tuning import Tuning

_core.set_slow_path(SlowPath)

__version__ = "0.1.0"

__all__ = [
    "DONE",
    "BoundOperation",
    "Communicator",
    "Stream",
    "Tuning",
    "Work",
    "__version__",
    "allgather",
    "allreduce",
    "allreduce_fused",
    "barrier",
    "broadcast",
    "init",
    "reduce_scatter",
    "reduce_scatter_fused",
]
