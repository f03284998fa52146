"""Where arrays are: in host memory, or on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cocoll import _core
from cocoll.device.array import is_on_device
from cocoll.errors import UsageError
from cocoll.failure import Purpose

if TYPE_CHECKING:
    from cocoll.communicator import Communicator

__all__ = ["GPU", "HOST", "agree_on_device", "check_device_name", "read_ordinal"]

HOST = "cpu"
GPU = "cuda"


def read_ordinal(device: str) -> int | None:
    """Give the number of a GPU, None where it is the rank's own.

    Parameters
    ----------
    device : str
        ``"cuda"`` or ``"cuda:N"``.

    Raises
    ------
    UsageError
        It is neither.
    """
    kind, colon, number = str(device).partition(":")
    if kind != GPU or (colon and not number.isdigit()):
        raise UsageError(f"device must be 'cuda' or 'cuda:N'; got {device!r}")
    return int(number) if colon else None


def check_device_name(device: str) -> None:
    """Refuse what is neither the host nor a GPU.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.

    Raises
    ------
    UsageError
        It is something else.
    """
    if device != HOST:
        try:
            read_ordinal(device)
        except UsageError:
            raise UsageError(f"device must be 'cpu', 'cuda' or 'cuda:N'; got {device!r}") from None


def agree_on_device(comm: Communicator, arrays: list[Any]) -> str:
    """Say where the arrays of all ranks are. Collective.

    Parameters
    ----------
    comm : Communicator
        All its ranks call this.
    arrays : list of array_like
        This rank's, which may be none.

    Returns
    -------
    str
        ``"cpu"`` or ``"cuda"``; the host where no rank has an array.

    Raises
    ------
    UsageError
        Some are here and some there; on all ranks.
    """
    own = sorted({GPU if is_on_device(array) else HOST for array in arrays})
    told = _core.exchange(comm, Purpose.RESHARD, ",".join(own).encode())
    found = [data.decode() for data in told]
    kinds = sorted({kind for text in found for kind in text.split(",") if kind})
    if len(kinds) > 1:
        raise UsageError(
            f"the arrays of all ranks must be in host memory, or all on GPUs; got, rank by rank, "
            f"{found}"
        )
    return kinds[0] if kinds else HOST
