"""Unit tasks: the pieces of a resharding that have one set of holders and one set of needers.

A tile of the destination meets the tiles of the source in boxes; each box that is not empty is one
task. Its size is that of the box, not of a tile.

References
----------
Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from cocoll.errors import ReshardError
from cocoll.resharding.layout import Box, Layout, box_elements

__all__ = ["UnitTask", "decompose", "multicast_task"]


class UnitTask(NamedTuple):
    """One box of a tensor, who has it, and who must get it.

    Attributes
    ----------
    box : Box
        A range of elements of the whole tensor on each dim; its elements are counted in row-major
        order of the box.
    holders : tuple of int
        Ranks that have it; any of them will do.
    needers : tuple of int
        Ranks that must receive it; none of them is a holder.
    nbytes : int
        Of the box.
    keepers : tuple of int, default ()
        Holders that need it too: a copy inside the rank, which crosses no wire.
    tensor : int, default 0
        Which of several tensors that are planned together.
    adds : bool, default False
        Whether the needer adds what comes to its own summand of the box.
    after : tuple of int, default ()
        Tasks, by number, that must have ended before its holders have it.
    """

    box: Box
    holders: tuple[int, ...]
    needers: tuple[int, ...]
    nbytes: int
    keepers: tuple[int, ...] = ()
    tensor: int = 0
    adds: bool = False
    after: tuple[int, ...] = ()


def multicast_task(
    holders: Sequence[int], needers: Sequence[int], nbytes: int, tensor: int = 0
) -> UnitTask:
    """Give the task of bringing some bytes from any of some ranks to all of others.

    Parameters
    ----------
    holders : sequence of int
        Ranks that have the bytes, at least one.
    needers : sequence of int
        Ranks that need them.
    nbytes : int
        How many.
    tensor : int, default 0
        For the caller.

    Returns
    -------
    UnitTask
        Its box counts bytes.

    Raises
    ------
    ReshardError
        There is no holder, a rank stands twice in a list, or a number is negative.
    """
    for what, ranks in (("holders", holders), ("needers", needers)):
        if len(set(ranks)) != len(ranks) or any(rank < 0 for rank in ranks):
            raise ReshardError(f"a multicast: wanted different ranks as {what}; got {ranks}")
    if not holders or nbytes < 0:
        raise ReshardError(
            f"a multicast: wanted a holder and at least 0 bytes; got holders {holders} and {nbytes}"
        )
    having = set(holders)
    return UnitTask(
        ((0, nbytes),),
        tuple(holders),
        tuple([rank for rank in needers if rank not in having]),
        nbytes,
        tuple([rank for rank in needers if rank in having]),
        tensor,
    )


def decompose(
    src: Layout, dst: Layout, itemsize_bytes: int, *, tensor: int = 0, first: int = 0
) -> list[UnitTask]:
    """Give the unit tasks between two layouts of one tensor.

    Parameters
    ----------
    src, dst : Layout
        Where it is and where it must be; the meshes may overlap.
    itemsize_bytes : int
        Of an element.
    tensor : int, default 0
        What the tasks note as their tensor.
    first : int, default 0
        The number of the first task, which `UnitTask.after` counts from.

    Returns
    -------
    list of UnitTask
        Those of the first tile of the destination first, and for each the source's tiles in order.
        None is empty.

    Raises
    ------
    ReshardError
        The shapes differ, or the destination has partial sums.

    Notes
    -----
    With partial sums every rank of a tile becomes the owner of a part of each box: the other
    summands of the part go to it (tasks that add), and from there to the needers.
    """
    if src.shape != dst.shape:
        raise ReshardError(
            f"source and destination disagree on the tensor: shape {src.shape} and {dst.shape}"
        )
    if dst.spec.partial:
        raise ReshardError(
            f"dst: spec {dst.spec}: a destination cannot hold partial sums; leave out +P"
        )
    dims = [_overlaps(*ranges) for ranges in zip(src.pieces, dst.pieces, strict=True)]
    cells = [
        (tuple([cell[1] for cell in cells]), tuple([cell[0] for cell in cells]), cells)
        for cells in product(*dims)
    ]
    cells.sort()
    tasks: list[UnitTask] = []
    reduces = bool(src.spec.partial)
    meet = not set(src.mesh.ranks).isdisjoint(dst.mesh.ranks)
    for dst_tile, src_tile, ranges in cells:
        box = tuple([cell[2:] for cell in ranges])
        holders, needers = src.ranks_of(src_tile), dst.ranks_of(dst_tile)
        if reduces:
            sets = src.summands(holders)
            _add_reduction(tasks, first, box, sets, needers, itemsize_bytes, tensor)
            continue
        nbytes = box_elements(box) * itemsize_bytes
        if meet:
            tasks.append(_task(box, holders, needers, nbytes, tensor))
        else:
            tasks.append(UnitTask(box, holders, needers, nbytes, (), tensor))
    return tasks


def _task(
    box: Box, holders: tuple[int, ...], needers: tuple[int, ...], nbytes: int, tensor: int
) -> UnitTask:
    having = set(holders)
    if having.isdisjoint(needers):
        return UnitTask(box, holders, needers, nbytes, (), tensor)
    keepers = tuple([rank for rank in needers if rank in having])
    others = tuple([rank for rank in needers if rank not in having])
    return UnitTask(box, holders, others, nbytes, keepers, tensor)


def _overlaps(
    src: Sequence[tuple[int, int]], dst: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int, int]]:
    """Give (source piece, destination piece, start, stop) where pieces meet."""
    found = []
    first = 0
    for target, (low, high) in enumerate(dst):
        while first < len(src) and src[first][1] <= low:
            first += 1
        number = first
        while number < len(src) and src[number][0] < high:
            start, stop = max(low, src[number][0]), min(high, src[number][1])
            if start < stop:
                found.append((number, target, start, stop))
            number += 1
    return found


def _add_reduction(
    tasks: list[UnitTask],
    first: int,
    box: Box,
    sets: Iterable[tuple[int, ...]],
    needers: tuple[int, ...],
    itemsize_bytes: int,
    tensor: int,
) -> None:
    owners = [(owner, members) for members in sets for owner in members]
    parts = _divide(box, len(owners))
    for part, (owner, members) in zip(parts, owners, strict=False):
        nbytes = box_elements(part) * itemsize_bytes
        added = []
        for rank in members:
            if rank != owner:
                added.append(first + len(tasks))
                tasks.append(UnitTask(part, (rank,), (owner,), nbytes, (), tensor, True))
        tasks.append(_task(part, (owner,), needers, nbytes, tensor)._replace(after=tuple(added)))


def _divide(box: Box, count: int) -> list[Box]:
    """Divide a box along its longest dim; parts that are empty are left out."""
    longest = max(range(len(box)), key=lambda dim: (box[dim][1] - box[dim][0], -dim), default=None)
    if longest is None:
        return [box]
    low, high = box[longest]
    step = -(-(high - low) // count)
    return [
        (*box[:longest], (start, min(high, start + step)), *box[longest + 1 :])
        for start in range(low, high, step)
    ]
