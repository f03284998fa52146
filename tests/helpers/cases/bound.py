"""comm.bind and comm.bind_plan: calls bound once and run often, plans of the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cocoll
from cocoll import epilogues
from cocoll.errors import BufferMismatchError, ClosedError, ScheduleError, UsageError
from cocoll.plan import Buffer, Builder, Flag, Plan, Span
from tests.helpers.arrays import assert_same_bits, hold, itemsize_of, symmetric_pool
from tests.helpers.cases import case
from tests.helpers.cases.reductions import PLACES, place
from tests.helpers.cases.streams import raises
from tests.helpers.references import (
    OPS,
    check_reduced,
    contributions,
    reduce_in_rank_order,
    shard_of,
)

Comm = cocoll.Communicator


@case(how=PLACES, count=(1, 16, 200, 3_001))
def bound_allreduce(comm: Comm, how: str, count: int) -> None:
    symmetric_pool(comm)
    x = place(comm, how, np.zeros(count, np.float32))
    out = place(comm, how, np.zeros(count, np.float32), turn=1)
    for op in OPS:
        inside = comm.bind(cocoll.allreduce, x.array, op)
        beside = comm.bind(cocoll.allreduce, x.array, op=op, out=out.array)
        for turn in range(3):
            parts = contributions(comm.world_size, count, "float32", op, turn)
            x.view[...] = parts[comm.rank]
            assert beside().result() is out.array
            check_reduced(out.view, parts, op)
            assert inside() is cocoll.DONE
            check_reduced(x.view, parts, op)
        for bound in (inside, beside):
            bound.close()
            bound.close()
            raises(ClosedError, bound)
    x.check_around()
    out.check_around()


@case(count=(0, 1, 40, 1_500))
def every_call_bound(comm: Comm, count: int) -> None:
    size, rank = comm.world_size, comm.rank
    parts = contributions(size, count * size, "float32", "sum", count)
    x = np.zeros(count * size, np.float32)
    shard = comm.shard_zeros(count * size)
    scattered = comm.bind(cocoll.reduce_scatter, x)
    sharded = comm.bind(cocoll.reduce_scatter, x, "max", out=shard)
    gathered = comm.bind(cocoll.allgather, x)
    whole = np.zeros(count * size, np.float32)
    from_shards = comm.bind(cocoll.allgather, shard, out=whole)
    received = comm.bind(cocoll.broadcast, x, root=size - 1)
    fused = comm.bind(cocoll.reduce_scatter_fused, x, epilogues.scale(2.0))
    for _ in range(2):
        x[...] = parts[rank]
        block = slice(rank * count, (rank + 1) * count)
        check_reduced(scattered().result(), [part[block] for part in parts], "sum")
        sharded()
        check_reduced(shard, [shard_of(part, rank, size) for part in parts], "max")
        assert_same_bits(gathered().result(), np.concatenate(parts))
        from_shards()
        check_reduced(whole, parts, "max")
        doubled = reduce_in_rank_order(parts, "sum") * np.float32(2)
        assert_same_bits(fused().result(), shard_of(doubled, rank, size))
        received()
        assert_same_bits(x, parts[size - 1])


@case(what=("refusals",))
def bind_refuses(comm: Comm, what: str) -> None:
    x = np.ones(4, np.float32)
    for call in (
        lambda: comm.bind(cocoll.barrier),
        lambda: comm.bind(np.add, x, x),
        lambda: comm.bind(cocoll.allreduce, x, comm=object()),
        lambda: comm.bind(cocoll.allreduce_fused, x, epilogues.sgd()),
        lambda: comm.bind(cocoll.allreduce, x, out=np.ones(5, np.float32)),
        lambda: comm.bind(cocoll.allreduce_fused, x, epilogues.scale())(),
        lambda: comm.bind(cocoll.allreduce_fused, x, epilogues.scale())(gain=2.0),
        lambda: comm.bind(cocoll.allreduce, x)(op="max"),
    ):
        raises(UsageError, call)
    assert (x == 1).all()


@case(count=(100,))
def a_scalar_given_once_stays(comm: Comm, count: int) -> None:
    x, size = np.ones(count, np.float32), comm.world_size
    bound = comm.bind(cocoll.allreduce_fused, x, epilogues.scale())
    wanted = 1.0
    for factor, used in ((3.0, 3.0), (None, 3.0), (0.5, 0.5), (None, 0.5)):
        bound() if factor is None else bound(factor=factor)
        wanted *= size * used
        assert (x == wanted).all()


@case(count=(700,))
def programs_are_few(comm: Comm, count: int) -> None:
    # One program serves all lengths, memories and bindings of a kind of call.
    with cocoll.Communicator._derive(
        comm, _child_bootstrap(comm), list(range(comm.world_size))
    ) as child:
        for length in range(300, 300 + 40):
            x = np.ones(length, np.float32)
            cocoll.allreduce(x, comm=child)
            child.bind(cocoll.allreduce, x)()
        assert child.cached_programs <= 2


def _child_bootstrap(comm: Comm) -> Any:
    from cocoll import _core
    from cocoll.bootstrap import DerivedBootstrap
    from cocoll.failure import Purpose

    return DerivedBootstrap(
        lambda data: _core.exchange(comm, Purpose.DUPLICATE, data),
        list(range(comm.world_size)),
        comm.rank,
    )


# ---- plans --------------------------------------------------------------------------------------


def read_everything(itemsize: int) -> Callable[[int, int], Plan]:
    """Plan: every rank reads all peers' arrays, which are symmetric, and keeps the sum."""

    def planner(rank: int, world_size: int) -> Plan:
        builder = Builder(rank, world_size, name="read_everything", mapped_sources=True)
        peers = [peer for peer in range(world_size) if peer != rank]
        with builder.lane("reduce"):
            with builder.loop(span=Span.WHOLE, chunk_elements=48):
                builder.reduce(
                    sources=[
                        builder.source(rank=peer, itemsize_bytes=itemsize)
                        for peer in range(world_size)
                    ],
                    destinations=[[builder.result(itemsize_bytes=itemsize)]],
                )
            for peer in peers:
                builder.signal(peer=peer, flag=Flag.DONE)
            for peer in peers:
                builder.wait(peer=peer, flag=Flag.DONE)
        return builder.build()

    return planner


