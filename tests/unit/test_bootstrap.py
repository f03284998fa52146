"""How ranks find each other, and what becomes of one that comes late, twice or as another."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cocoll import bootstrap
from cocoll.bootstrap import (
    LAUNCHER_VARIABLES,
    Bootstrap,
    DerivedBootstrap,
    MpiBootstrap,
    SelfBootstrap,
    SocketBootstrap,
    StoreBootstrap,
    ThreadBootstrap,
    TorchBootstrap,
    choose_bootstrap,
    find_launcher,
)
from cocoll.errors import (
    CommTimeoutError,
    PeerLostError,
    RankError,
    UnsupportedError,
    UsageError,
)


def run_threads(*bodies: Callable[[], Any]) -> list[Any]:
    """Give what each body returned or raised."""
    results: list[Any] = [None] * len(bodies)

    def run(index: int) -> None:
        try:
            results[index] = bodies[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a path short enough for a socket; nothing may be left at it."""
    folder = tmp_path_factory.mktemp("s")
    yield folder / "ranks"
    assert list(folder.iterdir()) == []


def attend(
    path: Path,
    rank: int,
    world_size: int,
    body: Callable[[SocketBootstrap], Any] = lambda made: made.allgather(b"x"),
    timeout_seconds: float = 60.0,
) -> Any:
    """Be one rank, for as long as `body` lasts."""
    made = SocketBootstrap(path, rank, world_size, timeout_seconds=timeout_seconds)
    with contextlib.closing(made):
        return body(made)


def meet(path: Path, world_size: int, body: Callable[[SocketBootstrap], Any]) -> list[Any]:
    """Give what each rank of a world makes of `body`."""
    return run_threads(
        *(functools.partial(attend, path, rank, world_size, body) for rank in range(world_size))
    )


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_socket_allgather(path: Path, world_size: int) -> None:
    def body(made: SocketBootstrap) -> list[list[bytes]]:
        rounds = [
            made.allgather(bytes([made.rank]) * length * made.rank) for length in (1, 0, 3_000_000)
        ]
        made.barrier()
        return rounds

    expected = [
        [bytes([rank]) * length * rank for rank in range(world_size)]
        for length in (1, 0, 3_000_000)
    ]
    assert meet(path, world_size, body) == [expected] * world_size


def test_socket_over_a_stale_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    assert meet(path, 2, lambda made: made.allgather(b"x")) == [[b"x", b"x"]] * 2


@pytest.mark.parametrize("rank", [-1, 2, 7])
def test_socket_rank_outside(path: Path, rank: int) -> None:
    with pytest.raises(RankError, match=rf"\[0, 2\).*{rank}"):
        SocketBootstrap(path, rank, 2)


def test_socket_missing_ranks(path: Path) -> None:
    first, _ = run_threads(
        lambda: attend(path, 0, 4, timeout_seconds=0.2),
        lambda: attend(path, 2, 4, timeout_seconds=20.0),
    )
    assert isinstance(first, CommTimeoutError)
    assert isinstance(first, TimeoutError)
    assert first.ranks == (1, 3)
    assert "rank 1, 3 did not come" in str(first)


def test_socket_without_rank_0(path: Path) -> None:
    with pytest.raises(CommTimeoutError, match="rank 0 did not come") as caught:
        SocketBootstrap(path, 1, 2, timeout_seconds=0.05)
    assert caught.value.ranks == (0,)


def test_socket_late_rank_is_waited_for(path: Path) -> None:
    arrived = threading.Event()

    def late() -> list[bytes]:
        assert arrived.wait(60)
        return attend(path, 1, 2, lambda made: made.allgather(b"late"))

    def first() -> list[bytes]:
        watch = threading.Thread(target=lambda: (wait_for(path), arrived.set()))
        watch.start()
        gathered = attend(path, 0, 2, lambda made: made.allgather(b"first"))
        watch.join()
        return gathered

    assert run_threads(first, late) == [[b"first", b"late"]] * 2


def wait_for(path: Path) -> None:
    while not path.exists():
        threading.Event().wait(0.001)


