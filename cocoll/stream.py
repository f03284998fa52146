"""What may be given as ``stream=``."""

from __future__ import annotations

from typing import Any

from cocoll._core import Stream
from cocoll.errors import UnsupportedError, UsageError

__all__ = ["Stream", "is_cuda_stream", "resolve_stream"]


def is_cuda_stream(stream: Any) -> bool:
    """Say whether something is a stream of a GPU: CuPy's, torch's, or of their protocol.

    Parameters
    ----------
    stream : object
        What was given as ``stream=``.

    Returns
    -------
    bool
        Whether operations on arrays of a GPU can be queued on it.
    """
    return any(hasattr(stream, name) for name in ("__cuda_stream__", "cuda_stream"))


def resolve_stream(stream: Any) -> Stream:
    """Refuse what is no stream of the host.

    Raises
    ------
    UnsupportedError
        A CUDA stream, which an array in host memory does not have.
    UsageError
        Anything else.
    """
    if isinstance(stream, Stream):
        return stream
    if is_cuda_stream(stream):
        raise UnsupportedError(
            f"host arrays run on a cocoll.Stream; got {type(stream).__name__}, a CUDA stream"
        )
    raise UsageError(f"stream must be a cocoll.Stream; got {type(stream).__name__}")
