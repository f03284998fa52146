"""duplicate and split, and what a communicator says of itself."""

from __future__ import annotations

from typing import Any

import numpy as np

import cocoll
from cocoll.errors import ClosedError, RankError, UsageError
from tests.helpers.cases import case
from tests.helpers.cases.streams import raises
from tests.helpers.references import check_reduced, contributions

Comm = cocoll.Communicator


def check_sums(comm: Comm, who: list[int], seed: int = 0) -> None:
    """Sum over a communicator whose ranks are `who` of a larger world."""
    assert comm.world_size == len(who)
    for count in (2, 150, 2_500):
        everyone = contributions(max(who) + 1, count, "float32", "sum", seed + count)
        parts = [everyone[rank] for rank in who]
        x = np.array(parts[comm.rank])
        cocoll.allreduce(x, comm=comm)
        check_reduced(x, parts, "sum")
        y = comm.empty(count)
        y[...] = parts[comm.rank]
        cocoll.allreduce(y, comm=comm)
        check_reduced(y, parts, "sum")


@case(depth=(1, 3))
def duplicate(comm: Comm, depth: int) -> None:
    made = [comm]
    for _ in range(depth):
        made.append(made[-1].duplicate())
        assert made[-1].rank == comm.rank
        assert made[-1].tuning == comm.tuning
    ranks = list(range(comm.world_size))
    for turn, child in enumerate(made):
        check_sums(child, ranks, turn)
    for child in made[1:]:
        child.close()
        child.close()
        raises(ClosedError, lambda child=child: cocoll.allreduce(np.zeros(3), comm=child))
    check_sums(comm, ranks, 9)


@case(colors=("all", "each", "parity", "halves", "none", "mixed"))
def split(comm: Comm, colors: str) -> None:
    size, rank = comm.world_size, comm.rank

    def color_of(other: int) -> int | None:
        return {
            "all": 7,
            "each": other,
            "parity": other % 2,
            "halves": -1 if other < size // 2 else 1 << 40,
            "none": None,
            "mixed": None if other % 3 == 1 else other % 2,
        }[colors]

    for key_of in (lambda other: 0, lambda other: -other, lambda other: other * 3 % size):
        child = comm.split(color_of(rank), key_of(rank))
        if color_of(rank) is None:
            assert child is None
            continue
        assert child is not None
        who = sorted(
            (other for other in range(size) if color_of(other) == color_of(rank)),
            key=lambda other: (key_of(other), other),
        )
        assert who[child.rank] == rank
        with child:
            check_sums(child, who)
    check_sums(comm, list(range(size)))


@case(levels=(2,))
def split_of_a_split(comm: Comm, levels: int) -> None:
    child = comm.split(comm.rank % 2)
    assert child is not None
    grandchild = child.split(child.rank % 2, key=-child.rank)
    assert grandchild is not None
    who = [r for r in range(comm.world_size) if r % 2 == comm.rank % 2]
    who = [r for place, r in enumerate(who) if place % 2 == child.rank % 2][::-1]
    check_sums(grandchild, who)
    # Parents go first: what is derived from them lives on.
    child.close()
    check_sums(grandchild, who, 1)
    grandchild.close()
    comm.barrier()


@case(kind=("blocking",))
def interleaved_communicators(comm: Comm, kind: str) -> None:
    size = comm.world_size
    others = [comm.duplicate() for _ in range(3)]
    row = comm.split(comm.rank // 2)
    assert row is not None
    who = [r for r in range(size) if r // 2 == comm.rank // 2]
    for turn in range(6):
        check_sums(others[turn % 3], list(range(size)), turn)
        check_sums(row, who, turn)
    for child in (*others, row):
        child.close()


@case(what=("facts",))
def facts(comm: Comm, what: str) -> Any:
    assert 0 <= comm.rank < comm.world_size
    assert f"rank {comm.rank} of {comm.world_size}" in repr(comm)
    assert comm.timeout_seconds > 0
    raises(UsageError, lambda: comm.shard_range(-1))
    raises(UsageError, lambda: comm.split(1.5))
    raises(UsageError, lambda: comm.split(True))
    raises(RankError, lambda: cocoll.broadcast(np.zeros(1), comm.world_size, comm=comm))
    raises(RankError, lambda: cocoll.broadcast(np.zeros(1), -1, comm=comm))
    return comm.world_size, str(comm.tuning)


@case(what=("default",))
def the_default_communicator(comm: Comm, what: str) -> None:
    from cocoll import _core

    token = _core.default_communicator.set(comm)
    try:
        x = np.ones(3)
        cocoll.allreduce(x)
        cocoll.barrier()
        assert (x == comm.world_size).all()
    finally:
        _core.default_communicator.reset(token)


@case(what=("closed",))
def a_closed_communicator_refuses(comm: Comm, what: str) -> None:
    with comm.duplicate() as child:
        kept = child.empty(10)
        kept[...] = 3.0
        bound = child.bind(cocoll.allreduce, np.ones(4))
        bound()
    x = np.ones(4)
    for call in (
        lambda: cocoll.allreduce(x, comm=child),
        lambda: cocoll.barrier(comm=child),
        lambda: child.empty(3),
        lambda: child.duplicate(),
        lambda: child.split(0),
        lambda: child.bind(cocoll.allreduce, x),
        bound,
    ):
        raises(ClosedError, call)
    assert "closed" in repr(child)
    # Arrays from it stay valid on this rank.
    assert (kept == 3.0).all()
    assert (x == 1.0).all()
