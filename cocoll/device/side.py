"""A communicator's side on a GPU: opened by all ranks together, with memory that peers map."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cocoll import _core
from cocoll.cuda.binding import (
    Device,
    DeviceStream,
    Endpoint,
    Kernels,
    Memory,
)
from cocoll.device.agreement import agree
from cocoll.device.array import DeviceArray
from cocoll.device.claims import Block, Shard
from cocoll.device.failures import LATE, make_device_failure
from cocoll.device.streams import uses_wire
from cocoll.dtypes import DType
from cocoll.errors import (
    AbortedError,
    CocollError,
    CollectiveMismatchError,
    CudaError,
    UsageError,
)
from cocoll.failure import AbortReason, Purpose
from cocoll.kernels.grid_spec import COMMON_KERNELS
from cocoll.kernels.spec import KernelSpec
from cocoll.plan.listing import render_plan
from cocoll.symmetric import Allocation, SymmetricHeap

if TYPE_CHECKING:
    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.communicator import Communicator
    from cocoll.kernels.grid_loader import GridLoader
    from cocoll.plan.ir import Plan

__all__ = ["MEETING", "DeviceSide", "Place"]

#: A kernel without elements does nothing but meet all peers.
MEETING = KernelSpec("sum", DType.INT32, None)

# How much longer than they may wait kernels take to end.
_SLACK_SECONDS = 5.0
_LEGACY_STREAM = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a symmetric array lies: the same on every rank.

    Attributes
    ----------
    segment : int
        Which of the segments.
    offset_bytes : int
        Where in it.
    """

    segment: int
    offset_bytes: int


class _Segment:
    """One range of device memory of every rank, given out by the same rules on all of them."""

    def __init__(self, own: Memory, views: dict[int, Memory], nbytes: int) -> None:
        self.own = own
        # Of the ranks whose memory is mapped, this one's own among them.
        self.views = views
        self.heap = SymmetricHeap(0, nbytes)
        self.nbytes = nbytes


