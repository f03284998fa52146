"""Ranks whose GPUs do not map each other's memory: all goes over NCCL, here an emulated one."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.cuda.binding import Operation
from cocoll.device import lowering
from cocoll.errors import (
    AbortedError,
    ClosedError,
    CocollError,
    CollectiveMismatchError,
    CommTimeoutError,
    CudaError,
    NcclError,
    UnsupportedError,
)
from cocoll.plan import Aliasing, Plan, Relation, verify
from cocoll.testing import run_processes, run_ranks
from tests.helpers import gpu_ranks
from tests.helpers.on_device import (
    MEMORIES,
    TUNING,
    fill,
    gpu_stream,
    make_array,
    put,
    same_bits,
)

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit
    from cocoll.testing.graphs import Graphs

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8")
OPS = ("sum", "prod", "min", "max", "avg")
COUNTS = (0, 1, 17, 255, 4099, 50021)
# Of NCCL's own collectives only those that give the same bits as ours.
RANK_ORDER = replace(TUNING, gpu_native_bytes=0)
NATIVE = replace(TUNING, gpu_native_bytes=1)


@pytest.fixture(autouse=True)
def no_peer_access(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU for each rank, none of which reaches another."""
    monkeypatch.setenv("COCOLL_EMULATED_DEVICES", "4")
    monkeypatch.setenv("COCOLL_EMULATED_PEER_ACCESS", "0")
    return


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_allreduce(world_size: int, memory: str, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for number, count in enumerate(COUNTS):
            for in_place in (True, False):
                dtype, op = DTYPES[number % len(DTYPES)], OPS[number % len(OPS)]
                values = fill(comm.rank, (count,), dtype, number)
                wanted = values.copy()
                cocoll.allreduce(wanted, op)
                x = put(comm, values, memory)
                out = None if in_place else make_array(comm, (count,), dtype, memory)
                cocoll.allreduce(x, op, out=out).wait()
                same_bits((x if out is None else out).get(), wanted)
                if out is not None:
                    same_bits(x.get(), values)

    run_ranks(world_size, body, toolkit=toolkit, tuning=RANK_ORDER)


# NCCL has these integers too, but none of 16 bits.
MORE_INTEGERS = [
    pytest.param(dtype, marks=() if dtype == "uint32" else pytest.mark.long)
    for dtype in ("int8", "uint32", "uint64", "int16", "uint16")
]


@pytest.mark.parametrize("dtype", [*DTYPES, *MORE_INTEGERS])
def test_native_allreduce(dtype: str, toolkit: Toolkit) -> None:
    world_size, count = 3, 3001
    integers, known = "int" in dtype, "int16" not in dtype

    def body(comm: cocoll.Communicator) -> list[bytes]:
        found = []
        for op in OPS:
            values = fill(comm.rank, (count,), dtype)
            x = put(comm, values, "ordinary")
            run = comm.bind(cocoll.allreduce, x, op)
            native = op in (("sum", "prod", "min", "max") if integers else ("sum", "prod", "avg"))
            # Elsewhere NCCL means something else: averages of integers, NaN in min and max.
            assert run.algorithm == ("native" if native and known else "wire_two_shot")
            run().wait()
            wanted = values.copy()
            cocoll.allreduce(wanted, op)
            got = x.get()
            if integers or not native:
                same_bits(got, wanted)
            else:
                columns = [_wide(fill(rank, (count,), dtype)) for rank in range(world_size)]
                # Every addition or product rounds once, and an average once more.
                eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
                bound = world_size * eps.get(dtype, 2.0**-52)
                if op == "prod":
                    exact = scale = columns[0] * columns[1] * columns[2]
                else:
                    share = world_size if op == "avg" else 1
                    exact = sum(columns) / share
                    scale = sum(np.abs(column) for column in columns) / share
                # Below the least normal number of float16 rounding is absolute.
                least = 2.0**-23 if dtype == "float16" else 0.0
                assert (np.abs(_wide(got) - exact) <= bound * np.abs(scale) + least).all()
            found.append(got.tobytes())
        return found

    results = run_ranks(world_size, body, toolkit=toolkit, tuning=NATIVE)
    assert results[0] == results[1] == results[2]


def _wide(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if values.dtype == np.uint16:  # bfloat16
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


@pytest.mark.parametrize("layout", ["block", "shard"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_reduce_scatter_and_allgather(world_size: int, layout: Any, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for number, count in enumerate((0, 12, 4002, 60000)):
            values = fill(comm.rank, (count,), "float32", number)
            if layout == "shard":
                start, stop = comm.shard_range(count)
            else:
                block = count // world_size
                start, stop = comm.rank * block, (comm.rank + 1) * block
            wanted = np.zeros(stop - start, np.float32)
            cocoll.reduce_scatter(values, out=wanted, layout=layout)
            x = put(comm, values, "ordinary")
            out = make_array(comm, (stop - start,), "float32", "ordinary")
            cocoll.reduce_scatter(x, out=out, layout=layout).wait()
            same_bits(out.get(), wanted)
            # Into this rank's part of the input itself, and back out of it.
            whole = np.zeros(count, np.float32)
            cocoll.allgather(wanted, out=whole, layout=layout)
            gathered = make_array(comm, (count,), "float32", "ordinary")
            cocoll.allgather(out, out=gathered, layout=layout).wait()
            same_bits(gathered.get(), whole)

    run_ranks(world_size, body, toolkit=toolkit, tuning=RANK_ORDER)


def test_broadcast_and_barrier(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        for root in range(comm.world_size):
            for count in (0, 1, 5003):
                values = fill(comm.rank, (count,), "float16", root)
                x = put(comm, values, "symmetric")
                cocoll.broadcast(x, root).wait()
                same_bits(x.get(), fill(root, (count,), "float16", root))
                out = make_array(comm, (count,), "float16", "ordinary")
                cocoll.broadcast(x, root, out=out).wait()
                same_bits(out.get(), fill(root, (count,), "float16", root))
        with gpu_stream(comm) as stream:
            cocoll.barrier(comm=comm, stream=stream)

    run_ranks(3, body, toolkit=toolkit, tuning=RANK_ORDER)


@epilogues.epilogue
def bias_dropout_residual(x: Any, bias: Any, residual: Any, *, p: Any) -> Any:
    return cocoll.dropout(x + bias, p) + residual


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_fused(world_size: int, toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        adam = epilogues.adam()
        for number, count in enumerate((0, 1, 100, 30011)):
            zero_grad = number % 2 == 1
            start, stop = comm.shard_range(count)
            shard = np.zeros(stop - start, np.float32)
            host = {"param": fill(9, (count,), "float32"), "m": shard.copy(), "v": shard.copy()}
            gpu = {name: put(comm, array, "ordinary") for name, array in host.items()}
            for step in range(1, 4):
                gradient = fill(comm.rank, (count,), "float32", step)
                x = put(comm, gradient, MEMORIES[step % 2])
                more = {"lr": 1e-2, "step": step, "zero_grad": zero_grad}
                cocoll.allreduce_fused(gradient, adam, **host, **more)
                cocoll.allreduce_fused(x, adam, **gpu, **more).wait()
                for name, array in gpu.items():
                    same_bits(array.get(), host[name])
                same_bits(x.get(), gradient)
        values = fill(comm.rank, (40, 33), "float32")
        arrays = {"bias": fill(7, (33,), "float32"), "residual": fill(8, (40, 33), "float32")}
        on_gpu = {name: put(comm, array, "ordinary") for name, array in arrays.items()}
        wanted, out = np.zeros_like(values), make_array(comm, (40, 33), "float32", "ordinary")
        x = put(comm, values, "ordinary")
        cocoll.allreduce_fused(values, bias_dropout_residual, out=wanted, p=0.3, **arrays)
        cocoll.allreduce_fused(x, bias_dropout_residual, out=out, p=0.3, **on_gpu).wait()
        same_bits(out.get(), wanted)

    run_ranks(world_size, body, toolkit=toolkit, tuning=RANK_ORDER)


def test_streams_and_replays(toolkit: Toolkit, graphs: Graphs) -> None:
    replays = 60

    def body(comm: cocoll.Communicator) -> None:
        count = 30011
        adam = epilogues.adam()
        start, stop = comm.shard_range(count)
        gradient = fill(comm.rank, (count,), "float32")
        host = {"param": fill(9, (count,), "float32")}
        host |= {name: np.zeros(stop - start, np.float32) for name in ("m", "v")}
        with gpu_stream(comm) as stream, gpu_stream(comm) as other:
            x = put(comm, gradient, "ordinary")
            gpu = {name: put(comm, array, "ordinary") for name, array in host.items()}
            mean = put(comm, np.full(5000, comm.rank, np.float32), "ordinary")
            step = comm.bind(cocoll.allreduce_fused, x, adam, stream=stream, **gpu)
            average = comm.bind(cocoll.allreduce, mean, "avg", stream=stream)
            assert step.algorithm == "wire_two_shot"
            with graphs.capture(stream) as graph:
                step(lr=1e-3, step=1)
                average()
            for number in range(replays):
                graph.launch(stream)
                cocoll.allreduce_fused(gradient, adam, lr=1e-3, step=1, **host)
                if number % 20 == 19:
                    # A stream of its own, behind the replays as a framework would order it.
                    comm._open_side(None).device.synchronize(stream)
                    cocoll.allreduce_fused(x, adam, lr=1e-3, step=2, stream=other, **gpu)
                    step(lr=1e-3, step=3).wait()
                    for late in (2, 3):
                        cocoll.allreduce_fused(gradient, adam, lr=1e-3, step=late, **host)
            comm._open_side(None).device.synchronize(stream)
            for name, array in gpu.items():
                same_bits(array.get(stream), host[name])
            assert (mean.get(stream) == (comm.world_size - 1) / 2).all()

    run_ranks(3, body, toolkit=toolkit, tuning=RANK_ORDER)


def test_processes(toolkit: Toolkit) -> None:
    wanted = run_ranks(3, gpu_ranks.train, toolkit=toolkit, tuning=RANK_ORDER)
    outcomes = run_processes(3, gpu_ranks.train, toolkit=toolkit, tuning=RANK_ORDER)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    for outcome in outcomes:
        assert outcome.value == wanted[0]
        assert outcome.exit_code == 0


def test_mapped_memory_that_writes_do_not_reach(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_PEER_ACCESS", "1")
    monkeypatch.setenv("COCOLL_EMULATED_LOST_WRITES", "1")
    for outcome in run_processes(2, gpu_ranks.explain, toolkit=toolkit, tuning=RANK_ORDER):
        assert outcome.error is None
        algorithm, text = outcome.value
        assert algorithm == "wire_two_shot"
        assert "writes into the GPU memory of rank" in text
        assert "does not arrive" in text


@pytest.mark.long
def test_a_rank_that_is_killed(toolkit: Toolkit) -> None:
    outcomes = run_processes(
        3, gpu_ranks.die_in_an_operation, toolkit=toolkit, tuning=RANK_ORDER, timeout_seconds=3.0
    )
    assert outcomes[1].exit_code == -9
    known = {"CommTimeoutError", "AbortedError", "NcclError"}
    assert {outcomes[0].value, outcomes[2].value} <= known
    assert outcomes[0].error is None
    assert outcomes[2].error is None


def test_what_a_bound_operation_says_of_itself(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> tuple[Plan, str]:
        x = put(comm, np.ones(50021, np.float32), "ordinary")
        run = comm.bind(cocoll.allreduce, x)
        return run.plan, run.explain()

    found = run_ranks(3, body, toolkit=toolkit, tuning=RANK_ORDER)
    verify([plan for plan, _ in found], counts=[50021], aliasing=Aliasing(Relation.IDENTICAL))
    for words in (
        "wire_two_shot over NCCL, because rank 0: the GPU of rank 0 cannot reach that of rank 1",
        "there is no peer access between them",
        "(NCCL 22809)",
        "send block 2 to rank 2: SOURCE[rank 1] (group 1)",
    ):
        assert words in found[1][1]


class Deaf(dict[Any, int]):
    """Believes that every event has been waited for."""

    def get(self, key: Any, default: Any = None) -> Any:
        return 1 << 60


def test_events_between_the_streams_are_needed(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the lanes of the wire do not wait for those that compute, nor the reverse."""
    init = lowering._Lowering.__init__

    def deaf(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        self._seen = Deaf()

    def body(comm: cocoll.Communicator) -> bool:
        x = put(comm, fill(comm.rank, (50021,), "float32"), "ordinary")
        wanted = fill(comm.rank, (50021,), "float32")
        cocoll.allreduce(wanted)
        cocoll.allreduce(x).wait()
        return x.get().tobytes() == wanted.tobytes()

    assert run_ranks(3, body, toolkit=toolkit, tuning=RANK_ORDER) == [True] * 3
    monkeypatch.setattr(lowering._Lowering, "__init__", deaf)
    right = True
    for _ in range(20):
        right = all(run_ranks(3, body, toolkit=toolkit, tuning=RANK_ORDER))
        if not right:
            break
    assert not right


# --- what goes wrong ---------------------------------------------------------------------------


def test_ranks_that_ask_for_different_things(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> str:
        x = put(comm, np.ones(3000, np.float32), "ordinary")
        cocoll.allreduce(x).wait()
        with pytest.raises(CocollError) as caught:
            cocoll.allreduce(x, "sum" if comm.rank else "max").wait()
        assert comm.closed
        return type(caught.value).__name__

    found = run_ranks(2, body, toolkit=toolkit, tuning=RANK_ORDER)
    assert CollectiveMismatchError.__name__ in found
    assert set(found) <= {"CollectiveMismatchError", "AbortedError", "NcclError"}


@pytest.mark.parametrize("warm", [True, False])
def test_a_rank_that_does_not_come(warm: bool, toolkit: Toolkit) -> None:
    """Also to the first operation, for which NCCL may have to connect the ranks."""

    def body(comm: cocoll.Communicator) -> str:
        x = put(comm, np.ones(3000, np.float32), "ordinary")
        if warm:
            cocoll.allreduce(x).wait()
        start = time.monotonic()
        if comm.rank == 1:
            time.sleep(3.0)
            return ""
        work = cocoll.allreduce(x)
        # Who loses patience first takes the other along.
        with pytest.raises((CommTimeoutError, AbortedError, NcclError)) as caught:
            work.wait()
        assert time.monotonic() - start < 10
        assert comm.closed
        return str(caught.value)

    words = run_ranks(3, body, toolkit=toolkit, tuning=RANK_ORDER, timeout_seconds=1.0)
    assert any("ran for 1.0 s on rank" in text for text in words)


def test_a_first_native_collective_without_all_ranks(toolkit: Toolkit) -> None:
    """NCCL connects each way when it is first used, and the host waits for the others' hosts."""

    def body(comm: cocoll.Communicator) -> str:
        x = put(comm, np.ones(3000, np.float32), "ordinary")
        comm.barrier()
        if comm.rank == 1:
            time.sleep(3.0)
            return ""
        start = time.monotonic()
        with pytest.raises((CommTimeoutError, AbortedError, NcclError)) as caught:
            cocoll.broadcast(x, 0).wait()
        assert time.monotonic() - start < 10
        with pytest.raises((ClosedError, CocollError)):
            cocoll.broadcast(x, 0)
        assert comm.closed
        return str(caught.value)

    run_ranks(3, body, toolkit=toolkit, tuning=RANK_ORDER, timeout_seconds=1.0)


def test_a_step_that_nccl_refuses(toolkit: Toolkit) -> None:
    """What stands before it, on any stream, is waited for; and the communicator is given up."""

    def body(comm: cocoll.Communicator) -> None:
        side = comm._open_side(None)
        one, two = (make_array(comm, (8 << 20,), "uint8", "ordinary") for _ in range(2))
        operation = Operation(side.endpoint, 1)
        operation.wait_for(operation.record(0), 1)
        for _ in range(30):
            operation.copy(one._address, two._address, one.nbytes, 1)
        operation.send(99, one._address, 16)
        operation.wait_for(operation.record(1), 0)
        with pytest.raises(NcclError, match="invalid argument"):
            operation.run(side.stream.handle)
        while not side.is_idle():
            time.sleep(1e-3)
        one.set(np.ones(one.shape, np.uint8))
        side.device.synchronize_all()
        assert (one.get() == 1).all()
        assert side.endpoint.failure() is not None

    run_ranks(1, body, toolkit=toolkit, tuning=replace(RANK_ORDER, gpu_map_peers=0))


def test_two_captures_at_a_time(toolkit: Toolkit, graphs: Graphs) -> None:
    """Both would need the communicator's second stream: one is refused, nothing else happens."""

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.full(30011, comm.rank, np.float32), "ordinary")
        with gpu_stream(comm) as stream, gpu_stream(comm) as other:
            one, two = (
                comm.bind(cocoll.allreduce, x, "max", stream=where) for where in (stream, other)
            )
            with graphs.capture(stream) as graph:
                one()
                with graphs.capture(other), pytest.raises(CudaError, match="capturing"):
                    two()
            graph.launch(stream)
            comm._open_side(None).device.synchronize(stream)
            two().wait()
            assert (x.get() == comm.world_size - 1).all()

    run_ranks(2, body, toolkit=toolkit, tuning=RANK_ORDER)


def test_a_replay_whose_peer_has_gone_does_not_keep_close(toolkit: Toolkit, graphs: Graphs) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.ones(3000, np.float32), "ordinary")
        with gpu_stream(comm) as stream:
            run = comm.bind(cocoll.allreduce, x, stream=stream)
            run().wait()
            with graphs.capture(stream) as graph:
                run()
            if comm.rank == 0:
                graph.launch(stream)
            start = time.monotonic()
            comm.close()
            assert time.monotonic() - start < 20

    run_ranks(2, body, toolkit=toolkit, tuning=RANK_ORDER, timeout_seconds=0.5)


def test_a_child_made_by_fork_may_drop_what_it_inherits(toolkit: Toolkit) -> None:
    comm = cocoll.init(toolkit=toolkit, tuning=replace(RANK_ORDER, gpu_map_peers=0))
    x = put(comm, np.ones(3000, np.float32), "ordinary")
    cocoll.allreduce(x, comm=comm).wait()
    child = os.fork()
    if child == 0:
        del x, comm
        cocoll.init()  # takes the place of the default one
        gc.collect()
        os._exit(0)
    stop = time.monotonic() + 20
    ended, status = os.waitpid(child, os.WNOHANG)
    while ended == 0 and time.monotonic() < stop:
        time.sleep(0.05)
        ended, status = os.waitpid(child, os.WNOHANG)
    if ended == 0:
        os.kill(child, signal.SIGKILL)
    assert (ended, status) == (child, 0)
    comm.close()


def test_what_waits_on_the_stream_is_not_late(toolkit: Toolkit) -> None:
    """The time limit begins with the operation, not with the call."""

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.ones(3000, np.float32), "ordinary")
        cocoll.allreduce(x).wait()
        with gpu_stream(comm) as stream:
            if comm.rank == 0:
                time.sleep(0.5)
            works = [cocoll.allreduce(x, "max", stream=stream) for _ in range(30)]
            works[-1].wait()

    run_ranks(2, body, toolkit=toolkit, tuning=RANK_ORDER, timeout_seconds=2.0)


def test_a_rank_that_gives_up_takes_the_others_along(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.ones(3000, np.float32), "ordinary")
        cocoll.allreduce(x).wait()
        if comm.rank == 1:
            time.sleep(0.3)
            comm.abort()
            return
        start = time.monotonic()
        with pytest.raises((AbortedError, CocollError)):
            cocoll.allreduce(x).wait()
        assert time.monotonic() - start < 10

    run_ranks(3, body, toolkit=toolkit, tuning=RANK_ORDER, timeout_seconds=60.0)


def refusal(world_size: int, toolkit: Toolkit, tuning: cocoll.Tuning = RANK_ORDER) -> str:
    """Open the GPUs, which all ranks refuse in the same words; give them."""

    def body(comm: cocoll.Communicator) -> str:
        with pytest.raises(UnsupportedError) as caught:
            comm.empty(10, device="cuda")
        # The communicator is as good as before, on the host.
        x = np.ones(3)
        cocoll.allreduce(x)
        assert (x == comm.world_size).all()
        return str(caught.value)

    words = run_ranks(world_size, body, toolkit=toolkit, tuning=tuning)
    assert len(set(words)) == 1
    return words[0]


def test_nccl_is_too_old(toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_NCCL_VERSION", "21005")
    words = refusal(2, toolkit)
    for word in ("21005", "NCCL 2.19 or later", "cocoll[cuda13]", "no peer access"):
        assert word in words


def test_there_is_no_nccl(toolkit: Toolkit) -> None:
    words = refusal(2, replace(toolkit, find_nccl=lambda: "libnccl_that_is_not.so.2"))
    for word in ("libnccl_that_is_not.so.2", "cocoll[cuda13]", "no peer access"):
        assert word in words


def test_two_ranks_on_one_gpu(toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_DEVICES", "1")
    through_nccl = replace(RANK_ORDER, gpu_map_peers=0)
    words = refusal(2, toolkit, through_nccl)
    for word in ("one rank a GPU", "ranks 0 and 1", "gpu_map_peers is 0"):
        assert word in words
    # NCCL 2.30 takes them, if it is told to.
    monkeypatch.setenv("COCOLL_EMULATED_NCCL_VERSION", "23007")
    refusal(2, toolkit, through_nccl)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.ones(3000, np.float32), "symmetric")
        cocoll.allreduce(x).wait()
        assert (x.get() == comm.world_size).all()

    run_ranks(2, body, toolkit=toolkit, tuning=through_nccl)


# --- NCCL beside mapped memory -----------------------------------------------------------------


def test_native_beside_mapped_memory(toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_PEER_ACCESS", "1")

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.full(3000, comm.rank, np.int64), "symmetric")
        y = put(comm, np.full(3000, comm.rank, np.float32), "symmetric")
        large = comm.bind(cocoll.allreduce, x)
        other = comm.bind(cocoll.allreduce, y, "max")
        assert (large.algorithm, other.algorithm) == ("native", "two_shot")
        for _ in range(3):
            large()
            other()
        other().wait()
        assert (x.get() == 6 * 4**2).all()
        assert (y.get() == 3).all()

    run_ranks(4, body, toolkit=toolkit, tuning=NATIVE)


def test_nccl_that_does_not_open_is_done_without(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_PEER_ACCESS", "1")

    def fail() -> int:
        raise NcclError("unhandled system error", status=2)

    def body(comm: cocoll.Communicator) -> None:
        if comm.rank == 2:
            comm._abort_address = fail  # type: ignore[method-assign]
        x = put(comm, np.ones(3000, np.int64), "symmetric")
        run = comm.bind(cocoll.allreduce, x)
        assert run.algorithm == "two_shot"
        run().wait()
        assert (x.get() == 4).all()

    run_ranks(4, body, toolkit=toolkit, tuning=NATIVE, timeout_seconds=5.0)


def test_without_nccl_mapped_memory_does_all(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_PEER_ACCESS", "1")
    monkeypatch.setenv("COCOLL_EMULATED_NCCL_VERSION", "21005")

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.ones(3000, np.int64), "symmetric")
        run = comm.bind(cocoll.allreduce, x)
        assert run.algorithm == "two_shot"
        run().wait()
        assert (x.get() == 4).all()

    run_ranks(4, body, toolkit=toolkit, tuning=NATIVE)
