"""Planners that bring a sharded tensor from one mesh and layout to another.

A tensor on two meshes becomes unit tasks (`unit_task`), a solver turns them into a schedule over
the ports of a topology (`solvers`), and a lower bound says how good that is (`bounds`). Everything
is a pure function; nothing here moves data.
"""

from __future__ import annotations

from cocoll.resharding.bounds import Bound, lower_bound
from cocoll.resharding.layout import Layout
from cocoll.resharding.mesh import Mesh
from cocoll.resharding.planner import (
    MulticastPlan,
    TensorMove,
    plan_multicast,
    plan_reshard,
    plan_reshards,
)
from cocoll.resharding.schedule import Group, Schedule, Transfer
from cocoll.resharding.sharding_spec import ShardingSpec
from cocoll.resharding.unit_task import UnitTask, decompose, multicast_task

__all__ = [
    "Bound",
    "Group",
    "Layout",
    "Mesh",
    "MulticastPlan",
    "Schedule",
    "ShardingSpec",
    "TensorMove",
    "Transfer",
    "UnitTask",
    "decompose",
    "lower_bound",
    "multicast_task",
    "plan_multicast",
    "plan_reshard",
    "plan_reshards",
]
