"""Several hosts: ranks that disagree, and worlds that cannot be; all ranks are told, none hangs."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll import _core, epilogues
from cocoll.bootstrap import SocketBootstrap, ThreadBootstrap
from cocoll.connection import check_topology, number_hosts
from cocoll.errors import (
    CocollError,
    CollectiveMismatchError,
    RankError,
    SignalMismatchError,
    TopologyError,
    UnsupportedError,
    UsageError,
)
from cocoll.plan import Builder, Flag, Plan
from cocoll.testing import run_ranks
from cocoll.topology import load_topology
from cocoll.wire import MpiCarrier, ThreadCarrier
from tests.helpers.misuse import check_usable, refuse
from tests.helpers.threads import Ended, run_threads
from tests.helpers.topologies import make_hosts

LAYOUTS = [(0, 0, 1, 1), (0, 1), (0, 1, 2), (0, 1, 0, 1, 2)]
Ask = Callable[[cocoll.Communicator], tuple[Callable[[], object], list[np.ndarray]]]


# ---- ranks that disagree ----


def disagree(
    hosts: Sequence[int], odd: int, first: Ask, others: Ask, words: tuple[str, str]
) -> None:
    """Let rank `odd` ask for something else; all are told `words` of it and of the others."""

    def body(comm: cocoll.Communicator) -> None:
        for turn in range(2):
            call, arrays = (first if comm.rank == odd else others)(comm)
            error = refuse(
                call,
                CollectiveMismatchError,
                "asked for different operations",
                "nothing has moved",
                arrays=arrays,
            )
            assert error.sequence == 3 * turn
            assert set(error.requests) == set(range(len(hosts)))
            for rank, request in error.requests.items():
                assert words[rank != odd] in request
                assert f"rank {rank}: {request}" in str(error)
            check_usable(comm)
            check_usable(comm)

    run_ranks(len(hosts), body, hosts=hosts, seed=odd)


def reduce(count: int, dtype: object = np.float32, **options: Any) -> Ask:
    def ask(comm: cocoll.Communicator) -> tuple[Callable[[], object], list[np.ndarray]]:
        x = np.ones(count, dtype) * (comm.rank + 1)
        return lambda: cocoll.allreduce(x, comm=comm, **options), [x]

    return ask


def broadcast(count: int, root: int) -> Ask:
    def ask(comm: cocoll.Communicator) -> tuple[Callable[[], object], list[np.ndarray]]:
        x = np.full(count, comm.rank + 1, np.float32)
        return lambda: cocoll.broadcast(x, root, comm=comm), [x]

    return ask


def scale(
    comm: cocoll.Communicator, factor: float
) -> tuple[Callable[[], object], list[np.ndarray]]:
    x = np.ones(1000, np.float32)
    return lambda: cocoll.allreduce_fused(x, epilogues.scale(factor), comm=comm), [x]


DISAGREEMENTS = [
    pytest.param(reduce(5), reduce(6), ("count=5", "count=6"), id="small"),
    pytest.param(reduce(70_001), reduce(70_002), ("70001", "70002"), id="large"),
    pytest.param(reduce(50, op="max"), reduce(50), ("op=max", "op=sum"), id="op"),
    pytest.param(reduce(50, np.int32), reduce(50), ("int32", "float32"), id="dtype"),
    pytest.param(broadcast(900, 1), broadcast(900, 0), ("root=1", "root=0"), id="root"),
    pytest.param(broadcast(900, 1), reduce(900), ("broadcast", "allreduce"), id="kind"),
    pytest.param(
        lambda comm: (comm.barrier, []), reduce(0), ("barrier()", "allreduce"), id="barrier"
    ),
    pytest.param(
        lambda comm: scale(comm, 2.0),
        lambda comm: scale(comm, 3.0),
        ("allreduce_fused", "allreduce_fused"),
        id="epilogue",
    ),
]


def share_out() -> Iterator[object]:
    """Give every disagreement on every layout; each run takes half of them, on one each."""
    for number, disagreement in enumerate(DISAGREEMENTS):
        for place, (hosts, odd) in enumerate(itertools.product(LAYOUTS, (0, -1))):
            marks = () if place == number % 8 and number % 2 == 0 else pytest.mark.long
            name = f"{disagreement.id}-{''.join(map(str, hosts))}-{odd}"
            yield pytest.param(hosts, odd, *disagreement.values, id=name, marks=marks)


@pytest.mark.parametrize(("hosts", "odd", "first", "others", "words"), list(share_out()))
def test_ranks_that_disagree(
    hosts: tuple[int, ...], odd: int, first: Ask, others: Ask, words: tuple[str, str]
) -> None:
    disagree(hosts, odd % len(hosts), first, others, words)


def test_a_whole_host_that_disagrees() -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = np.ones(100 + comm.hosts[comm.rank], np.float32)
        error = refuse(lambda: cocoll.allreduce(x, comm=comm), CollectiveMismatchError, arrays=[x])
        wanted = {rank: f"count={100 + host}," for rank, host in enumerate((0, 0, 1, 1, 2))}
        assert all(wanted[rank] in request for rank, request in error.requests.items())
        check_usable(comm)

    run_ranks(5, body, hosts=(0, 0, 1, 1, 2))


def test_disagreements_on_streams_are_told_apart() -> None:
    def body(comm: cocoll.Communicator) -> None:
        with cocoll.Stream() as stream:
            works = [
                cocoll.allreduce(
                    np.ones(10 * turn + comm.rank % 2, np.float32), comm=comm, stream=stream
                )
                for turn in range(1, 40)
            ]
            # The first ones are looked at when the others have failed too.
            for turn, work in enumerate(works, 1):
                error = work.exception()
                assert isinstance(error, CollectiveMismatchError)
                if turn < 8:
                    # The recorder has places for so many operations only.
                    continue
                assert f"count={10 * turn}," in error.requests[0]
                assert f"count={10 * turn + 1}," in error.requests[3]
        check_usable(comm)

    run_ranks(4, body, hosts=(0, 0, 1, 1))


def test_memory_that_hosts_disagree_about() -> None:
    def body(comm: cocoll.Communicator) -> None:
        refuse(lambda: comm.empty(10 + comm.hosts[comm.rank]), CollectiveMismatchError)
        refuse(
            lambda: comm.empty(10) if comm.rank == 0 else comm.duplicate(), CollectiveMismatchError
        )
        check_usable(comm)
        assert comm.empty(10).shape == (10,)

    run_ranks(3, body, hosts=(0, 1, 1))


# ---- plans of the caller's own ----


def pair_plan(rank: int, world_size: int, *, tag: int = 0, itemsize: int = 4) -> Plan:
    """Rank 0 sends to the last rank, which expects `tag` and elements of `itemsize`."""
    builder = Builder(rank, world_size, name="pair")
    with builder.lane("wire"):
        if rank == 0:
            builder.send(peer=world_size - 1, source=builder.source(itemsize_bytes=4))
        elif rank == world_size - 1:
            result = builder.result(itemsize_bytes=itemsize)
            builder.recv(peer=0, destination=result, tag=tag)
    return builder.build()


def bind_and_run(planner: Callable[[int, int], Plan]) -> Callable[[cocoll.Communicator], Any]:
    def body(comm: cocoll.Communicator) -> Any:
        x, out = np.full(9, comm.rank + 1.0, np.float32), np.zeros(9, np.float32)
        comm.bind_plan(planner, x, out=out)()
        check_usable(comm)
        return out

    return body


def test_messages_of_a_bound_plan_arrive() -> None:
    found = run_ranks(4, bind_and_run(pair_plan), hosts=(0, 0, 1, 1))
    assert [int(out.sum()) for out in found] == [0, 0, 0, 9]


@pytest.mark.parametrize(
    ("options", "told"), [({"tag": 3}, "receives 0 times"), ({"itemsize": 8}, "bytes")]
)
def test_messages_of_a_bound_plan_that_do_not_match(options: dict[str, int], told: str) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x, out = np.ones(9, np.float32), np.zeros(9, np.float32)
        with pytest.raises(CocollError) as caught:
            comm.bind_plan(lambda rank, size: pair_plan(rank, size, **options), x, out=out)
        assert isinstance(caught.value, SignalMismatchError)
        assert told in str(caught.value)
        check_usable(comm)

    run_ranks(2, body, hosts=(0, 1))


def test_a_bound_plan_that_signals_another_host() -> None:
    def planner(rank: int, world_size: int) -> Plan:
        builder = Builder(rank, world_size, name="signals")
        with builder.lane("wire"):
            builder.signal(peer=1 - rank, flag=Flag.USER)
            builder.wait(peer=1 - rank, flag=Flag.USER)
        return builder.build()

    def body(comm: cocoll.Communicator) -> None:
        refuse(lambda: comm.bind_plan(planner, np.ones(3)), UsageError, "another host")
        check_usable(comm)

    run_ranks(2, body, hosts=(0, 1))


def test_messages_need_a_wire() -> None:
    def body(comm: cocoll.Communicator) -> None:
        refuse(lambda: comm.bind_plan(pair_plan, np.ones(3, np.float32)), UsageError, "wire")
        check_usable(comm)

    run_ranks(2, body)


# ---- how ranks meet ----


class TwoHosts(SocketBootstrap):
    """Processes of one host that say they are of two."""

    def shares_host(self, peer: int) -> bool:
        return peer == self.rank


def test_hosts_without_anything_between_them(tmp_path: Path) -> None:
    path = Path("/tmp") / f"ck{abs(hash(tmp_path)) % 10**6}"

    def body(rank: int) -> None:
        bootstrap = TwoHosts(path, rank, 2, timeout_seconds=60.0)
        try:
            cocoll.Communicator(bootstrap, timeout_seconds=60.0)
        finally:
            bootstrap.close()

    for ended in run_threads(2, body):
        assert type(ended.error) is UnsupportedError
        assert "2 hosts, and TwoHosts has nothing that carries messages" in str(ended.error)
        assert "start them under MPI, with mpi4py (cocoll[mpi])" in str(ended.error)


@pytest.mark.parametrize(
    ("mapped", "hosts"),
    [
        ([[1]], (0,)),
        ([[1, 1], [1, 1]], (0, 0)),
        ([[1, 0], [0, 1]], (0, 1)),
        ([[1, 0, 1], [0, 1, 0], [1, 0, 1]], (0, 1, 0)),
        ([[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]], (0, 1, 1, 0)),
    ],
)
def test_who_maps_whom_makes_hosts(mapped: list[list[bool]], hosts: tuple[int, ...]) -> None:
    assert number_hosts(mapped) == hosts


@pytest.mark.parametrize(
    ("mapped", "pair"),
    [
        ([[1, 1], [0, 1]], (0, 1)),
        ([[1, 0], [1, 1]], (0, 1)),
        # 0 and 1 share, 1 and 2 share, and 0 and 2 do not.
        ([[1, 1, 0], [1, 1, 1], [0, 1, 1]], None),
    ],
)
def test_mapping_that_is_no_partition(
    mapped: list[list[bool]], pair: tuple[int, int] | None
) -> None:
    with pytest.raises(UnsupportedError, match="/proc") as caught:
        number_hosts(mapped)
    assert pair is None or all(str(rank) in str(caught.value) for rank in pair)


def test_a_rank_that_maps_its_neighbour_and_is_not_mapped() -> None:
    class OneWay(ThreadBootstrap):
        def shares_host(self, peer: int) -> bool:
            return self.rank == 0 or peer == self.rank

    made = ThreadBootstrap.create(2, 60.0)
    ends = run_threads(
        2, lambda rank: cocoll.Communicator(OneWay(made[rank]._group, rank), timeout_seconds=60.0)
    )
    for ended in ends:
        assert type(ended.error) is UnsupportedError
        assert "one view of /proc" in str(ended.error)


def test_hosts_of_another_number_of_ranks() -> None:
    with pytest.raises(UsageError, match="host of each of 3 ranks; got 2"):
        ThreadBootstrap.create(3, hosts=(0, 1))


def test_more_communicators_than_tags() -> None:
    carrier = ThreadCarrier(_core.ThreadNetwork(2), (0, 1))
    carrier.open(0, 5, persistent=False)
    assert carrier.next_number == 6
    assert carrier.derive([1]).next_number == 6
    carrier.open(0, 1, persistent=False)
    assert carrier.next_number == 6
    with pytest.raises(UnsupportedError, match="Keep communicators and use them again"):
        carrier.open(0, 1 << 20, persistent=False)


@pytest.mark.parametrize("level", ["SINGLE", "FUNNELED", "SERIALIZED"])
def test_mpi_without_threads(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    mpi = types.ModuleType("mpi4py.MPI")
    levels = {"SINGLE": 0, "FUNNELED": 1, "SERIALIZED": 2, "MULTIPLE": 3}
    for name, value in levels.items():
        setattr(mpi, f"THREAD_{name}", value)
    mpi.Query_thread = lambda: levels[level]  # type: ignore[attr-defined]
    package = types.ModuleType("mpi4py")
    package.MPI = mpi  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
    with pytest.raises(UnsupportedError, match=r"MPI_THREAD_MULTIPLE.*mpi4py.rc.thread_level"):
        MpiCarrier(object())


def test_ranks_that_cannot_open_their_wire_tell_all() -> None:
    class Silent(ThreadBootstrap):
        def make_carrier(self) -> Any:
            if self.rank == 1:
                raise UnsupportedError("this rank's MPI has no threads")
            return super().make_carrier()

    made = ThreadBootstrap.create(3, 60.0, hosts=(0, 1, 1))
    ends = run_threads(
        3, lambda rank: cocoll.Communicator(Silent(made[rank]._group, rank), timeout_seconds=60.0)
    )
    for ended in ends:
        assert type(ended.error) is UnsupportedError
        assert "rank 1: this rank's MPI has no threads" in str(ended.error)


# ---- topologies ----


def make_with(hosts: Sequence[int] | None, size: int, spec: Sequence[str | None]) -> list[Ended]:
    """Make a communicator whose rank r has COCOLL_TOPOLOGY `spec[r]`; give what became of it."""
    made = ThreadBootstrap.create(size, 60.0, hosts=hosts)

    def body(rank: int) -> Any:
        settings = {} if spec[rank] is None else {"topology": spec[rank]}
        with cocoll.Communicator(made[rank], timeout_seconds=60.0, **settings) as comm:
            check_usable(comm)
            return comm.topology

    return run_threads(size, body)


def refuse_topology(ends: list[Ended], *words: str) -> None:
    for ended in ends:
        assert type(ended.error) is TopologyError, ended
        for word in words:
            assert word in str(ended.error), str(ended.error)


def saved(tmp_path: Path, name: str, ranks: list[int], **options: Any) -> str:
    path = tmp_path / f"{name}.json"
    path.write_text(make_hosts(ranks, **options).to_json())
    return str(path)


def test_a_topology_that_is_right(tmp_path: Path) -> None:
    spec = saved(tmp_path, "right", [2, 1], rates=[10**9, 10**8])
    for ended in make_with((0, 0, 1), 3, [spec] * 3):
        assert ended.error is None
        assert ended.value.world_size == 3
        assert ended.value.hosts_by_rank == (0, 0, 1)
        assert ended.value.digest() == load_topology(spec).digest()


def test_a_topology_of_a_larger_job_is_cut(tmp_path: Path) -> None:
    spec = saved(tmp_path, "larger", [2, 2])
    for ended in make_with((0, 0, 1), 3, [spec] * 3):
        assert ended.error is None
        assert ended.value.hosts_by_rank == (0, 0, 1)


def test_unequal_topologies(tmp_path: Path) -> None:
    one = saved(tmp_path, "one", [1, 1])
    other = saved(tmp_path, "other", [1, 1], rates=[10**9, 2 * 10**9])
    words = ("one topology on all ranks", "rank 0 and rank 1", "Give all ranks the same file")
    refuse_topology(make_with((0, 1), 2, [one, other]), *words)
    refuse_topology(make_with((0, 1), 2, [one, None]), *words)


def test_more_ranks_than_the_topology_knows(tmp_path: Path) -> None:
    spec = saved(tmp_path, "small", [1, 1])
    refuse_topology(
        make_with((0, 1, 1), 3, [spec] * 3), "knows 2 ranks, and the job has 3", "start fewer"
    )


@pytest.mark.parametrize(
    ("hosts", "ranks", "told"),
    [
        ((0, 1), [2], "ranks 0 and 1 share a host"),
        (None, [1, 1], "ranks 0 and 1 are on different hosts"),
        ((0, 1, 1), [2, 1], "ranks 0 and 1 share a host"),
    ],
)
def test_hosts_that_are_not_those_of_the_topology(
    tmp_path: Path, hosts: tuple[int, ...] | None, ranks: list[int], told: str
) -> None:
    size = sum(ranks)
    spec = saved(tmp_path, "other", ranks)
    ends = make_with(hosts, size, [spec] * size)
    refuse_topology(ends, told, "whose memory they map", "other.json")


@pytest.mark.parametrize(
    ("text", "word"),
    [("{", "line 1"), ('{"hosts": 3}', "hosts"), ("[]", "bad.json"), ("", "bad.json")],
)
def test_a_bad_topology_on_one_rank(tmp_path: Path, text: str, word: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    good = saved(tmp_path, "good", [1, 1])
    refuse_topology(make_with((0, 1), 2, [good, str(bad)]), "rank 1", word)


def test_no_such_topology(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.json")
    refuse_topology(make_with((0, 1), 2, [missing] * 2), "rank 0", "missing.json")


def test_a_topology_that_is_checked_without_ranks() -> None:
    topology = make_hosts([2, 2])
    assert check_topology(topology, (0, 0, 1, 1)) is topology
    # Numbers of hosts need not be equal, who shares one must be.
    assert check_topology(topology, (1, 1, 0)).world_size == 3
    with pytest.raises(TopologyError, match="ranks 0 and 2"):
        check_topology(topology, (0, 0, 0, 1))


def test_a_root_on_no_host() -> None:
    def body(comm: cocoll.Communicator) -> None:
        refuse(lambda: cocoll.broadcast(np.ones(3), 2, comm=comm), RankError, "2")
        check_usable(comm)

    run_ranks(2, body, hosts=(0, 1))
