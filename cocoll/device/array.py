"""Arrays on a GPU: cocoll's own, and what frameworks hand in."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cocoll.array import (
    ArrayDescription,
    c_strides,
    describe_dlpack,
    numpy_dtype,
    read_typestr,
)
from cocoll.dtypes import DType
from cocoll.errors import BufferMismatchError, DTypeError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from cocoll.cuda.binding import Device, DeviceStream

__all__ = [
    "DeviceArray",
    "DeviceDescription",
    "current_stream",
    "describe_device_array",
    "is_on_device",
    "read_stream",
]

_DLPACK_CUDA = 2  # kDLCUDA
_MAX_DIMS = 8  # COCOLL_MAX_DIMS


class DeviceArray:
    """An array in device memory, for any framework to take over without a copy.

    ``cupy.asarray(array)`` and ``torch.as_tensor(array, device="cuda")`` give arrays of theirs over
    the same memory, which lives as long as one of them does.

    Parameters
    ----------
    device : Device
        Where it lies.
    address : int
        Of the first element.
    shape : tuple of int
        C order.
    dtype : DType
        The element type.
    owner : object
        Kept alive with the array.
    stream : DeviceStream
        What calls work on where no stream is given: its communicator's own.
    """

    def __init__(
        self,
        device: Device,
        address: int,
        shape: tuple[int, ...],
        dtype: DType,
        owner: object,
        stream: DeviceStream,
    ) -> None:
        self._device = device
        self._address = address
        self._owner = owner
        self.stream = stream
        self.shape = shape
        self.dtype = dtype.label

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take."""
        return self.size * DType.parse(self.dtype).itemsize_bytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3; what it cannot name (bfloat16, float8) comes as unsigned integers."""
        dtype = DType.parse(self.dtype)
        typestr = numpy_dtype(dtype.carrier or dtype).str
        return {
            "shape": self.shape,
            "typestr": typestr,
            "data": (self._address, False),
            "strides": None,
            "version": 3,
            "stream": self.stream.handle,
        }

    def get(self, stream: int | None = None) -> np.ndarray[Any, Any]:
        """Copy it to the host, behind what is on a stream; blocks.

        Parameters
        ----------
        stream : int, optional
            A CUDA stream's handle. Default: that of the array.

        Returns
        -------
        numpy.ndarray
            The elements; bfloat16 and float8 as `Communicator.empty` gives them on the host.
        """
        import numpy as np

        found = np.empty(self.shape, numpy_dtype(DType.parse(self.dtype)))
        self._copy(found.ctypes.data, self._address, found.nbytes, stream)
        return found

    def set(self, values: np.ndarray[Any, Any], stream: int | None = None) -> None:
        """Copy from the host, behind what is on a stream; blocks.

        Parameters
        ----------
        values : numpy.ndarray
            Of the same shape and dtype.
        stream : int, optional
            A CUDA stream's handle. Default: that of the array.

        Raises
        ------
        BufferMismatchError
            Another shape or dtype.
        """
        import numpy as np

        wanted = numpy_dtype(DType.parse(self.dtype))
        if values.shape != self.shape or values.dtype != wanted:
            raise BufferMismatchError(
                f"wanted an array of shape {self.shape} and dtype {wanted}; got {values.shape} and "
                f"{values.dtype}"
            )
        source = np.ascontiguousarray(values)
        self._copy(self._address, source.ctypes.data, source.nbytes, stream)

    def _copy(self, to: int, source: int, nbytes: int, stream: int | None) -> None:
        if nbytes:
            queue = self.stream.handle if stream is None else stream
            self._device.copy(to, source, nbytes, queue)
            self._device.synchronize(queue)

    def __getitem__(self, rows: slice) -> DeviceArray:
        """Give a view of consecutive rows: a slice of the first dimension."""
        if not self.shape:
            raise UsageError(f"wanted an array with a first dimension to slice; got {self!r}")
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise UsageError(f"wanted consecutive rows; got a step of {step}")
        count = max(0, stop - start)
        row_bytes = math.prod(self.shape[1:]) * DType.parse(self.dtype).itemsize_bytes
        return DeviceArray(
            self._device,
            self._address + start * row_bytes,
            (count, *self.shape[1:]),
            DType.parse(self.dtype),
            self,
            self.stream,
        )

    def __repr__(self) -> str:
        """Say what it is, not what it holds: that would wait for the GPU."""
        return f"<cocoll.DeviceArray {self.shape} {self.dtype} on GPU {self._device.ordinal}>"


@dataclass(frozen=True, slots=True)
class DeviceDescription(ArrayDescription):
    """Where an array on a GPU lies and what it holds, and how it lies to others."""

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take, side by side."""
        return self.count * self.dtype.itemsize_bytes

    def is_same_memory(self, other: DeviceDescription) -> bool:
        """Say whether element i of one is element i of the other."""
        if self.address != other.address or self.count != other.count:
            return False
        if self.dtype.itemsize_bytes != other.dtype.itemsize_bytes:
            return False
        layouts = ((self.shape, self.stride_bytes), (other.shape, other.stride_bytes))
        return (self.contiguous and other.contiguous) or layouts[0] == layouts[1]

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie side by side in C order, aligned to their size."""
        if self.count == 0:
            return True
        expected = self.dtype.itemsize_bytes
        if self.address % expected:
            return False
        for length, stride in zip(reversed(self.shape), reversed(self.stride_bytes), strict=True):
            if length != 1 and stride != expected:
                return False
            expected *= length
        return True

    def span(self) -> tuple[int, int]:
        """Give the addresses of its first byte and of the one after its last."""
        if self.count == 0:
            return self.address, self.address
        reaches = [
            (length - 1) * stride
            for length, stride in zip(self.shape, self.stride_bytes, strict=True)
        ]
        low = sum(reach for reach in reaches if reach < 0)
        high = sum(reach for reach in reaches if reach > 0)
        return self.address + low, self.address + high + self.dtype.itemsize_bytes

    def overlaps(self, other: DeviceDescription) -> bool:
        """Say whether two arrays may share bytes."""
        first, stop = self.span()
        begin, end = other.span()
        return first < end and begin < stop


def is_on_device(value: Any) -> bool:
    """Say whether an argument is an array on a GPU.

    Parameters
    ----------
    value : object
        What the caller passed.

    Returns
    -------
    bool
        False for whatever is no array at all.
    """
    if isinstance(value, DeviceArray):
        return True
    if isinstance(value, type):
        return False
    if hasattr(value, "__dlpack_device__"):
        return bool(value.__dlpack_device__()[0] == _DLPACK_CUDA)
    # Of the class: torch's property raises for tensors that require grad.
    return hasattr(type(value), "__cuda_array_interface__") or (
        "__cuda_array_interface__" in getattr(value, "__dict__", ())
    )


def describe_device_array(value: Any, name: str, dtype_code: int) -> DeviceDescription:
    """Say where an array on a GPU lies.

    Parameters
    ----------
    value : object
        What the caller passed.
    name : str
        The argument, for messages.
    dtype_code : int
        What the caller said the elements are, or -1; lets unsigned integers stand for floats
        that no array library has.

    Returns
    -------
    DeviceDescription
        Valid while `value` lives.

    Raises
    ------
    DTypeError
        The element type is not supported.
    UsageError
        `value` is no array on a GPU.
    """
    found = _describe(value, name, dtype_code)
    if len(found.shape) > _MAX_DIMS:
        raise BufferMismatchError(
            f"{name} may have {_MAX_DIMS} dimensions; got {len(found.shape)}. Reshape it"
        )
    # Loads of a GPU want whole elements: x86 does not mind, and a GPU loses its context.
    itemsize = found.dtype.itemsize_bytes
    if found.count and any(step % itemsize for step in (found.address, *found.stride_bytes)):
        raise BufferMismatchError(
            f"{name} must be aligned to its elements of {itemsize} bytes; it is not. Use a copy"
        )
    if dtype_code >= 0 and name == "x" and found.dtype != dtype_code:
        raise DTypeError(
            f"x must have the dtype that dtype={DType(dtype_code).label!r} names; got "
            f"{found.dtype.label}. Leave dtype= out"
        )
    return found


def _describe(value: Any, name: str, dtype_code: int) -> DeviceDescription:
    if isinstance(value, DeviceArray):
        dtype = DType.parse(value.dtype)
        return DeviceDescription(
            value._address,
            value.shape,
            c_strides(value.shape, dtype.itemsize_bytes),
            dtype.standing_for(dtype_code),
            readonly=False,
        )
    if not is_on_device(value):
        raise UsageError(
            f"{name} must lie on the GPU as the other arrays of the call do; got "
            f"{type(value).__name__}"
        )
    # torch's tensors and CuPy's arrays have both; some floats have a name in DLPack alone, and
    # torch's property raises for the others.
    label = str(getattr(value, "dtype", ""))
    named = "bfloat16" not in label and "float8" not in label
    if not (named and hasattr(value, "__cuda_array_interface__")):
        found = describe_dlpack(value, name, dtype_code)
        return DeviceDescription(
            found.address, found.shape, found.stride_bytes, found.dtype, found.readonly
        )
    interface = value.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise UsageError(f"{name} has a mask; got {type(value).__name__}. Fill it first")
    shape = tuple(interface["shape"])
    dtype = read_typestr(interface["typestr"], str(getattr(value, "dtype", "")), name, dtype_code)
    strides = interface.get("strides")
    address, readonly = interface["data"]
    return DeviceDescription(
        address,
        shape,
        c_strides(shape, dtype.itemsize_bytes) if strides is None else tuple(strides),
        dtype,
        bool(readonly),
    )


def current_stream(value: Any) -> int:
    """Give the handle of the stream that an array's framework works on now.

    Parameters
    ----------
    value : object
        The array.

    Returns
    -------
    int
        CuPy's or torch's current stream; for other arrays the stream that they name, else the
        legacy default stream.
    """
    module = type(value).__module__.partition(".")[0]
    if module == "torch":
        return int(sys.modules["torch"].cuda.current_stream(value.device).cuda_stream)
    if module == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    interface = getattr(value, "__cuda_array_interface__", None) or {}
    return int(interface.get("stream") or 0)


def read_stream(stream: Any) -> int:
    """Give the handle of what was given as ``stream=`` for arrays on a GPU.

    Parameters
    ----------
    stream : object
        An int, or anything with ``__cuda_stream__``, ``cuda_stream`` or ``ptr``.

    Returns
    -------
    int
        The handle.

    Raises
    ------
    UsageError
        It is no CUDA stream.
    """
    if hasattr(stream, "__cuda_stream__"):
        _, handle = stream.__cuda_stream__()
        return int(handle)
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    raise UsageError(
        f"stream must be a CUDA stream for arrays on a GPU: CuPy's, torch's, an int, or anything "
        f"with __cuda_stream__; got {type(stream).__name__}"
    )