class DeviceSide:
    """One rank's side of a communicator on its GPU; made by `open_device`.

    Parameters
    ----------
    comm : Communicator
        Whose.
    endpoint : Endpoint
        With all peers attached.
    loader : GridLoader
        Of kernels.
    wire_reason : str
        Why ranks reach each other over NCCL; empty where they map each other's memory.
    buses : list of tuple
        Which GPU each rank has: its host, and where it is plugged in there.
    hierarchy : Hierarchy, optional
        Of ranks on several hosts, if those of a host map each other's memory.
    """

    def __init__(
        self,
        comm: Communicator,
        endpoint: Endpoint,
        loader: GridLoader,
        wire_reason: str,
        buses: list[tuple[int, str]],
        hierarchy: Hierarchy | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.wire_reason = wire_reason
        self.buses = buses
        self.hierarchy = hierarchy
        # Whether NCCL's own all-reduce may serve beside mapped memory; it may also be there for
        # what has no kernels over that.
        self.prefers_native = False
        self._loader = loader
        self._segment_bytes = comm.tuning.gpu_segment_bytes
        self._segments: list[_Segment] = []
        self._freed: list[tuple[int, int]] = []
        self._functions: dict[str, int] = {}
        self._kernels: list[Kernels] = []
        self._shards: set[int] = set()
        self._error: CocollError | None = None
        self._closed = False
        # Not the default stream: ranks of one process share that, and their kernels wait for each
        # other.
        self.stream = DeviceStream(endpoint.device)

    @property
    def device(self) -> Device:
        """The rank's GPU."""
        return self.endpoint.device

    @property
    def is_mapped(self) -> bool:
        """Whether kernels here reach the memory of all ranks."""
        return not self.wire_reason

    def reaches(self, peer: int) -> bool:
        """Say whether kernels here reach the memory of a rank."""
        if self.hierarchy is None:
            return self.is_mapped or peer == self.endpoint.rank
        return self.hierarchy.hosts[peer] == self.hierarchy.hosts[self.endpoint.rank]

    @property
    def neighbours(self) -> list[int]:
        """The other ranks whose memory kernels here reach."""
        rank, world_size = self.endpoint.rank, self.endpoint.world_size
        return [peer for peer in range(world_size) if peer != rank and self.reaches(peer)]

    def explain(self, plan: Plan) -> str:
        """Say what a plan does and over what, for people."""
        nccl = self.endpoint.nccl
        if self.hierarchy is not None and plan.hosts is not None:
            over = f"over NCCL between hosts and mapped memory inside them: {self.wire_reason}"
        elif self.wire_reason:
            over = f"over NCCL, because {self.wire_reason}"
        elif any(uses_wire(lane.loops) for lane in plan.fragment.lanes):
            over = "over NCCL, which is better at it than kernels over mapped memory"
        else:
            over = "over memory that all ranks map"
        version = "" if nccl is None else f" (NCCL {nccl.version})"
        return f"{plan.name} {over}{version}\n{render_plan(plan)}"

    # --- Memory. ---

    def empty(self, comm: Communicator, shape: tuple[int, ...], dtype: DType) -> DeviceArray:
        """Make an array in memory that all ranks map; see `Communicator.empty`."""
        nbytes = math.prod(shape) * dtype.itemsize_bytes
        self.endpoint.release()
        for _ in range(len(self._freed)):
            index, key = self._freed.pop(0)
            self._segments[index].heap.mark(key)
        marks = [segment.heap.marks for segment in self._segments]
        if any(marks):
            # What is given out again must not be in use by anything that was queued here, the
            # caller's own work too.
            self.device.synchronize_all()
        request = [list(shape), dtype.label]
        message = json.dumps([request, marks]).encode()
        everyone = [
            json.loads(data) for data in _core.exchange(comm, Purpose.EMPTY_ON_DEVICE, message)
        ]
        _check_requests([theirs for theirs, _ in everyone])
        for index, segment in enumerate(self._segments):
            segment.heap.reclaim([theirs[index] for _, theirs in everyone])
        index, allocation = self._allocate(comm, nbytes)
        own = self._segments[index].own
        block = Block(self._freed, (index, allocation.key), own)
        address = own.address + allocation.offset_bytes
        return DeviceArray(self.device, address, shape, dtype, block, self.stream)

    def _allocate(self, comm: Communicator, nbytes: int) -> tuple[int, Allocation]:
        for index, segment in enumerate(self._segments):
            try:
                return index, segment.heap.allocate(nbytes)
            except MemoryError:
                continue
        # Room for the stagger of large blocks too.
        unit = 4 << 20
        wanted = max(self._segment_bytes, -(-(nbytes + unit) // unit) * unit)
        self._segments.append(self._make_segment(comm, wanted))
        return len(self._segments) - 1, self._segments[-1].heap.allocate(nbytes)

    def _make_segment(self, comm: Communicator, nbytes: int) -> _Segment:
        own: Memory | None = None
        problem = ""
        try:
            own = Memory.create(self.device, nbytes)
        except CudaError as error:
            problem = str(error)
        neighbours = self.neighbours
        ticket = own.expose() if own and neighbours else b""
        tickets = agree(comm, ticket, problem)
        if own is None:
            raise UsageError(problem)
        views = {comm.rank: own}
        if not self.wire_reason or self.hierarchy is not None:
            try:
                for peer in neighbours:
                    views[peer] = Memory.attach(self.device, tickets[peer], nbytes)
            except CudaError as error:
                problem = str(error)
            agree(comm, b"", problem)
        return _Segment(own, views, nbytes)

    def zeros(self, shape: tuple[int, ...], dtype: DType) -> DeviceArray:
        """Make a zeroed private array."""
        memory = Memory.create(self.device, max(math.prod(shape) * dtype.itemsize_bytes, 1))
        return DeviceArray(self.device, memory.address, shape, dtype, memory, self.stream)

    def shard_zeros(self, length: int, dtype: DType) -> DeviceArray:
        """Make a zeroed private array for a shard; see `Communicator.shard_zeros`."""
        memory = Memory.create(self.device, max(length * dtype.itemsize_bytes, 1))
        owner = Shard(self._shards, memory)
        return DeviceArray(self.device, memory.address, (length,), dtype, owner, self.stream)

    def is_shard(self, address: int) -> bool:
        """Say whether an array comes from `shard_zeros`."""
        return address in self._shards

    def place_of(self, address: int, nbytes: int) -> Place | None:
        """Say where in memory that peers map an array lies, None if it does not."""
        if not self.is_mapped and self.hierarchy is None:
            return None
        for index, segment in enumerate(self._segments):
            offset = address - segment.own.address
            if offset >= 0 and offset + nbytes <= segment.nbytes:
                return Place(index, offset)
        return None

    def addresses(self, place: Place) -> list[int]:
        """Give where a place lies of every rank; 0 for those that are not mapped."""
        views = self._segments[place.segment].views
        return [
            views[peer].address + place.offset_bytes if peer in views else 0
            for peer in range(self.endpoint.world_size)
        ]

    # --- Kernels. ---

    def function(self, spec: KernelSpec) -> int:
        """Give a kernel's handle. Local: a rank that fails must let the others know by raising."""
        name = spec.name()
        if name not in self._functions:
            symbol, image = self._loader.load(spec)
            kernels = Kernels(self.device, image)
            self._kernels.append(kernels)
            self._functions[name] = kernels.function(symbol)
            for common in COMMON_KERNELS:
                if common not in self._functions:
                    self._functions[common] = kernels.function(common)
        return self._functions[name]

    def common_function(self, name: str) -> int:
        """Give the handle of one of `COMMON_KERNELS`."""
        if name not in self._functions:
            self.function(MEETING)
        return self._functions[name]

    # --- Its end. ---

    def give_up(self) -> None:
        """Make all kernels that wait end, here and on all peers."""
        self.endpoint.poison()

    def drain(self, comm: Communicator) -> None:
        """Wait until this rank's operations have ended, well or not; replays of graphs too."""
        # Kernels end by themselves when they have waited for as long as they may.
        stop = time.monotonic() + comm.settings.timeout_seconds + _SLACK_SECONDS
        while not self.is_idle() and time.monotonic() < stop:
            time.sleep(1e-4)
        if self.is_idle() and self.endpoint.has_captured:
            self._await_replays(stop)

    def _await_replays(self, stop: float) -> None:
        # Of replays nobody knows where they run. Those over NCCL end only if all ranks come: when
        # time is up they are aborted.
        waiting = threading.Thread(target=self.device.synchronize_all, daemon=True)
        waiting.start()
        waiting.join(max(0.0, stop - time.monotonic()))
        if waiting.is_alive():
            self.endpoint.poison()
            waiting.join(_SLACK_SECONDS)

    def is_idle(self) -> bool:
        """Whether all that was issued has completed."""
        return self.endpoint.issued == 0 or self.endpoint.is_done(self.endpoint.issued - 1)

    def end(self, comm: Communicator, leave: Callable[[], None], farewell_seconds: float) -> None:
        """Let go of peers' memory, leave, and give back the own memory once all peers have.

        What peers do not let go of in time goes with the process. Idempotent. Nobody may leave
        before it has let go: that is what tells the others.
        """
        if self._closed:
            return
        self._closed = True
        self.drain(comm)
        self._note_failure(comm)
        if not self.is_idle():
            # Kernels that do not end still use all of it.
            self._error = self._error or AbortedError(
                f"rank {comm.rank} closed its communicator while an operation on its GPU had not "
                f"ended"
            )
            self.endpoint.end_watch()
            leave()
            return
        self.endpoint.end_watch()
        self.endpoint.detach()
        for segment in self._segments:
            for view in segment.views.values():
                if view is not segment.own:
                    view.close()
        leave()
        stop = time.monotonic() + farewell_seconds
        # Ranks of other hosts map nothing of this one's.
        neighbours = [peer for peer in range(comm.world_size) if comm._inspect(peer) is not None]
        while not all((comm._inspect(peer) or {})["left"] for peer in neighbours):
            if time.monotonic() >= stop:
                return
            time.sleep(1e-3)
        self.endpoint.close()
        for segment in self._segments:
            # Arrays of the caller keep their segments.
            segment.own.withdraw()
        self._segments.clear()

    def make_failure(self, comm: Communicator) -> CocollError | None:
        """Give what a kernel gave up for as an exception, and give the communicator up; or None."""
        reason = self._note_failure(comm)
        if reason is not None and not comm.closed:
            comm._give_up(reason)
        return self._error

    def _note_failure(self, comm: Communicator) -> AbortReason | None:
        """Keep what a kernel gave up for, which goes with the memory; gives why, if it did."""
        found = self.endpoint.failure()
        if found is None:
            return None
        if self._error is None:
            self._error = make_device_failure(comm, self, found)
        return AbortReason.TIMEOUT if found[0] == LATE else AbortReason.EXCEPTION


def _check_requests(requests: list[list[Any]]) -> None:
    if all(request == requests[0] for request in requests):
        return
    listing = {
        rank: f"empty({tuple(shape)}, {label!r}, device='cuda')"
        for rank, (shape, label) in enumerate(requests)
    }
    raise CollectiveMismatchError(
        "the ranks asked for different arrays; none was made: "
        + "; ".join(f"rank {rank}: {text}" for rank, text in listing.items()),
        requests=listing,
    )
