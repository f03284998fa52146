"""The one hierarchy of exceptions.

Classes say by whose act it went wrong: the caller's (:class:`UsageError`), the ranks' disagreement
(:class:`CollectiveMismatchError`), the world outside (:class:`TransportError`,
:class:`BackendError`, :class:`KernelError`), or cocoll's own (:class:`InternalError`). Messages say
what was wanted, what came, on which rank, and what to do. Every class keeps its fields through
pickling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "AbortedError",
    "BackendError",
    "BufferMismatchError",
    "BufferOverlapError",
    "ClosedError",
    "CocollError",
    "CollectiveMismatchError",
    "CommTimeoutError",
    "CompileError",
    "CompilerNotFoundError",
    "CudaError",
    "DTypeError",
    "DependenceError",
    "ForkedProcessError",
    "InternalError",
    "KernelError",
    "LaunchError",
    "MpiError",
    "NcclError",
    "PeerLostError",
    "PlanNotReadyError",
    "RankError",
    "ReshardError",
    "ScheduleError",
    "SignalMismatchError",
    "SimulationError",
    "TopologyError",
    "TraceError",
    "TransportError",
    "UnsupportedError",
    "UsageError",
]


def _rebuild(cls: type[CocollError], message: str, fields: dict[str, Any]) -> CocollError:
    return cls(message, **fields)


class CocollError(Exception):
    """Root of everything cocoll raises on purpose.

    Parameters
    ----------
    message : str
        What was wanted, what came, on which rank, and what to do.
    **fields : object
        Facts for programs; each becomes an attribute and survives pickling.
    """

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the fields, which BaseException would drop."""
        return _rebuild, (type(self), self.message, self.fields)


class UsageError(CocollError, ValueError):
    """The caller's mistake, found before anything moved."""


class BufferMismatchError(UsageError):
    """A buffer's shape or length does not fit the operation."""


class BufferOverlapError(UsageError):
    """Two arrays of a call share memory in a way that no algorithm can honour."""


class DTypeError(UsageError, TypeError):
    """A dtype is not supported, or does not fit the operation."""


class RankError(UsageError):
    """A rank or a root lies outside the communicator."""


class UnsupportedError(UsageError):
    """A legal request that this build, machine or version cannot serve."""


class TopologyError(UsageError):
    """A topology that cannot be: a bad file, an unknown preset, ranks with no way to each other."""


class ReshardError(UsageError):
    """A mesh or a sharding that cannot be; names dim, axis and sizes."""


class TraceError(UsageError):
    """A Python function could not be traced into an epilogue; carries the offending line."""


class ClosedError(UsageError):
    """The communicator, stream or bound operation has been closed."""


class ForkedProcessError(ClosedError):
    """A communicator was used in a child process made by fork."""


class PlanNotReadyError(UsageError):
    """A call that must not prepare anything (graph capture, planned) met one not yet bound."""


class CollectiveMismatchError(CocollError):
    """Ranks asked for different operations; nothing has moved and the communicator stays usable.

    Attributes
    ----------
    requests : dict of int to str
        What each rank asked for.
    """

    requests: Mapping[int, str]


class ScheduleError(CocollError):
    """A schedule or a plan is illegal; ``report()`` prints the program with the place marked."""

    def report(self) -> str:
        """Give the long form: the program, with the place marked, and the reason."""
        detail = self.fields.get("detail", "")
        return f"{self.message}\n{detail}" if detail else self.message


class DependenceError(ScheduleError):
    """Two steps touch the same bytes, or an order is required, with nothing that orders them."""


class SignalMismatchError(ScheduleError):
    """Signals and waits, or sends and receives, do not pair up, or can never all be met."""


class SimulationError(ScheduleError):
    """Plans cannot be simulated: they wait for ever, or ranks lack the roles they are given."""


class TransportError(CocollError):
    """Communication failed under way; the communicator is closed after it."""


class PeerLostError(TransportError):
    """A rank died or left while others waited for it.

    Attributes
    ----------
    rank : int
        The rank that was lost; -1 where ranks were still meeting and it is not known.
    """

    rank: int


class AbortedError(TransportError):
    """Another rank gave up the operation (an exception, Ctrl-C, ``comm.abort``)."""


class CommTimeoutError(TransportError, TimeoutError):
    """A rank did not arrive in time.

    Attributes
    ----------
    ranks : tuple of int
        Who did not arrive.
    """

    ranks: tuple[int, ...]


class BackendError(CocollError):
    """A library below reported a failure.

    Attributes
    ----------
    status : int
        The library's own number, known to cocoll or not.
    """

    status: int


class CudaError(BackendError):
    """A function of the CUDA driver failed."""


class MpiError(BackendError):
    """An MPI call of cocoll's own failed (planned)."""


class NcclError(BackendError):
    """A function of NCCL failed, or NCCL reported an error of its own."""


class KernelError(CocollError):
    """A kernel could not be built, stored or loaded."""


class CompileError(KernelError):
    """The compiler refused a kernel; carries the source path, the options and the log."""


class CompilerNotFoundError(KernelError):
    """A kernel must be compiled and no compiler may be used; raised on all ranks."""


class LaunchError(KernelError):
    """A kernel could not be launched on a device (planned: nothing raises it yet)."""


class InternalError(CocollError):
    """A broken invariant of cocoll itself; please report it."""