def test_socket_two_processes_of_one_rank(path: Path) -> None:
    first, *others = run_threads(*(functools.partial(attend, path, rank, 3) for rank in (0, 1, 1)))
    assert isinstance(first, RankError)
    assert "second rank 1" in str(first)
    assert all(isinstance(other, PeerLostError) for other in others)
    assert all(other.rank == 0 for other in others)


def test_socket_worlds_of_different_size(path: Path) -> None:
    first, other = run_threads(lambda: attend(path, 0, 2), lambda: attend(path, 2, 3))
    assert isinstance(first, RankError)
    assert "world of 2 ranks; got rank 2 of 3" in str(first)
    assert isinstance(other, PeerLostError)


def greet(path: Path, data: bytes) -> None:
    wait_for(path)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(path))
        link.sendall(data)


def test_socket_rank_that_dies_as_it_comes(path: Path) -> None:
    first, _ = run_threads(lambda: attend(path, 0, 2), lambda: greet(path, b"half"))
    assert isinstance(first, PeerLostError)


def test_socket_rank_that_dies_later(path: Path) -> None:
    header = struct.Struct("<qq")
    first, _ = run_threads(
        lambda: attend(path, 0, 2),
        lambda: greet(path, header.pack(1, 2) + header.pack(10, 0) + b"half"),
    )
    assert isinstance(first, PeerLostError)
    assert first.rank == 1
    assert "rank 0 lost rank 1" in str(first)


def test_socket_rank_that_is_silent(path: Path) -> None:
    silent = threading.Event()

    def other() -> None:
        attend(path, 1, 2, lambda _: silent.wait(60))

    def first() -> None:
        try:
            attend(path, 0, 2, timeout_seconds=0.5)
        finally:
            silent.set()

    found, _ = run_threads(first, other)
    assert isinstance(found, CommTimeoutError)
    assert found.ranks == (1,)


def test_socket_waits_anew_for_each_step(path: Path) -> None:
    # The time since the connection was made is not time that a rank has been waited for.
    def body(made: SocketBootstrap) -> list[bytes]:
        made._deadline = 0.0
        return made.allgather(b"x")

    assert meet(path, 2, body) == [[b"x", b"x"]] * 2


def test_socket_path_too_long(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="TMPDIR"):
        SocketBootstrap(tmp_path / ("x" * 120), 0, 1)


def test_socket_infinite_patience(path: Path) -> None:
    ranks = [functools.partial(attend, path, rank, 2) for rank in range(2)]
    forever = [functools.partial(rank, timeout_seconds=float("inf")) for rank in ranks]
    assert run_threads(*forever) == [[b"x", b"x"]] * 2


@pytest.mark.parametrize("timeout_seconds", [60.0, float("inf")])
def test_threads(timeout_seconds: float) -> None:
    made = ThreadBootstrap.create(3, timeout_seconds)
    rounds = run_threads(*(lambda b=b: b.allgather(bytes([b.rank])) for b in made))
    assert rounds == [[b"\0", b"\1", b"\2"]] * 3


def test_a_thread_that_does_not_come() -> None:
    made = ThreadBootstrap.create(2, 0.05)
    with pytest.raises(PeerLostError, match=r"did not come within 0\.05 s"):
        made[0].barrier()


def test_a_thread_that_gives_up() -> None:
    made = ThreadBootstrap.create(2, 60.0)
    found, _ = run_threads(lambda: made[0].allgather(b""), made[1].give_up)
    assert isinstance(found, PeerLostError)


def test_a_part_of_a_world() -> None:
    calls = []

    def exchange(data: bytes) -> list[bytes]:
        calls.append(data)
        return [b"a", b"b", b"c", b"d"]

    made = DerivedBootstrap(exchange, [3, 1], 1)
    assert (made.rank, made.world_size) == (1, 2)
    assert made.allgather(b"mine") == [b"d", b"b"]
    made.barrier()
    assert calls == [b"mine", b""]


def test_all_are_bootstraps() -> None:
    for made in (SelfBootstrap(), ThreadBootstrap.create(1)[0], DerivedBootstrap(list, [0], 0)):
        assert isinstance(made, Bootstrap)
        assert choose_bootstrap(made, {"OMPI_COMM_WORLD_SIZE": "4"}) is made


class FakeMpi:
    def Get_rank(self) -> int:
        return 1

    def Get_size(self) -> int:
        return 3

    def allgather(self, data: bytes) -> list[bytes]:
        return [b"", data, b""]

    def Barrier(self) -> None:
        self.waited = True


