"""Arrays of a call on a GPU, read and refused where the executor cannot use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cocoll.device.array import DeviceDescription, describe_device_array
from cocoll.errors import BufferMismatchError, BufferOverlapError, UsageError

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.device.side import DeviceSide

__all__ = ["check_device", "check_pair", "check_writable", "describe"]


def describe(
    side: DeviceSide, comm: Communicator, value: Any, name: str, dtype_code: int, written: bool
) -> DeviceDescription:
    """Read an array of a call, and refuse one that the executor cannot use.

    Parameters
    ----------
    side, comm : DeviceSide, Communicator
        Whose call.
    value, name, dtype_code : object, str, int
        As in `describe_device_array`.
    written : bool
        Whether the call writes it.

    Returns
    -------
    DeviceDescription
        Contiguous, on the rank's GPU.

    Raises
    ------
    UsageError
        It is not, or may not be written.
    """
    found = describe_device_array(value, name, dtype_code)
    if not found.contiguous:
        raise BufferMismatchError(
            f"{name} must be contiguous and aligned on a GPU; got strides {found.stride_bytes} on "
            f"rank {comm.rank}. Make it contiguous"
        )
    check_writable(comm, found, name, written)
    check_device(side, comm, found, name)
    return found


def check_writable(comm: Communicator, found: DeviceDescription, name: str, written: bool) -> None:
    """Refuse a read-only array that a call writes.

    Parameters
    ----------
    comm : Communicator
        Whose call.
    found, name : DeviceDescription, str
        The array.
    written : bool
        Whether the call writes it.

    Raises
    ------
    UsageError
        It may not be written.
    """
    if written and found.readonly:
        raise UsageError(
            f"{name} must be writable; got a read-only array on rank {comm.rank}. Pass a copy, or "
            f"give out="
        )


def check_device(side: DeviceSide, comm: Communicator, found: DeviceDescription, name: str) -> None:
    """Refuse an array of another GPU.

    Parameters
    ----------
    side, comm : DeviceSide, Communicator
        Whose call.
    found, name : DeviceDescription, str
        The array.

    Raises
    ------
    UsageError
        It lies elsewhere.
    """
    ordinal = side.device.library.device_of(found.address) if found.count else side.device.ordinal
    if ordinal != side.device.ordinal:
        raise UsageError(
            f"{name} must lie on GPU {side.device.ordinal} of rank {comm.rank}; got one "
            + (f"on GPU {ordinal}" if ordinal >= 0 else "in memory of no GPU")
        )


def check_pair(
    comm: Communicator,
    source: DeviceDescription,
    result: DeviceDescription,
    name: str,
    allowed: int | None = None,
) -> None:
    """Refuse a result that overlaps the input in part (docs/plans.md, rule 6).

    Parameters
    ----------
    comm : Communicator
        Whose call.
    source, result : DeviceDescription
        The arrays.
    name : str
        The result's.
    allowed : int, optional
        Where the result may begin though: this rank's block of the input, or the other way round.

    Raises
    ------
    BufferOverlapError
        They overlap in another way.
    """
    first, stop = source.span()
    begin, end = result.span()
    if begin >= stop or first >= end or (begin, end) == (first, stop) or begin == allowed:
        return
    raise BufferOverlapError(
        f"{name} and the input must be disjoint, identical, or one this rank's shard of the other; "
        f"got a partial overlap on rank {comm.rank}. Use a copy of one of them"
    )
