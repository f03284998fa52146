"""Plans step by step on the emulated device: the same bits as on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import cocoll
from cocoll.algorithms import ReduceSpec, flat, two_shot, wire_two_shot
from cocoll.errors import UnsupportedError, UsageError
from cocoll.plan import Builder, Flag, Plan, Span
from cocoll.testing import run_ranks
from tests.helpers.on_device import TUNING, fill, gpu_stream, make_array, put, same_bits

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit
    from cocoll.testing.graphs import Graphs

Planner = Callable[[int, int], Plan]
SPEC = ReduceSpec(4, (4,))


def read_everything(rank: int, world_size: int) -> Plan:
    builder = Builder(rank, world_size, name="read_everything", mapped_sources=True)
    peers = [peer for peer in range(world_size) if peer != rank]
    with builder.lane("reduce"):
        with builder.loop(span=Span.WHOLE, chunk_elements=700):
            builder.reduce(
                sources=[builder.source(rank=r, itemsize_bytes=4) for r in range(world_size)],
                destinations=[[builder.result(itemsize_bytes=4)]],
            )
        for peer in peers:
            builder.signal(peer=peer, flag=Flag.DONE)
        for peer in peers:
            builder.wait(peer=peer, flag=Flag.DONE)
    return builder.build()


# Primitive steps only: for the composites there are kernels.
REDUCTIONS: dict[str, Planner] = {
    "read_everything": read_everything,
    "two_shot": lambda rank, size: two_shot.plan_allreduce(
        rank, size, SPEC, chunk_elements=300
    ).expand(),
    "two_shot_staged": lambda rank, size: two_shot.plan_allreduce_staged(
        rank, size, SPEC, chunk_elements=160, slots=2
    ).expand(),
    "two_shot_staged_3": lambda rank, size: two_shot.plan_allreduce_staged(
        rank, size, SPEC, chunk_elements=80, slots=3
    ).expand(),
}
BROADCASTS: dict[str, Planner] = {
    "flat_broadcast": lambda rank, size: flat.plan_broadcast(
        rank, size, size - 1, 4, chunk_elements=300
    ).expand(),
    "flat_broadcast_staged": lambda rank, size: flat.plan_broadcast_staged(
        rank, size, 0, 4, chunk_elements=160, slots=2
    ).expand(),
}
COUNTS = (0, 1, 37, 1601)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_reductions(world_size: int, name: str, toolkit: Toolkit) -> None:
    planner = REDUCTIONS[name]

    def body(comm: cocoll.Communicator) -> None:
        for number, count in enumerate(COUNTS):
            op = ("sum", "max", "avg", "prod")[number % 4]
            values = fill(comm.rank, (count,), "float32", number)
            wanted = values.copy()
            cocoll.allreduce(wanted, op)
            x, out = (put(comm, values, "symmetric") for _ in range(2))
            run = comm.bind_plan(planner, x, out=out, op=op)
            # Twice in a row, and between others of the communicator's own.
            for _ in range(2):
                run().wait()
                same_bits(out.get(), wanted)
                own = put(comm, values, "ordinary")
                cocoll.allreduce(own, op).wait()
                same_bits(own.get(), wanted)
            same_bits(x.get(), values)

    run_ranks(world_size, body, toolkit=toolkit, tuning=TUNING)


@pytest.mark.parametrize("name", BROADCASTS)
def test_broadcasts(name: str, toolkit: Toolkit) -> None:
    planner, world_size = BROADCASTS[name], 3

    def body(comm: cocoll.Communicator) -> None:
        root = 0 if "staged" in name else world_size - 1
        for count in COUNTS:
            x = put(comm, fill(comm.rank, (count,), "float32"), "symmetric")
            out = make_array(comm, (count,), "float32", "symmetric")
            comm.bind_plan(planner, x, out=out)().wait()
            same_bits(out.get(), fill(root, (count,), "float32"))

    run_ranks(world_size, body, toolkit=toolkit, tuning=TUNING)


def test_replays(toolkit: Toolkit, graphs: Graphs) -> None:
    """What plans signal is counted on the device: a graph goes on where the last replay ended.

    Of one lane each: the emulated device runs a graph's nodes one after the other, where a lane
    that waits for a peer keeps the next one from signalling.
    """
    replays, count, world_size = 30, 1601, 2

    def body(comm: cocoll.Communicator) -> None:
        with gpu_stream(comm) as stream:
            x = put(comm, np.full(count, comm.rank + 1, np.float32), "symmetric")
            out = make_array(comm, (count,), "float32", "symmetric")
            bound = [
                comm.bind_plan(read_everything, x, out=out, op="avg", stream=stream),
                comm.bind_plan(REDUCTIONS["two_shot"], x, op="avg", stream=stream),
            ]
            with graphs.capture(stream) as graph:
                for one in bound:
                    one()
            for number in range(replays):
                graph.launch(stream)
                if number % 10 == 9:
                    comm._open_side(None).device.synchronize(stream)
                    bound[number % 2]().wait()
            for array in (x, out):
                assert (array.get(stream) == 1.5).all()

    run_ranks(world_size, body, toolkit=toolkit, tuning=TUNING)


def test_over_a_wire(toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOLL_EMULATED_DEVICES", "3")
    monkeypatch.setenv("COCOLL_EMULATED_PEER_ACCESS", "0")

    def planner(rank: int, world_size: int) -> Plan:
        return wire_two_shot.plan_allreduce_wire(rank, world_size, SPEC, chunk_elements=48, slots=3)

    def body(comm: cocoll.Communicator) -> None:
        values = fill(comm.rank, (1601,), "float32")
        x, wanted = put(comm, values, "ordinary"), values.copy()
        comm.bind_plan(planner, x)().wait()
        cocoll.allreduce(wanted)
        same_bits(x.get(), wanted)
        with pytest.raises(UnsupportedError, match="touches memory of peers, which is not mapped"):
            comm.bind_plan(read_everything, x, out=make_array(comm, (1601,), "float32", "ordinary"))

    run_ranks(3, body, toolkit=toolkit, tuning=TUNING)


def test_what_cannot_be_bound(toolkit: Toolkit) -> None:
    def planner_with(flag: int) -> Planner:
        def planner(rank: int, world_size: int) -> Plan:
            builder = Builder(rank, world_size, name="flags")
            with builder.lane("main"):
                builder.signal(peer=1 - rank, flag=flag)
                builder.wait(peer=1 - rank, flag=flag)
            return builder.build()

        return planner

    def sends(rank: int, world_size: int) -> Plan:
        return wire_two_shot.plan_allreduce_wire(rank, world_size, SPEC, chunk_elements=48)

    def body(comm: cocoll.Communicator) -> None:
        x = put(comm, np.ones(100, np.float32), "ordinary")
        out = make_array(comm, (100,), "float32", "ordinary")
        for planner, words in (
            (read_everything, "must be symmetric"),
            (planner_with(6), "has flag 6; on GPUs there are 6"),
            (sends, "without NCCL"),
        ):
            with pytest.raises(UnsupportedError, match=words):
                comm.bind_plan(planner, x, out=out)
        with pytest.raises(UsageError, match="the input's 100 elements; got 3"):
            comm.bind_plan(read_everything, x, out=make_array(comm, (3,), "float32", "ordinary"))
        with pytest.raises(UnsupportedError, match=r"bytes of staging; Tuning\.gpu_window_bytes"):
            comm.bind_plan(
                lambda rank, size: two_shot.plan_allreduce_staged(
                    rank, size, SPEC, chunk_elements=1 << 15
                ).expand(),
                x,
                out=out,
            )
        comm.bind_plan(planner_with(0), x, out=out)().wait()

    run_ranks(2, body, toolkit=toolkit, tuning=replace(TUNING, gpu_native_bytes=0))
