"""Ranks on several hosts: mapped GPU memory inside a host, NCCL between hosts; all emulated."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.algorithms import ReduceSpec, hierarchical, two_shot
from cocoll.algorithms.hierarchy import Hierarchy
from cocoll.algorithms.ordered_hosts import plan_allreduce_ordered
from cocoll.cuda.binding import Operation
from cocoll.device.launches import add_copy
from cocoll.errors import (
    AbortedError,
    CocollError,
    CollectiveMismatchError,
    CudaError,
    NcclError,
    ScheduleError,
    UnsupportedError,
    UsageError,
)
from cocoll.plan import Aliasing, Buffer, Builder, Plan, Relation, verify
from cocoll.testing import run_ranks
from tests.helpers.on_device import (
    MEMORIES,
    TUNING,
    Watch,
    fill,
    gpu_stream,
    make_array,
    put,
    same_bits,
)

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit
    from cocoll.testing.graphs import Graphs

LAYOUTS = ((0, 0, 1), (0, 0, 1, 1), (0, 1, 2), (0, 1, 0, 1), (0, 0, 0, 1, 1))
USUAL = LAYOUTS[0]
# So low that a few thousand elements are many chunks, and none of NCCL's own ways.
TUNING_HOSTS = replace(
    TUNING, gpu_ll_bytes=0, gpu_one_shot_bytes=128, gpu_window_bytes=1 << 16, gpu_native_bytes=0
)
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}

Run = Callable[..., list[Any]]


def layouts(*more: Any, usual: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Give all layouts with all of other arguments; those that are not `usual` run long."""
    return [
        pytest.param(
            *case,
            id="-".join(str(one) for one in ("".join(map(str, case[0])), *case[1:])),
            marks=() if case in usual else pytest.mark.long,
        )
        for case in itertools.product(LAYOUTS, *more)
    ]


