"""send, recv, sendrecv and group."""

from __future__ import annotations

import random

import numpy as np

import cocoll
from cocoll.errors import BufferOverlapError, CollectiveMismatchError, RankError, UsageError
from tests.helpers.arrays import DTYPES, assert_same_bits, hold, symmetric_pool
from tests.helpers.cases import case
from tests.helpers.cases.streams import raises
from tests.helpers.references import contribution, contributions, reduce_in_rank_order

Comm = cocoll.Communicator

#: Nothing, in the line, chunks of slots whole and not, more chunks than a window has.
COUNTS = (0, 1, 16, 17, 1_021, 16_384, 70_001)


KINDS = ("ordinary", "symmetric", "strided", "unaligned")


def between(comm: Comm, source: int, target: int) -> int:
    """Give a seed that belongs to a pair."""
    return source * comm.world_size + target


def check_ring(comm: Comm, label: str, count: int, sent: str, filled: str) -> None:
    """Pass an array on to the next rank, by one call and by two in a group."""
    size, rank = comm.world_size, comm.rank
    following, before = (rank + 1) % size, (rank - 1) % size
    x = hold(comm, sent, contribution(rank, count, label, "sum", count))
    wanted = contribution(before, count, label, "sum", count)
    for turn in range(3):
        out = hold(comm, filled, np.zeros_like(wanted))
        if turn == 0:
            work = cocoll.sendrecv(x.array, following, source=before, out=out.array, comm=comm)
            assert work.done()
            assert work.result() is out.array
        else:
            with cocoll.group(comm):
                if turn == 1:
                    works = [cocoll.send(x.array, following)]
                    works.append(cocoll.recv(out.array, before))
                else:
                    works = [cocoll.recv(out.array, before, comm=comm)]
                    works.append(cocoll.send(x.array, following, comm=comm))
                assert count == 0 or not (out.view != 0).all()
                assert not any(work.done() for work in works)
                raises(UsageError, works[0].wait)
            assert [work.result() for work in works] == [None, None]
        assert_same_bits(out.view, wanted, f"turn {turn}, {count} {sent} {filled}")
        out.check_around()
    x.check_around()


@case(
    label=DTYPES,
    sent=KINDS,
    filled=KINDS,
    only=lambda label, sent, filled: label == "float32" or sent == filled,
    under_mpi=lambda label, sent, filled: label == "float32",
)
def rings(comm: Comm, label: str, sent: str, filled: str) -> None:
    for count in COUNTS:
        symmetric_pool(comm)
        check_ring(comm, label, count, sent, filled)


@case(kind=("rows", "transposed", "reversed", "symmetric"), shape=((40, 7), (3, 5, 2)))
def shapes(comm: Comm, kind: str, shape: tuple[int, ...]) -> None:
    symmetric_pool(comm)
    size, rank = comm.world_size, comm.rank
    x = hold(comm, kind, contribution(rank, shape, "float32", "sum"))
    flat = np.zeros(int(np.prod(shape)), np.float32)
    cocoll.sendrecv(x.array, (rank + 1) % size, source=(rank - 1) % size, out=flat, comm=comm)
    wanted = contribution((rank - 1) % size, shape, "float32", "sum")
    assert_same_bits(flat.reshape(shape), wanted, "sent with strides, filled without")


@case(count=(3, 5_000), kind=("ordinary", "symmetric", "strided"))
def chains(comm: Comm, count: int, kind: str) -> np.ndarray:
    # Only the two ranks of a message call; the n-th send meets the n-th receive.
    symmetric_pool(comm)
    rank, last = comm.rank, comm.world_size - 1
    held = [hold(comm, kind, np.full(count, rank * 10 + turn, np.float32)) for turn in range(3)]
    for entry in held:
        if rank > 0:
            cocoll.recv(entry.array, rank - 1, comm=comm)
        if rank < last:
            cocoll.send(entry.array, rank + 1, comm=comm)
    for turn, entry in enumerate(held):
        assert (entry.view == turn).all()
        entry.check_around()
    return held[2].view.copy()


