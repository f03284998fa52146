"""Tensors over a communicator's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cocoll.errors import DTypeError, UnsupportedError

__all__ = ["dtype_label", "view_tensor"]

#: What parameters may be, by cocoll's name.
_LABELS = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}


class _Memory:
    """The memory of an array, for NumPy, as memory that may be written.

    Replicated arrays are read-only to NumPy, and torch has no such tensors: it would warn.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def view_tensor(array: np.ndarray[Any, Any], label: str) -> Any:
    """Give a tensor over an array's memory, also over a read-only one; it keeps the array alive.

    Parameters
    ----------
    array : numpy.ndarray
        Contiguous, of one dimension; bfloat16 as ml_dtypes' or as uint16.
    label : str
        Its dtype, by cocoll's name.

    Returns
    -------
    torch.Tensor
        A view.
    """
    if label == "bfloat16":
        array = array.view(np.uint16)
        return torch.from_numpy(np.asarray(_Memory(array))).view(torch.bfloat16)
    return torch.from_numpy(np.asarray(_Memory(array)))


def dtype_label(tensor: Any, name: str) -> str:
    """Give cocoll's name for the dtype of a parameter.

    Parameters
    ----------
    tensor : torch.Tensor
        The parameter.
    name : str
        What messages call it.

    Returns
    -------
    str
        Such as ``"float32"``.

    Raises
    ------
    DTypeError
        It is not one of a parameter that can be trained here.
    UnsupportedError
        The tensor is not a dense one in host memory.
    """
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise UnsupportedError(
            f"cocoll.torch trains dense parameters in host memory; got {name} on "
            f"{tensor.device}, {tensor.layout}"
        )
    if tensor.dtype not in _LABELS:
        raise DTypeError(
            f"wanted parameters of {', '.join(_LABELS.values())}; got {name} of {tensor.dtype}"
        )
    return _LABELS[tensor.dtype]
