"""Plans as steps on streams: what the executor for GPUs runs of a plan's primitive steps.

The lanes that use the wire share the caller's stream, in the order that the plan gives them; every
other lane has a stream, so that all work at the same time. What a step waits for in a lane of
another stream becomes an event. Over several hosts whatever waits for another rank is on the
caller's stream: the plans of cocoll's own give all of that one order, and then no kernel that waits
can keep another one from running that it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cocoll.cuda.binding import MAX_RANKS, MAX_SIGNALS
from cocoll.device.boxes import DeviceBox, add_box_copy
from cocoll.device.launches import add_arrival, add_reduction
from cocoll.device.streams import CALLERS_STREAM, streams_of, uses_wire
from cocoll.dtypes import DType
from cocoll.errors import UnsupportedError
from cocoll.kernels.grid_spec import SIGNAL_KERNEL, WAIT_KERNEL
from cocoll.kernels.spec import KernelSpec
from cocoll.plan.grouping import Member, moving_as_one
from cocoll.plan.ir import (
    After,
    Buffer,
    Call,
    Copy,
    Loop,
    Native,
    Plan,
    Receive,
    Reduce,
    Send,
    Signal,
    View,
    Wait,
)
from cocoll.plan.ranges import block_elements, block_range, chunk_range, origin_element
from cocoll.plan.structure import matches_by_tag

if TYPE_CHECKING:
    from cocoll.cuda.binding import Operation
    from cocoll.device.request import Request

__all__ = ["NCCL_OPS", "NCCL_TYPES", "lower_plan"]

#: What NCCL calls element types and reductions (ncclDataType_t, ncclRedOp_t). It has floats of 8
#: bits too, and rounds to them at every step, as cocoll does not.
NCCL_TYPES = {
    DType.INT8: 0,
    DType.UINT8: 1,
    DType.INT32: 2,
    DType.UINT32: 3,
    DType.INT64: 4,
    DType.UINT64: 5,
    DType.FLOAT16: 6,
    DType.FLOAT32: 7,
    DType.FLOAT64: 8,
    DType.BFLOAT16: 9,
}
NCCL_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}

_WORD_BYTES = 4


@dataclass
class _Lane:
    index: int
    stream: int
    batches: list[list[Member]]
    next: int = 0
    completed: int = 0  # iterations whose steps have been issued
    # Events behind iterations that a lane on the other stream waits for; None: behind the last one.
    events: dict[int | None, int] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.next == len(self.batches)


def lower_plan(
    plan: Plan, request: Request, operation: Operation, *, in_turn: bool = False
) -> None:
    """Add the steps of a plan, with its opening and its arrival, to an operation.

    Parameters
    ----------
    plan : Plan
        Of any steps but call; what it touches of peers is mapped.
    request : Request
        The arrays, and what the plan's reductions compute.
    operation : Operation
        To which they are added.
    in_turn : bool, default False
        Whether the plan gives all that waits for other ranks one order, signals too: then all of it
        is on the caller's stream.

    Raises
    ------
    UnsupportedError
        The plan needs more than this executor has: other steps or scratch, more lanes or flags,
        messages with tags.
    """
    if matches_by_tag(plan):
        raise UnsupportedError(
            f"plan {plan.name!r} has messages with tags, or several in flight in a lane, and NCCL "
            f"matches messages by their order alone: give a rank's messages one order, with groups "
            f"(docs/plans.md, rule 5)"
        )
    lowering = _Lowering(plan, request, operation, in_turn)
    lowering.open()
    add_arrival(request.comm, request.side, operation)
    lowering.run()


class _Lowering:
    def __init__(self, plan: Plan, request: Request, operation: Operation, in_turn: bool) -> None:
        self._plan = plan
        self._request = request
        self._operation = operation
        self._length = block_elements(request.count, plan.world_size, plan.alignment_elements)
        streams = streams_of(plan, in_turn)
        if any(uses_wire(lane.loops) for lane in plan.fragment.lanes):
            self._need_wire()
        self._lanes = [
            _Lane(index, stream, self._cut(lane.loops))
            for index, (lane, stream) in enumerate(zip(plan.fragment.lanes, streams, strict=True))
        ]
        # The last event of each other stream that each stream has waited for.
        self._seen: dict[tuple[int, int], int] = {}
        self._awaited = {
            (after.lane, self._iteration_of(after, member.iteration))
            for lane in self._lanes
            for batch in lane.batches
            for member in batch
            for after in member.step.after
            if self._lanes[after.lane].stream != lane.stream
        }

    def run(self) -> None:
        others = sorted({lane.stream for lane in self._lanes} - {CALLERS_STREAM})
        if others:
            begun = self._operation.record(CALLERS_STREAM)
            for stream in others:
                self._operation.wait_for(begun, stream)
        while not all(lane.ended for lane in self._lanes):
            self._issue(next(lane for lane in self._lanes if self._is_ready(lane)))
        for stream in others:
            self._operation.wait_for(self._operation.record(stream), CALLERS_STREAM)

    def open(self) -> None:
        """Add the opening, which stands before the arrival."""
        for batch in self._cut(self._plan.fragment.opening):
            for member in batch:
                self._add(member, CALLERS_STREAM)

    # --- The order in which lanes take turns. ---

    def _cut(self, loops: Sequence[Loop]) -> list[list[Member]]:
        return list(moving_as_one(loops, self._request.count, self._length))

    def _iteration_of(self, after: After, iteration: int) -> int | None:
        """Give which iteration of a lane is waited for; None: its last one."""
        if after.lag is None:
            return None
        wanted = iteration - after.lag
        batches = self._lanes[after.lane].batches
        return None if not batches or wanted >= batches[-1][-1].iteration else wanted

    def _is_ready(self, lane: _Lane) -> bool:
        if lane.ended:
            return False
        for member in lane.batches[lane.next]:
            for after in member.step.after:
                other = self._lanes[after.lane]
                wanted = self._iteration_of(after, member.iteration)
                if not other.ended and (wanted is None or other.completed <= wanted):
                    return False
        return True

    def _issue(self, lane: _Lane) -> None:
        batch = lane.batches[lane.next]
        for member in batch:
            for after in member.step.after:
                other = self._lanes[after.lane]
                wanted = self._iteration_of(after, member.iteration)
                # Below 0: nothing to wait for, in the lane's first iterations.
                if other.stream == lane.stream or (wanted is not None and wanted < 0):
                    continue
                event, pair = other.events[wanted], (other.stream, lane.stream)
                if event > self._seen.get(pair, -1):
                    self._operation.wait_for(event, lane.stream)
                    self._seen[pair] = event
        grouped = len(batch) > 1
        if grouped:
            self._operation.begin_group(lane.stream)
        for member in batch:
            self._add(member, lane.stream)
        if grouped:
            self._operation.end_group(lane.stream)
        lane.next += 1
        ended = [member.iteration for member in batch if member.ends_iteration]
        if ended:
            lane.completed = ended[-1] + 1
            keys = {*ended, None} if lane.ended else {*ended}
            if any((lane.index, key) in self._awaited for key in keys):
                event = self._operation.record(lane.stream)
                lane.events.update(dict.fromkeys(keys, event))

    # --- Steps. ---

    def _add(self, member: Member, stream: int) -> None:
        operation, count, step = self._operation, self._request.count, member.step
        if isinstance(step, Signal | Wait):
            self._add_flag(step, stream)
            return
        if isinstance(step, Call):
            raise UnsupportedError(
                f"plan {self._plan.name!r} has a call step, which no executor runs yet"
            )
        iteration = member.iteration
        first, stop = chunk_range(member.loop, step.block, iteration, count, self._length)
        if isinstance(step, Native):
            self._add_native(step, stop - first, stream)
            return
        if first >= stop:
            return
        if isinstance(step, Reduce):
            self._add_reduce(step, iteration, first, stop, stream)
            return
        if isinstance(step, Copy):
            source, to = (self._box_of(view, iteration, first)
                          for view in (step.source, step.destination))  # fmt: skip
            add_box_copy(self._request.side, operation, to, source, first, stop, stream)
            return
        view = step.destination if isinstance(step, Receive) else step.source
        place = self._locate(view, iteration, first)
        nbytes = (stop - first) * view.itemsize_bytes
        if isinstance(step, Send):
            operation.send(step.peer, place, nbytes, stream)
        else:
            operation.receive(step.peer, place, nbytes, stream)

    def _add_reduce(self, step: Reduce, iteration: int, first: int, stop: int, stream: int) -> None:
        def origin_of(view: View) -> int:
            # Where element 0 of the vector would lie.
            return self._locate(view, iteration, first) - first * view.itemsize_bytes

        if len(step.sources) > MAX_RANKS:
            raise UnsupportedError(
                f"plan {self._plan.name!r} reduces {len(step.sources)} arrays in one step; on GPUs "
                f"at most {MAX_RANKS}"
            )
        request = self._request
        if step.partial:
            # What is added up here is divided, and goes through the epilogue, at its owner.
            op = "sum" if request.spec.op == "avg" else request.spec.op
            request = replace(
                request,
                spec=KernelSpec(op, request.source.dtype, None),
                results=[request.source],
                operands=[],
            )
        add_reduction(
            request,
            self._operation,
            first,
            stop,
            [origin_of(view) for view in step.sources],
            [[origin_of(view) for view in views] for views in step.destinations],
            largest=stop - first,
            alone=True,
            stream=stream,
        )

    def _add_flag(self, step: Signal | Wait, stream: int) -> None:
        # A cocoll_grid_signals has three tables of a word for each flag and peer.
        request, rank = self._request, self._plan.rank
        self._need_mapping(step.peer)
        if step.flag >= MAX_SIGNALS:
            raise UnsupportedError(
                f"plan {self._plan.name!r} has flag {step.flag}; on GPUs there are {MAX_SIGNALS}"
            )

        def word(table: int, whose: int, peer: int) -> int:
            row = table * MAX_SIGNALS + step.flag
            return request.side.endpoint.signals(whose) + (row * MAX_RANKS + peer) * _WORD_BYTES

        signals = isinstance(step, Signal)
        self._operation.launch(
            request.side.common_function(SIGNAL_KERNEL if signals else WAIT_KERNEL),
            1,
            0,
            step.peer,
            [word(1 if signals else 2, rank, step.peer)],
            [[word(0, step.peer, rank)] if signals else []],
            copied_from=0 if signals else word(0, rank, step.peer),
            stream=stream,
        )

    def _add_native(self, step: Native, elements: int, stream: int) -> None:
        operation, request = self._operation, self._request
        itemsize = step.source.itemsize_bytes
        begin, _ = block_range(step.source_block, request.count, self._length)
        source = self._locate(step.source, 0, begin)
        result = self._locate(step.destination, 0, 0)
        if step.name == "allreduce":
            dtype, op = request.spec.source_dtype, request.spec.op
            operation.all_reduce(result, source, elements, NCCL_TYPES[dtype], NCCL_OPS[op], stream)
        elif step.name == "allgather":
            operation.all_gather(result, source, self._length * itemsize, stream)
        else:
            operation.broadcast(result, source, elements * itemsize, step.root, stream)

    def _box_of(self, view: View, iteration: int, first: int) -> DeviceBox:
        """Give a view as a box; of a chunk, as it begins with element `first`."""
        if view.buffer is Buffer.PART:
            return self._request.parts[view.index]
        place = self._locate(view, iteration, first)
        return DeviceBox(place, view.itemsize_bytes, origin=first)

    def _locate(self, view: View, iteration: int, first: int) -> int:
        """Give where element `first`, with which a chunk begins, lies of a view."""
        request = self._request
        self._need_mapping(view.rank)
        if view.buffer is Buffer.PART:
            part = request.parts[view.index]
            if not part.is_contiguous:
                raise UnsupportedError(
                    f"plan {self._plan.name!r} sends, receives or reduces a strided part; on GPUs "
                    f"those are copied to staging first"
                )
            return part.place_of(first)
        if view.buffer is Buffer.STAGING:
            self._check_window(view)
            base = request.side.endpoint.window(view.rank) + view.offset_bytes
            if view.slots:
                return base + iteration % view.slots * view.slot_bytes
            return base + first * view.itemsize_bytes
        if view.buffer not in (Buffer.SOURCE, Buffer.RESULT):
            raise UnsupportedError(
                f"plan {self._plan.name!r} uses scratch that the executor for GPUs does not have: "
                f"{view.buffer.name}"
            )
        array = request.source if view.buffer is Buffer.SOURCE else request.results[view.index]
        address = array.address
        if view.rank != self._plan.rank:
            place = request.side.place_of(address, array.nbytes)
            if place is None:
                raise UnsupportedError(
                    f"plan {self._plan.name!r} touches arrays of peers, which must be symmetric: "
                    f"make them with comm.empty(device='cuda')"
                )
            address = request.side.addresses(place)[view.rank]
        origin = origin_element(view.origin, request.count, self._length)
        return address + (first - origin) * view.itemsize_bytes

    def _need_wire(self) -> None:
        if not self._request.side.endpoint.has_wire:
            raise UnsupportedError(
                f"plan {self._plan.name!r} sends and receives, and the ranks map each other's "
                f"memory without NCCL; give Tuning(gpu_map_peers=0) to use it"
            )

    def _need_mapping(self, rank: int) -> None:
        side = self._request.side
        if rank != self._plan.rank and not side.reaches(rank):
            raise UnsupportedError(
                f"plan {self._plan.name!r} touches memory of peers, which is not mapped, because "
                f"{side.wire_reason}; let it send and receive"
            )

    def _check_window(self, view: View) -> None:
        end = view.offset_bytes + view.slots * view.slot_bytes
        if not view.slots:
            end = view.offset_bytes + self._request.count * view.itemsize_bytes
        if end > self._request.side.endpoint.window_bytes:
            raise UnsupportedError(
                f"plan {self._plan.name!r} wants {end} bytes of staging; Tuning.gpu_window_bytes "
                f"is {self._request.side.endpoint.window_bytes}"
            )
