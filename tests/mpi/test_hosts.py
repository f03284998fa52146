"""MPI between hosts, on one machine: ranks that could map each other do not."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll.bootstrap import MpiBootstrap
from cocoll.errors import CollectiveMismatchError
from cocoll.wire import find_mpi
from tests.helpers.cases import Case, all_cases
from tests.helpers.misuse import check_usable, refuse
from tests.helpers.world import TUNINGS, MpiWorld

LAYOUTS = {
    2: (0, 1),
    3: (0, 1, 1),
    4: (0, 0, 1, 1),
    5: (0, 1, 0, 1, 2),
    8: (0, 1, 1, 2, 2, 2, 0, 2),
}
SIZE = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
#: One in so many cases runs each time, on one wire; numbers of ranks are chosen as for the others.
SHARE = 150
WIRES = ("direct", "persistent")

pytestmark = pytest.mark.skipif(SIZE not in LAYOUTS, reason="several ranks make several hosts")


class HostsOfOneMachine(MpiBootstrap):
    """Ranks of MPI that are said to be on several hosts."""

    def shares_host(self, peer: int) -> bool:
        hosts = LAYOUTS[self.world_size]
        return hosts[peer] == hosts[self.rank]


def cases() -> list[object]:
    """Give all cases over both wires, few of them for each run."""
    found = []
    for entry in all_cases(under_mpi=True, several_hosts=True):
        number, chosen = divmod(zlib.crc32(f"wires {entry}".encode()), len(WIRES))
        for place, wire in enumerate(WIRES):
            short = chosen == place and number % SHARE == 0
            marks = () if short else pytest.mark.long
            found.append(pytest.param(wire, entry, id=f"{wire}-{entry}", marks=marks))
    return found


@pytest.fixture(scope="module")
def host_worlds(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, str], MpiWorld]]:
    """Give the world of a wire and a tuning, a new one where the last has broken."""
    from mpi4py import MPI

    group = MPI.COMM_WORLD.Dup()
    cache_dir = Path(group.bcast(str(tmp_path_factory.mktemp("cache"))))
    alive: dict[tuple[str, str], MpiWorld] = {}

    def find(wire: str, tuning: str) -> MpiWorld:
        key = (wire, tuning)
        if key in alive and alive[key].broken:
            alive.pop(key).close()
        if key not in alive:
            alive[key] = MpiWorld(
                group,
                TUNINGS[tuning],
                cache_dir,
                bootstrap=HostsOfOneMachine(group),
                mpi_persistent=wire == "persistent",
            )
        return alive[key]

    yield find
    for world in alive.values():
        world.close()


@pytest.mark.parametrize(("wire", "entry"), cases())
def test_call(host_worlds: Callable[[str, str], MpiWorld], wire: str, entry: Case) -> None:
    for module in entry.needs:
        pytest.importorskip(module)
    host_worlds(wire, entry.tuning).run(entry.function, **entry.arguments)


def test_mpi_is_called_itself() -> None:
    from mpi4py import MPI

    functions = find_mpi(MPI)
    assert {"Isend", "Issend", "Irecv", "Test", "Cancel"} <= set(functions)
    assert all(functions.values())


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "count", [5, 1_000, 300_001, pytest.param(5_000_001, marks=pytest.mark.long)]
)
def test_what_moves_is_right(
    host_worlds: Callable[[str, str], MpiWorld], wire: str, count: int
) -> None:
    def body(comm: cocoll.Communicator) -> Any:
        assert comm.hosts == LAYOUTS[comm.world_size]
        for _ in range(3):
            x = np.arange(count, dtype=np.float64) + comm.rank
            cocoll.allreduce(x, comm=comm)
            size = comm.world_size
            assert (x == np.arange(count) * size + size * (size - 1) // 2).all()
            y = np.full(count, comm.rank, np.int32)
            cocoll.broadcast(y, size - 1, comm=comm)
            assert (y == size - 1).all()
            whole = cocoll.allgather(np.full(count, comm.rank, np.uint8), comm=comm).result()
            assert (whole == np.repeat(np.arange(size), count)).all()
        return x

    host_worlds(wire, "default").run(body)


@pytest.mark.parametrize("wire", WIRES)
def test_views_that_are_no_run_of_bytes(
    host_worlds: Callable[[str, str], MpiWorld], wire: str
) -> None:
    def body(comm: cocoll.Communicator) -> Any:
        base = np.zeros((301, 302))
        view = base.T[::-2, ::3]
        view[...] = np.arange(view.size).reshape(view.shape) + comm.rank
        wanted = np.arange(view.size).reshape(view.shape) * comm.world_size
        cocoll.allreduce(view, comm=comm)
        assert (view == wanted + sum(range(comm.world_size))).all()
        cocoll.broadcast(view, 1, comm=comm)
        outside = np.ones(base.shape, bool)
        outside.T[::-2, ::3] = False
        assert (base[outside] == 0).all()
        return np.ascontiguousarray(view)

    host_worlds(wire, "small").run(body)


@pytest.mark.parametrize("wire", WIRES)
def test_ranks_that_disagree(host_worlds: Callable[[str, str], MpiWorld], wire: str) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for turn in range(4):
            x = np.ones(100 + (comm.rank == turn % comm.world_size), np.float32)
            error = refuse(
                lambda x=x: cocoll.allreduce(x, comm=comm),
                CollectiveMismatchError,
                "count=100",
                "count=101",
                arrays=[x],
            )
            assert set(error.requests) == set(range(comm.world_size))
            check_usable(comm)

    host_worlds(wire, "default").run(body)


@pytest.mark.parametrize("wire", WIRES)
def test_waiting_for_a_slow_host_costs_little(
    host_worlds: Callable[[str, str], MpiWorld], wire: str
) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = np.ones(300_001, np.float32)
        cocoll.allreduce(x, "max", comm=comm)
        if comm.rank == comm.world_size - 1:
            time.sleep(1.0)
        before = time.process_time()
        cocoll.allreduce(x, "max", comm=comm)
        assert time.process_time() - before < 0.2

    host_worlds(wire, "default").run(body)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("times", [3, pytest.param(120, marks=pytest.mark.long)])
def test_many_communicators(
    host_worlds: Callable[[str, str], MpiWorld], wire: str, times: int
) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for turn in range(times):
            with comm.duplicate() as child:
                check_usable(child)
            part = comm.split(comm.rank * (turn % 2) % 2, key=-comm.rank)
            assert part is not None
            with part:
                check_usable(part)

    host_worlds(wire, "default").run(body)
