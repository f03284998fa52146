"""Boxes of arrays on a GPU, and the kernel that copies between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cocoll.device.launches import add_copy, blocks_for
from cocoll.kernels.grid_spec import COPY_STRIDED_KERNEL

if TYPE_CHECKING:
    from cocoll.cuda.binding import Operation
    from cocoll.device.side import DeviceSide

__all__ = ["DeviceBox", "add_box_copy"]

_WORDS_BYTES = (16, 8, 4, 2)


@dataclass(frozen=True, slots=True)
class DeviceBox:
    """Elements of an array, counted in row-major order.

    Attributes
    ----------
    address : int
        Of element `origin`.
    itemsize_bytes : int
        Of an element.
    shape, stride_bytes : tuple of int
        How they lie; empty where side by side.
    origin : int, default 0
        The number of the first element there is; 0 unless they lie side by side.
    """

    address: int
    itemsize_bytes: int
    shape: tuple[int, ...] = ()
    stride_bytes: tuple[int, ...] = ()
    origin: int = 0

    @staticmethod
    def of_array(
        address: int, itemsize_bytes: int, shape: tuple[int, ...], stride_bytes: tuple[int, ...]
    ) -> DeviceBox:
        """Give a box that may lie side by side, as its strides tell."""
        dims = [
            (length, stride)
            for length, stride in zip(shape, stride_bytes, strict=True)
            if length != 1
        ]
        expected = itemsize_bytes
        for length, stride in reversed(dims):
            if stride != expected:
                return DeviceBox(
                    address,
                    itemsize_bytes,
                    tuple([length for length, _ in dims]),
                    tuple([stride for _, stride in dims]),
                )
            expected *= length
        return DeviceBox(address, itemsize_bytes)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie side by side."""
        return not self.shape

    def place_of(self, element: int) -> int:
        """Give the address of an element of a box that lies side by side."""
        return self.address + (element - self.origin) * self.itemsize_bytes


def add_box_copy(
    side: DeviceSide,
    operation: Operation,
    to: DeviceBox,
    source: DeviceBox,
    first: int,
    stop: int,
    stream: int,
) -> None:
    """Add a copy of some elements of a box to where the same ones of another box lie.

    Parameters
    ----------
    side, operation : DeviceSide, Operation
        To which it is added.
    to, source : DeviceBox
        Of one itemsize and, where both are strided, of one shape.
    first, stop : int
        Which elements.
    stream : int
        See `Operation.record`.
    """
    if first >= stop:
        return
    if to.is_contiguous and source.is_contiguous:
        nbytes = (stop - first) * to.itemsize_bytes
        add_copy(side, operation, to.place_of(first), source.place_of(first), nbytes, stream)
        return
    shape, steps = _merge(to, source)
    word = next(
        (word for word in _WORDS_BYTES if _moves_by(word, to, source, shape, steps, first, stop)),
        to.itemsize_bytes,
    )
    scale = word // to.itemsize_bytes
    shape = (*shape[:-1], shape[-1] // scale)
    operands: list[tuple[int, int, int]] = []
    layouts: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
    for box, strides in zip((source, to), steps, strict=True):
        if box.is_contiguous:
            operands.append((box.address, box.origin // scale, -1))
        else:
            operands.append((box.address, 0, len(layouts)))
            layouts.append((word, shape, (*strides[:-1], strides[-1] * scale)))
    words = (stop - first) // scale
    operation.launch(
        side.common_function(COPY_STRIDED_KERNEL),
        blocks_for(side, words * max(1, word // 4), 4),
        first // scale,
        stop // scale,
        (),
        [],
        operands,
        layouts,
        stream=stream,
    )


def _merge(
    to: DeviceBox, source: DeviceBox
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]]:
    """Give the shape with as few dims as both boxes allow, and the strides of source and target."""
    full = source.shape or to.shape
    strides = [box.stride_bytes or _strides_of(full, box.itemsize_bytes) for box in (source, to)]
    if len(full) != len(strides[0]) or len(full) != len(strides[1]):
        raise ValueError(f"boxes of shapes {source.shape} and {to.shape} do not go together")
    merged: list[tuple[int, int, int]] = []
    for length, one, other in zip(full, *strides, strict=True):
        if merged and merged[-1][1] == one * length and merged[-1][2] == other * length:
            length *= merged.pop()[0]
        merged.append((length, one, other))
    lengths, ones, others = zip(*merged, strict=True)
    return tuple(lengths), (tuple(ones), tuple(others))


def _strides_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple([itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape))])


def _moves_by(
    word: int,
    to: DeviceBox,
    source: DeviceBox,
    shape: tuple[int, ...],
    steps: tuple[tuple[int, ...], tuple[int, ...]],
    first: int,
    stop: int,
) -> bool:
    """Say whether elements may be copied several at a time, as words."""
    itemsize = to.itemsize_bytes
    if word <= itemsize or word % itemsize:
        return False
    count = word // itemsize
    aligned = all(
        box.address % word == 0 and box.origin % count == 0 and strides[-1] == itemsize
        and all(stride % word == 0 for stride in strides[:-1])
        for box, strides in zip((source, to), steps, strict=True)
    )  # fmt: skip
    return aligned and not shape[-1] % count and not first % count and not stop % count
