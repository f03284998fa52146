"""Capturing and replaying CUDA graphs through the driver alone, as frameworks do it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cocoll.errors import CudaError

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit

__all__ = ["Capture", "Graphs"]

# CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other ranks of the process may allocate meanwhile.
_THREADS_OWN = 1


class Capture:
    """What was captured, for as long as this object lives.

    Parameters
    ----------
    library : ctypes.CDLL
        The driver.
    stream : int
        Whose work is captured while `Graphs.capture` is open.
    """

    def __init__(self, library: ctypes.CDLL, stream: int) -> None:
        self._library = library
        self._stream = stream
        self._graph = ctypes.c_void_p()
        self._executable = ctypes.c_void_p()

    def _begin(self) -> None:
        stream = ctypes.c_void_p(self._stream)
        _check(self._library.cuStreamBeginCapture_v2(stream, _THREADS_OWN))

    def _end(self) -> None:
        stream = ctypes.c_void_p(self._stream)
        _check(self._library.cuStreamEndCapture(stream, ctypes.byref(self._graph)))

    def fork(self, other: int) -> None:
        """Take another stream into the capture, behind what has been captured.

        Parameters
        ----------
        other : int
            Its handle; `join` it before the capture ends.

        Raises
        ------
        CudaError
            The driver refuses.
        """
        self._order(self._stream, other)

    def join(self, other: int) -> None:
        """Let the stream of the capture wait for another one that was taken in.

        Parameters
        ----------
        other : int
            Its handle.

        Raises
        ------
        CudaError
            The driver refuses.
        """
        self._order(other, self._stream)

    def _order(self, before: int, after: int) -> None:
        event = ctypes.c_void_p()
        _check(self._library.cuEventCreate(ctypes.byref(event), 0))
        try:
            _check(self._library.cuEventRecord(event, ctypes.c_void_p(before)))
            _check(self._library.cuStreamWaitEvent(ctypes.c_void_p(after), event, 0))
        finally:
            self._library.cuEventDestroy_v2(event)

    def launch(self, stream: int) -> None:
        """Replay it on a stream.

        Parameters
        ----------
        stream : int
            Its handle.

        Raises
        ------
        CudaError
            The driver refuses.
        """
        if self._executable.value is None:
            # Not when the capture ends: another one may go on.
            made = ctypes.byref(self._executable)
            flags = ctypes.c_ulonglong(0)
            _check(self._library.cuGraphInstantiateWithFlags(made, self._graph, flags))
        _check(self._library.cuGraphLaunch(self._executable, ctypes.c_void_p(stream)))

    def __del__(self) -> None:
        """Let the graph go."""
        if self._executable.value is not None:
            self._library.cuGraphExecDestroy(self._executable)
        if self._graph.value is not None:
            self._library.cuGraphDestroy(self._graph)


class Graphs:
    """The part of the driver that captures and replays.

    Parameters
    ----------
    toolkit : Toolkit
        Which driver; its context must be current, as it is once an array has been made.
    """

    def __init__(self, toolkit: Toolkit) -> None:
        self._library = ctypes.CDLL(toolkit.driver_path)

    @contextmanager
    def capture(self, stream: int) -> Iterator[Capture]:
        """Record what is queued on a stream instead of running it.

        Parameters
        ----------
        stream : int
            Its handle.

        Yields
        ------
        Capture
            To be launched once the block is left.

        Raises
        ------
        CudaError
            The driver refuses.
        """
        capture = Capture(self._library, stream)
        capture._begin()
        try:
            yield capture
        finally:
            capture._end()


def _check(result: int) -> None:
    if result != 0:
        raise CudaError(f"the driver gave {result} for a graph", status=result)
