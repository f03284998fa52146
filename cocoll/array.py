"""Reads what callers pass as arrays, when the buffer protocol does not say it all.

NumPy arrays take the fast path of `_core`. Here come tensors and other arrays (DLPack), bfloat16,
floats of 8 bits, and whatever cannot be used, which is refused by name and with the way out.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from cocoll.dtypes import DType
from cocoll.errors import BufferMismatchError, DTypeError, UnsupportedError, UsageError

__all__ = [
    "ArrayDescription",
    "c_strides",
    "describe_array",
    "describe_dlpack",
    "make_output",
    "numpy_dtype",
    "read_typestr",
]

_MAX_DIMS = 8
_DLPACK_CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost (pinned)
# By DLPack's code and the bits of an element.
_BY_DLPACK_TYPE = {
    (0, 8): DType.INT8,
    (0, 16): DType.INT16,
    (0, 32): DType.INT32,
    (0, 64): DType.INT64,
    (1, 8): DType.UINT8,
    (1, 16): DType.UINT16,
    (1, 32): DType.UINT32,
    (1, 64): DType.UINT64,
    (2, 16): DType.FLOAT16,
    (2, 32): DType.FLOAT32,
    (2, 64): DType.FLOAT64,
    (4, 16): DType.BFLOAT16,
    (5, 64): DType.COMPLEX64,
    (5, 128): DType.COMPLEX128,
    (6, 8): DType.BOOL,
    (10, 8): DType.FLOAT8_E4M3FN,
    (12, 8): DType.FLOAT8_E5M2,
}
# By an array interface's kind and the bytes of an element.
_BY_KIND = {
    ("b", 1): DType.BOOL,
    ("i", 1): DType.INT8,
    ("i", 2): DType.INT16,
    ("i", 4): DType.INT32,
    ("i", 8): DType.INT64,
    ("u", 1): DType.UINT8,
    ("u", 2): DType.UINT16,
    ("u", 4): DType.UINT32,
    ("u", 8): DType.UINT64,
    ("f", 2): DType.FLOAT16,
    ("f", 4): DType.FLOAT32,
    ("f", 8): DType.FLOAT64,
    ("c", 8): DType.COMPLEX64,
    ("c", 16): DType.COMPLEX128,
}
# What array interfaces have no name for, by what arrays call it themselves.
_BY_LABEL = {dtype.label: dtype for dtype in DType if dtype.carrier is not None}


@dataclass(frozen=True, slots=True)
class ArrayDescription:
    """Where an array lies and what it holds.

    Attributes
    ----------
    address : int
        Of the first element.
    shape, stride_bytes : tuple of int
        Its layout.
    dtype : DType
        The element type.
    readonly : bool
        Whether it must not be written.
    """

    address: int
    shape: tuple[int, ...]
    stride_bytes: tuple[int, ...]
    dtype: DType
    readonly: bool


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def describe_array(value: Any, name: str, dtype_code: int) -> ArrayDescription:
    """Say where an array lies.

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
    ArrayDescription
        Valid while `value` lives and is not resized.

    Raises
    ------
    DTypeError
        The element type or byte order is not supported.
    UnsupportedError
        The array lies on a device.
    UsageError
        `value` is no array.
    """
    if isinstance(value, type):
        # A class has its instances' protocols as attributes, and no memory.
        raise _no_array(name, value)
    if hasattr(value, "__array_interface__"):
        return _from_array_interface(value, name, dtype_code)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _from_dlpack(value, name, dtype_code)
    if hasattr(value, "__cuda_array_interface__"):
        raise _on_device(name, "a CUDA array")
    try:
        memoryview(value)
    except TypeError:
        raise _no_array(name, value) from None
    import numpy as np

    return _from_array_interface(np.asarray(value), name, dtype_code)


def _no_array(name: str, value: object) -> UsageError:
    return UsageError(
        f"{name} must be an array (NumPy, torch, DLPack or the buffer protocol); got "
        f"{type(value).__name__}"
    )


def _on_device(name: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} must lie in host memory, as the other arrays of the call do; got {what}. Copy it: "
        f"the arrays of a call lie all on the host, or all on the rank's CUDA device"
    )


def _from_array_interface(value: Any, name: str, dtype_code: int) -> ArrayDescription:
    interface = value.__array_interface__
    typestr = interface["typestr"]
    shape = tuple(interface["shape"])
    dtype = read_typestr(typestr, str(getattr(value, "dtype", typestr)), name, dtype_code)
    strides = interface.get("strides") or c_strides(shape, dtype.itemsize_bytes)
    _check_dims(name, shape)
    address, readonly = interface["data"]
    return ArrayDescription(address, shape, tuple(strides), dtype, readonly)


def read_typestr(typestr: str, label: str, name: str, dtype_code: int) -> DType:
    """Give the element type that an array interface names.

    Parameters
    ----------
    typestr : str
        Such as ``"<f4"``.
    label : str
        What the array itself calls its dtype.
    name : str
        The argument, for messages.
    dtype_code : int
        What the caller said the elements are, or -1; lets unsigned integers stand for floats
        that no array library has.

    Returns
    -------
    DType
        The element type.

    Raises
    ------
    DTypeError
        The element type or byte order is not supported.
    """
    # datetime64 has its unit behind the size, and an array of objects has no size.
    order, kind, size = typestr[0], typestr[1], typestr[2:]
    itemsize = int(size) if size.isdigit() else 0
    native = "<" if sys.byteorder == "little" else ">"
    if itemsize > 1 and order not in (native, "=", "|"):
        raise DTypeError(
            f"{name} must have this machine's byte order; got {label}. Use "
            f"{name}.astype({name}.dtype.newbyteorder('='))"
        )
    dtype = _BY_LABEL.get(label) or _BY_KIND.get((kind, itemsize))
    if dtype is None:
        raise _unsupported_dtype(name, label or typestr)
    return dtype.standing_for(dtype_code)


def _unsupported_dtype(name: str, label: str) -> DTypeError:
    supported = ", ".join(member.label for member in DType)
    return DTypeError(f"{name} must have a dtype out of {supported}; got {label}")


def _check_dims(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) > _MAX_DIMS:
        raise BufferMismatchError(
            f"{name} may have {_MAX_DIMS} dimensions; got {len(shape)}. Reshape it"
        )


def c_strides(shape: tuple[int, ...], itemsize_bytes: int) -> tuple[int, ...]:
    """Give the strides of elements that lie side by side in C order.

    Parameters
    ----------
    shape : tuple of int
        The array's.
    itemsize_bytes : int
        Of one element.

    Returns
    -------
    tuple of int
        In bytes.
    """
    strides: list[int] = []
    step = itemsize_bytes
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def _from_dlpack(value: Any, name: str, dtype_code: int) -> ArrayDescription:
    device_type, _ = value.__dlpack_device__()
    if device_type not in _DLPACK_CPU_DEVICES:
        raise _on_device(name, f"an array on {getattr(value, 'device', f'device {device_type}')}")
    return describe_dlpack(value, name, dtype_code)


def describe_dlpack(value: Any, name: str, dtype_code: int) -> ArrayDescription:
    """Say where an array lies that is shared through DLPack, on whatever device.

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
    ArrayDescription
        Valid while `value` lives.

    Raises
    ------
    DTypeError
        The element type is not supported.
    UsageError
        `value` refuses to be shared.
    """
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    try:
        # The capsule is not consumed, so its own destructor ends the loan at once; the memory
        # belongs to `value`, which the caller keeps.
        # To a device array -1 says that nobody need wait: the order of streams is the caller's.
        on_host = value.__dlpack_device__()[0] in _DLPACK_CPU_DEVICES
        capsule = value.__dlpack__() if on_host else value.__dlpack__(stream=-1)
        pointer = get_pointer(capsule, b"dltensor")
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{name} cannot be shared through DLPack: {error}. A tensor that requires grad must be "
            f"detached, a sparse or conjugated one made dense first"
        ) from error
    tensor = _DLTensor.from_address(pointer)
    kind = (tensor.dtype.code, tensor.dtype.bits)
    dtype = _BY_DLPACK_TYPE.get(kind) if tensor.dtype.lanes == 1 else None
    if dtype is None:
        raise _unsupported_dtype(name, str(getattr(value, "dtype", kind)))
    dtype = dtype.standing_for(dtype_code)
    shape = tuple(tensor.shape[dim] for dim in range(tensor.ndim))
    _check_dims(name, shape)
    itemsize = dtype.itemsize_bytes
    strides = (
        tuple(tensor.strides[dim] * itemsize for dim in range(tensor.ndim))
        if tensor.strides
        else c_strides(shape, itemsize)
    )
    address = (tensor.data or 0) + tensor.byte_offset
    return ArrayDescription(address, shape, strides, dtype, readonly=False)


def make_output(value: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Make an array of a shape, of the kind and dtype that the input has.

    Parameters
    ----------
    value : object
        The input.
    shape : tuple of int
        The output's shape.
    dtype : DType
        The output's dtype; a torch tensor or an array of that dtype gives its own kind.

    Returns
    -------
    object
        Uninitialised; a torch tensor for a torch tensor, else a NumPy array.
    """
    if type(value).__module__.partition(".")[0] == "torch":
        torch = sys.modules["torch"]
        return value.new_empty(shape, dtype=getattr(torch, dtype.label))
    import numpy as np

    if dtype.carrier is not None:
        # A caller whose floats are unsigned integers gets those.
        own = getattr(value, "dtype", None)
        return np.empty(
            shape, own if str(own) in (dtype.label, dtype.carrier.label) else numpy_dtype(dtype)
        )
    return np.empty(shape, dtype.label)


def numpy_dtype(dtype: DType) -> Any:
    """Give NumPy's dtype for an element type.

    Parameters
    ----------
    dtype : DType
        The element type.

    Returns
    -------
    numpy.dtype
        For what NumPy lacks the one of ml_dtypes where that is installed, else unsigned integers.
    """
    import numpy as np

    if dtype.carrier is None:
        return np.dtype(dtype.label)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(dtype.carrier.label)
    return np.dtype(getattr(ml_dtypes, dtype.label))
