"""How a kernel on a GPU reads the arrays of an epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.errors import BufferMismatchError

if TYPE_CHECKING:
    from cocoll.device.array import DeviceDescription
    from cocoll.epilogues.traced import Operand as TracedOperand

__all__ = ["Operand", "place_operand"]


@dataclass(frozen=True, slots=True)
class Operand:
    """One array of an epilogue, placed.

    Attributes
    ----------
    address, itemsize_bytes : int
        Its first element.
    origin : int
        The logical index of that element.
    sharded : bool
        Whether it holds this rank's shard.
    layout : tuple or None
        (itemsize_bytes, shape, stride_bytes) where it is strided or broadcast.
    """

    address: int
    itemsize_bytes: int
    origin: int
    sharded: bool
    layout: tuple[int, tuple[int, ...], tuple[int, ...]] | None


def place_operand(
    array: DeviceDescription,
    source: DeviceDescription,
    operand: TracedOperand,
    begin: int,
    end: int,
    rank: int,
) -> Operand:
    """Say how an epilogue's array is read.

    Parameters
    ----------
    array, source : DeviceDescription
        The array, and the input of the call.
    operand : Operand
        What the epilogue says of it.
    begin, end : int
        This rank's shard of the input.
    rank : int
        For messages.

    Returns
    -------
    Operand
        For a launch.

    Raises
    ------
    BufferMismatchError
        The array's shape does not fit.
    """
    itemsize = array.dtype.itemsize_bytes
    if operand.sharded:
        if array.count != end - begin:
            raise BufferMismatchError(
                f"{operand.name} holds this rank's shard: wanted {end - begin} of the "
                f"{source.count} elements on rank {rank}; got {array.count}. Make it with "
                f"comm.shard_zeros({source.count}, device='cuda')"
            )
        if not array.contiguous:
            raise BufferMismatchError(
                f"{operand.name} must be contiguous and aligned; it is not on rank {rank}. Use a "
                f"copy"
            )
        return Operand(array.address, itemsize, begin, True, None)
    if array.shape == source.shape and array.contiguous:
        return Operand(array.address, itemsize, 0, False, None)
    missing = len(source.shape) - len(array.shape)
    shape = (1,) * missing + array.shape
    strides = (0,) * missing + array.stride_bytes
    fits = missing >= 0 and all(
        own in (1, wanted) for own, wanted in zip(shape, source.shape, strict=True)
    )
    if not fits or (operand.result_index is not None and array.shape != source.shape):
        raise BufferMismatchError(
            f"{operand.name} must broadcast to the input's shape {source.shape}; got "
            f"{array.shape} on rank {rank}. Reshape it"
        )
    stepped = tuple(
        0 if own == 1 and wanted != 1 else stride
        for own, wanted, stride in zip(shape, source.shape, strides, strict=True)
    )
    return Operand(array.address, itemsize, 0, False, (itemsize, source.shape, stepped))
