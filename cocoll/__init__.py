"""Collective communication in which computation rides inside the communication."""

from cocoll import _core, epilogues, errors
from cocoll._core import (
    DONE,
    BoundOperation,
    Work,
    allgather,
    allreduce,
    allreduce_fused,
    alltoall,
    alltoallv,
    barrier,
    broadcast,
    gather,
    group,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_fused,
    scatter,
    send,
    sendrecv,
)
from cocoll.collectives import SlowPath
from cocoll.communicator import Communicator, init
from cocoll.epilogues.functions import (
    cast,
    dropout,
    erf,
    exp,
    log,
    maximum,
    minimum,
    norm,
    sqrt,
    sum,
    tanh,
    where,
)
from cocoll.epilogues.trace import epilogue
from cocoll.reshard_calls import Resharding, multicast, plan_reshard, reshard
from cocoll.resharding import Mesh, ShardingSpec, TensorMove, plan_multicast
from cocoll.state import ShardLayout, reshard_state
from cocoll.stream import Stream
from cocoll.tuning import Tuning

_core.set_slow_path(SlowPath)

__version__ = "0.1.0"

__all__ = [
    "DONE",
    "BoundOperation",
    "Communicator",
    "Mesh",
    "Resharding",
    "ShardLayout",
    "ShardingSpec",
    "Stream",
    "TensorMove",
    "Tuning",
    "Work",
    "__version__",
    "allgather",
    "allreduce",
    "allreduce_fused",
    "alltoall",
    "alltoallv",
    "barrier",
    "broadcast",
    "cast",
    "dropout",
    "epilogue",
    "epilogues",
    "erf",
    "errors",
    "exp",
    "gather",
    "group",
    "init",
    "log",
    "maximum",
    "minimum",
    "multicast",
    "norm",
    "plan_multicast",
    "plan_reshard",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_fused",
    "reshard",
    "reshard_state",
    "scatter",
    "send",
    "sendrecv",
    "sqrt",
    "sum",
    "tanh",
    "where",
]
