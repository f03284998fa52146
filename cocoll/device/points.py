"""Messages between two GPUs: both hosts find out whether the ends agree, then NCCL moves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cocoll import _core
from cocoll.cuda.binding import Operation
from cocoll.device.calls import bound_to, refuse_capture
from cocoll.device.checks import describe
from cocoll.device.launches import sign
from cocoll.errors import BufferOverlapError, UnsupportedError, UsageError
from cocoll.failure import Kind
from cocoll.plan import Builder

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.cuda.binding import DeviceWork
    from cocoll.device.array import DeviceDescription
    from cocoll.device.side import DeviceSide

__all__ = ["PendingWork", "move_points"]


class PendingWork:
    """A message of a group on GPUs: it begins, and completes, with the group.

    Parameters
    ----------
    output : object
        What `result` gives.
    """

    def __init__(self, output: Any) -> None:
        self._output = output
        self._work: DeviceWork | None = None
        self._error: BaseException | None = None

    def begin(self, work: DeviceWork) -> None:
        """Note that the group has been queued."""
        self._work = work

    def drop(self, error: BaseException) -> None:
        """Note that the group has failed, or was never begun."""
        self._error = error

    def _begun(self) -> DeviceWork:
        if self._error is not None:
            raise self._error
        if self._work is None:
            raise UsageError(
                "a message of a group begins at the end of the group's block: wait for it after "
                "that"
            )
        return self._work

    def done(self) -> bool:
        """Say whether it has ended, well or not."""
        return self._error is not None or (self._work is not None and self._work.done())

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Block the host until it has completed."""
        self._begun().wait(timeout_seconds)

    def exception(self, timeout_seconds: float | None = None) -> BaseException | None:
        """Wait, and give what made it fail, or None."""
        return self._error or self._begun().exception(timeout_seconds)

    def result(self, timeout_seconds: float | None = None) -> Any:
        """Wait, and give the output."""
        self.wait(timeout_seconds)
        return self._output


def move_points(
    comm: Communicator, ends: list[tuple[bool, Any, int, str, int]], stream: Any, output: Any
) -> DeviceWork:
    """Move messages as one; the host waits until the other ends have been called.

    Parameters
    ----------
    comm : Communicator
        Whose.
    ends : list of tuple
        Of each whether it sends, its array, the other rank, the name of the array, and the code of
        its dtype if the caller gave one, else -1.
    stream : object
        As in the call.
    output : object
        What the work gives.

    Returns
    -------
    DeviceWork
        Of all of them.

    Raises
    ------
    UnsupportedError
        The ranks have not opened NCCL.
    CollectiveMismatchError
        Ends do not agree; those messages have not moved, the others have been queued.
    """
    side = comm._side
    if side is None:
        raise UnsupportedError(
            f"a communicator's first use of its GPUs is collective, and a message is between two "
            f"ranks alone: let all ranks call comm.empty(..., device='cuda'), or a collective on "
            f"GPUs, before it (rank {comm.rank})"
        )
    first = ends[0][1]
    refuse_capture(comm, first, stream)
    arrays = [
        describe(side, comm, value, name, code, written=not sends)
        for sends, value, _, name, code in ends
    ]
    _check_apart(comm, [end[0] for end in ends], arrays)
    if any(peer != comm.rank for _, _, peer, _, _ in ends) and not side.endpoint.has_wire:
        raise UnsupportedError(
            f"messages between GPUs go over NCCL, and the ranks map each other's memory without "
            f"it: give cocoll.Tuning(gpu_map_peers=0) (rank {comm.rank})"
        )
    error, agree = _core.meet_points(
        comm,
        [
            (sends, peer, int(array.dtype), array.count)
            for (sends, _, peer, _, _), array in zip(ends, arrays, strict=True)
        ],
    )
    moving = [
        (sends, peer, array)
        for (sends, _, peer, _, _), array, fits in zip(ends, arrays, agree, strict=True)
        if fits and array.nbytes > 0
    ]
    operation = _make_operation(comm, side, moving)
    plan = Builder(comm.rank, comm.world_size, name="messages").build()
    keep = [value for _, value, _, _, _ in ends]
    run = bound_to(comm, side, operation, plan, stream, first, output=output, keep=keep)
    work = run()
    if error is not None:
        raise error
    return work


def _make_operation(
    comm: Communicator, side: DeviceSide, moving: list[tuple[bool, int, DeviceDescription]]
) -> Operation:
    operation = Operation(side.endpoint, sign(int(Kind.GROUP)))
    own = [entry for entry in moving if entry[1] == comm.rank]
    filled = [array for sends, _, array in own if not sends]
    for source, target in zip((array for sends, _, array in own if sends), filled, strict=True):
        operation.copy(target.address, source.address, source.nbytes)
    others = [entry for entry in moving if entry[1] != comm.rank]
    if len(others) > 1:
        operation.begin_group()
    for sends, peer, array in others:
        if sends:
            operation.send(peer, array.address, array.nbytes)
        else:
            operation.receive(peer, array.address, array.nbytes)
    if len(others) > 1:
        operation.end_group()
    return operation


def _check_apart(comm: Communicator, sends: list[bool], arrays: list[DeviceDescription]) -> None:
    """Refuse an array that is filled and shares memory with another one."""
    # By where they begin; between neighbours, for those that are empty share nothing.
    spans = sorted(
        (array.address, array.address + array.nbytes, sending)
        for array, sending in zip(arrays, sends, strict=True)
        if array.nbytes > 0
    )
    read_until = written_until = 0
    for start, stop, sending in spans:
        if start < written_until or (not sending and start < read_until):
            raise BufferOverlapError(
                f"an array that receives must be apart from all others of its group; two share "
                f"memory on rank {comm.rank}. Use a copy of one of them"
            )
        if sending:
            read_until = max(read_until, stop)
        else:
            written_until = max(written_until, stop)
