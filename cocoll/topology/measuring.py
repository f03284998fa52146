"""Measuring with MPI: small messages back and forth, streams of large ones, copies in memory.

Who measures polls, and lets others have the processor between two looks; who waits for its turn
sleeps. Nothing waits for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cocoll.errors import CommTimeoutError
from cocoll.topology.host import last_level_cache_bytes
from cocoll.topology.probing import Sample, apply_samples, schedule_pairs

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology

__all__ = ["measure_topology"]

_PING_BYTES = 8
_WARMUP_PINGS = 5
_PINGS = 25

# Streams grow until one takes long enough to say how long those that count must be: so long that
# neither a token bucket's burst nor the start of a TCP connection shows. The fastest of three
# counts: ranks that lose their processors for a while are held up, and nothing makes them faster.
_FIRST_STREAM_BYTES, _MOST_STREAM_BYTES = 512 << 10, 256 << 20
_GROWTH = 4
_LONG_ENOUGH_SECONDS, _STREAM_SECONDS = 0.04, 0.1
_STREAMS = 3
_MOST_ABOVE_MEAN = 1.05
# Messages in flight may share the way and end together. The first of them, which may profit from a
# burst, are not looked at, and of the others those are compared that stand whole such groups apart.
_IN_FLIGHT = 8
_APART = 2 * _IN_FLIGHT
_MESSAGES = _IN_FLIGHT + 2 * _APART

_COPY_SECONDS = 0.1
_LEAST_COPY_BYTES, _MOST_COPY_BYTES = 8 << 20, 64 << 20

_REST_SECONDS = 0.001
# A stream goes on by itself meanwhile, and who sleeps a little is woken before those that never do.
_NAP_SECONDS = 0.0001


def measure_topology(
    topology: Topology,
    comm: Any,
    *,
    timeout_seconds: float = 600.0,
    progress: Callable[[int, int], None] | None = None,
) -> Topology:
    """Measure the NICs and the memory of a job. Collective.

    Parameters
    ----------
    topology : Topology
        Where the ranks are; equal on all ranks.
    comm : mpi4py.MPI.Comm
        All ranks, in their order. It should be one that nothing else uses.
    timeout_seconds : float, default 600
        How long a rank waits for another one.
    progress : callable, optional
        Called on rank 0 with the number of rounds that are done, and of all.

    Returns
    -------
    Topology
        The same on all ranks, with measured rates and latencies.

    Raises
    ------
    CommTimeoutError
        A rank did not answer in time.
    """
    probe = _Probe(comm, timeout_seconds)
    rounds = schedule_pairs(topology)
    samples = []
    total = len(rounds) + 1
    for number, pairs in enumerate(rounds):
        if progress and probe.rank == 0:
            progress(number, total)
        for one, other in pairs:
            if probe.rank in (one, other):
                samples += probe.measure_pair(one, other)
        probe.rest()
    if progress and probe.rank == 0:
        progress(len(rounds), total)
    copied = probe.measure_copies(len(topology.members(topology.host_of(probe.rank))))
    probe.rest()
    everything: list[tuple[list[Sample], int]] = comm.allgather((samples, copied))
    if progress and probe.rank == 0:
        progress(total, total)
    memory = [0] * len(topology.hosts)
    for rank, (_, rate) in enumerate(everything):
        memory[topology.host_of(rank)] += rate
    return apply_samples(
        topology,
        [sample for of_rank, _ in everything for sample in of_rank],
        dict(enumerate(memory)),
    )


class _Probe:
    """One rank's part."""

    def __init__(self, comm: Any, timeout_seconds: float) -> None:
        self._comm = comm
        self._timeout_seconds = timeout_seconds
        self.rank: int = comm.Get_rank()

    def rest(self) -> None:
        """Wait for all ranks, asleep."""
        request = self._comm.Ibarrier()
        deadline = time.monotonic() + self._timeout_seconds
        while not request.Test():
            if time.monotonic() > deadline:
                raise CommTimeoutError(
                    f"rank {self.rank} waited {self._timeout_seconds:g} s for others to measure",
                    ranks=(),
                )
            time.sleep(_REST_SECONDS)

    def _finish(self, request: Any, peer: int, *, nap: bool = False) -> None:
        deadline = time.monotonic() + self._timeout_seconds
        while not request.Test():
            if time.monotonic() > deadline:
                raise CommTimeoutError(
                    f"rank {self.rank} waited {self._timeout_seconds:g} s for a message to or from "
                    f"rank {peer} to arrive",
                    ranks=(peer,),
                )
            if nap:
                time.sleep(_NAP_SECONDS)
            else:
                os.sched_yield()

    def measure_pair(self, one: int, other: int) -> list[Sample]:
        """Measure both ways between this rank and another; give what it has received."""
        peer = other if self.rank == one else one
        latency_nanoseconds = self._ping(peer, first=self.rank == one)
        found = []
        for source, destination in ((one, other), (other, one)):
            if self.rank == source:
                self._send_stream(peer)
            else:
                rate = self._receive_stream(peer)
                found.append(Sample(source, destination, rate, latency_nanoseconds))
        return found

    def _ping(self, peer: int, *, first: bool) -> int:
        """Give half the time there and back, in nanoseconds, on both ranks."""
        out, into = bytearray(_PING_BYTES), bytearray(_PING_BYTES)
        times = []
        for turn in range(_WARMUP_PINGS + _PINGS):
            started = time.perf_counter_ns()
            # The receive first: a message that is expected is not copied twice.
            receiving = self._comm.Irecv(into, peer)
            if not first:
                self._finish(receiving, peer)
            sending = self._comm.Isend(out, peer)
            if first:
                self._finish(receiving, peer)
            self._finish(sending, peer)
            if turn >= _WARMUP_PINGS:
                times.append(time.perf_counter_ns() - started)
        # What three of four exceed: the others had to wait for a processor, not for the network.
        return self._tell(peer, sorted(times)[_PINGS // 4] if first else None) // 2

    def _tell(self, peer: int, value: int | None) -> int:
        """Send a number to the peer; or, for None, take the peer's. Give it on both."""
        data = bytearray(8) if value is None else bytearray(value.to_bytes(8, "little"))
        move = self._comm.Irecv if value is None else self._comm.Isend
        self._finish(move(data, peer), peer)
        return int.from_bytes(data, "little")

    def _send_stream(self, peer: int) -> None:
        while message_bytes := self._tell(peer, None):
            buffer = bytearray(message_bytes)
            requests: list[Any] = []
            for number in range(_MESSAGES):
                if number >= _IN_FLIGHT:
                    self._finish(requests[number - _IN_FLIGHT], peer, nap=True)
                requests.append(self._comm.Isend(buffer, peer))
            for request in requests[-_IN_FLIGHT:]:
                self._finish(request, peer, nap=True)

    def _receive_stream(self, peer: int) -> int:
        """Give the bytes per second that come in, when they have come long enough."""
        stream_bytes = _FIRST_STREAM_BYTES
        while True:
            _, seconds = self._receive(peer, stream_bytes // _MESSAGES)
            if seconds >= _LONG_ENOUGH_SECONDS or stream_bytes >= _MOST_STREAM_BYTES:
                break
            stream_bytes *= _GROWTH
        stream_bytes = min(int(stream_bytes / seconds * _STREAM_SECONDS), _MOST_STREAM_BYTES)
        message_bytes = max(1, stream_bytes // _MESSAGES)
        rate = max(self._receive(peer, message_bytes)[0] for _ in range(_STREAMS))
        self._tell(peer, 0)
        return rate

    def _receive(self, peer: int, message_bytes: int) -> tuple[int, float]:
        """Give the bytes per second of a stream but for its start, and how long all of it took."""
        started = time.perf_counter_ns()
        self._tell(peer, message_bytes)
        buffers = [bytearray(message_bytes) for _ in range(_IN_FLIGHT)]
        requests = [self._comm.Irecv(buffer, peer) for buffer in buffers]
        times = []
        for number in range(_MESSAGES):
            slot = number % _IN_FLIGHT
            self._finish(requests[slot], peer, nap=True)
            times.append(time.perf_counter_ns())
            if number + _IN_FLIGHT < _MESSAGES:
                requests[slot] = self._comm.Irecv(buffers[slot], peer)
        # A receiver that was not running sees messages late, in a heap: the usual time between
        # messages far apart is right however many such heaps there were, unless there was one at
        # the start. It cannot be far from the mean over all the time since the sender was asked.
        timed = times[_IN_FLIGHT:]
        passed = sorted(timed[index + _APART] - timed[index] for index in range(_APART))
        between = _APART * message_bytes * 10**9 // max(1, passed[_APART // 2])
        taken = times[-1] - started
        mean = _MESSAGES * message_bytes * 10**9 // max(1, taken)
        return max(1, min(between, int(mean * _MOST_ABOVE_MEAN))), taken / 10**9

    def measure_copies(self, neighbours: int) -> int:
        """Copy at the same time as all other ranks; give the bytes read and written a second."""
        size = 2 * last_level_cache_bytes() // neighbours
        size = min(max(size, _LEAST_COPY_BYTES), _MOST_COPY_BYTES)
        source, target = bytearray(size), memoryview(bytearray(size))
        target[:] = source
        self.rest()
        copies = 0
        started = time.perf_counter_ns()
        taken = 0
        while taken < _COPY_SECONDS * 10**9:
            target[:] = source
            copies += 1
            taken = time.perf_counter_ns() - started
        return 2 * size * copies * 10**9 // taken
