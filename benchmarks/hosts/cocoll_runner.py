"""cocoll itself, on several hosts, through its public face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cocoll
from benchmarks.common.cases import Entry, Group
from benchmarks.common.cocoll_runner import CocollRunner
from benchmarks.hosts.runner import HostsRunner
from benchmarks.hosts.setting import COCOLL_ROW
from cocoll import epilogues

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HostsCocollRunner"]


class HostsCocollRunner(CocollRunner, HostsRunner):
    """Symmetric arrays; in place where the operation has that."""

    def __init__(self) -> None:
        super().__init__()
        self._operation = ""

    def barrier(self) -> None:
        """Wait with cocoll's own barrier."""
        self._comm.barrier()

    def close(self) -> None:
        """Close the communicator, if there is one."""
        if self._comm is not None:
            super().close()

    def prepare(self, group: Group) -> list[Entry]:
        """Allocate, and name the form."""
        self._operation = group.operation
        if group.operation == "allreduce_fused":
            self._add_fused(COCOLL_ROW, group)
        else:
            self._add_plain(group)
        return [Entry(COCOLL_ROW, "cocoll", COCOLL_ROW)]

    def inputs(self, form: str) -> list[NDArray[Any]]:
        """Give what this rank puts in: in a broadcast only rank 0 does."""
        if self._operation == "broadcast" and self.rank != 0:
            return []
        return super().inputs(form)

    def _add_plain(self, group: Group) -> None:
        comm, n = self._comm, group.elements
        source = comm.empty(n, group.dtype)
        output = source
        if group.operation == "allgather":
            output = comm.empty(n * self.world_size, group.dtype)
        elif group.operation == "reduce_scatter":
            output = comm.empty(n // self.world_size, group.dtype)
        bind = comm.bind
        bound = {
            "broadcast": lambda: bind(cocoll.broadcast, source),
            "allgather": lambda: bind(cocoll.allgather, source, out=output),
            "reduce_scatter": lambda: bind(cocoll.reduce_scatter, source, out=output),
            "allreduce": lambda: bind(cocoll.allreduce, source),
        }[group.operation]()
        self._arrays[COCOLL_ROW] = {"input": source, "output": output}
        self._calls[COCOLL_ROW] = bound

    def predicted_seconds(self, form: str) -> float | None:
        """Give what the simulator says; a bound call explains itself."""
        # One rank's word is enough, and every other is on the same processors.
        if self.rank != 0:
            return None
        bound: Any = self._calls[form]
        if self._operation == "allreduce_fused":
            arrays = self._arrays[form]
            operands = {"param": arrays["output"], "m": arrays["m"], "v": arrays["v"]}
            bound = self._comm.bind(
                cocoll.allreduce_fused, arrays["input"], epilogues.adam(), **operands
            )
        return float(bound.explain().predicted_nanoseconds) / 1e9