@pytest.fixture
def on_hosts(toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give what runs ranks that have a GPU each, on hosts whose GPUs do not reach each other."""

    def run(
        hosts: Sequence[int],
        body: Callable[[cocoll.Communicator], Any],
        *,
        tuning: cocoll.Tuning = TUNING_HOSTS,
        **more: Any,
    ) -> list[Any]:
        monkeypatch.setenv("COCOLL_EMULATED_DEVICES", f"{len(hosts)}")
        monkeypatch.setenv("COCOLL_EMULATED_HOSTS", ",".join(map(str, hosts)))

        def with_gpu(comm: cocoll.Communicator) -> Any:
            comm.empty(1, device=f"cuda:{comm.rank}")
            return body(comm)

        return run_ranks(len(hosts), with_gpu, hosts=hosts, toolkit=toolkit, tuning=tuning, **more)

    return run


def wide(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if values.dtype == np.uint16:  # bfloat16
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


def check_reduced(
    found: np.ndarray[Any, Any], columns: Sequence[np.ndarray[Any, Any]], op: str, dtype: str
) -> None:
    """Compare with float64; partial sums round to the type once a host."""
    inputs = [wide(column) for column in columns]
    if op in ("min", "max"):
        same_bits(found, getattr(np, f"{op}imum").reduce(list(columns)))
        return
    exact, scale = sum(inputs), sum(np.abs(column) for column in inputs)
    if op == "prod":
        exact = scale = np.prod(inputs, axis=0)
    elif op == "avg":
        exact, scale = exact / len(inputs), scale / len(inputs)
    if dtype not in EPS:
        assert (wide(found) == np.trunc(exact)).all()
        return
    bound = len(inputs) * EPS[dtype] * np.abs(scale) + (2.0**-23 if dtype == "float16" else 0)
    assert (np.abs(wide(found) - exact) <= bound).all()


REDUCED = [
    ("float32", "sum", 5003),
    ("bfloat16", "avg", 4001),
    ("int64", "sum", 3001),
    ("int32", "avg", 3001),
    ("float64", "max", 2500),
    ("float16", "prod", 2001),
    ("float32", "sum", 17),
    ("float32", "sum", 0),
    ("float32", "sum", 1),
]


@pytest.mark.parametrize(
    ("hosts", "memory"),
    layouts(MEMORIES, usual=[(USUAL, "ordinary"), ((0, 1, 0, 1), "symmetric")]),
)
def test_allreduce(hosts: tuple[int, ...], memory: str, on_hosts: Run) -> None:
    def body(comm: cocoll.Communicator) -> list[bytes]:
        found = []
        for number, (dtype, op, count) in enumerate(REDUCED):
            values = fill(comm.rank, (count,), dtype, number)
            x = put(comm, values, memory)
            out = make_array(comm, (count,), dtype, memory) if number % 2 else None
            run = comm.bind(cocoll.allreduce, x, op, out=out)
            # Averages of integers are exact only in rank order.
            small = (dtype, op) == ("int32", "avg") or count < 20
            assert run.algorithm == ("wire_two_shot" if small else "hierarchical")
            run().wait()
            got = (x if out is None else out).get()
            columns = [fill(rank, (count,), dtype, number) for rank in range(comm.world_size)]
            check_reduced(got, columns, op, dtype)
            if out is not None:
                same_bits(x.get(), values)
            found.append(got.tobytes())
        return found

    results = on_hosts(hosts, body)
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize(
    ("hosts", "layout", "memory"),
    layouts(
        ("block", "shard"),
        MEMORIES,
        usual=[(USUAL, "block", "symmetric"), (USUAL, "shard", "ordinary")],
    ),
)
def test_reduce_scatter_and_allgather(
    hosts: tuple[int, ...], layout: Any, memory: str, on_hosts: Run
) -> None:
    def body(comm: cocoll.Communicator) -> None:
        world_size = comm.world_size
        for number, count in enumerate((0, 12 * 5, 4002 * 5 * 2)):
            columns = [fill(rank, (count,), "float32", number) for rank in range(world_size)]
            block = count // world_size
            start, stop = comm.rank * block, (comm.rank + 1) * block
            if layout == "shard":
                start, stop = comm.shard_range(count)
            x = put(comm, columns[comm.rank], memory)
            out = make_array(comm, (stop - start,), "float32", "ordinary")
            cocoll.reduce_scatter(x, out=out, layout=layout).wait()
            check_reduced(out.get(), [column[start:stop] for column in columns], "sum", "float32")
            whole = make_array(comm, (count,), "float32", memory)
            own = put(comm, columns[0][start:stop], "ordinary")
            run = comm.bind(cocoll.allgather, own, out=whole, layout=layout)
            assert run.algorithm == "hierarchical"
            run().wait()
            same_bits(whole.get(), columns[0])

    assert 40020 % len(hosts) == 0
    on_hosts(hosts, body)


@pytest.mark.parametrize(
    ("hosts", "tree"),
    layouts((False, True), usual=[(USUAL, True), ((0, 1, 2), False)]),
)
def test_broadcast_and_barrier(
    hosts: tuple[int, ...], tree: bool, on_hosts: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cocoll.device.hosts.prefers_tree", lambda *_args, **_more: tree)

    def body(comm: cocoll.Communicator) -> None:
        for root in range(comm.world_size):
            for count in (0, 1, 20011):
                wanted = fill(root, (count,), "float16", root)
                x = put(comm, fill(comm.rank, (count,), "float16", root), MEMORIES[root % 2])
                out = make_array(comm, (count,), "float16", "ordinary") if root == 1 else None
                run = comm.bind(cocoll.broadcast, x, root, out=out)
                assert run.algorithm == ("hierarchical_tree" if tree else "hierarchical_chain")
                run().wait()
                same_bits((x if out is None else out).get(), wanted)
        with gpu_stream(comm) as stream:
            cocoll.barrier(comm=comm, stream=stream)

    on_hosts(hosts, body)


@epilogues.epilogue
def bias_dropout_residual(x: Any, bias: Any, residual: Any, *, p: Any) -> Any:
    return cocoll.dropout(x + bias, p) + residual


@pytest.mark.parametrize(
    ("hosts", "memory"), layouts(MEMORIES, usual=[(USUAL, memory) for memory in MEMORIES])
)
def test_fused(hosts: tuple[int, ...], memory: str, on_hosts: Run) -> None:
    count = 20011

    def body(comm: cocoll.Communicator) -> list[bytes]:
        adam = epilogues.adam()
        start, stop = comm.shard_range(count)
        param = put(comm, fill(9, (count,), "float32"), memory)
        m, v = (comm.shard_zeros(count, device="cuda") for _ in range(2))
        wanted = wide(fill(9, (count,), "float32"))
        moments = np.zeros((2, count))
        for step in range(1, 4):
            columns = [fill(rank, (count,), "float32", step) for rank in range(comm.world_size)]
            x = put(comm, columns[comm.rank], memory)
            zero_grad = step == 2
            cocoll.allreduce_fused(
                x, adam, param=param, m=m, v=v, lr=1e-2, step=step, zero_grad=zero_grad
            ).wait()
            gradient = sum(wide(column) for column in columns)
            moments[0] = 0.9 * moments[0] + 0.1 * gradient
            moments[1] = 0.999 * moments[1] + 0.001 * gradient**2
            unbiased = moments / np.array([[1 - 0.9**step], [1 - 0.999**step]])
            wanted -= 1e-2 * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
            np.testing.assert_allclose(param.get(), wanted, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(m.get(), moments[0][start:stop], rtol=1e-4, atol=1e-5)
            same_bits(x.get(), np.zeros_like(columns[0]) if zero_grad else columns[comm.rank])
        values = fill(comm.rank, (400, 33), "float32")
        bias, residual = fill(7, (33,), "float32"), fill(8, (400, 33), "float32")
        arrays = {"bias": put(comm, bias, "ordinary"), "residual": put(comm, residual, "ordinary")}
        out = make_array(comm, (400, 33), "float32", memory)
        x = put(comm, values, memory)
        cocoll.allreduce_fused(x, bias_dropout_residual, out=out, p=0.0, **arrays).wait()
        exact = sum(wide(fill(rank, (400, 33), "float32")) for rank in range(comm.world_size))
        np.testing.assert_allclose(out.get(), exact + bias + residual, rtol=1e-4, atol=1e-5)
        return [param.get().tobytes(), out.get().tobytes()]

    results = on_hosts(hosts, body)
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("hosts", layouts(usual=[(USUAL,)]))
def test_reduce_scatter_fused(hosts: tuple[int, ...], on_hosts: Run) -> None:
    def body(comm: cocoll.Communicator) -> None:
        columns = [fill(rank, (9001,), "float32") for rank in range(comm.world_size)]
        start, stop = comm.shard_range(9001)
        for memory in MEMORIES:
            x = put(comm, columns[comm.rank], memory)
            found = cocoll.reduce_scatter_fused(x, epilogues.relu()).result().get()
            exact = sum(wide(column) for column in columns)[start:stop]
            np.testing.assert_allclose(found, np.maximum(exact, 0), rtol=1e-4, atol=1e-6)

    on_hosts(hosts, body)


@pytest.mark.long
@pytest.mark.parametrize("hosts", layouts(usual=[(USUAL,)]))
def test_streams_and_replays(hosts: tuple[int, ...], graphs: Graphs, on_hosts: Run) -> None:
    """Nodes of a graph run in any order it allows: none that waits may keep another from it."""
    replays, count = 8, 3001

    def body(comm: cocoll.Communicator) -> None:
        with gpu_stream(comm) as stream, gpu_stream(comm) as other:
            arrays = [
                put(comm, np.full(count, comm.rank + 1, np.float32), memory) for memory in MEMORIES
            ]
            runs = [comm.bind(cocoll.allreduce, x, "avg", stream=stream) for x in arrays]
            runs += [
                comm.bind(cocoll.broadcast, arrays[1], 1, stream=stream),
                comm.bind(cocoll.allreduce, arrays[0], "max", stream=stream),
            ]
            with graphs.capture(stream) as graph:
                for run in runs:
                    run()
            for number in range(replays):
                graph.launch(stream)
                if number % 4 == 3:
                    comm._open_side(None).device.synchronize(stream)
                    runs[number % 2]()
                    cocoll.allreduce(arrays[1], "max", stream=other).wait()
            comm._open_side(None).device.synchronize(stream)
            mean = (comm.world_size + 1) / 2
            for x in arrays:
                np.testing.assert_allclose(x.get(stream), np.full(count, mean), rtol=1e-5)

    on_hosts(hosts, body)


# --- What goes between hosts. ---


@pytest.mark.parametrize(
    ("hosts", "memory"),
    layouts(MEMORIES, usual=[(USUAL, "symmetric"), ((0, 1, 2), "ordinary")]),
)
def test_the_least_goes_between_hosts(
    hosts: tuple[int, ...],
    memory: str,
    toolkit: Toolkit,
    on_hosts: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cocoll.device.hosts.prefers_tree", lambda *_args, **_more: False)
    watch, world_size = Watch(toolkit), len(hosts)
    count = 16 * 60 * 7 * world_size
    taken: list[dict[tuple[int, int], int]] = []

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, fill(comm.rank, (count,), "float32"), memory)
        whole = make_array(comm, (count,), "float32", memory)
        block = make_array(comm, (count // world_size,), "float32", "ordinary")
        for run in (
            comm.bind(cocoll.allreduce, x),
            comm.bind(cocoll.reduce_scatter, x, out=block),
            comm.bind(cocoll.allgather, block, out=whole),
            comm.bind(cocoll.broadcast, x, 0),
        ):
            cocoll.barrier()
            if comm.rank == 0:
                take(watch, world_size)
            cocoll.barrier()
            run().wait()
            cocoll.barrier()
            if comm.rank == 0:
                taken.append(take(watch, world_size))

    on_hosts(hosts, body)
    for what, sent in zip(
        ("allreduce", "reduce_scatter", "allgather", "broadcast"), taken, strict=True
    ):
        for host in range(max(hosts) + 1):
            inside = [rank for rank in range(world_size) if hosts[rank] == host]
            away = world_size - len(inside)
            out, into = (
                sum(
                    nbytes
                    for pair, nbytes in sent.items()
                    if hosts[pair[way]] == host != hosts[pair[1 - way]]
                )
                # The words by which ranks tell each other what they are about to do.
                - 4 * len(inside) * away
                for way in (0, 1)
            )
            block = 4 * count // world_size
            # A host's sum of every block goes to its owner on another host, the owners' results
            # back; what it owns itself comes and goes the other way, once for each other host.
            others = max(hosts)
            theirs, own = block * away, block * len(inside) * others
            if what == "allreduce":
                assert (out, into) == (theirs + own, theirs + own)
            elif what == "reduce_scatter":
                assert (out, into) == (theirs, own)
            elif what == "allgather":
                assert (out, into) == (own, theirs)
            else:
                assert into == (0 if host == 0 else 4 * count)
                assert out == (0 if host == max(hosts) else 4 * count)


def take(watch: Watch, world_size: int) -> dict[tuple[int, int], int]:
    return {
        (sender, receiver): watch.take_sent_bytes(sender, receiver)
        for sender in range(world_size)
        for receiver in range(world_size)
    }


def test_memory_of_another_host_is_out_of_reach(toolkit: Toolkit, on_hosts: Run) -> None:
    """A planted bug: who gives a kernel or a copy such memory is found out."""
    watch = Watch(toolkit)
    assert watch.faults() == ""
    arrays: list[int] = [0, 0, 0]

    def body(comm: cocoll.Communicator) -> None:
        side = comm._open_side(None)
        reached = [(peer == 2) == (comm.rank == 2) for peer in range(3)]
        assert [side.reaches(peer) for peer in range(3)] == reached
        x = put(comm, np.ones(3000, np.float32), "symmetric")
        place = side.place_of(x._address, 12000)
        assert place is not None
        assert [address != 0 for address in side.addresses(place)] == reached
        arrays[comm.rank] = x._address
        cocoll.barrier()
        if comm.rank == 0:
            for by_kernel in (True, False):
                operation = Operation(side.endpoint, 1)
                if by_kernel:
                    add_copy(side, operation, arrays[0], arrays[2], 64)
                else:
                    operation.copy(arrays[2], arrays[0], 64)
                with pytest.raises(CudaError):
                    operation.run(side.stream.handle)
        cocoll.barrier()

    on_hosts(USUAL, body)
    for words in ("a kernel was given memory of another host's GPU", "a copy between GPUs of two"):
        assert words in watch.faults()
    watch.forget_faults()


# --- Plans, and what is said of them. ---


def test_what_a_bound_operation_says_of_itself(on_hosts: Run) -> None:
    def body(comm: cocoll.Communicator) -> tuple[Plan, str]:
        run = comm.bind(cocoll.allreduce, put(comm, np.ones(9001, np.float32), "ordinary"))
        return run.plan, run.explain()

    found = on_hosts(USUAL, body)
    verify([plan for plan, _ in found], counts=[9001], aliasing=Aliasing(Relation.IDENTICAL))
    for words in (
        "hierarchical over NCCL between hosts and mapped memory inside them",
        "the ranks are on 2 hosts",
        "(NCCL 22809)",
    ):
        assert words in found[1][1]


SPEC = ReduceSpec(4, (4,))


@pytest.mark.long
def test_plans_of_the_callers_own(on_hosts: Run) -> None:
    hierarchy = Hierarchy(USUAL)

    def ordered(rank: int, world_size: int) -> Plan:
        return plan_allreduce_ordered(rank, hierarchy, SPEC, chunk_elements=48, staged=False)

    def tagged(rank: int, world_size: int) -> Plan:
        return hierarchical.plan_allreduce(rank, hierarchy, SPEC, chunk_elements=48)

    def elsewhere(rank: int, world_size: int) -> Plan:
        return plan_allreduce_ordered(rank, Hierarchy((0, 1, 1)), SPEC, chunk_elements=48)

    def across(rank: int, world_size: int) -> Plan:
        return two_shot.plan_allreduce(rank, world_size, SPEC, chunk_elements=48).expand()

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, fill(comm.rank, (700,), "float32"), "symmetric")
        for planner, error, words in (
            (tagged, UnsupportedError, "NCCL matches messages by their order"),
            (elsewhere, UsageError, r"on hosts \(0, 1, 1\)"),
            (across, ScheduleError, "is on another host"),
        ):
            with pytest.raises(error, match=words):
                comm.bind_plan(planner, x)
        for _ in range(2):
            x = put(comm, fill(comm.rank, (700,), "float32"), "symmetric")
            comm.bind_plan(ordered, x, op="avg")().wait()
            columns = [fill(rank, (700,), "float32") for rank in range(3)]
            check_reduced(x.get(), columns, "avg", "float32")

    on_hosts(USUAL, body)


@pytest.mark.long
def test_a_part_of_a_sum_is_not_divided(on_hosts: Run) -> None:
    def halves(rank: int, world_size: int) -> Plan:
        builder = Builder(rank, world_size, name="halves")
        with builder.lane("only"):
            source = builder.source(itemsize_bytes=4)
            staged = builder.scratch(Buffer.STAGING, itemsize_bytes=4)
            builder.reduce(sources=[source, source], destinations=[[staged]], partial=True)
            builder.reduce(
                sources=[staged, source, source],
                destinations=[[builder.result(itemsize_bytes=4)]],
            )
        return builder.build()

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, fill(comm.rank, (1000,), "float32"), "ordinary")
        out = make_array(comm, (1000,), "float32", "ordinary")
        comm.bind_plan(halves, x, out=out, op="avg")().wait()
        # Four times the array, and divided by the two ranks once.
        same_bits(out.get(), 2 * fill(comm.rank, (1000,), "float32"))

    on_hosts((0, 1), body)


@pytest.mark.long
def test_natives_own_allreduce(on_hosts: Run) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.full(3000, comm.rank, np.int64), "symmetric")
        run = comm.bind(cocoll.allreduce, x)
        assert run.algorithm == "native"
        run().wait()
        assert (x.get() == 3).all()

    on_hosts(USUAL, body, tuning=replace(TUNING_HOSTS, gpu_native_bytes=1))


def test_gpus_of_a_host_that_do_not_reach_each_other(
    on_hosts: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_PEER_ACCESS", "0")

    def body(comm: cocoll.Communicator) -> str:
        x = put(comm, fill(comm.rank, (3000,), "float32"), "symmetric")
        run = comm.bind(cocoll.allreduce, x)
        run().wait()
        check_reduced(
            x.get(), [fill(rank, (3000,), "float32") for rank in range(3)], "sum", "float32"
        )
        return run.explain()

    for text in on_hosts(USUAL, body):
        assert "wire_two_shot over NCCL, because rank 0: the GPU of rank 0 cannot reach" in text


# --- Failures. ---


@pytest.mark.parametrize("odd", [2, pytest.param(0, marks=pytest.mark.long)])
def test_ranks_that_disagree(odd: int, on_hosts: Run) -> None:
    def body(comm: cocoll.Communicator) -> str:
        x = put(comm, np.ones(3000, np.float32), "ordinary")
        try:
            cocoll.allreduce(x, "max" if comm.rank == odd else "sum").wait()
        except CocollError as error:
            return type(error).__name__
        return "nothing"

    found = on_hosts(USUAL, body, timeout_seconds=20.0)
    assert CollectiveMismatchError.__name__ in found
    assert set(found) <= {"CollectiveMismatchError", "AbortedError", "NcclError"}


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_rank_that_gives_up_releases_the_others(victim: int, on_hosts: Run) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.ones(30000, np.float32), "ordinary")
        cocoll.allreduce(x).wait()
        cocoll.barrier()
        start = time.monotonic()
        if comm.rank == victim:
            time.sleep(0.2)
            comm.abort()
            return
        with pytest.raises((AbortedError, NcclError)):
            cocoll.allreduce(x).wait()
        assert time.monotonic() - start < 10

    on_hosts(USUAL, body, timeout_seconds=60.0)
