# The public calls that move blocks between ranks, and the reduction to one rank.

def reduce(x, op="sum", root=0, *, out=None, comm=None, stream=None, dtype=None):
    """Reduce arrays over all ranks to one of them.

    Collective. See `allreduce` for the parameters they share.

    Parameters
    ----------
    x : array_like
        This rank's contribution; only read, but for the root's where `out` is not given.
    op : {"sum", "prod", "min", "max", "avg"}, default "sum"
        The reduction.
    root : int, default 0
        The rank that gets the result.
    out : array_like, same number of elements and dtype, optional
        On the root, where the result goes: disjoint from `x` or `x` itself. Default: `x`. Other
        ranks' `out` is not looked at.
    comm, stream, dtype : optional
        As in `allreduce`.

    Returns
    -------
    Work
        Its result is `out` on the root, None elsewhere and in place.

    Raises
    ------
    RankError
        `root` is no rank of the communicator.

    Notes
    -----
    On one host sums are taken in rank order, so the root gets the bits that `allreduce` gives. Over
    several hosts each host's sum is, and those are added along a chain of hosts.
    """
    return _call_simple(_REDUCE, x, op, out, comm, stream, dtype, root, None)


def gather(x, root=0, *, out=None, counts=None, comm=None, stream=None, dtype=None):
    """Give one rank the blocks of all ranks, in rank order.

    Collective. See `allreduce` for the parameters they share.

    Parameters
    ----------
    x : array_like
        This rank's block; equal lengths on all ranks unless `counts` is given.
    root : int, default 0
        The rank that gets the blocks.
    out : array_like, all blocks, optional
        On the root, where they go: disjoint from `x`, or `x` is the root's block of it. Default: a
        new array, the blocks stacked along the first dimension. Other ranks' `out` is not looked
        at.
    counts : sequence of int, optional
        For every rank the length of its block's first dimension, the same on all ranks. `out` is
        then disjoint from `x`.
    comm, stream, dtype : optional
        As in `allreduce`.

    Returns
    -------
    Work
        Its result is the gathered array on the root, None elsewhere.

    Raises
    ------
    BufferMismatchError
        On the root, `out` has another length than all blocks.
    RankError
        `root` is no rank of the communicator.
    CollectiveMismatchError
        Ranks have blocks of different lengths, or gave different counts.
    """
    if counts is not None:
        return _hooks.call_uneven(_communicator(comm), _GATHER, x, out, counts, None, root, dtype,
                                  stream)
    return _call_simple(_GATHER, x, "sum", out, comm, stream, dtype, root, None)


def scatter(x=None, root=0, *, out=None, counts=None, comm=None, stream=None, dtype=None):
    """Give every rank its block of the root's array.

    Collective. See `allreduce` for the parameters they share.

    Parameters
    ----------
    x : array_like, n elements
        On the root, all blocks in rank order; n / world_size elements a rank, unless `counts` is
        given. Other ranks' `x` is not looked at, and may be None.
    root : int, default 0
        The rank that has the blocks.
    out : array_like, this rank's block
        Where it goes: disjoint from `x`, or on the root its block of it. Only the root may leave it
        out, and gets a new array.
    counts : sequence of int, optional
        For every rank the length of its block's first dimension, the same on all ranks. `out` is
        then disjoint from `x`.
    comm, stream, dtype : optional
        As in `allreduce`.

    Returns
    -------
    Work
        Its result is the block.

    Raises
    ------
    BufferMismatchError
        n does not divide, or `out` has another length than the block.
    RankError
        `root` is no rank of the communicator.
    CollectiveMismatchError
        Ranks want blocks of different lengths, or gave different counts.
    """
    if counts is not None:
        return _hooks.call_uneven(_communicator(comm), _SCATTER, x, out, counts, None, root, dtype,
                                  stream)
    return _call_simple(_SCATTER, x, "sum", out, comm, stream, dtype, root, None)


def alltoall(x, *, out=None, comm=None, stream=None, dtype=None):
    """Give every rank a block of every rank: block d of rank s becomes block s of rank d.

    Collective. See `allreduce` for the parameters they share.

    Parameters
    ----------
    x : array_like, n elements
        A block for every rank, in rank order; n must divide by the world size.
    out : array_like, same number of elements and dtype, optional
        Where the blocks go, in the order of their senders; disjoint from `x`. Default: a new array.
    comm, stream, dtype : optional
        As in `allreduce`.

    Returns
    -------
    Work
        Its result is the received array.

    Raises
    ------
    BufferMismatchError
        n does not divide, or `out` has another length.
    BufferOverlapError
        `out` overlaps `x`.
    """
    return _call_simple(_ALLTOALL, x, "sum", out, comm, stream, dtype, None, None)


def alltoallv(x, send_counts, recv_counts=None, *, out=None, comm=None, stream=None, dtype=None):
    """Give every rank a block of every rank, each of its own length.

    Collective. See `allreduce` for the parameters they share.

    Parameters
    ----------
    x : array_like
        Blocks for all ranks, one after the other along the first dimension; the other dimensions
        are equal on all ranks.
    send_counts : sequence of int
        For every rank the length of its block's first dimension.
    recv_counts : sequence of int, optional
        For every rank the length of what it sends here. Default: the ranks tell each other.
    out : array_like, optional
        Where the blocks go, in the order of their senders; disjoint from `x`. Default: a new array.
    comm, stream, dtype : optional
        As in `allreduce`.

    Returns
    -------
    Work
        Its result is the received array.

    Raises
    ------
    BufferMismatchError
        Counts do not add up to the array, are negative, or not one for each rank.
    CollectiveMismatchError
        A rank wants another length than is sent to it; all ranks raise, nothing has moved.

    Notes
    -----
    Counts are exchanged in every call; what follows from them is planned once and kept. Use
    ``comm.bind`` where counts stay: then a run exchanges none.
    """
    return _hooks.call_uneven(_communicator(comm), _ALLTOALLV, x, out, send_counts, recv_counts,
                              None, dtype, stream)
