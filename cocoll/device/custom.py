"""Plans of the caller's own on a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cocoll.cuda.binding import BoundDeviceOperation, Operation
from cocoll.device.calls import bound_to
from cocoll.device.checks import check_pair, describe
from cocoll.device.launches import add_meeting, sign
from cocoll.device.lowering import lower_plan
from cocoll.device.request import Request
from cocoll.dtypes import DType
from cocoll.errors import BufferMismatchError, DTypeError, UsageError
from cocoll.failure import OP_LABELS, Kind, Option
from cocoll.kernels.spec import KernelSpec
from cocoll.plan import Aliasing, Plan, Relation, verify
from cocoll.plan.ranges import block_elements
from cocoll.plan.structure import check_plan

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.device.side import DeviceSide

__all__ = ["bind_plan_on_device"]


def bind_plan_on_device(
    comm: Communicator,
    planner: Callable[[int, int], Plan],
    x: Any,
    out: Any,
    op: str,
    dtype: str | None,
    stream: Any,
) -> BoundDeviceOperation:
    """Bind a plan to arrays on the GPU; see `Communicator.bind_plan`.

    Parameters
    ----------
    comm : Communicator
        Whose.
    planner, x, out, op, dtype, stream
        As in the call.

    Returns
    -------
    BoundDeviceOperation
        Not yet run.

    Raises
    ------
    ScheduleError
        The plans race, deadlock, or touch arrays that are not theirs.
    UsageError
        An argument does not fit, or the plan needs more than the executor for GPUs has.
    """
    if op not in OP_LABELS:
        raise UsageError(f"op must be one of {', '.join(OP_LABELS)}; got {op!r}")
    side = comm._open_side(x)
    code = -1 if dtype is None else int(DType.parse(str(dtype)))
    source = describe(side, comm, x, "x", code, written=out is None)
    result = describe(side, comm, x if out is None else out, "out", code, written=True)
    if result.dtype != source.dtype:
        raise DTypeError(
            f"out must have the input's dtype {source.dtype.label}; got {result.dtype.label} on "
            f"rank {comm.rank}"
        )
    if result.count != source.count:
        raise BufferMismatchError(
            f"out must have the input's {source.count} elements; got {result.count} on rank "
            f"{comm.rank}"
        )
    check_pair(comm, source, result, "out")
    plans = [planner(rank, comm.world_size) for rank in range(comm.world_size)]
    relation = Relation.IDENTICAL if source.is_same_memory(result) else Relation.DISJOINT
    verify(plans, counts=[source.count], aliasing=Aliasing(relation))
    _check_hosts(side, plans)
    plan = plans[comm.rank]
    request = Request(
        comm,
        side,
        Kind.CUSTOM,
        KernelSpec(op, source.dtype, None),
        source,
        [result],
        source.count,
        block_elements(source.count, comm.world_size, plan.alignment_elements),
        Option(0),
    )
    places = [
        side.place_of(array.address, array.nbytes)
        for array, mapped in ((source, plan.mapped_sources), (result, plan.mapped_results))
        if mapped
    ]
    everyone = hashlib.sha256(b"".join(one.pack() for one in plans)).hexdigest()
    facts = (everyone, int(source.dtype), source.count, op, places)
    operation = Operation(side.endpoint, sign(*facts))
    lower_plan(plan, request, operation)
    if side.is_mapped or side.neighbours:
        # The next operation may begin with this rank's own window, where peers have yet to look.
        add_meeting(comm, side, operation)
    return bound_to(
        comm, side, operation, plan, stream, x, output=x if out is None else out, keep=(x, out)
    )


def _check_hosts(side: DeviceSide, plans: Sequence[Plan]) -> None:
    """Refuse, on all ranks alike, plans that are for other hosts or touch memory across them."""
    if side.hierarchy is None:
        return
    hosts, given = side.hierarchy.hosts, plans[0].hosts
    if given is not None and _partition(given) != _partition(hosts):
        raise UsageError(
            f"plan {plans[0].name!r} is for ranks on hosts {given}; the communicator's are on "
            f"hosts {hosts}"
        )
    for plan in plans:
        check_plan(replace(plan, hosts=hosts))


def _partition(hosts: Sequence[int]) -> list[int]:
    """Give each rank's first neighbour, which does not depend on how hosts are numbered."""
    return [hosts.index(host) for host in hosts]
