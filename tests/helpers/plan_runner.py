"""Runs the plans of all ranks on small integer vectors, in random legal interleavings.

A reference for what plans compute, independent of the verifier and of every executor: memory is
bytes, a step is done tile by tile, and between any two tiles any other lane of any rank may go on.
The callers are as hostile as they may be: a rank that has finished checks its results, overwrites
all its arrays at once, while its peers are still at work, and goes into the next operation.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cache

from cocoll.plan.ir import (
    Buffer,
    Copy,
    Lane,
    Loop,
    Native,
    Plan,
    Receive,
    Reduce,
    Send,
    Signal,
    Step,
    View,
    Wait,
)
from cocoll.plan.memory import Aliasing, Relation
from cocoll.plan.ranges import block_elements, block_range, chunk_range, loop_iterations

TILE_ELEMENTS = 3
SCRATCH_BYTES = 1 << 16

Condition = Callable[[], bool]
# A task yields the condition it waits for, or None where it may go on at once.
Task = Generator[Condition | None, None, None]


class StuckError(AssertionError):
    """No task can go on."""


@dataclass(frozen=True)
class Operation:
    """Plans, what they are called with, and what each rank's results should be.

    `source_itemsize` and `result_itemsizes` are in bytes; `operands` holds (itemsize, sharded,
    updated). `kind` is allreduce, reduce_scatter, allgather or broadcast. `commutative`: plain sums
    of values so small that they fit the source's type, for plans that add up parts in an order of
    their own.
    """

    kind: str
    plans: tuple[Plan, ...]
    source_itemsize: int
    result_itemsizes: tuple[int, ...]
    operands: tuple[tuple[int, bool, bool], ...] = ()
    aliasing: Aliasing = field(default_factory=Aliasing)
    root: int = 0
    zero_source: bool = False
    late_opening: bool = False
    commutative: bool = False

    def fold(self, values: Sequence[int]) -> int:
        """Combine sources."""
        return sum(values) if self.commutative else fold(values)

    def host_of(self, rank: int) -> int:
        """Give the host of a rank."""
        hosts = self.plans[rank].hosts
        return 0 if hosts is None else hosts[rank]


@dataclass
class Array:
    """Elements ``[first, stop)`` of the vector, from `offset` in `memory`."""

    memory: bytearray
    offset: int
    first: int
    stop: int
    itemsize: int

    @property
    def address(self) -> int:
        """Where element 0 of the vector would lie."""
        return self.offset - self.first * self.itemsize

    def _place(self, element: int) -> int:
        assert self.first <= element < self.stop, f"element {element} is outside the array"
        return self.offset + (element - self.first) * self.itemsize

    def get(self, element: int) -> int:
        place = self._place(element)
        return int.from_bytes(self.memory[place : place + self.itemsize], "little")

    def set(self, element: int, value: int) -> None:
        place = self._place(element)
        wrapped = value % (1 << 8 * self.itemsize)
        self.memory[place : place + self.itemsize] = wrapped.to_bytes(self.itemsize, "little")


def _grouped(steps: Sequence[Step]) -> list[list[Step]]:
    """Put together what moves as one."""
    groups: list[list[Step]] = []
    for step in steps:
        number = step.group if isinstance(step, Send | Receive) else 0
        last = groups[-1][-1] if groups else None
        if number and isinstance(last, Send | Receive) and last.group == number:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


@cache
def _value(*facts: object) -> int:
    """Give a number that depends on all facts, the same in every run."""
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def fold(values: Sequence[int]) -> int:
    """Combine sources; not commutative, so that their order is checked too."""
    total = 0
    for value in values:
        total = 3 * total + value
    return total


class World:
    """Ranks that run a sequence of operations."""

    def __init__(self, operations: Sequence[Operation], count: int, seed: int) -> None:
        self.operations = operations
        self.count = count
        self.world_size = len(operations[0].plans)
        self._random = random.Random(seed)
        self._scratch: dict[tuple[Buffer, int, int], bytearray] = {}
        self._shared: dict[tuple[int, int, int], bytearray] = {}
        self._signalled: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        self._taken: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        self._arrived = [[False] * self.world_size for _ in operations]
        # What has been posted on each wire, by sender and receiver, and not met; natives by rank.
        self._sends: defaultdict[tuple[int, int, int], list[_Posted]] = defaultdict(list)
        self._receives: defaultdict[tuple[int, int, int], list[_Posted]] = defaultdict(list)
        self._natives: list[list[_Posted]] = [[] for _ in range(self.world_size)]
        self._tasks: list[tuple[str, Task]] = []
        self.finished = [0] * self.world_size
        # Every array that a call has brought, by operation, buffer, rank and index.
        self.placed: dict[tuple[int, Buffer, int, int], Array] = {}

    # --- scheduling ---

    def run(self) -> None:
        """Run everything to the end, checking all results."""
        for rank in range(self.world_size):
            self._spawn(f"rank {rank}", self._rank_task(rank))
        waiting: list[tuple[str, Task, Condition | None]] = []
        while self._tasks or waiting:
            waiting += [(name, task, None) for name, task in self._tasks]
            self._tasks.clear()
            # Looking for messages that have ended may be what another task waits for: look twice.
            ready = _find_ready(waiting) or _find_ready(waiting)
            if not ready:
                raise StuckError(f"stuck: {sorted(name for name, _, _ in waiting)}")
            # A burst for one task now and then makes the orders less alike.
            name, task, _ = waiting.pop(self._random.choice(ready))
            burst = self._random.choice((1, 1, 2, 8, 64))
            condition: Condition | None = None
            for _ in range(burst):
                try:
                    condition = next(task)
                except StopIteration:
                    break
                if condition is not None and not condition():
                    waiting.append((name, task, condition))
                    break
            else:
                waiting.append((name, task, condition))
        assert self.finished == [len(self.operations)] * self.world_size
        assert self._signalled == self._taken

    def _spawn(self, name: str, task: Task) -> None:
        self._tasks.append((name, task))

    def _rank_task(self, rank: int) -> Task:
        for number, operation in enumerate(self.operations):
            yield from _RankRun(self, number, operation, rank).task()
            self.finished[rank] += 1

    # --- wires: a send ends with its receive, and a native collective with that of all ranks ---

    def post(self, posted: _Posted) -> None:
        """Take a wire step whose turn has come on its rank, and let what has met move."""
        step, rank = posted.step, posted.rank
        if isinstance(step, Native):
            self._natives[rank].append(posted)
            if all(self._natives):
                self._spawn("native", _collect([queue.pop(0) for queue in self._natives]))
            return
        if isinstance(step, Send):
            pair = (rank, step.peer, step.tag)
            self._sends[pair].append(posted)
        else:
            pair = (step.peer, rank, step.tag)
            self._receives[pair].append(posted)
        if self._sends[pair] and self._receives[pair]:
            send, receive = self._sends[pair].pop(0), self._receives[pair].pop(0)
            self._spawn("message", _deliver(send, receive))

    # --- memory ---

    def scratch(self, number: int, view: View) -> bytearray:
        buffer = view.buffer
        key = (buffer, view.rank, number % buffer.copies)
        if key not in self._scratch:
            size = 64 if buffer is Buffer.LINE else SCRATCH_BYTES
            self._scratch[key] = bytearray(self._random.randbytes(size))
        return self._scratch[key]

    def shared(self, host: int, index: int, itemsize: int) -> bytearray:
        """Give the one copy that a host has of a replicated result."""
        key = (host, index, itemsize)
        if key not in self._shared:
            self._shared[key] = bytearray(max(1, self.count) * itemsize)
        return self._shared[key]

    def shared_value(self, number: int, index: int, element: int) -> int:
        """Give what a replicated result holds before an operation that updates it."""
        if number == 0:
            return 0
        return self.expected(number - 1, index, element) % (
            1 << 8 * self.operations[number - 1].result_itemsizes[index]
        )

    # --- what should come out ---

    def source_value(self, number: int, rank: int, element: int) -> int:
        operation = self.operations[number]
        bits = 8 * operation.source_itemsize
        if operation.commutative:
            # The sum of all ranks' fits, so that no part of it wraps around.
            bits -= self.world_size.bit_length()
        return _value("source", number, rank, element) % (1 << bits)

    def operand_value(self, number: int, index: int, element: int) -> int:
        operation = self.operations[number]
        results = dict(operation.aliasing.updated_operands)
        if operation.aliasing.replicated_results and index in results:
            return self.shared_value(number, results[index], element)
        itemsize = operation.operands[index][0]
        return _value("operand", number, index, element) % (1 << 8 * itemsize)

    def reduced(self, number: int, element: int) -> int:
        ranks = range(self.world_size)
        values = [self.source_value(number, rank, element) for rank in ranks]
        return self.operations[number].fold(values)

    def expected(self, number: int, index: int, element: int) -> int:
        operation = self.operations[number]
        if operation.kind == "allgather":
            length = self.block_elements(operation)
            return self.source_value(number, element // length, element)
        if operation.kind == "broadcast":
            return self.source_value(number, operation.root, element)
        operands = [
            self.operand_value(number, operand, element)
            for operand in range(len(operation.operands))
        ]
        return epilogue_result(self.reduced(number, element), operands, index)

    def block_elements(self, operation: Operation) -> int:
        return block_elements(self.count, self.world_size, operation.plans[0].alignment_elements)


def _find_ready(waiting: Sequence[tuple[str, Task, Condition | None]]) -> list[int]:
    return [
        index for index, (_, _, condition) in enumerate(waiting) if condition is None or condition()
    ]


def epilogue_result(total: int, operands: Sequence[int], index: int) -> int:
    return total + sum((place + 2) * value for place, value in enumerate(operands)) + 7 * index


def epilogue_update(total: int, operands: Sequence[int], index: int) -> int:
    return total + 5 * operands[index] + index + 1


@dataclass
class _Posted:
    """A wire step whose turn has come."""

    rank: int
    step: Send | Receive | Native
    source: Array | None
    destination: Array | None
    read: range
    written: range
    done: bool = False


def _deliver(send: _Posted, receive: _Posted) -> Task:
    assert send.source is not None
    assert receive.destination is not None
    assert len(send.read) == len(receive.written)
    assert send.source.itemsize == receive.destination.itemsize
    for element, to in zip(send.read, receive.written, strict=True):
        receive.destination.set(to, send.source.get(element))
        if element % TILE_ELEMENTS == 0:
            yield None
    send.done = receive.done = True


def _collect(everyone: Sequence[_Posted]) -> Task:
    names = {one.step.name for one in everyone if isinstance(one.step, Native)}
    assert len(names) == 1
    (name,) = names
    sources = [one.source for one in everyone]
    for element in everyone[0].written:
        if name == "allreduce":
            value = fold([source.get(element) for source in sources if source is not None])
        else:
            step = everyone[0].step
            assert isinstance(step, Native)
            owner = step.root
            if name == "allgather":
                owner = next(one.rank for one in everyone if element in one.read)
            source = sources[owner]
            assert source is not None
            value = source.get(element)
        for one in everyone:
            assert one.destination is not None
            one.destination.set(element, value)
        yield None
    for one in everyone:
        one.done = True


class _RankRun:
    """One rank in one operation."""

    def __init__(self, world: World, number: int, operation: Operation, rank: int) -> None:
        self._world = world
        self._number = number
        self._operation = operation
        self._rank = rank
        self._plan = operation.plans[rank]
        self._length = world.block_elements(operation)
        lanes = len(self._plan.fragment.lanes)
        self._progress = [0] * lanes
        self._ended = [False] * lanes

    def task(self) -> Task:
        world, number, rank = self._world, self._number, self._rank
        arrays = self._call()
        yield None
        late = self._operation.late_opening and world._random.random() < 0.5
        if not late:
            yield from self._loops(self._plan.fragment.opening, None)
        world._arrived[number][rank] = True
        yield lambda: all(world._arrived[number])
        if late:
            yield from self._loops(self._plan.fragment.opening, None)
        for index, lane in enumerate(self._plan.fragment.lanes):
            name = f"rank {rank}, operation {number}, lane {lane.name}"
            world._spawn(name, self._lane(index, lane))
        yield lambda: all(self._ended)
        if self._operation.zero_source and not self._plan.mapped_sources:
            source = arrays[Buffer.SOURCE, 0]
            for element in range(source.first, source.stop):
                source.set(element, 0)
        self._check(arrays)
        self._scribble(arrays)

    # --- the caller ---

    def _call(self) -> dict[tuple[Buffer, int], Array]:
        """Allocate and fill this rank's arrays; peers find them from arrival on."""
        arrays = self._allocate()
        self._scribble(arrays)
        number, world = self._number, self._world
        source = arrays[Buffer.SOURCE, 0]
        for element in range(source.first, source.stop):
            source.set(element, world.source_value(number, self._rank, element))
        shared = self._operation.aliasing.replicated_results
        updated = dict(self._operation.aliasing.updated_operands)
        for index in range(len(self._operation.operands)):
            if shared and index in updated:
                continue
            array = arrays[Buffer.OPERAND, index]
            for element in range(array.first, array.stop):
                array.set(element, world.operand_value(number, index, element))
        for (buffer, index), array in arrays.items():
            world.placed[number, buffer, self._rank, index] = array
        return arrays

    def _allocate(self) -> dict[tuple[Buffer, int], Array]:
        operation, rank = self._operation, self._rank
        shard = block_range(rank, self._world.count, self._length)
        whole = (0, self._world.count)

        def fresh(extent: tuple[int, int], itemsize: int) -> Array:
            memory = bytearray((extent[1] - extent[0]) * itemsize)
            return Array(memory, 0, *extent, itemsize)

        source_extent = shard if operation.kind == "allgather" else whole
        result_extent = shard if operation.kind == "reduce_scatter" else whole
        arrays = {(Buffer.SOURCE, 0): fresh(source_extent, operation.source_itemsize)}
        source = arrays[Buffer.SOURCE, 0]
        for index, itemsize in enumerate(operation.result_itemsizes):
            result = fresh(result_extent, itemsize)
            relation = operation.aliasing.relation
            if operation.aliasing.replicated_results:
                host = operation.host_of(rank)
                result.memory = self._world.shared(host, index, itemsize)
            elif index == operation.aliasing.result and relation is not Relation.DISJOINT:
                if relation is Relation.SOURCE_IS_SHARD:
                    source.memory, source.offset = result.memory, shard[0] * itemsize
                else:
                    is_shard = relation is Relation.RESULT_IS_SHARD
                    result.memory = source.memory
                    result.offset = shard[0] * itemsize if is_shard else 0
            arrays[Buffer.RESULT, index] = result
        updated = dict(operation.aliasing.updated_operands)
        for index, (itemsize, sharded, _) in enumerate(operation.operands):
            arrays[Buffer.OPERAND, index] = (
                arrays[Buffer.RESULT, updated[index]]
                if index in updated
                else fresh(shard if sharded else whole, itemsize)
            )
        return arrays

    def _check(self, arrays: dict[tuple[Buffer, int], Array]) -> None:
        """Compare all results, the moment the operation has ended here."""
        operation, number, world = self._operation, self._number, self._world
        for index, itemsize in enumerate(operation.result_itemsizes):
            array = arrays[Buffer.RESULT, index]
            for element in range(array.first, array.stop):
                wanted = world.expected(number, index, element) % (1 << 8 * itemsize)
                got = array.get(element)
                assert got == wanted, (
                    f"rank {self._rank}, operation {number}, result {index}, element {element} of "
                    f"{world.count}: wanted {wanted}, got {got}"
                )
        for index, (itemsize, _, updated) in enumerate(operation.operands):
            array = arrays[Buffer.OPERAND, index]
            if not updated:
                continue
            for element in range(array.first, array.stop):
                operands = [
                    world.operand_value(number, place, element)
                    for place in range(len(operation.operands))
                ]
                wanted = epilogue_update(world.reduced(number, element), operands, index)
                assert array.get(element) == wanted % (1 << 8 * itemsize)
        source = arrays[Buffer.SOURCE, 0]
        if operation.aliasing.relation is Relation.DISJOINT:
            for element in range(source.first, source.stop):
                kept = world.source_value(number, self._rank, element)
                assert source.get(element) == (0 if operation.zero_source else kept)

    def _scribble(self, arrays: dict[tuple[Buffer, int], Array]) -> None:
        """Overwrite everything that is this rank's own, as its caller may."""
        shared = {id(memory) for memory in self._world._shared.values()}
        for array in arrays.values():
            if id(array.memory) not in shared:
                noise = self._world._random.randbytes(len(array.memory))
                array.memory[:] = noise

    # --- steps ---

    def _lane(self, index: int, lane: Lane) -> Task:
        if lane.in_flight == 1:
            yield from self._loops(lane.loops, index)
        else:
            yield from self._overlapping(lane, index)
        self._ended[index] = True

    def _overlapping(self, lane: Lane, index: int) -> Task:
        """Run a lane of messages of which several are under way; they end in their order."""
        flight: deque[tuple[list[_Posted], int | None]] = deque()

        def settle() -> bool:
            while flight and all(one.done for one in flight[0][0]):
                iteration = flight.popleft()[1]
                if iteration is not None:
                    self._progress[index] = iteration + 1
            return len(flight) < lane.in_flight

        for loop in lane.loops:
            for iteration in loop_iterations(loop, self._world.count, self._length):
                groups = _grouped(loop.steps)
                for place, group in enumerate(groups):
                    yield settle
                    for step in group:
                        for condition in self._wait_for(step, iteration):
                            yield lambda condition=condition: (settle(), condition())[1]
                    posted = self._post(group, loop, iteration)
                    last = place == len(groups) - 1
                    flight.append((posted, iteration if last else None))
        yield lambda: settle() and not flight

    def _loops(self, loops: Sequence[Loop], lane: int | None) -> Task:
        for loop in loops:
            for iteration in loop_iterations(loop, self._world.count, self._length):
                for group in _grouped(loop.steps):
                    if isinstance(group[0], Send | Receive | Native):
                        yield from self._move(group, loop, iteration)
                        continue
                    yield from self._step(group[0], loop, iteration)
                if lane is not None:
                    self._progress[lane] = iteration + 1

    def _move(self, group: Sequence[Step], loop: Loop, iteration: int) -> Task:
        """Post what moves as one, and wait until all of it has."""
        for step in group:
            yield from self._wait_for(step, iteration)
        posted = self._post(group, loop, iteration)
        yield lambda: all(one.done for one in posted)

    def _post(self, group: Sequence[Step], loop: Loop, iteration: int) -> list[_Posted]:
        posted = []
        for step in group:
            assert isinstance(step, Send | Receive | Native)
            first, stop = chunk_range(loop, step.block, iteration, self._world.count, self._length)
            read = (first, stop)
            if isinstance(step, Native):
                read = chunk_range(
                    loop, step.source_block, iteration, self._world.count, self._length
                )
            source = destination = None
            if not isinstance(step, Receive) and read[0] < read[1]:
                source = self._resolve(step.source, iteration, *read)
            if not isinstance(step, Send) and first < stop:
                destination = self._resolve(step.destination, iteration, first, stop)
            if isinstance(step, Receive):
                read = (0, 0)
            one = _Posted(self._rank, step, source, destination, range(*read), range(first, stop))
            one.done = first >= stop
            if not one.done:
                self._world.post(one)
            posted.append(one)
        return posted

    def _wait_for(self, step: Step, iteration: int) -> Task:
        for after in step.after:
            yield (
                lambda after=after: (
                    self._ended[after.lane]
                    or (
                        after.lag is not None and self._progress[after.lane] > iteration - after.lag
                    )
                )
            )

    def _step(self, step: Step, loop: Loop, iteration: int) -> Task:
        yield from self._wait_for(step, iteration)
        world = self._world
        if isinstance(step, Signal):
            world._signalled[self._rank, step.peer, step.flag] += 1
            yield None
        elif isinstance(step, Wait):
            key = (step.peer, self._rank, step.flag)
            yield lambda: world._signalled[key] > world._taken[key]
            world._taken[key] += 1
        elif isinstance(step, Copy | Reduce):
            first, stop = chunk_range(loop, step.block, iteration, world.count, self._length)
            for tile in range(first, stop, TILE_ELEMENTS):
                self._tile(step, iteration, first, range(tile, min(tile + TILE_ELEMENTS, stop)))
                yield None
        else:
            raise TypeError(f"the runner has no {type(step).__name__}")

    def _tile(self, step: Copy | Reduce, iteration: int, first: int, tile: range) -> None:
        """Do a step for a few elements: read all, then write all."""

        def array(view: View) -> Array:
            return self._resolve(view, iteration, first, tile.stop)

        if isinstance(step, Copy):
            source, destination = array(step.source), array(step.destination)
            if source.memory is destination.memory and source.address == destination.address:
                return
            values = [source.get(element) for element in tile]
            for element, value in zip(tile, values, strict=True):
                destination.set(element, value)
            return
        columns = [[array(view).get(element) for view in step.sources] for element in tile]
        operands = [[array(view).get(element) for view in step.operands] for element in tile]
        for element, column, row in zip(tile, columns, operands, strict=True):
            if self._operation.zero_source:
                for view in step.sources:
                    if view.buffer is Buffer.SOURCE:
                        array(view).set(element, 0)
            total = self._operation.fold(column)
            for index, views in enumerate(step.destinations):
                value = total if step.partial else epilogue_result(total, row, index)
                for view in views:
                    array(view).set(element, value)
            for index in step.updated:
                value = epilogue_update(total, row, index)
                array(step.operands[index]).set(element, value)

    def _resolve(self, view: View, iteration: int, first: int, stop: int) -> Array:
        world = self._world
        if not view.buffer.is_scratch:
            # Whoever touches a peer's array before its call finds none.
            array = world.placed[self._number, view.buffer, view.rank, view.index]
            origin = block_range(view.origin, world.count, self._length)[0]
            assert array.first == origin, "the view's origin is not where the array begins"
            assert array.itemsize == view.itemsize_bytes
            return array
        memory = world.scratch(self._number, view)
        offset = view.offset_bytes
        if view.slots:
            offset += iteration % view.slots * view.slot_bytes
            return Array(memory, offset, first, stop, view.itemsize_bytes)
        return Array(memory, offset, 0, stop, view.itemsize_bytes)


def run_operations(operations: Sequence[Operation], count: int, seed: int) -> None:
    """Run operations in sequence on all ranks; raise AssertionError on a wrong element."""
    World(operations, count, seed).run()
