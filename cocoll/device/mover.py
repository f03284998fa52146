"""Reshardings on GPUs: all that crosses ranks goes over NCCL, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cocoll.cuda.binding import BoundDeviceOperation, Memory, Operation
from cocoll.cuda.toolkit import Toolkit
from cocoll.device.agreement import agree
from cocoll.device.array import DeviceDescription, is_on_device
from cocoll.device.boxes import DeviceBox
from cocoll.device.calls import bound_to, make_output, refuse_capture
from cocoll.device.checks import describe
from cocoll.device.launches import sign
from cocoll.device.lowering import lower_plan
from cocoll.device.nccl import open_wire
from cocoll.device.request import Request
from cocoll.errors import CocollError, ReshardError
from cocoll.failure import Kind, Option
from cocoll.kernels.spec import KernelSpec
from cocoll.resharding.wire_lowering import WireLimits, lower_for_wire

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.device.side import DeviceSide
    from cocoll.dtypes import DType
    from cocoll.movers import Entry, Freight
    from cocoll.resharding.parts import Part

__all__ = ["DeviceMover"]

# A group of messages takes some ten microseconds to begin, in which a port of 400 Gbit/s moves half
# a MiB; beyond some MiB a longer one is no faster, and the last chunk is late by its length.
_LEAST_BYTES = 512 << 10
_MOST_BYTES = 4 << 20


class DeviceMover:
    """Moves arrays on GPUs.

    Parameters
    ----------
    comm : Communicator
        Whose ranks.
    freight : Freight
        What is to be moved.
    ordinal : int or None
        This rank's GPU.
    near : object
        An array whose GPU it is where `ordinal` is None; or None.

    Attributes
    ----------
    plan, parts
        As of `Mover`.

    Raises
    ------
    UnsupportedError
        A rank has no GPU or no NCCL, or a kernel cannot be compiled: on all ranks.
    """

    def __init__(
        self, comm: Communicator, freight: Freight, ordinal: int | None, near: Any
    ) -> None:
        self._comm = comm
        self._freight = freight
        self._side: DeviceSide = comm._open_side(near, ordinal)
        if comm.world_size > 1:
            open_wire(comm, self._side, comm._toolkit or Toolkit())
        limits = WireLimits(_LEAST_BYTES, _MOST_BYTES, self._side.endpoint.window_bytes)
        self._digest = freight.digest(limits)
        self.plan, self.parts = lower_for_wire(
            freight.planned,
            comm.rank,
            freight.itemsizes_bytes,
            limits,
            self._is_contiguous,
            result_itemsizes_bytes=freight.result_itemsizes_bytes,
        )
        traced = freight.traced
        self._spec = KernelSpec("sum", freight.dtypes[0], traced)
        self._prepare_address = 0
        problem = ""
        try:
            # Now, when all ranks can be told that one has failed.
            self._side.function(self._spec)
            if any(task.adds for task in freight.planned.tasks):
                self._side.function(KernelSpec("sum", freight.dtypes[0], None))
            if traced is not None and traced.derived:
                self._prepare_address = comm._kernels.load(self._spec).prepare_address
        except CocollError as error:
            problem = str(error)
        agree(comm, b"", problem)

    def _is_contiguous(self, part: Part) -> bool:
        """Say whether a box lies side by side in the array around it, which is contiguous."""
        if part.role == "sum":
            return True
        source, target = self._freight.layouts[part.tensor]
        own = (source if part.role == "source" else target).box_of(self._comm.rank)
        whole = True  # whether the box has all of the dims behind
        for (start, stop), (low, high) in zip(reversed(part.box), reversed(own), strict=True):
            if not whole and stop - start != 1:
                return False
            whole = whole and (start, stop) == (low, high)
        return True

    def describe(self, value: Any, name: str, dtype: DType) -> DeviceDescription:
        """See `Mover`."""
        if not is_on_device(value):
            raise ReshardError(
                f"{name}: this resharding is of arrays on GPUs; got {type(value).__name__} in host "
                f"memory on rank {self._comm.rank}. Give device='cpu' for those"
            )
        return describe(self._side, self._comm, value, name, int(dtype), written=False)

    def make_output(self, like: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """See `Mover`."""
        return make_output(self._side, like, shape, dtype)

    def make_memory(self, nbytes: int) -> tuple[int, object]:
        """See `Mover`."""
        memory = Memory.create(self._side.device, max(nbytes, 1))
        return memory.address, memory

    def check_call(self, stream: Any, like: Any) -> None:
        """See `Mover`."""
        # Without either it runs on a stream of the communicator's own.
        if stream is not None or like is not None:
            refuse_capture(self._comm, like, stream)

    def bind(
        self, entries: Sequence[Entry], kept: Any, output: Any, stream: Any, like: Any
    ) -> BoundDeviceOperation:
        """See `Mover`."""
        comm, side, traced = self._comm, self._side, self._freight.traced
        operation = Operation(side.endpoint, sign(self._digest))
        request = Request(
            comm,
            side,
            Kind.RESHARD,
            self._spec,
            _typed(self._freight.dtypes[0]),
            [_typed(self._freight.result_dtypes[0])],
            0,
            0,
            Option(0),
            parts=[
                DeviceBox.of_array(address, itemsize, shape, strides)
                for address, shape, strides, itemsize in entries
            ],
        )
        lower_plan(self.plan, request, operation)
        scalars = () if traced is None else traced.scalars
        operation.derive(self._prepare_address, 0 if traced is None else len(traced.derived))
        return bound_to(
            comm,
            side,
            operation,
            self.plan,
            side.stream if stream is None and like is None else stream,
            like,
            output=output,
            keep=kept,
            names=tuple(scalar.name for scalar in scalars),
            scalars=[scalar.default for scalar in scalars],
        )


def _typed(dtype: DType) -> DeviceDescription:
    """Give an array without elements, which says what the others hold."""
    return DeviceDescription(0, (0,), (dtype.itemsize_bytes,), dtype, False)
