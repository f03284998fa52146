"""Gather, scatter, all-gather and all-to-all of blocks of uneven lengths: reshardings of one dim.

The blocks of a rank lie one after the other along the first dimension. What counts say is planned
once and kept with the communicator's reshardings, so that all that moves those moves these: mapped
memory, messages between hosts, NCCL.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from cocoll import _core
from cocoll.array import ArrayDescription, describe_array, make_output
from cocoll.device.array import describe_device_array, is_on_device
from cocoll.dtypes import DType
from cocoll.errors import (
    BufferMismatchError,
    CocollError,
    CollectiveMismatchError,
    DTypeError,
    RankError,
    UsageError,
)
from cocoll.failure import Kind, Purpose
from cocoll.placement import GPU, HOST
from cocoll.reshard_calls import plan_reshard
from cocoll.resharding.mesh import Mesh
from cocoll.resharding.planner import TensorMove

if TYPE_CHECKING:
    from cocoll._core import BoundOperation
    from cocoll.communicator import Communicator
    from cocoll.cuda.binding import BoundDeviceOperation

__all__ = ["bind_given", "bind_uneven", "call_uneven"]


def call_uneven(
    comm: Communicator,
    kind_code: int,
    x: Any,
    out: Any,
    counts: Any,
    recv_counts: Any,
    root: int | None,
    dtype: str | None,
    stream: Any,
) -> object:
    """Run a call with counts once; the arguments are those of `bind_uneven`."""
    if is_on_device(x) or is_on_device(out):
        from cocoll.device import calls

        calls.refuse_capture(comm, out if x is None else x, stream)
    return bind_uneven(comm, Kind(kind_code), x, out, counts, recv_counts, root, dtype, stream)()


def bind_given(
    comm: Communicator, kind_code: int, given: dict[str, Any], stream: Any
) -> BoundOperation | BoundDeviceOperation:
    """Bind a call with counts, whose arguments come by name."""
    kind = Kind(kind_code)
    if given.get("layout") is not None:
        raise UsageError("allgather takes counts= or layout=, not both")
    counts = given["send_counts"] if kind is Kind.ALLTOALLV else given["counts"]
    received, root = given.get("recv_counts"), given.get("root")
    return bind_uneven(
        comm, kind, given["x"], given["out"], counts, received, root, given["dtype"], stream
    )


def bind_uneven(
    comm: Communicator,
    kind: Kind,
    x: Any,
    out: Any,
    counts: Sequence[int],
    recv_counts: Sequence[int] | None,
    root: int | None,
    dtype: str | None,
    stream: Any,
) -> BoundOperation | BoundDeviceOperation:
    """Plan a call with counts, where it is not yet, and bind its arrays. Collective.

    Parameters
    ----------
    comm : Communicator
        Whose.
    kind : Kind
        ALLGATHER, GATHER, SCATTER or ALLTOALLV.
    x, out, counts, recv_counts, root, dtype, stream
        As in the call; `counts` are an alltoallv's `send_counts`.

    Returns
    -------
    BoundOperation
        Not yet run.

    Raises
    ------
    BufferMismatchError
        Counts and arrays do not fit each other.
    CollectiveMismatchError
        The ranks asked for different things; nothing has moved.
    """
    if kind is Kind.ALLTOALLV:
        return _bind_alltoallv(comm, x, out, counts, recv_counts, dtype, stream)
    lengths = _read_counts(comm, counts, "counts")
    everyone = Mesh(list(range(comm.world_size)))
    whole, own = sum(lengths), lengths[comm.rank]
    if kind is Kind.ALLGATHER:
        holders = needers = everyone
    else:
        alone = Mesh([_read_root(comm, root)])
        holders, needers = (everyone, alone) if kind is Kind.GATHER else (alone, everyone)
    cut_first = kind is not Kind.SCATTER
    given = made = None
    if comm.rank in holders:
        given = _describe(comm, x, "x", dtype, own if cut_first else whole)
    else:
        x = None
    target_length = whole if cut_first else own
    if comm.rank not in needers:
        out = None
    elif out is not None:
        made = _describe(comm, out, "out", dtype, target_length)
    elif given is not None:
        out = _make(comm, x, (target_length, *given.shape[1:]), given.dtype)
    else:
        raise UsageError(
            f"a scatter needs out=, this rank's block, on every rank but the root; got None on "
            f"rank {comm.rank}"
        )
    known = given or made
    assert known is not None
    if given is not None and made is not None:
        _check_alike(comm, given, made)
    pieces = {0: lengths}
    spec = ",".join(["S0", *["R"] * (len(known.shape) - 1)])
    copied = ",".join(["R"] * len(known.shape))
    move = TensorMove(
        (whole, *known.shape[1:]),
        (holders, spec if cut_first else copied),
        (needers, copied if cut_first else spec),
        known.dtype.label,
        (pieces, None) if cut_first else (None, pieces),
    )
    planned = plan_reshard(move, device=_device_of(x if x is not None else out), comm=comm)
    return planned.bind(x, out=out, stream=stream)


def _bind_alltoallv(
    comm: Communicator,
    x: Any,
    out: Any,
    send_counts: Sequence[int],
    recv_counts: Sequence[int] | None,
    dtype: str | None,
    stream: Any,
) -> BoundOperation | BoundDeviceOperation:
    """Let the ranks tell each other their counts, plan a tensor a sender, and bind the blocks."""
    own: dict[str, Any] = {}
    failure: CocollError | None = None
    given = None
    try:
        sent = _read_counts(comm, send_counts, "send_counts")
        given = _describe(comm, x, "x", dtype, sum(sent))
        own = {"sent": sent, "tail": given.shape[1:], "dtype": given.dtype.label}
        if recv_counts is not None:
            own["wanted"] = _read_counts(comm, recv_counts, "recv_counts")
    except CocollError as error:
        # The others wait for this rank's counts, and must hear that there are none.
        failure = error
        own = {"failure": type(error).__name__}
    told = [json.loads(data) for data in _core.exchange(comm, Purpose.COUNTS,
                                                        json.dumps(own).encode())]  # fmt: skip
    if failure is not None:
        raise failure
    assert given is not None
    _check_told(told)
    received = [one["sent"][comm.rank] for one in told]
    shape = (sum(received), *given.shape[1:])
    if out is None:
        out = _make(comm, x, shape, given.dtype)
    else:
        _check_alike(comm, given, _describe(comm, out, "out", dtype, shape[0]))
    everyone = Mesh(list(range(comm.world_size)))
    copied = ",".join(["R"] * len(shape))
    cut = ",".join(["S0", *["R"] * (len(shape) - 1)])
    moves = [
        TensorMove(
            (sum(one["sent"]), *shape[1:]),
            (Mesh([sender]), copied),
            (everyone, cut),
            given.dtype.label,
            (None, {0: one["sent"]}),
        )
        for sender, one in enumerate(told)
    ]
    planned = plan_reshard(moves, device=_device_of(x), comm=comm)
    stops = list(accumulate(received, initial=0))
    blocks = [out[start:stop] for start, stop in pairwise(stops)]
    sources = [x if sender == comm.rank else None for sender in range(comm.world_size)]
    return planned.bind_blocks(sources, blocks, out, stream)


def _check_told(told: list[dict[str, Any]]) -> None:
    """Refuse what ranks cannot mean together; the same on all of them."""
    faults = []
    for rank, one in enumerate(told):
        if "failure" in one:
            faults.append(f"rank {rank}: its arguments do not fit ({one['failure']})")
    if not faults:
        for name in ("dtype", "tail"):
            if any(one[name] != told[0][name] for one in told):
                what = "dtypes" if name == "dtype" else "dimensions after the first"
                found = ", ".join(f"{one[name]} on rank {rank}" for rank, one in enumerate(told))
                faults.append(f"the {what} differ: {found}")
        for rank, one in enumerate(told):
            if "wanted" not in one:
                continue
            for sender, (wanted, other) in enumerate(zip(one["wanted"], told, strict=True)):
                if other["sent"][rank] != wanted:
                    faults.append(
                        f"rank {rank} wants {wanted} from rank {sender}, which sends "
                        f"{other['sent'][rank]}"
                    )
    if faults:
        raise CollectiveMismatchError(
            "the ranks of an alltoallv do not agree, and nothing has moved: " + "; ".join(faults),
            requests={
                rank: f"alltoallv({', '.join(f'{name}={value}' for name, value in one.items())})"
                for rank, one in enumerate(told)
            },
        )


def _read_counts(comm: Communicator, counts: Sequence[int], name: str) -> list[int]:
    try:
        found = [operator.index(count) for count in counts]
    except TypeError:
        raise UsageError(
            f"{name} must be integers, one for each rank; got {counts!r} on rank {comm.rank}"
        ) from None
    if len(found) != comm.world_size or min(found) < 0:
        raise BufferMismatchError(
            f"{name} must be {comm.world_size} lengths of at least 0, one for each rank; got "
            f"{found} on rank {comm.rank}"
        )
    return found


def _read_root(comm: Communicator, root: Any) -> int:
    try:
        rank = operator.index(root)
    except TypeError:
        raise UsageError(
            f"root must be a rank in [0, {comm.world_size}); got {root!r} on rank {comm.rank}"
        ) from None
    if not 0 <= rank < comm.world_size:
        raise RankError(
            f"root must be a rank in [0, {comm.world_size}); got {rank} on rank {comm.rank}"
        )
    return rank


def _describe(
    comm: Communicator, value: Any, name: str, dtype: str | None, length: int
) -> ArrayDescription:
    """Look at an array whose first dimension must have a length."""
    code = -1 if dtype is None else int(DType.parse(dtype))
    describe = describe_device_array if is_on_device(value) else describe_array
    found = describe(value, name, code)
    if dtype is not None and found.dtype != code:
        raise DTypeError(
            f"{name} must have the dtype that dtype={dtype!r} names; got {found.dtype.label} on "
            f"rank {comm.rank}. Leave dtype= out"
        )
    if not found.shape or found.shape[0] != length:
        raise BufferMismatchError(
            f"{name} must have {length} along its first dimension, as counts say; got shape "
            f"{found.shape} on rank {comm.rank}"
        )
    return found


def _check_alike(comm: Communicator, given: ArrayDescription, made: ArrayDescription) -> None:
    if made.dtype is not given.dtype:
        raise DTypeError(
            f"out must have the input's dtype {given.dtype.label}; got {made.dtype.label} on rank "
            f"{comm.rank}"
        )
    if made.shape[1:] != given.shape[1:]:
        raise BufferMismatchError(
            f"out must have the input's dimensions after the first, {given.shape[1:]}; got "
            f"{made.shape[1:]} on rank {comm.rank}"
        )


def _device_of(array: Any) -> str:
    return GPU if is_on_device(array) else HOST


def _make(comm: Communicator, like: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    if not is_on_device(like):
        return make_output(like, shape, dtype)
    # Loads libraries that a host without a GPU does not have.
    from cocoll.device.calls import make_output as make_device_output

    return make_device_output(comm._open_side(like), like, shape, dtype)
