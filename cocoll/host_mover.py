"""Reshardings on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cocoll import _core
from cocoll.agreed_kernel import load_on_all_ranks
from cocoll.array import ArrayDescription, describe_array, make_output
from cocoll.errors import UsageError
from cocoll.facts import OwnPlanFacts
from cocoll.failure import Kind
from cocoll.kernels.build import KernelSpec
from cocoll.resharding.lowering import ReshardLimits, lower

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.dtypes import DType
    from cocoll.movers import Entry, Freight

__all__ = ["HostMover"]

_SLOTS = 32
_IN_FLIGHT = 8
_LINE_BYTES = 64
# A message between hosts takes a few ten microseconds of both ends' processors, in which a port of
# 10 Gbit/s moves about as much.
_LEAST_BYTES = 64 << 10


class HostMover:
    """Moves arrays in host memory.

    Parameters
    ----------
    comm : Communicator
        Whose ranks.
    freight : Freight
        What is to be moved.

    Attributes
    ----------
    plan, parts
        As of `Mover`.
    """

    def __init__(self, comm: Communicator, freight: Freight) -> None:
        self._comm = comm
        self._freight = freight
        limits = _limits_of(comm)
        self._digest = freight.digest(limits)
        self.plan, self.parts = lower(
            freight.planned,
            comm.rank,
            freight.itemsizes_bytes,
            limits,
            hosts=comm.hosts,
            result_itemsizes_bytes=freight.result_itemsizes_bytes,
        )
        self._program = self._make_program()

    def _make_program(self) -> _core.Program:
        comm, plan, traced = self._comm, self.plan, self._freight.traced
        partial = 0
        if any(task.adds for task in self._freight.planned.tasks):
            spec = KernelSpec("sum", self._freight.dtypes[0], None)
            partial = comm._kernels.load(spec).reduce_address
        kernel = None
        facts = OwnPlanFacts(plan.name, plan)
        if traced is not None:
            spec = KernelSpec("sum", traced.source_dtype, traced)
            kernel = load_on_all_ranks(comm, spec, inside=False)
            facts = OwnPlanFacts(
                plan.name,
                plan,
                scalars=tuple(scalar.name for scalar in traced.scalars),
                defaults=tuple(scalar.default for scalar in traced.scalars),
            )
        return _core.Program(
            comm,
            None,
            plan.pack(),
            reduce_address=0 if kernel is None else kernel.reduce_address,
            partial_address=partial,
            prepare_address=0 if kernel is None else kernel.prepare_address,
            derived_count=0 if kernel is None else kernel.derived_count,
            facts=facts,
            part_count=len(self.parts),
        )

    def describe(self, value: Any, name: str, dtype: DType) -> ArrayDescription:
        """See `Mover`."""
        return describe_array(value, name, int(dtype))

    def make_output(self, like: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """See `Mover`."""
        return make_output(like, shape, dtype)

    def make_memory(self, nbytes: int) -> tuple[int, object]:
        """See `Mover`."""
        import numpy as np

        memory = np.empty(nbytes, np.uint8)
        return memory.ctypes.data, memory

    def check_call(self, stream: Any, like: Any) -> None:
        """See `Mover`: on the host every call may be bound as it comes."""

    def bind(
        self, entries: Sequence[Entry], kept: Any, output: Any, stream: Any, like: Any
    ) -> _core.BoundOperation:
        """See `Mover`."""
        return _core.bind_parts(
            self._comm,
            self._program,
            _core.Parts(entries),
            kept,
            output,
            kind=Kind.RESHARD,
            op=0,
            dtype=int(self._freight.dtypes[0]),
            nbytes=sum(task.nbytes for task in self._freight.planned.tasks),
            digest=self._digest,
            stream=stream,
        )


def _limits_of(comm: Communicator) -> ReshardLimits:
    """Divide the staging into slots of whole cache lines."""
    slot_bytes = comm.tuning.staging_bytes // _SLOTS // _LINE_BYTES * _LINE_BYTES
    if slot_bytes == 0:
        raise UsageError(
            f"resharding wants Tuning.staging_bytes of at least {_SLOTS * _LINE_BYTES}; got "
            f"{comm.tuning.staging_bytes}"
        )
    return ReshardLimits(min(_LEAST_BYTES, slot_bytes), slot_bytes, _SLOTS, _IN_FLIGHT)
