# The public calls for messages between two ranks.

def send(x, peer, *, comm=None, stream=None, dtype=None):
    """Send an array to one other rank.

    Called by this rank; `peer` calls `recv`. Others take no part. The n-th send from one rank to
    another meets the n-th receive there, whatever else either does in between; there are no tags.

    Parameters
    ----------
    x : array_like, any shape, a dtype that `allreduce` takes
        What is sent. It belongs to cocoll until the returned `Work` completes.
    peer : int
        The rank that receives it. This rank itself only inside `group`, or with `sendrecv`.
    comm : Communicator, optional
        Default: the one that `cocoll.init` made; inside `group`, the group's.
    stream : Stream, optional
        Makes the call asynchronous. Default: it has finished when it returns.
    dtype : str, optional
        ``"bfloat16"`` lets uint16 arrays stand for bfloat16.

    Returns
    -------
    Work
        It completes when the receiver has all of `x`: a send ends only with its receive. Inside
        `group` it completes with the group.

    Raises
    ------
    RankError
        `peer` is no rank of the communicator.
    CollectiveMismatchError
        The receive is of another count or dtype: raised on both ranks; nothing has moved.
    TransportError
        `peer` was lost, gave up or did not come in time; the communicator is closed.

    Notes
    -----
    Inside a host there is one copy where either array is contiguous symmetric memory
    (`Communicator.empty`), else two, chunk by chunk. Calls of one rank run in the order of their
    issue: two ranks that both send first and then receive wait for each other for ever, unless
    both calls are in one `group`.
    """
    return _call_points(comm, stream, dtype, None, [(True, x, peer, "x", "peer")])


def recv(x, peer, *, comm=None, stream=None, dtype=None):
    """Fill an array with what one other rank sends.

    Called by this rank; `peer` calls `send`. See `send` for how messages meet, and for what both
    calls raise.

    Parameters
    ----------
    x : array_like
        What is filled: as many elements as are sent, of the same dtype; any shape and strides. It
        belongs to cocoll until the returned `Work` completes.
    peer : int
        The rank that sends.
    comm, stream, dtype : optional
        As in `send`.

    Returns
    -------
    Work
        When it has completed `x` is final.

    Raises
    ------
    UsageError
        `x` is read-only, or a replicated array.
    """
    return _call_points(comm, stream, dtype, None, [(False, x, peer, "x", "peer")])


def sendrecv(x, destination, *, source, out, comm=None, stream=None, dtype=None):
    """Send an array to one rank and receive another one, at the same time.

    Called by this rank; `destination` receives and `source` sends, with `sendrecv` or any other
    call. A ring of these does not deadlock. See `send` for what they share.

    Parameters
    ----------
    x : array_like
        What is sent.
    destination : int
        Who receives it; may be this rank, if `source` is too.
    source : int
        Who sends to this rank; need not be `destination`.
    out : array_like, apart from `x`
        What is filled.
    comm, stream, dtype : optional
        As in `send`.

    Returns
    -------
    Work
        Its result is `out`.

    Raises
    ------
    BufferOverlapError
        `x` and `out` share memory.
    """
    return _call_points(comm, stream, dtype, out, [
        (True, x, destination, "x", "destination"), (False, out, source, "out", "source"),
    ])


def group(comm=None):
    """Let the sends and receives of a ``with`` block begin together at its end.

    Within the block `send`, `recv` and `sendrecv` of the communicator check their arguments and
    return; at its end all begin, and all progress at once, in whatever order they were called:
    exchanges in a ring and between all pairs do not deadlock. Each returned `Work` completes with
    the whole group. Messages to oneself are allowed. What one rank calls in a group the others may
    call one by one, if the order is one that can end.

    Parameters
    ----------
    comm : Communicator, optional
        Whose messages. Default: the one that `cocoll.init` made. Calls in the block that name no
        communicator are for this one.

    Returns
    -------
    Group
        For ``with``. A block inside another one of the same communicator joins it.

    Raises
    ------
    UsageError
        Another operation of the communicator was called in the block; the calls have several
        streams; or, at the end, a message to this rank itself lacks its other end.
    CollectiveMismatchError
        At the end, on both ranks of a message whose ends do not fit. That message has not moved,
        the others have.
    BufferOverlapError
        At the end: an array that is filled shares memory with another one of the group.

    Notes
    -----
    Nothing is issued where an exception leaves the block. With ``stream=`` in the calls the block
    ends at once, and what goes wrong is raised by the `Work`.
    """
    cdef Group made = Group.__new__(Group)
    made.comm = _communicator(comm)
    return made