def test_an_mpi_communicator() -> None:
    comm = FakeMpi()
    made = choose_bootstrap(comm, {})
    assert isinstance(made, MpiBootstrap)
    assert (made.rank, made.world_size, made.allgather(b"x")) == (1, 3, [b"", b"x", b""])
    made.barrier()
    assert comm.waited


def test_no_launcher_is_a_world_of_one() -> None:
    made = choose_bootstrap(None, {"PATH": "/bin"})
    assert isinstance(made, SelfBootstrap)
    assert (made.rank, made.world_size, made.allgather(b"x")) == (0, 1, [b"x"])
    made.barrier()


@pytest.mark.parametrize("variable", LAUNCHER_VARIABLES)
def test_a_launcher_without_mpi4py(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UnsupportedError, match=r"cocoll\[mpi\]") as caught:
        choose_bootstrap(None, {variable: "4"})
    assert variable in str(caught.value)


def test_torchrun_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    # Four worlds of one would look like one of four.
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    under_torchrun = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "4"}
    with pytest.raises(UsageError, match="MASTER_ADDR, MASTER_PORT is not set"):
        choose_bootstrap(None, under_torchrun)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with pytest.raises(UnsupportedError, match="torch cannot be imported"):
        choose_bootstrap(None, {**under_torchrun, **address})


def test_torchrun_before_there_is_a_group() -> None:
    pytest.importorskip("torch")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def visit(rank: int) -> list[list[bytes]]:
        environ = {
            "TORCHELASTIC_RUN_ID": "none", "RANK": str(rank), "WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        seen = []
        made = choose_bootstrap(None, environ)
        assert isinstance(made, StoreBootstrap)
        assert (made.rank, made.world_size) == (rank, 3)
        for turn in range(3):
            seen.append(made.allgather(f"{turn} {rank}".encode()))
            made.barrier()
        return seen

    results = run_threads(*(functools.partial(visit, rank) for rank in range(3)))
    wanted = [[f"{turn} {rank}".encode() for rank in range(3)] for turn in range(3)]
    assert results == [wanted] * 3


def test_torchrun_with_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(
        is_initialized=lambda: True, get_rank=lambda group: 1, get_world_size=lambda group: 4
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=fake))
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)
    made = choose_bootstrap(None, {"TORCHELASTIC_RUN_ID": "none"})
    assert isinstance(made, TorchBootstrap)
    assert (made.rank, made.world_size) == (1, 4)
    mpi = SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=FakeMpi()))
    monkeypatch.setitem(sys.modules, "mpi4py", mpi)
    both = {"TORCHELASTIC_RUN_ID": "none", LAUNCHER_VARIABLES[0]: "4"}
    assert isinstance(choose_bootstrap(None, both), MpiBootstrap)


@pytest.mark.parametrize("variable", LAUNCHER_VARIABLES)
def test_a_launcher_with_mpi4py(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakeMpi()
    monkeypatch.setitem(
        sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=world))
    )
    made = choose_bootstrap(None, {variable: "4"})
    assert isinstance(made, MpiBootstrap)
    assert made._comm is world


@pytest.mark.parametrize("variable", LAUNCHER_VARIABLES)
def test_whose_end_is_a_rank_s(variable: str) -> None:
    launched = MpiBootstrap(FakeMpi())
    assert find_launcher(launched, {variable: "4"}) == os.getppid()
    assert find_launcher(launched, {}) == 0
    assert find_launcher(SelfBootstrap(), {variable: "4"}) == 0


@pytest.mark.parametrize("given", [3, "world", object()], ids=lambda given: type(given).__name__)
def test_what_ranks_cannot_meet_through(given: object) -> None:
    with pytest.raises(UsageError, match=type(given).__name__):
        choose_bootstrap(given, {})


def test_the_launchers_that_are_known() -> None:
    assert {name.split("_")[0] for name in LAUNCHER_VARIABLES} == {"OMPI", "PMI", "PMIX"}
    assert bootstrap.__all__ == sorted(bootstrap.__all__)
    assert os.environ.keys().isdisjoint(LAUNCHER_VARIABLES)
