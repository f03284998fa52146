"""Messages between GPUs, over the emulated NCCL."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import cocoll
from cocoll.errors import (
    BufferOverlapError,
    CollectiveMismatchError,
    CommTimeoutError,
    UnsupportedError,
    UsageError,
)
from cocoll.testing import run_ranks
from tests.helpers.cases.streams import raises
from tests.helpers.on_device import MEMORIES, TUNING, fill, gpu_stream, make_array, put, same_bits

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit

OVER_NCCL = replace(TUNING, gpu_map_peers=0)
COUNTS = (0, 1, 17, 4099, 50_021)


@pytest.fixture(autouse=True)
def a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_DEVICES", "4")


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_rings_and_all_pairs(world_size: int, memory: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        size, rank = comm.world_size, comm.rank
        comm.empty(1, device="cuda")
        following, before = (rank + 1) % size, (rank - 1) % size
        for count in COUNTS:
            x = put(comm, fill(rank, (count,), "float32"), memory)
            out = make_array(comm, (count,), "float32", memory)
            work = cocoll.sendrecv(x, following, source=before, out=out, comm=comm)
            assert work.result() is out
            same_bits(out.get(), fill(before, (count,), "float32"))
            outs = [make_array(comm, (count,), "float32", memory) for _ in range(size)]
            with cocoll.group(comm):
                works = [cocoll.send(x, peer) for peer in range(size)]
                works += [cocoll.recv(outs[peer], peer) for peer in reversed(range(size))]
                assert not works[0].done()
                raises(UsageError, works[0].wait)
            for work in works:
                work.wait()
                assert work.done()
            for peer in range(size):
                same_bits(outs[peer].get(), fill(peer, (count,), "float32"))
            # Collectives go on beside them.
            y = put(comm, np.ones(300, np.float32), memory)
            cocoll.allreduce(y, comm=comm).wait()
            assert (y.get() == size).all()

    run_ranks(world_size, body, toolkit=toolkit, tuning=OVER_NCCL)


def test_only_two_ranks_call(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        comm.empty(1, device="cuda")
        x = put(comm, np.full(1000, comm.rank, np.float32), "ordinary")
        with gpu_stream(comm) as stream:
            for turn in range(3):
                x.set(np.full(1000, comm.rank + turn, np.float32))
                # What is sent next has just been received, on the same stream.
                if comm.rank > 0:
                    cocoll.recv(x, comm.rank - 1, comm=comm, stream=stream)
                if comm.rank < comm.world_size - 1:
                    work = cocoll.send(x, comm.rank + 1, comm=comm, stream=stream)
                    work.wait()
            y = put(comm, np.ones(3, np.float32), "ordinary")
            cocoll.allreduce(y, comm=comm, stream=stream).wait()
        assert (x.get() == 2).all()

    run_ranks(3, body, toolkit=toolkit, tuning=OVER_NCCL)


def test_ends_that_do_not_agree(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        comm.empty(1, device="cuda")
        peer = 1 - comm.rank
        x = put(comm, np.full(100, comm.rank + 1.0, np.float32), "ordinary")
        out = put(comm, np.zeros(100, np.float32), "ordinary")
        short = put(comm, np.zeros(99 + comm.rank, np.float32), "ordinary")

        def call() -> None:
            with cocoll.group(comm):
                cocoll.sendrecv(x, peer, source=peer, out=out)
                # Rank 0 fills 99 of the 100 that rank 1 sends; the other way round they fit.
                cocoll.sendrecv(x, peer, source=peer, out=short)

        error = raises(CollectiveMismatchError, call)
        assert error.requests[0] == "recv(count=99, dtype=float32, from rank 1)"
        assert error.requests[1] == "send(count=100, dtype=float32, to rank 0)"
        again = put(comm, np.zeros(100, np.float32), "ordinary")
        cocoll.sendrecv(x, peer, source=peer, out=again, comm=comm).wait()
        for array in (out, again):
            assert (array.get() == peer + 1).all()
        assert (short.get() == (1.0 if comm.rank else 0.0)).all()

    run_ranks(2, body, toolkit=toolkit, tuning=OVER_NCCL)


def test_what_is_refused(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        peer = 1 - comm.rank
        host = np.zeros(8, np.float32)
        with cocoll.Communicator(tuning=OVER_NCCL, toolkit=toolkit) as other:
            x = put(other, np.zeros(8, np.float32), "ordinary")
            error = raises(UnsupportedError, lambda: cocoll.send(x, peer, comm=comm))
            assert "first use of its GPUs is collective" in str(error)
        x = put(comm, np.zeros(8, np.float32), "ordinary")

        def mixed() -> None:
            with cocoll.group(comm):
                cocoll.send(x, peer)
                cocoll.recv(host, peer)

        assert "all on the host, or all on GPUs" in str(raises(UsageError, mixed))
        raises(
            BufferOverlapError,
            lambda: cocoll.sendrecv(x, peer, source=peer, out=x, comm=comm),
        )
        raises(UsageError, lambda: cocoll.send(x, comm.rank, comm=comm))
        out = put(comm, np.ones(8, np.float32), "ordinary")
        cocoll.sendrecv(x, peer, source=peer, out=out, comm=comm).wait()
        assert not out.get().any()

    run_ranks(2, body, toolkit=toolkit, tuning=OVER_NCCL)


def test_mapped_memory_without_nccl(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.zeros(8, np.float32), "symmetric")
        error = raises(UnsupportedError, lambda: cocoll.send(x, 1 - comm.rank, comm=comm))
        assert "Tuning(gpu_map_peers=0)" in str(error)
        cocoll.allreduce(x, comm=comm).wait()

    run_ranks(2, body, toolkit=toolkit, tuning=TUNING)


def test_both_gpus_send_first(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> str:
        x = put(comm, np.zeros(8, np.float32), "ordinary")
        error = raises(CommTimeoutError, lambda: cocoll.send(x, 1 - comm.rank, comm=comm))
        assert comm.closed
        return str(error)

    for text in run_ranks(2, body, toolkit=toolkit, tuning=OVER_NCCL, timeout_seconds=1.0):
        assert "send(count=8, dtype=float32" in text