@case(count=(1, 200, 20_000), kind=("ordinary", "symmetric"))
def all_pairs(comm: Comm, count: int, kind: str) -> None:
    symmetric_pool(comm)
    size, rank = comm.world_size, comm.rank
    sent = [
        hold(comm, kind, contribution(peer, count, "int32", "sum", between(comm, rank, peer)))
        for peer in range(size)
    ]
    filled = [hold(comm, kind, np.zeros(count, np.int32)) for _ in range(size)]
    with cocoll.group(comm):
        for peer in range(size):
            cocoll.send(sent[peer].array, peer)
        # Another group inside joins this one.
        with cocoll.group(comm):
            for peer in reversed(range(size)):
                cocoll.recv(filled[peer].array, peer)
        assert not any(entry.view.any() for entry in filled)
    for peer in range(size):
        wanted = contribution(rank, count, "int32", "sum", between(comm, peer, rank))
        assert_same_bits(filled[peer].view, wanted, f"from {peer}")
        filled[peer].check_around()


def run_graph(comm: Comm, seed: int, edges: int, *, stream: cocoll.Stream | None = None) -> None:
    """Move the messages of a random multigraph, in groups and collectives between them."""
    drawn, own = random.Random(seed), random.Random(seed * 31 + comm.rank)
    size, rank = comm.world_size, comm.rank
    kinds = ("ordinary", "symmetric", "strided", "unaligned", "reversed")
    for turn in range(3):
        symmetric_pool(comm)
        ends: dict[tuple[bool, int], list[tuple[np.ndarray, object]]] = {}
        for number in range(drawn.randrange(edges)):
            source, target = drawn.randrange(size), drawn.randrange(size)
            count = drawn.choice((1, 3, 16, 17, 300, 16_384, 20_011))
            values = contribution(number, count, "float32", "sum", seed + turn)
            for sends, at, peer in ((True, source, target), (False, target, source)):
                if at == rank:
                    start = values if sends else np.zeros_like(values)
                    held = hold(comm, own.choice(kinds), start)
                    ends.setdefault((sends, peer), []).append((values, held))
        waiting = [(key, list(queue)) for key, queue in ends.items()]
        works = []
        with cocoll.group(comm):
            while waiting:
                # In any order but that of each pair.
                place = own.randrange(len(waiting))
                (sends, peer), queue = waiting[place]
                call = cocoll.send if sends else cocoll.recv
                works.append(call(queue.pop(0)[1].array, peer, stream=stream))
                if not queue:
                    del waiting[place]
        for work in works:
            work.wait()
        for queue in ends.values():
            for values, held in queue:
                assert_same_bits(held.view, values, f"turn {turn}")
                held.check_around()
        parts = contributions(size, 33, "float32", "sum", seed)
        x = parts[rank].copy()
        cocoll.allreduce(x, comm=comm)
        assert_same_bits(x, reduce_in_rank_order(parts, "sum"), "the collective after it")


@case(seed=(1, 2, 3), streamed=(False, True))
def graphs(comm: Comm, seed: int, streamed: bool) -> None:
    if streamed:
        with cocoll.Stream() as stream:
            run_graph(comm, seed, 40, stream=stream)
    else:
        run_graph(comm, seed, 40)


@case(count=(2, 9_000))
def on_a_stream(comm: Comm, count: int) -> None:
    size, rank = comm.world_size, comm.rank
    x = np.full(count, rank, np.float32)
    outs = [np.zeros(count, np.float32) for _ in range(4)]
    with cocoll.Stream() as stream:
        works = [
            cocoll.sendrecv(
                x, (rank + 1) % size, source=(rank - 1) % size, out=out, comm=comm, stream=stream
            )
            for out in outs
        ]
        total = np.ones(5, np.float32)
        reduced = cocoll.allreduce(total, comm=comm, stream=stream)
        for work, out in zip(works, outs, strict=True):
            assert work.result() is out
            assert (out == (rank - 1) % size).all()
        reduced.wait()
        assert (total == size).all()


