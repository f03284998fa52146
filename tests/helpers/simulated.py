"""Small plans and topologies to simulate: nothing a planner of ours would be proud of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cocoll.plan import (
    WHOLE_VECTOR,
    After,
    Buffer,
    Copy,
    Fragment,
    Lane,
    Loop,
    Plan,
    Receive,
    Reduce,
    Send,
    Span,
    Step,
    View,
)
from cocoll.topology.graph import Device, Host, Link, Nic, Placement, Port, Topology

ITEMSIZE_BYTES = 4
PlanOf = Callable[[int], Plan]


def wired_hosts(
    hosts: int,
    ranks_per_host: int = 1,
    *,
    rates: Sequence[int] = (),
    rate: int = 1_000_000_000,
    latency: int = 500,
    memory: int = 10_000_000_000,
    memory_latency: int = 0,
    core: int | None = None,
) -> Topology:
    """Give hosts of one NIC each; with `core`, alternating on two switches with a link between."""
    made = [
        Host(
            f"h{host}",
            Port(memory, memory_latency, "half"),
            (Nic("e0", Port(rates[host] if rates else rate, latency), _switch(host, core)),),
        )
        for host in range(hosts)
    ]
    links = () if core is None else (Link("even", "odd", Port(core, 0)),)
    places = [Placement(host) for host in range(hosts) for _ in range(ranks_per_host)]
    return Topology("wired", tuple(made), tuple(places), links)


def _switch(host: int, core: int | None) -> str:
    return "network" if core is None else ("even", "odd")[host % 2]


def gpu_hosts(hosts: int, gpus: int, *, nics: int | None = None) -> Topology:
    """Give hosts of GPUs, GPU i on NIC ``i % nics``."""
    nics = gpus if nics is None else nics
    host = Host(
        "g",
        Port(200_000_000_000, 100, "half"),
        tuple(Nic(f"n{nic}", Port(50_000_000_000, 1000)) for nic in range(nics)),
        tuple(Device("gpu", 3_000_000_000_000, Port(400_000_000_000, 300)) for _ in range(gpus)),
    )
    places = [Placement(number, gpu % nics, gpu) for number in range(hosts) for gpu in range(gpus)]
    return Topology("gpus", (host,) * hosts, tuple(places))


def source(rank: int, owner: int | None = None) -> View:
    """Give the source of a rank, or of the owner."""
    return View(Buffer.SOURCE, rank if owner is None else owner, ITEMSIZE_BYTES)


def result(rank: int) -> View:
    """Give the result of a rank."""
    return View(Buffer.RESULT, rank, ITEMSIZE_BYTES)


def slot(rank: int, area: int, chunk: int) -> View:
    """Give two slots of staging."""
    size = chunk * ITEMSIZE_BYTES
    return View(
        Buffer.STAGING, rank, ITEMSIZE_BYTES, offset_bytes=2 * area * size, slots=2, slot_bytes=size
    )


def lane(name: str, steps: Sequence[Step], chunk: int = 0, in_flight: int = 1) -> Lane:
    """Give a lane of one loop: over the whole vector, or once where there is no chunk."""
    span = Span.WHOLE if chunk else Span.ONCE
    return Lane(name, (Loop(tuple(steps), span, chunk),), in_flight)


def plan_of_lanes(rank: int, topology: Topology, *lanes: Lane) -> Plan:
    """Give a plan."""
    return Plan(
        rank,
        topology.world_size,
        Fragment(lanes),
        "test",
        mapped_sources=True,
        mapped_results=True,
        hosts=topology.hosts_by_rank,
    )


def idle(rank: int, topology: Topology) -> Plan:
    """Give a plan that does nothing."""
    return plan_of_lanes(rank, topology)


def chain(topology: Topology, chunk: int, in_flight: int = 1) -> PlanOf:
    """Broadcast from rank 0 along the ranks."""
    return tree(topology, chunk, lambda rank: rank - 1, in_flight)


def binary_tree(topology: Topology, chunk: int) -> PlanOf:
    """Broadcast from rank 0 down a binary tree."""
    return tree(topology, chunk, lambda rank: (rank - 1) // 2)


def tree(
    topology: Topology, chunk: int, parent: Callable[[int], int], in_flight: int = 1
) -> PlanOf:
    """Broadcast from rank 0: every rank gives its children what its parent gave it."""

    def plan(rank: int) -> Plan:
        children = [child for child in range(1, topology.world_size) if parent(child) == rank]
        lanes = []
        if rank:
            receive = Receive(WHOLE_VECTOR, parent(rank), result(rank))
            lanes.append(lane("receive", [receive], chunk, in_flight))
        after = (After(0),) if rank else ()
        view = result(rank) if rank else source(rank)
        for child in children:
            send = Send(WHOLE_VECTOR, child, view, after=after)
            lanes.append(lane(f"to {child}", [send], chunk, in_flight))
        return plan_of_lanes(rank, topology, *lanes)

    return plan


def ring(topology: Topology, chunk: int, *, members: int | None = None) -> PlanOf:
    """All-reduce in a ring; on hosts of several ranks, a ring for each local rank.

    The ranks of a host first reduce from all of them, in each step, and give the result to their
    neighbour in the host at the end.
    """
    local = members or 1
    hosts = topology.world_size // local

    def plan(rank: int) -> Plan:
        host, index = divmod(rank, local)
        before, after = ((host + by) % hosts * local + index for by in (-1, 1))
        beside = [host * local + (index + by) % local for by in range(local)]
        sources = tuple(source(rank, owner) for owner in beside)

        def block(by: int) -> int:
            return (host + by) % hosts * local + index

        steps: list[Step] = [
            Reduce(block(-1), sources, ((slot(rank, 0, chunk),),), partial=True),
        ]
        for turn in range(hosts - 1):
            here, there = slot(rank, turn % 2, chunk), slot(rank, (turn + 1) % 2, chunk)
            last = turn == hosts - 2
            steps += [
                Send(block(-turn - 1), after, here, group=turn + 1),
                Receive(block(-turn - 2), before, there, group=turn + 1),
                Reduce(
                    block(-turn - 2),
                    (there, *sources),
                    ((result(rank) if last else there,),),
                    partial=not last,
                ),
            ]
        for turn in range(hosts - 1):
            group = hosts + turn
            steps += [
                Send(block(-turn), after, result(rank), group=group),
                Receive(block(-turn - 1), before, result(rank), group=group),
            ]
            if local > 1:
                steps.append(Copy(block(-turn - 1), result(rank), result(beside[1])))
        return plan_of_lanes(rank, topology, Lane("ring", (Loop(tuple(steps), Span.BLOCK, chunk),)))

    return plan


def exchange(topology: Topology) -> PlanOf:
    """All-gather: every rank sends its block to all others at once."""
    size = topology.world_size

    def plan(rank: int) -> Plan:
        steps: list[Step] = []
        for by in range(1, size):
            to, back = (rank + by) % size, (rank - by) % size
            steps += [Send(rank, to, source(rank), 1), Receive(back, back, result(rank), 1)]
        return plan_of_lanes(rank, topology, lane("exchange", steps))

    return plan


def doubling(topology: Topology) -> PlanOf:
    """Recursive doubling: in round k, rank r exchanges the vector with rank r xor 2^k."""

    def plan(rank: int) -> Plan:
        steps: list[Step] = []
        for bit in range((topology.world_size - 1).bit_length()):
            peer = rank ^ 1 << bit
            steps += [
                Send(WHOLE_VECTOR, peer, result(rank), bit + 1),
                Receive(WHOLE_VECTOR, peer, slot(rank, 0, 1 << 20), bit + 1),
                Reduce(WHOLE_VECTOR, (result(rank), source(rank)), ((result(rank),),)),
            ]
        return plan_of_lanes(rank, topology, lane("doubling", steps, 1 << 20))

    return plan


def all_plans(plan: PlanOf, topology: Topology) -> list[Plan]:
    """Give the plans of all ranks."""
    return [plan(rank) for rank in range(topology.world_size)]
