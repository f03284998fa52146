"""One rank plans a resharding for all: it takes long, and all must do the same."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from cocoll import _core, errors
from cocoll.errors import CocollError, CollectiveMismatchError
from cocoll.failure import Purpose
from cocoll.resharding.planner import MulticastPlan, plan_multicast
from cocoll.resharding.transcript import read_plan, write_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cocoll.communicator import Communicator
    from cocoll.resharding.unit_task import UnitTask

__all__ = ["plan_together"]

_PLANNER = 0


def plan_together(
    comm: Communicator, tasks: Sequence[UnitTask], solver: str, terms: str
) -> MulticastPlan:
    """Plan on rank 0, and tell all others. Collective.

    Parameters
    ----------
    comm : Communicator
        All its ranks call this.
    tasks : sequence of UnitTask
        What must be moved; the same on all ranks.
    solver : str
        A name of `cocoll.resharding.solvers.SOLVERS`.
    terms : str
        What else ranks must agree on, and the solver.

    Returns
    -------
    MulticastPlan
        The same on all ranks.

    Raises
    ------
    CollectiveMismatchError
        Ranks have other tasks, or another solver: on all of them.
    CocollError
        What planning raised, on all ranks.
    """
    found = hashlib.sha256(terms.encode())
    for task in tasks:
        found.update(repr(task).encode())
    told = _core.exchange(comm, Purpose.RESHARD, found.digest())
    odd = [rank for rank, digest in enumerate(told) if digest != told[_PLANNER]]
    if odd:
        raise CollectiveMismatchError(
            f"the ranks asked for different reshardings; nothing has moved: shapes, meshes, specs, "
            f"dtypes, epilogue or solver differ between rank {_PLANNER} and rank "
            f"{', '.join(map(str, odd))}"
        )
    made = failure = None
    text = ""
    if comm.rank == _PLANNER:
        try:
            made = plan_multicast(tasks, comm.topology, solver=solver)
            text = write_plan(made)
        except CocollError as error:
            failure = error
            text = json.dumps({"error": type(error).__name__, "message": str(error)})
    text = _broadcast(comm, text.encode()).decode()
    if failure is not None:
        raise failure
    if made is not None:
        return made
    fields = json.loads(text)
    if "error" in fields:
        raise getattr(errors, fields["error"])(fields["message"])
    return read_plan(text, tasks, comm.topology)


def _broadcast(comm: Communicator, data: bytes) -> bytearray:
    """Give the planner's bytes to all."""
    import numpy as np

    length = np.array([len(data)], np.int64)
    _core.broadcast(length, root=_PLANNER, comm=comm)
    content = bytearray(data) if comm.rank == _PLANNER else bytearray(int(length[0]))
    _core.broadcast(content, root=_PLANNER, comm=comm)
    return content
