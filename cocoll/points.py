"""Messages between two ranks: what a failed one says, and which arrays share memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from cocoll.errors import CocollError, CollectiveMismatchError
from cocoll.failure import describe_message, end_communicator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cocoll._core import CommunicatorBase

__all__ = ["make_point_failure", "share_bytes"]

#: One end of a message: whether it sends, to or from whom, count, dtype, its number among the
#: pair's, whether it has ended, whether the other end asked for something else, and for what.
Entry: TypeAlias = "tuple[bool, int, int, int, int, bool, bool, int, int]"
#: Address of the first element, bytes of an element, shape, strides in bytes.
Place: TypeAlias = "tuple[int, int, tuple[int, ...], tuple[int, ...]]"

_MISMATCH = 2
# Steps of the search for a common byte; views that slices and reshapes make need few.
_SEARCH_LIMIT = 100_000


def make_point_failure(
    comm: CommunicatorBase, status: int, culprit: int, grouped: bool, entries: Sequence[Entry]
) -> CocollError:
    """Word what went wrong, and close the communicator where it cannot go on.

    Parameters
    ----------
    comm : CommunicatorBase
        Where it happened.
    status : int
        What the executor returned.
    culprit : int
        The rank that was waited for.
    grouped : bool
        Whether the messages are of a group.
    entries : sequence of tuple
        The messages that were issued together.

    Returns
    -------
    CocollError
        To be raised by the caller.
    """
    if status == _MISMATCH:
        return _mismatch(comm, grouped, entries)
    waiting = [entry for entry in entries if not entry[5]] or list(entries)
    # Of what waits for the culprit, the first.
    entry = min(waiting, key=lambda entry: entry[1] != culprit)
    sends, peer, count, dtype, sequence = entry[:5]
    what = f"{describe_message(sends, peer, count, dtype)}, message {sequence} of this pair"
    if len(entries) > 1:
        what += f", issued with {len(entries) - 1} others"
    return end_communicator(comm, status, what, culprit)


def _mismatch(
    comm: CommunicatorBase, grouped: bool, entries: Sequence[Entry]
) -> CollectiveMismatchError:
    texts = []
    requests = {}
    numbers = []
    for sends, peer, count, dtype, sequence, _, mismatched, their_count, their_dtype in entries:
        if not mismatched:
            continue
        asked = {
            comm.rank: describe_message(sends, peer, count, dtype),
            peer: describe_message(not sends, comm.rank, their_count, their_dtype),
        }
        if peer == comm.rank:
            # Both ends are here: a dict has room for one.
            own = describe_message(not sends, peer, their_count, their_dtype)
            asked = {peer: f"{describe_message(sends, peer, count, dtype)} and {own}"}
        listing = "; ".join(f"rank {rank}: {text}" for rank, text in sorted(asked.items()))
        way = (comm.rank, peer) if sends else (peer, comm.rank)
        texts.append(
            f"the two ends of message {sequence} from rank {way[0]} to rank {way[1]} asked for "
            f"different things, and it has not moved: {listing}"
        )
        requests.update(asked)
        numbers.append(sequence)
    rest = ". The other messages of the group have moved" if grouped else "; nothing has moved"
    return CollectiveMismatchError(". ".join(texts) + rest, requests=requests, sequence=numbers[0])


def share_bytes(a: Place, b: Place) -> bool:
    """Say whether some byte belongs to both of two arrays.

    Parameters
    ----------
    a, b : tuple
        Address of the first element, bytes of an element, shape, strides in bytes.

    Returns
    -------
    bool
        Also True where the search for one is too long.
    """
    import numpy as np

    try:
        return bool(np.shares_memory(_View(a), _View(b), max_work=_SEARCH_LIMIT))  # type: ignore[arg-type]
    except RuntimeError:  # NumPy's TooHardError, which has moved between its versions
        return True


class _View:
    """What NumPy takes for an array; nobody reads it."""

    def __init__(self, place: Place) -> None:
        address, itemsize_bytes, shape, stride_bytes = place
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "typestr": f"|V{itemsize_bytes}",
            "shape": shape,
            "strides": stride_bytes,
        }
