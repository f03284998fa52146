"""Makespans and timelines worked out by hand, and what a simulation refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from cocoll.errors import SimulationError, UsageError
from cocoll.plan import (
    WHOLE_VECTOR,
    After,
    Buffer,
    Copy,
    Fragment,
    Lane,
    Loop,
    Native,
    Plan,
    Receive,
    Reduce,
    Send,
    Signal,
    Span,
    View,
    Wait,
)
from cocoll.simulation.outcome import Simulation
from cocoll.simulation.simulator import simulate
from cocoll.topology.graph import Topology
from tests.helpers.simulated import (
    all_plans,
    chain,
    exchange,
    gpu_hosts,
    idle,
    lane,
    plan_of_lanes,
    result,
    ring,
    slot,
    source,
    wired_hosts,
)

# Bytes a second and a latency that make a byte a nanosecond, and a message cost 1000 + its bytes.
RATE = 10**9
LATENCY = 1000
THREAD = 10**12  # no limit beside the memory of the tests


def go(plans: Sequence[Plan], topology: Topology, count: int, thread: int = THREAD) -> Simulation:
    return simulate(plans, topology, count, thread_bytes_per_second=thread)


def arrival(topology: Topology) -> int:
    """Give the latency of a dissemination over the hosts, which have no latency inside."""
    return math.ceil(math.log2(len(topology.hosts))) * LATENCY


def send(rank: int, peer: int, **options: object) -> Send:
    return Send(WHOLE_VECTOR, peer, source(rank), **options)  # type: ignore[arg-type]


def receive(rank: int, peer: int, **options: object) -> Receive:
    return Receive(WHOLE_VECTOR, peer, result(rank), **options)  # type: ignore[arg-type]


# --- messages and ports ------------------------------------------------------------------------


def test_one_message_costs_its_latency_and_its_bytes() -> None:
    hosts = wired_hosts(2)
    plans = [
        plan_of_lanes(0, hosts, lane("send", [send(0, 1)])),
        plan_of_lanes(1, hosts, lane("receive", [receive(1, 0)])),
    ]
    simulation = go(plans, hosts, 250)
    assert simulation.makespan_nanoseconds == arrival(hosts) + LATENCY + 1000
    assert simulation.messages == 1
    assert simulation.steps == 2
    # h0: out, in, memory; h1: out, in, memory.
    assert simulation.port_bytes == (1000, 0, 0, 0, 1000, 0)


@pytest.mark.parametrize("into_one", [True, False])
def test_two_messages_share_a_port(into_one: bool) -> None:
    """Out of one host to two others, or from two into one: twice as long."""
    hosts = wired_hosts(3)
    ends = [(1, 0), (2, 0)] if into_one else [(0, 1), (0, 2)]
    lanes: list[list[Lane]] = [[], [], []]
    for number, (sender, receiver) in enumerate(ends):
        lanes[sender].append(lane(f"send {number}", [send(sender, receiver)]))
        lanes[receiver].append(lane(f"receive {number}", [receive(receiver, sender)]))
    plans = [plan_of_lanes(rank, hosts, *lanes[rank]) for rank in range(3)]
    assert go(plans, hosts, 250).makespan_nanoseconds == arrival(hosts) + LATENCY + 2000


def test_both_directions_of_a_nic_are_two_ports() -> None:
    hosts = wired_hosts(2)
    plans = [
        plan_of_lanes(rank, hosts, lane("both", [send(rank, 1 - rank, group=1),
                                                 receive(rank, 1 - rank, group=1)]))
        for rank in range(2)
    ]  # fmt: skip
    assert go(plans, hosts, 250).makespan_nanoseconds == arrival(hosts) + LATENCY + 1000


def test_a_slow_core_is_shared_by_what_crosses_it() -> None:
    """Four hosts, two on each switch: two messages cross the core, one does not."""
    hosts = wired_hosts(4, core=RATE // 2)
    ends = [(0, 1), (2, 3), (1, 3)]  # even to odd, even to odd, odd to odd
    lanes: list[list[Lane]] = [[] for _ in range(4)]
    for sender, receiver in ends:
        lanes[sender].append(lane(f"to {receiver}", [send(sender, receiver)]))
        lanes[receiver].append(lane(f"from {sender}", [receive(receiver, sender)]))
    plans = [plan_of_lanes(rank, hosts, *lanes[rank]) for rank in range(4)]
    simulation = go(plans, hosts, 250)
    ends_at = {span.text.split(":")[0]: span.end_nanoseconds for span in simulation.spans}
    start = arrival(hosts) + LATENCY
    # A quarter of a byte a nanosecond each over the core. Into host 3 the third message has the
    # other three quarters.
    assert ends_at["send whole vector to rank 1"] == start + 4000
    assert simulation.makespan_nanoseconds == start + 4000
    third = next(span for span in simulation.spans if span.rank == 1 and "send" in span.text)
    assert third.end_nanoseconds == start + math.ceil(1000 / 0.75)
    forth, back = simulation.port_bytes[-2:]
    assert (forth, back) == (2000, 0)


@pytest.mark.parametrize(("hosts", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_arrival_is_a_dissemination_over_hosts(hosts: int, rounds: int) -> None:
    topology = wired_hosts(hosts, memory_latency=7)
    plans = [idle(rank, topology) for rank in range(hosts)]
    assert go(plans, topology, 1).makespan_nanoseconds == rounds * LATENCY
    topology = wired_hosts(hosts, 2, memory_latency=7)
    plans = [idle(rank, topology) for rank in range(2 * hosts)]
    assert go(plans, topology, 1).makespan_nanoseconds == rounds * LATENCY + 14


# --- chains and windows ------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [2, 3, 6])
@pytest.mark.parametrize("chunks", [1, 2, 16])
def test_a_chain_of_one_message_at_a_time(hosts: int, chunks: int) -> None:
    """Each of c chunks crosses k - 1 hops of L + s / b; the last one starts c - 1 chunks late."""
    topology = wired_hosts(hosts)
    chunk = 500  # elements of 4 bytes
    simulation = go(all_plans(chain(topology, chunk), topology), topology, chunks * chunk)
    hop = LATENCY + chunk * 4
    assert simulation.makespan_nanoseconds == arrival(topology) + (chunks + hosts - 2) * hop
    assert simulation.messages == chunks * (hosts - 1)
    assert simulation.port_bytes[0] == chunks * chunk * 4


@pytest.mark.parametrize("hosts", [2, 3, 6])
@pytest.mark.parametrize("chunks", [1, 2, 16])
def test_two_in_flight_hide_the_latency(hosts: int, chunks: int) -> None:
    """The latency of one chunk passes while the one before moves: only the first one's is seen."""
    topology = wired_hosts(hosts)
    chunk = 500
    simulation = go(all_plans(chain(topology, chunk, 2), topology), topology, chunks * chunk)
    expected = (hosts - 1) * (LATENCY + chunk * 4) + (chunks - 1) * chunk * 4
    assert simulation.makespan_nanoseconds == arrival(topology) + expected


