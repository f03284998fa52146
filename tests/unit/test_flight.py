"""The flight recorder, read by the process itself and from outside."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from pathlib import Path

import numpy as np
import pytest

import cocoll
from cocoll import _core, flight
from cocoll.bootstrap import SelfBootstrap
from cocoll.errors import CollectiveMismatchError, UsageError
from cocoll.testing import run_ranks


def my_pages(world_size: int) -> list[dict]:
    return [page for page in flight.read_pages(os.getpid()) if page["world_size"] == world_size]


def test_what_is_recorded() -> None:
    with cocoll.Communicator(SelfBootstrap()) as comm:
        x = np.ones(10, np.float32)
        cocoll.allreduce(x, "max", comm=comm)
        cocoll.broadcast(x, comm=comm)
        comm.barrier()
        page = comm._inspect(0)
        assert [entry["sequence"] for entry in page["operations"]] == [0, 1, 2]
        assert {entry["state"] for entry in page["operations"]} == {"done"}
        assert (page["rank"], page["world_size"], page["pid"]) == (0, 1, os.getpid())
        assert (page["left"], page["waiting"]) == (False, None)
        text = flight.dump(os.getpid())
    for words in ("allreduce(count=10, dtype=float32, op=max)", "root=0", "barrier()"):
        assert words in text


def test_the_last_256_operations() -> None:
    with cocoll.Communicator(SelfBootstrap()) as comm:
        for _ in range(300):
            comm.barrier()
        kept = [entry["sequence"] for entry in comm._inspect(0)["operations"]]
        assert kept == list(range(44, 300))
        assert comm._flight(0, 43) is None
        assert comm._flight(0, 44) is not None
        assert comm._flight(0, 300) is None


def test_nothing_is_recorded_of_a_refused_call() -> None:
    with cocoll.Communicator(SelfBootstrap()) as comm:
        with pytest.raises(UsageError):
            cocoll.allreduce("text", comm=comm)
        assert comm._inspect(0)["operations"] == []
        assert comm._flight(0, 0) is None


def test_what_failed() -> None:
    def body(comm):
        with pytest.raises(CollectiveMismatchError):
            cocoll.allreduce(np.ones(3 + comm.rank, np.float32), comm=comm)
        comm.barrier()
        return [entry["state"] for entry in comm._inspect(comm.rank)["operations"]]

    # The barrier's own record: this rank has seen its end.
    assert run_ranks(2, body) == [["failed", "done"]] * 2


def test_every_rank_of_every_communicator() -> None:
    def body(comm):
        other = comm.duplicate()
        comm.barrier()
        pages = [(page["rank"], page["world_size"]) for page in my_pages(3)]
        comm.barrier()
        other.close()
        return sorted(pages)

    assert run_ranks(3, body) == [[(rank, 3) for rank in range(3) for _ in range(2)]] * 3


def test_who_has_left() -> None:
    def body(comm):
        other = comm.duplicate()
        if comm.rank == 0:
            other.close()
        comm.barrier()
        left = [other._inspect(rank)["left"] for rank in range(2)]
        comm.barrier()
        return left

    assert run_ranks(2, body) == [[True, False]] * 2


def test_how_many_are_listed() -> None:
    # The process may have other communicators: only this one has calls of this length.
    x = np.ones(10_007, np.float32)
    with cocoll.Communicator(SelfBootstrap()) as comm:
        for _ in range(20):
            cocoll.allreduce(x, comm=comm)
        for wanted in (1, 3, 20):
            text = flight.dump(os.getpid(), operations=wanted)
            assert len(re.findall(r"\d done +allreduce\(count=10007,", text)) == wanted


def test_reading_opens_nothing_for_good() -> None:
    with cocoll.Communicator(SelfBootstrap()) as comm:
        comm.barrier()
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(20):
            flight.read_pages(os.getpid())
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def inspect(content: bytes, length: int | None = None) -> object:
    with mmap.mmap(-1, max(len(content), 1)) as memory:
        memory.write(content)
        view = ctypes.c_char.from_buffer(memory)
        found = _core.inspect_control(
            ctypes.addressof(view), len(content) if length is None else length
        )
        del view
        return found


def test_memory_that_is_no_control_page() -> None:
    assert inspect(b"\0" * (1 << 16)) is None
    assert inspect(b"cocoll0\0" + b"\0" * (1 << 16)) is None
    assert inspect(b"\xff" * (1 << 16)) is None
    assert inspect(b"", 0) is None


@pytest.mark.parametrize("pid", [1 << 22, -1])
def test_a_process_that_is_not_there(pid: int) -> None:
    with pytest.raises(UsageError, match=f"cannot read process {pid}"):
        flight.dump(pid)