def publish_and_reduce(itemsize: int) -> Callable[[int, int], Plan]:
    """Plan: every rank copies its array to small scratch and reduces what all have copied."""

    def planner(rank: int, world_size: int) -> Plan:
        builder = Builder(rank, world_size, name="publish_and_reduce")

        def small(peer: int) -> Any:
            return builder.scratch(Buffer.SMALL, itemsize_bytes=itemsize, rank=peer)

        with builder.opening():
            builder.copy(source=builder.source(itemsize_bytes=itemsize), destination=small(rank))
        with builder.lane("reduce"):
            builder.reduce(
                sources=[small(peer) for peer in range(world_size)],
                destinations=[[builder.result(itemsize_bytes=itemsize)]],
            )
        return builder.build()

    return planner


def pass_around(itemsize: int, chunk: int) -> Callable[[int, int], Plan]:
    """Plan: a chain. Each rank adds its own to what the one before has staged; the last has all.

    The last rank's result comes back through staging, chunk by chunk.
    """

    def planner(rank: int, world_size: int) -> Plan:
        builder = Builder(rank, world_size, name="pass_around")
        source = builder.source(itemsize_bytes=itemsize)
        result = builder.result(itemsize_bytes=itemsize)
        last = world_size - 1
        slot_bytes = -(-chunk * itemsize // 64) * 64

        def staged(owner: int) -> Any:
            return builder.scratch(
                Buffer.STAGING, itemsize_bytes=itemsize, rank=owner, slots=1, slot_bytes=slot_bytes
            )

        others = [peer for peer in range(world_size) if peer != last]
        with builder.lane("chain"), builder.loop(span=Span.WHOLE, chunk_elements=chunk):
            if world_size == 1:
                builder.reduce(sources=[source], destinations=[[result]])
            elif rank == 0:
                builder.copy(source=source, destination=staged(0))
                builder.signal(peer=1, flag=Flag.USER)
            else:
                builder.wait(peer=rank - 1, flag=Flag.USER)
                builder.reduce(sources=[staged(rank - 1), source], destinations=[[staged(rank)]])
                if rank < last:
                    builder.signal(peer=rank + 1, flag=Flag.USER)
            if world_size > 1 and rank == last:
                for peer in others:
                    builder.signal(peer=peer, flag=Flag.ANSWER)
                builder.copy(source=staged(last), destination=result)
                for peer in others:
                    builder.wait(peer=peer, flag=Flag.DONE)
            elif world_size > 1:
                builder.wait(peer=last, flag=Flag.ANSWER)
                builder.copy(source=staged(last), destination=result)
                builder.signal(peer=last, flag=Flag.DONE)
        return builder.build()

    return planner


@case(
    label=("float32", "int64", "bfloat16"),
    op=("sum", "max", "avg"),
    under_mpi=lambda label, op: label == "float32",
)
def plans_over_symmetric_arrays(comm: Comm, label: str, op: str) -> None:
    symmetric_pool(comm)
    for count in (1, 48, 49, 1_000):
        parts = contributions(comm.world_size, count, label, op, count)
        x = hold(comm, "symmetric", parts[comm.rank])
        out = hold(comm, "ordinary", np.zeros_like(parts[0]))
        bound = comm.bind_plan(read_everything(itemsize_of(label)), x.array, out=out.array, op=op)
        assert bound.algorithm == "read_everything"
        for _ in range(3):
            out.view[...] = 0
            assert bound().result() is out.array
            check_reduced(out.view, parts, op, f"{count}")
        out.check_around()
        x.check_around()


@case(how=("ordinary", "symmetric", "strided"), in_place=(True, False))
def plans_with_scratch(comm: Comm, how: str, in_place: bool) -> None:
    symmetric_pool(comm)
    for count, planner in (
        (1, publish_and_reduce(4)),
        (200, publish_and_reduce(4)),
        (1, pass_around(4, 32)),
        (321, pass_around(4, 32)),
    ):
        parts = contributions(comm.world_size, count, "float32", "sum", count)
        x = hold(comm, how, parts[comm.rank])
        out = None if in_place else hold(comm, how, np.zeros_like(parts[0]))
        bound = comm.bind_plan(planner, x.array, out=None if out is None else out.array)
        for turn in range(4):
            x.view[...] = parts[comm.rank]
            bound()
            # A chain of float32 adds in rank order too.
            check_reduced((x if out is None else out).view, parts, "sum", f"{count} {turn}")
            # Other operations reuse the same scratch and flags in between.
            y = np.array(parts[comm.rank])
            cocoll.allreduce(y, comm=comm)
            check_reduced(y, parts, "sum")
        x.check_around()


@case(what=("refusals",))
def plans_that_are_refused(comm: Comm, what: str) -> None:
    x, out = np.ones(8, np.float32), np.zeros(8, np.float32)

    def racing(rank: int, world_size: int) -> Plan:
        builder = Builder(rank, world_size, name="racing", mapped_sources=True)
        with builder.lane("reduce"):
            builder.reduce(
                sources=[builder.source(rank=peer, itemsize_bytes=4) for peer in range(world_size)],
                destinations=[[builder.result(itemsize_bytes=4)]],
            )
        return builder.build()

    if comm.world_size > 1:
        raises(ScheduleError, lambda: comm.bind_plan(racing, x, out=out))
        # It maps what is not symmetric.
        raises(UsageError, lambda: comm.bind_plan(read_everything(4), x, out=out))
    raises(BufferMismatchError, lambda: comm.bind_plan(publish_and_reduce(4), x, out=out[:4]))
    raises(UsageError, lambda: comm.bind_plan(publish_and_reduce(4), x, op="median"))
    long = np.ones(100_000, np.float32)
    try:
        comm.bind_plan(publish_and_reduce(4), long)()
    except UsageError:
        pass
    else:
        raise AssertionError("scratch that is too small was accepted")
    assert (long == 1).all()
    assert (x == 1).all()