def test_two_in_flight_are_not_enough_for_short_chunks() -> None:
    """Where L > s / b every second chunk waits for a latency; three in flight hide it again."""
    topology = wired_hosts(2)
    chunk, chunks = 200, 12  # 800 ns of bytes, 1000 ns of latency
    expected = {1: chunks * 1800, 2: chunks // 2 * 1800 + 800, 3: 1000 + chunks * 800}
    for window, nanoseconds in expected.items():
        plans = all_plans(chain(topology, chunk, window), topology)
        simulation = go(plans, topology, chunks * chunk)
        assert simulation.makespan_nanoseconds == arrival(topology) + nanoseconds, window


def test_steps_in_flight_end_in_their_order() -> None:
    """The second message is short and on its way alone, and still ends with the first."""
    hosts = wired_hosts(3, rates=(RATE, RATE // 10, RATE))
    both = [send(0, 1), Send(0, 2, source(0))]  # the second is a third of the vector
    plans = [
        plan_of_lanes(0, hosts, lane("send", both, in_flight=2)),
        plan_of_lanes(1, hosts, lane("receive", [receive(1, 0)])),
        plan_of_lanes(2, hosts, lane("receive", [Receive(0, 0, result(2))])),
    ]
    simulation = go(plans, hosts, 48)
    ends = [span.end_nanoseconds for span in simulation.spans if span.rank == 0]
    start = arrival(hosts) + LATENCY
    assert ends == [start + 1920, start + 1920]
    other = next(span for span in simulation.spans if span.rank == 2)
    # 64 bytes; the first message takes a tenth of the sender's port, for its receiver is slow.
    assert other.end_nanoseconds == start + math.ceil(64 / 0.9)


def test_a_group_moves_as_one() -> None:
    """Neither of two ranks could begin with a send alone and end it before it receives."""
    hosts = wired_hosts(2)

    def exchanging(group: int) -> list[Plan]:
        return [
            plan_of_lanes(rank, hosts, lane("both", [send(rank, 1 - rank, group=group),
                                                     receive(rank, 1 - rank, group=group)]))
            for rank in range(2)
        ]  # fmt: skip

    assert go(exchanging(1), hosts, 250).messages == 2
    with pytest.raises(SimulationError, match="wait for ever"):
        go(exchanging(0), hosts, 250)


def test_tags_part_the_messages_of_two_ranks() -> None:
    """Rank 1 wants the second message first; without tags it gets what is sent first."""
    hosts = wired_hosts(2)

    def plans(tag: int) -> list[Plan]:
        return [
            plan_of_lanes(
                0,
                hosts,
                lane("first", [send(0, 1)]),
                lane("second", [Send(0, 1, source(0), 0, tag)]),
            ),
            plan_of_lanes(
                1, hosts, lane("receive", [Receive(0, 0, result(1), 0, tag), receive(1, 0)])
            ),
        ]

    assert go(plans(3), hosts, 64).messages == 2
    with pytest.raises(SimulationError, match=r"sends 256 bytes to rank 1 \(tag 0\), which rec"):
        go(plans(0), hosts, 64)


def test_an_empty_chunk_is_left_out() -> None:
    """Block 1 of two has nothing of 16 elements: no message, no time, no partner needed."""
    hosts = wired_hosts(2)
    plans = [
        plan_of_lanes(0, hosts, lane("send", [Send(1, 1, source(0))])),
        plan_of_lanes(1, hosts, lane("receive", [Receive(1, 0, result(1))])),
    ]
    simulation = go(plans, hosts, 16)
    assert simulation.makespan_nanoseconds == arrival(hosts)
    assert simulation.messages == 0


def test_the_last_chunk_is_clipped() -> None:
    hosts = wired_hosts(2)
    simulation = go(all_plans(chain(hosts, 100), hosts), hosts, 250)
    assert [span.bytes for span in simulation.spans if span.rank == 0] == [400, 400, 200]
    assert simulation.makespan_nanoseconds == arrival(hosts) + 3 * LATENCY + 1000


# --- memory and threads ------------------------------------------------------------------------


def copy(rank: int, owner: int | None = None) -> Copy:
    return Copy(WHOLE_VECTOR, source(rank, owner), result(rank))


def test_a_copy_is_bound_by_memory() -> None:
    """Every byte is read and written over one half-duplex port."""
    host = wired_hosts(1, memory=RATE)
    plans = [plan_of_lanes(0, host, lane("copy", [copy(0)]))]
    simulation = go(plans, host, 250)
    assert simulation.makespan_nanoseconds == 2000
    assert simulation.port_bytes == (0, 0, 2000)


def test_a_copy_is_bound_by_the_thread_where_memory_is_faster() -> None:
    host = wired_hosts(1, memory=4 * RATE)
    plans = [plan_of_lanes(0, host, lane("copy", [copy(0)]))]
    assert go(plans, host, 250, thread=RATE).makespan_nanoseconds == 2000
    assert go(plans, host, 250, thread=8 * RATE).makespan_nanoseconds == 500


def test_ranks_of_a_host_share_its_memory() -> None:
    host = wired_hosts(1, 3, memory=RATE)
    plans = [plan_of_lanes(rank, host, lane("copy", [copy(rank)])) for rank in range(3)]
    assert go(plans, host, 250).makespan_nanoseconds == 6000
    # Three threads of 1 byte a nanosecond are no faster than one where memory is ten times that.
    fast = wired_hosts(1, 3, memory=10 * RATE)
    plans = [plan_of_lanes(rank, fast, lane("copy", [copy(rank)])) for rank in range(3)]
    assert go(plans, fast, 250, thread=RATE).makespan_nanoseconds == 2000


def test_a_rank_computes_one_step_at_a_time_and_a_gpu_does_not() -> None:
    host = wired_hosts(1, memory=4 * RATE)
    plans = [plan_of_lanes(0, host, lane("one", [copy(0)]), lane("two", [copy(0)]))]
    spans = go(plans, host, 250, thread=RATE).spans
    assert [(span.lane, span.begin_nanoseconds, span.end_nanoseconds) for span in spans] == [
        (0, 0, 2000),
        (1, 0, 4000),  # begun, and waiting for the thread
    ]
    gpu = gpu_hosts(1, 1)
    plans = [plan_of_lanes(0, gpu, lane("one", [copy(0)]), lane("two", [copy(0)]))]
    spans = go(plans, gpu, 3_000_000).spans
    # Two streams share the memory of the GPU: 4 x 12 MB at 3 TB/s, both until the end.
    assert [span.end_nanoseconds for span in spans] == [16_000, 16_000]


def test_what_a_reduce_reads_and_writes() -> None:
    """Two sources and an operand are read, the operand and two destinations written: six."""
    host = wired_hosts(1, 2, memory=RATE)
    operand = View(Buffer.OPERAND, 0, 4)
    step = Reduce(
        WHOLE_VECTOR,
        (source(0), source(0, 1)),
        ((result(0), result(1)),),
        operands=(operand,),
        updated=(0,),
    )
    simulation = go([plan_of_lanes(0, host, lane("r", [step])), idle(1, host)], host, 100)
    assert simulation.makespan_nanoseconds == 6 * 400
    assert simulation.spans[0].bytes == 6 * 400


def test_a_gpu_reads_a_peer_through_both_ports() -> None:
    """From its peer over NVLink at 0.4 bytes a picosecond, to its own memory: side by side."""
    gpus = gpu_hosts(1, 2)
    step = Reduce(WHOLE_VECTOR, (source(0), source(0, 1)), ((result(0),),))
    simulation = go([plan_of_lanes(0, gpus, lane("r", [step])), idle(1, gpus)], gpus, 1_000_000)
    # Arrival 600 (both ports), latency 600, 4 MB at 400 GB/s; the own memory has long been read.
    assert simulation.makespan_nanoseconds == 600 + 600 + 10_000
    moved = {
        port.name: moved
        for port, moved in zip(gpus.ports, simulation.port_bytes, strict=True)
        if moved
    }
    assert moved == {"g gpu0 memory": 8_000_000, "g gpu1 out": 4_000_000, "g gpu0 in": 4_000_000}


def test_a_copy_onto_itself_takes_no_time() -> None:
    host = wired_hosts(1, memory=RATE)
    plans = [plan_of_lanes(0, host, lane("copy", [Copy(WHOLE_VECTOR, result(0), result(0))]))]
    assert go(plans, host, 250).makespan_nanoseconds == 0


# --- lanes, flags, openings --------------------------------------------------------------------


def test_lanes_wait_for_iterations() -> None:
    """Two copies in two lanes take turns by `after`; the second may be two iterations behind."""
    host = wired_hosts(1, memory=2 * RATE)
    chunk = 250  # a copy takes 1000 ns
    lanes = [
        lane("first", [copy(0)], chunk),
        lane("second", [Copy(WHOLE_VECTOR, source(0), result(0), (After(0),))], chunk),
        lane("last", [Copy(WHOLE_VECTOR, source(0), result(0), (After(1, None),))]),
    ]
    spans = go([plan_of_lanes(0, host, *lanes)], host, 3 * chunk).spans
    ends = {(span.lane, span.iteration): span.end_nanoseconds for span in spans}
    # One thread serves first whoever has waited longest, of equals the lower lane.
    assert ends == {
        (0, 0): 1000,
        (0, 1): 2000,
        (1, 0): 3000,
        (0, 2): 4000,
        (1, 1): 5000,
        (1, 2): 6000,
        (2, 0): 9000,
    }


def test_a_negative_lag_waits_for_the_end_where_there_is_no_such_iteration() -> None:
    host = wired_hosts(1, memory=2 * RATE)
    ahead = Copy(WHOLE_VECTOR, source(0), result(0), (After(0, -1),))
    lanes = [lane("first", [copy(0)], 250), lane("second", [ahead], 250)]
    spans = go([plan_of_lanes(0, host, *lanes)], host, 500).spans
    begins = [span.begin_nanoseconds for span in spans if span.lane == 1]
    assert begins == [2000, 3000]


def test_a_signal_is_seen_after_the_latency_of_memory() -> None:
    host = wired_hosts(1, 2, memory=RATE, memory_latency=50)
    plans = [
        plan_of_lanes(0, host, lane("a", [copy(0), Signal(1, 0)])),
        plan_of_lanes(1, host, lane("b", [Wait(0, 0)])),
    ]
    simulation = go(plans, host, 250)
    # Arrival 50, the copy 50 + 2000, the signal 50.
    wait = next(span for span in simulation.spans if span.rank == 1)
    assert (wait.begin_nanoseconds, wait.end_nanoseconds) == (50, 2150)
    late = [plans[0], plan_of_lanes(1, host, lane("b", [copy(1), copy(1), Wait(0, 0)]))]
    spans = [span for span in go(late, host, 250).spans if span.rank == 1]
    assert spans[-1].begin_nanoseconds == spans[-1].end_nanoseconds


def test_nobody_goes_on_before_the_last_has_opened() -> None:
    host = wired_hosts(1, 2, memory=2 * RATE, memory_latency=10)
    opening = Loop((Copy(WHOLE_VECTOR, source(0), slot(0, 0, 250)),))
    body = Fragment((lane("a", [Signal(1, 0)]),), (opening,))
    plans = [
        Plan(0, 2, body, "opens"),
        plan_of_lanes(1, host, lane("b", [Wait(0, 0)])),
    ]
    spans = go(plans, host, 250).spans
    assert [(span.rank, span.lane, span.end_nanoseconds) for span in spans] == [
        (0, -1, 1010),
        (0, 0, 1020),
        (1, 0, 1030),
    ]


def test_loops_follow_each_other() -> None:
    host = wired_hosts(1, memory=2 * RATE)
    loops = (
        Loop((copy(0),), Span.WHOLE, 100, end=1),
        Loop((copy(0), Copy(WHOLE_VECTOR, source(0), result(0))), Span.WHOLE, 100, begin=1),
    )
    simulation = go([plan_of_lanes(0, host, Lane("l", loops))], host, 250)
    assert [(span.loop, span.step, span.iteration, span.bytes) for span in simulation.spans] == [
        (0, 0, 0, 800),
        (1, 0, 1, 800),
        (1, 1, 1, 800),
        (1, 0, 2, 400),
        (1, 1, 2, 400),
    ]
    assert simulation.makespan_nanoseconds == 1600


def test_a_native_collective_takes_what_it_must_at_least() -> None:
    hosts = wired_hosts(4)
    plans = [
        plan_of_lanes(
            rank, hosts, lane("n", [Native("broadcast", WHOLE_VECTOR, source(rank), result(rank))])
        )
        for rank in range(4)
    ]
    simulation = go(plans, hosts, 1000)
    # Every host but the root has to take 4000 bytes in, and a message has a latency.
    assert simulation.makespan_nanoseconds == arrival(hosts) + LATENCY + 4000
    with pytest.raises(SimulationError, match="native collective"):
        go([*plans[:3], idle(3, hosts)], hosts, 1000)


def test_a_simulation_does_the_same_every_time() -> None:
    hosts = wired_hosts(4, core=RATE // 2)
    plans = all_plans(ring(hosts, 64), hosts)
    one, other = go(plans, hosts, 4096), go(plans, hosts, 4096)
    assert one.spans == other.spans
    assert one.port_bytes == other.port_bytes
    quiet = simulate(plans, hosts, 4096, keep_spans=False, thread_bytes_per_second=THREAD)
    assert not quiet.spans
    assert quiet.makespan_nanoseconds == one.makespan_nanoseconds


def test_every_step_of_every_iteration_has_a_span() -> None:
    hosts = wired_hosts(3)
    plans = all_plans(exchange(hosts), hosts)
    simulation = go(plans, hosts, 48)
    assert simulation.steps == len(simulation.spans) == 12
    assert simulation.lanes == dict.fromkeys(range(3), ("exchange",))
    assert all(span.begin_nanoseconds <= span.end_nanoseconds for span in simulation.spans)


# --- what is refused ---------------------------------------------------------------------------


def test_a_deadlock_says_what_is_waited_for() -> None:
    hosts = wired_hosts(2)
    gather = lane("gather", [receive(0, 1, tag=4)], 10)
    following = lane("next", [send(0, 1, after=(After(0),))])
    plans = [
        plan_of_lanes(0, hosts, gather, following),
        plan_of_lanes(1, hosts, lane("send", [send(1, 0)])),
    ]
    with pytest.raises(SimulationError) as caught:
        go(plans, hosts, 25)
    message = str(caught.value)
    assert "rank 0, lane 'gather', iteration 0, receive whole vector of rank 1" in message
    assert "waits for rank 1 to send (tag 4)" in message
    assert "iteration 0 of lane 'gather', which has completed 0" in message
    assert "rank 1, lane 'send', iteration 0" in message
    assert "waits for rank 0 to receive (tag 0)" in message
    assert caught.value.report().splitlines()[1:] == message.split("on: ")[1].split("; ")


def test_a_wait_without_a_signal_is_a_deadlock() -> None:
    host = wired_hosts(1, 2)
    plans = [plan_of_lanes(0, host, lane("a", [Wait(1, 0)])), idle(1, host)]
    with pytest.raises(SimulationError, match=r"wait for REQUEST of rank 1: waits for rank 1 to s"):
        go(plans, host, 1)


def test_a_signal_without_a_wait_is_refused() -> None:
    host = wired_hosts(1, 2)
    plans = [plan_of_lanes(0, host, lane("a", [Signal(1, 0)])), idle(1, host)]
    with pytest.raises(SimulationError, match="rank 0 signals flag 0 to rank 1 more often"):
        go(plans, host, 1)


def test_an_iteration_that_never_comes_is_refused() -> None:
    host = wired_hosts(1)
    late = Copy(WHOLE_VECTOR, source(0), result(0), (After(0),))
    plans = [plan_of_lanes(0, host, lane("a", [copy(0)]), lane("b", [late], 10))]
    with pytest.raises(SimulationError, match="waits for iteration 1 of lane 'a', which ran 1"):
        go(plans, host, 20)


def test_memory_of_another_host_is_refused() -> None:
    hosts = wired_hosts(2)
    plans = [plan_of_lanes(0, hosts, lane("a", [copy(0, 1)])), idle(1, hosts)]
    with pytest.raises(SimulationError, match="rank 0 would read memory of rank 1, which is on an"):
        go(plans, hosts, 1)


def test_a_window_over_other_steps_is_refused() -> None:
    host = wired_hosts(1)
    plans = [plan_of_lanes(0, host, lane("a", [copy(0)], 10, in_flight=2))]
    with pytest.raises(SimulationError, match="lane 'a' has up to 2 steps in flight"):
        go(plans, host, 1)


def test_iterations_that_are_waited_for_count_from_zero() -> None:
    host = wired_hosts(1)
    late = Copy(WHOLE_VECTOR, source(0), result(0), (After(0),))
    loops = (Loop((copy(0),), Span.WHOLE, 10, begin=1),)
    plans = [plan_of_lanes(0, host, Lane("a", loops), lane("b", [late], 10))]
    with pytest.raises(SimulationError, match="wanted one that begins with 0, got 1"):
        go(plans, host, 20)


def test_plans_and_topology_have_the_same_ranks() -> None:
    hosts = wired_hosts(2)
    with pytest.raises(UsageError, match="has 2 ranks; got 1 plans"):
        go([idle(0, hosts)], hosts, 1)
    with pytest.raises(UsageError, match="wanted the plan of rank 1 of 2, got that of rank 0 of 2"):
        go([idle(0, hosts), idle(0, hosts)], hosts, 1)
    with pytest.raises(UsageError, match="count >= 0"):
        go([idle(0, hosts), idle(1, hosts)], hosts, -1)


def test_a_million_iterations_take_no_room_before_they_run() -> None:
    """What is made ready of a loop is one iteration of it."""
    from cocoll.simulation.flows import Traffic
    from cocoll.simulation.meeting import Switchboard
    from cocoll.simulation.roles import SeparateRoles
    from cocoll.simulation.tasks import resolve_plan

    hosts = wired_hosts(2)
    plan = chain(hosts, 1)(0)
    traffic = Traffic((*hosts.bandwidths_bytes_per_second, THREAD, THREAD))
    switchboard = Switchboard(SeparateRoles(hosts), traffic, len(hosts.ports))
    _, (sending,) = resolve_plan(plan, 10**6, switchboard)
    (loop,) = sending.loops
    assert (loop.begin, loop.end, len(loop.tasks)) == (0, 10**6, 1)
