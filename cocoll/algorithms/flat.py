"""Reduce-scatter, all-gather and broadcast in which each block goes straight from owner to reader.

The direct forms read and write peers' arrays and exchange one flag per pair of ranks at the end.
The staged forms need no mapped arrays: chunks go through slots of the owner's staging, and a second
flag gives a slot back. Reductions are in rank order, one pass.
"""

from __future__ import annotations

from cocoll.algorithms.flat_allgather import (
    FlatAllgather,
    StagedAllgather,
    plan_allgather,
    plan_allgather_staged,
)
from cocoll.algorithms.flat_broadcast import (
    FlatBroadcast,
    StagedBroadcast,
    plan_broadcast,
    plan_broadcast_staged,
)
from cocoll.algorithms.flat_reduce_scatter import (
    FlatReduceScatter,
    StagedReduceScatter,
    plan_reduce_scatter,
    plan_reduce_scatter_staged,
)
from cocoll.plan.ir import Fragment, Plan

__all__ = [
    "FlatAllgather",
    "FlatBroadcast",
    "FlatReduceScatter",
    "StagedAllgather",
    "StagedBroadcast",
    "StagedReduceScatter",
    "plan_allgather",
    "plan_allgather_staged",
    "plan_barrier",
    "plan_broadcast",
    "plan_broadcast_staged",
    "plan_reduce_scatter",
    "plan_reduce_scatter_staged",
]


def plan_barrier(rank: int, world_size: int) -> Plan:
    """Plan a barrier: the arrival that opens every operation, and nothing else.

    Parameters
    ----------
    rank, world_size : int
        Whose plan.

    Returns
    -------
    Plan
        Without steps.
    """
    return Plan(rank, world_size, Fragment(lanes=()), name="barrier")