@case(grouped=(False, True), streamed=(False, True))
def messages_that_do_not_fit(comm: Comm, grouped: bool, streamed: bool) -> None:
    size, rank = comm.world_size, comm.rank
    if size == 1:
        return
    wrong = {"count": np.zeros(9, np.float32), "dtype": np.zeros(10, np.int32)}
    with cocoll.Stream() as stream:
        for word, out in wrong.items():
            x = np.arange(10, dtype=np.float32)
            good = np.zeros(300, np.float32)

            def call(x=x, out=out, good=good) -> None:
                using = stream if streamed else None
                if not grouped:
                    if rank == 0:
                        cocoll.send(x, 1, comm=comm, stream=using).wait()
                    elif rank == 1:
                        cocoll.recv(out, 0, comm=comm, stream=using).wait()
                    else:
                        raise CollectiveMismatchError("only 0 and 1 take part")
                    return
                with cocoll.group(comm):
                    ring = np.full(300, rank, np.float32)
                    work = cocoll.sendrecv(
                        ring, (rank + 1) % size, source=(rank - 1) % size, out=good, stream=using
                    )
                    if rank == 0:
                        cocoll.send(x, 1, stream=using)
                    if rank == 1:
                        cocoll.recv(out, 0, stream=using)
                work.wait()
                if rank > 1:
                    raise CollectiveMismatchError("only 0 and 1 take part")

            error = raises(CollectiveMismatchError, call)
            if rank < 2:
                assert not out.any()
                assert set(error.requests) == {0, 1}
                assert error.requests[0] == "send(count=10, dtype=float32, to rank 1)"
                told = "recv(count=9, dtype=float32, from rank 0)"
                if word == "dtype":
                    told = "recv(count=10, dtype=int32, from rank 0)"
                assert error.requests[1] == told
                assert told in str(error)
            if grouped:
                assert (good == (rank - 1) % size).all()
            # It is usable, on the pair itself too.
            check_ring(comm, "float32", 100, "ordinary", "ordinary")
            y = np.ones(3, np.float32)
            cocoll.allreduce(y, comm=comm)
            assert (y == size).all()


@case()
def calls_that_are_refused(comm: Comm) -> None:
    size, rank = comm.world_size, comm.rank
    x, y = np.zeros(8, np.float32), np.zeros(8, np.float32)
    following, before = (rank + 1) % size, (rank - 1) % size
    raises(RankError, lambda: cocoll.send(x, size, comm=comm))
    raises(RankError, lambda: cocoll.recv(x, -1, comm=comm))
    raises(UsageError, lambda: cocoll.send(x, "1", comm=comm))
    raises(UsageError, lambda: cocoll.send(x, rank, comm=comm))
    raises(UsageError, lambda: cocoll.recv(x, rank, comm=comm))
    raises(UsageError, lambda: cocoll.send("text", following, comm=comm))
    frozen = x.copy()
    frozen.flags.writeable = False
    raises(UsageError, lambda: cocoll.recv(frozen, before, comm=comm))
    error = raises(
        BufferOverlapError,
        lambda: cocoll.sendrecv(x[1:], following, source=before, out=x[:-1], comm=comm),
    )
    assert "rank" in str(error)

    def with_collective() -> None:
        with cocoll.group(comm):
            cocoll.send(x, following)
            cocoll.allreduce(y, comm=comm)

    def with_overlap() -> None:
        with cocoll.group(comm):
            cocoll.recv(x, before)
            cocoll.recv(x[3:5], before)

    def with_streams() -> None:
        with cocoll.Stream() as stream, cocoll.group(comm):
            cocoll.send(x, following)
            cocoll.recv(y, before, stream=stream)

    def with_half_a_pair() -> None:
        with cocoll.group(comm):
            cocoll.send(x, rank)

    assert "sends and receives alone" in str(raises(UsageError, with_collective))
    raises(BufferOverlapError, with_overlap)
    raises(UsageError, with_streams)
    assert "wait for ever" in str(raises(UsageError, with_half_a_pair))
    dropped = None
    try:
        with cocoll.group(comm):
            dropped = cocoll.send(x, following)
            raise KeyError("of the caller")
    except KeyError:
        pass
    assert isinstance(dropped.exception(), UsageError)
    # Columns of one array are apart, whatever lies between their first and last elements.
    square = np.zeros((6, 6), np.float32)
    square[:, 1] = rank + 1
    with cocoll.group(comm):
        cocoll.send(square[:, 1], following)
        cocoll.recv(square[:, 0], before)
    assert (square[:, 0] == before + 1).all()
    assert not square[:, 2:].any()
    check_ring(comm, "float32", 50, "ordinary", "ordinary")
