"""Turns the status of a failed operation into an exception that says who, what and what to do."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from cocoll.dtypes import DType
from cocoll.errors import (
    AbortedError,
    CocollError,
    CollectiveMismatchError,
    CommTimeoutError,
    InternalError,
    PeerLostError,
    UsageError,
)
from cocoll.waits import describe_pages, find_roots, name_ranks, observe_process

if TYPE_CHECKING:
    from cocoll._core import CommunicatorBase

__all__ = [
    "OP_LABELS",
    "AbortReason",
    "Kind",
    "Option",
    "Purpose",
    "describe_message",
    "describe_operation",
    "describe_place",
    "describe_waits",
    "end_communicator",
    "make_failure",
]


class Kind(enum.IntEnum):
    """What an operation is; the numbers stand in arrival lines and flight records."""

    ALLREDUCE = 1
    REDUCE_SCATTER = 2
    ALLGATHER = 3
    BROADCAST = 4
    BARRIER = 5
    ALLREDUCE_FUSED = 6
    REDUCE_SCATTER_FUSED = 7
    CUSTOM = 8
    EXCHANGE = 9
    RESHARD = 10
    REDUCE = 11
    GATHER = 12
    SCATTER = 13
    ALLTOALL = 14
    ALLTOALLV = 15
    SEND = 16
    RECEIVE = 17
    GROUP = 18


class Option(enum.IntFlag):
    """Agreed facts of an operation besides its kind."""

    SHARD = 1
    REPLICATED = 2
    ZERO_GRAD = 4


class AbortReason(enum.IntEnum):
    """Why a communicator was given up; the numbers of ``host/control.h``."""

    EXCEPTION = 1
    INTERRUPT = 2
    TIMEOUT = 3
    PEER_LOST = 4
    REQUESTED = 5
    LAUNCHER_LOST = 6


class Purpose(enum.IntEnum):
    """What an exchange of bytes is for; ranks that exchange for different purposes mismatch."""

    EMPTY = 1
    DUPLICATE = 2
    PREPARE = 3
    SPLIT = 4
    OPEN_DEVICE = 5
    EMPTY_ON_DEVICE = 6
    TRACE = 7
    RESHARD = 8
    COUNTS = 9


class _Status(enum.IntEnum):
    MISMATCH = 2
    TIMEOUT = 3
    PEER_LOST = 4
    ABORTED = 5
    NOT_PREPARED = 6


#: The reductions, by their number in signatures.
OP_LABELS = ("sum", "prod", "min", "max", "avg")
_REDUCING = (
    Kind.ALLREDUCE,
    Kind.REDUCE_SCATTER,
    Kind.ALLREDUCE_FUSED,
    Kind.REDUCE_SCATTER_FUSED,
    Kind.REDUCE,
)
_ROOTED = (Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER)
_PURPOSE_LABELS = {
    Purpose.EMPTY: "comm.empty",
    Purpose.DUPLICATE: "comm.duplicate",
    Purpose.SPLIT: "comm.split",
    Purpose.PREPARE: "the preparation of an epilogue",
    Purpose.OPEN_DEVICE: "the first use of a GPU",
    Purpose.EMPTY_ON_DEVICE: "comm.empty on a GPU",
    Purpose.TRACE: "the end of comm.trace",
    Purpose.RESHARD: "the planning of a resharding",
    Purpose.COUNTS: "the exchange of counts",
}


def describe_operation(flight: tuple[int, ...] | None) -> str:
    """Give one operation of a flight recorder as a call, for people."""
    if flight is None:
        return "an operation no longer on record"
    kind_code, op, dtype, options, root, count, epilogue, _ = flight
    kind = Kind(kind_code)
    if kind is Kind.EXCHANGE:
        return f"{_PURPOSE_LABELS[Purpose(root)]} ({count} bytes)"
    if kind is Kind.BARRIER:
        return "barrier()"
    if kind is Kind.GROUP:
        return f"group of {count} messages"
    if kind in (Kind.SEND, Kind.RECEIVE):
        return describe_message(kind is Kind.SEND, root, count, dtype)
    if kind is Kind.RESHARD:
        return f"reshard({count} bytes, plan={epilogue:016x})"
    parts = [f"count={count}", f"dtype={DType(dtype).label}"]
    if kind in _REDUCING:
        parts.append(f"op={OP_LABELS[op]}")
    if kind in _ROOTED:
        parts.append(f"root={root}")
    if epilogue:
        parts.append(f"epilogue={epilogue:016x}")
    parts += [option.name.lower() for option in Option if options & option and option.name]
    return f"{kind.name.lower()}({', '.join(parts)})"


def describe_message(sends: bool, peer: int, count: int, dtype: int) -> str:
    """Give one end of a message between two ranks as a call, for people."""
    call, word = ("send", "to") if sends else ("recv", "from")
    return f"{call}(count={count}, dtype={DType(dtype).label}, {word} rank {peer})"


def describe_place(flight: tuple[int, ...] | None, sequence: int) -> str:
    """Say which of its kind an operation is: messages of two ranks are counted by themselves."""
    kind = None if flight is None else Kind(flight[0])
    if kind is Kind.GROUP:
        return "which is no operation of the communicator's sequence"
    if kind in (Kind.SEND, Kind.RECEIVE):
        return f"message {sequence} of this pair"
    return f"operation {sequence}"


def describe_waits(pages: list[dict[str, Any]]) -> str:
    """Say who waits for whom and who holds the others up, from the ranks' control pages.

    Parameters
    ----------
    pages : list of dict
        What `_core.inspect_control` gives, of one communicator.

    Returns
    -------
    str
        For people; a line a rank.
    """
    return describe_pages(pages, describe_operation, describe_place)


def make_failure(comm: CommunicatorBase, status: int, sequence: int, culprit: int) -> CocollError:
    """Word what went wrong, and close the communicator where it cannot go on.

    Parameters
    ----------
    comm : CommunicatorBase
        Where it happened.
    status : int
        What the executor returned.
    sequence : int
        The operation's number.
    culprit : int
        The rank that was waited for.

    Returns
    -------
    CocollError
        To be raised by the caller.
    """
    kind = _Status(status)
    if kind is _Status.MISMATCH:
        return _mismatch(comm, sequence)
    # A call that meets a communicator given up already has left no record.
    flight = comm._flight(comm.rank, sequence)
    what = "its next call" if flight is None else describe_operation(flight)
    what += f", operation {sequence}"
    if kind is _Status.NOT_PREPARED:
        # cocoll's own plans serve all that they are chosen for; a caller's need not.
        flight = comm._flight(comm.rank, sequence)
        cause = UsageError if flight is not None and flight[0] == Kind.CUSTOM else InternalError
        return cause(
            f"no variant of the plan serves {what} on rank {comm.rank}: a plan that maps the "
            f"callers' arrays needs symmetric ones, and whole-vector scratch has a limit"
        )
    return end_communicator(comm, status, what, culprit)


def end_communicator(comm: CommunicatorBase, status: int, what: str, culprit: int) -> CocollError:
    """Word why an operation could not go on, and close the communicator.

    Parameters
    ----------
    comm, status, culprit : CommunicatorBase, int, int
        As in `make_failure`: a rank was lost, gave up or did not come.
    what : str
        The operation.

    Returns
    -------
    CocollError
        To be raised by the caller.
    """
    error = _transport_failure(comm, _Status(status), what, culprit)
    side = getattr(comm, "_side", None)
    if side is not None:
        # Kernels on GPUs would wait for as long as they may; and peers take who has left to have
        # let go of their memory.
        side.give_up()
        side.end(comm, comm._leave, 0.0)
    comm._leave()
    return error


def _transport_failure(
    comm: CommunicatorBase, kind: _Status, what: str, culprit: int
) -> CocollError:
    me = comm.rank
    reason = None
    if kind is _Status.TIMEOUT:
        reason = AbortReason.TIMEOUT
    elif kind is _Status.PEER_LOST:
        reason = AbortReason.PEER_LOST
    else:
        word = comm._abort_word()
        if word is not None:
            culprit, _, code = word
            reason = AbortReason(code)
    closed = "The communicator is closed; what comm.shrink() gives is for the ranks that are left"
    if reason is AbortReason.TIMEOUT:
        pages = _read_pages(comm)
        # Who was waited for may itself have waited.
        roots = find_roots(pages, [me] if kind is _Status.TIMEOUT else [culprit])
        if roots == (me,) and culprit != me:
            roots = (culprit,)
        elif kind is not _Status.TIMEOUT and me in roots:
            # What this rank waited for, when it was stopped, may have come long ago.
            roots = (me,)
        return CommTimeoutError(
            f"rank {me} gave up {what}: {name_ranks(roots)} did not come within "
            f"{comm.timeout_seconds:g} s. {closed}\n{describe_waits(pages)}",
            ranks=roots,
        )
    if reason is AbortReason.PEER_LOST:
        detail = comm._wire_detail()
        said = f" ({detail})" if detail else ""
        return PeerLostError(
            f"rank {me} gave up {what}: rank {culprit} has died or left{said}. {closed}\n"
            f"{describe_waits(_read_pages(comm))}",
            rank=culprit,
        )
    cause = {
        AbortReason.EXCEPTION: "left with an exception",
        AbortReason.INTERRUPT: "was interrupted",
        AbortReason.LAUNCHER_LOST: "has lost the launcher that started it",
    }.get(reason or AbortReason.REQUESTED, "called abort()")
    return AbortedError(f"rank {me} gave up {what}: rank {culprit} {cause}. {closed}", rank=culprit)


def _read_pages(comm: CommunicatorBase) -> list[dict[str, Any]]:
    """Read the control pages of this host's ranks; those of others cannot be seen from here."""
    pages = [comm._inspect(rank) for rank in range(comm.world_size)]
    return [{**page, "process": observe_process(page["pid"])} for page in pages if page is not None]


def _mismatch(comm: CommunicatorBase, sequence: int) -> CollectiveMismatchError:
    requests = {
        rank: describe_operation(comm._flight(rank, sequence)) for rank in range(comm.world_size)
    }
    listing = "; ".join(f"rank {rank}: {request}" for rank, request in requests.items())
    hint = ""
    if len(set(requests.values())) == 1:
        hint = ". They differ in an epilogue or in its scalars (lr, step, ...)"
    return CollectiveMismatchError(
        f"the ranks asked for different operations as number {sequence}; nothing has moved: "
        f"{listing}{hint}",
        requests=requests,
        sequence=sequence,
    )
