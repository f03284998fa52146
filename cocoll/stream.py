"""What may be given as ``stream=``."""

from __future__ import annotations

from typing import Any

from cocoll._core import Stream
from cocoll.errors import UnsupportedError, UsageError

__all__ = ["Stream", "resolve_stream"]


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
    if hasattr(stream, "__cuda_stream__") or hasattr(stream, "cuda_stream"):
        raise UnsupportedError(
            f"host arrays run on a cocoll.Stream; got {type(stream).__name__}, a CUDA stream"
        )
    raise UsageError(f"stream must be a cocoll.Stream; got {type(stream).__name__}")
