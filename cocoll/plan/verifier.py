"""Proves, without running anything, that plans end, and that no two steps race.

The steps of all ranks are unrolled for a count (see :mod:`cocoll.plan.unrolling`). Signals are
paired with waits and sends with receives; a cycle in the graph that remains is a deadlock. Without
one, every node gets a vector clock, and two steps that touch the same bytes, at least one
writing, must be ordered by it.

Two operations in sequence suffice for any number: nothing follows an arrival before every rank has
ended the operation before it, so only neighbours can meet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cocoll.errors import DependenceError, SignalMismatchError, UsageError
from cocoll.plan.ir import (
    Buffer,
    Flag,
    Native,
    Plan,
    Receive,
    Send,
    Signal,
    Span,
    Wait,
)
from cocoll.plan.listing import describe_step
from cocoll.plan.memory import LINE_BYTES, Aliasing, Space
from cocoll.plan.structure import check_world, reads_of, writes_of
from cocoll.plan.unrolling import Event, Moment, Operation, Trace, raise_illegal, unroll

__all__ = ["default_counts", "verify"]


def verify(
    plans: Sequence[Plan],
    *,
    counts: Iterable[int] | None = None,
    aliasing: Aliasing | None = None,
    zero_source: bool = False,
    late_opening: bool = False,
    other: Sequence[Plan] | None = None,
    other_aliasing: Aliasing | None = None,
    other_zero_source: bool = False,
    other_late_opening: bool = False,
) -> None:
    """Check the plans of all ranks: they end, nothing races, and the caller's arrays are its own.

    Local and pure: nothing runs. The operation is checked twice in a row, so that the reuse of
    flags and scratch is proved; with `other`, also before and after it. Between operations a
    rank's caller is taken to rewrite all its arrays at once (replicated ones: to read them).

    Parameters
    ----------
    plans : sequence of Plan
        One per rank, in rank order.
    counts : iterable of int, optional
        Vector lengths to check, in elements; default :func:`default_counts`.
    aliasing : Aliasing, optional
        Which of the caller's arrays share memory; default: none do.
    zero_source : bool, default False
        Whether reduces store zeros over the SOURCE elements they have read.
    late_opening : bool, default False
        Whether ranks may run the opening after arrival instead of before it, as executors do that
        learn only then that another rank's arrays are not mapped.
    other : sequence of Plan, optional
        A second operation of the same world.
    other_aliasing : Aliasing, optional
        As `aliasing`, for `other`.
    other_zero_source, other_late_opening : bool, default False
        As `zero_source` and `late_opening`, for `other`.

    Raises
    ------
    UsageError
        The plans are not one per rank of one world, or a plan is malformed.
    SignalMismatchError
        Signals and waits, or sends and receives, do not pair up, differ in size, or wait for each
        other in a cycle.
    DependenceError
        Two steps touch the same bytes, at least one writing, in no certain order; a step reads
        scratch that nothing in this operation wrote; a step touches the arrays of a rank before
        its arrival or after its end; the wire steps of a rank have no total order.
    ScheduleError
        A view cannot hold its chunk, or a step touches memory that the plan does not declare.

    Notes
    -----
    ``report()`` of what is raised prints the plans concerned with the steps marked. Time grows
    with ranks * steps * iterations; sends and receives are taken as rendezvous when progress is
    proved, and as eager when order is.
    """
    check_world(plans)
    first = Operation(tuple(plans), aliasing or Aliasing(), zero_source, late_opening)
    sequences = [(first, first)]
    if other is not None:
        check_world(other)
        if len(other) != len(plans):
            raise UsageError(f"wanted a second operation of {len(plans)} ranks, got {len(other)}")
        second = Operation(
            tuple(other), other_aliasing or Aliasing(), other_zero_source, other_late_opening
        )
        sequences += [(first, second), (second, first)]
    if counts is None:
        counts = default_counts(plans if other is None else (*plans, *other))
    for count in counts:
        if count < 0:
            raise UsageError(f"wanted counts >= 0, got {count}")
        for sequence in sequences:
            _verify_sequence(sequence, count)


def default_counts(plans: Sequence[Plan]) -> tuple[int, ...]:
    """Give counts that reach every shape of a plan's loops.

    Parameters
    ----------
    plans : sequence of Plan
        The plans to cover.

    Returns
    -------
    tuple of int
        Ascending: none, one, fewer than a block each, one chunk less and more one element, and
        enough chunks for every slot to be used three times; only what fits where a plan goes
        through the arrival line.
    """
    world_size = plans[0].world_size
    counts = {0, 1, world_size + 1, 37}
    slots, line_itemsizes = [1], [1]
    loops = [
        loop
        for plan in plans
        for loops in (plan.fragment.opening, *(lane.loops for lane in plan.fragment.lanes))
        for loop in loops
    ]
    for step in (step for loop in loops for step in loop.steps):
        for view in (*reads_of(step), *writes_of(step)):
            slots.append(view.slots)
            if view.buffer is Buffer.LINE:
                line_itemsizes.append(view.itemsize_bytes)
    for loop in loops:
        if loop.span is not Span.ONCE:
            blocks = world_size if loop.span is Span.BLOCK else 1
            chunk = loop.chunk_elements
            counts |= {blocks * chunk - 1, blocks * chunk + 1}
            counts.add(blocks * chunk * (2 * max(slots) + 1) - chunk // 2 - 1)
    if len(line_itemsizes) > 1:
        limit = LINE_BYTES // max(line_itemsizes)
        counts = {count for count in counts if count < limit} | {limit}
    return tuple(sorted(counts))


def _verify_sequence(operations: Sequence[Operation], count: int) -> None:
    trace = unroll(operations, count)
    _pair_signals(trace)
    _pair_wires(trace)
    order = _topological_order(trace)
    clocks = _vector_clocks(trace, order)
    _check_wire_order(trace, order, clocks)
    _RaceChecker(trace, order, clocks).check()


# --- signals with waits, sends with receives ---------------------------------------------------


def _pair_signals(trace: Trace) -> None:
    """Add an edge from the n-th signal to the n-th wait of every counter."""
    signals: defaultdict[tuple[int, int, int, int], list[Event]] = defaultdict(list)
    waits: defaultdict[tuple[int, int, int, int], list[Event]] = defaultdict(list)
    for event in trace.events:
        step = event.step
        if isinstance(step, Signal):
            signals[event.operation, event.rank, step.peer, step.flag].append(event)
        elif isinstance(step, Wait):
            waits[event.operation, step.peer, event.rank, step.flag].append(event)
    for key in sorted(signals.keys() | waits.keys()):
        _, writer, reader, flag = key
        name = Flag(flag).name if flag in list(Flag) else f"flag {flag}"
        given, taken = signals[key], waits[key]
        if len(given) != len(taken):
            _raise_unpaired(
                trace,
                f"rank {writer} signals {name} to rank {reader} {len(given)} times, "
                f"which waits {len(taken)} times",
                given,
                taken,
            )
        _check_one_lane(trace, given, f"signals {name} to rank {reader}")
        _check_one_lane(trace, taken, f"waits for {name} of rank {writer}")
        for signal, wait in zip(given, taken, strict=True):
            trace.before[wait.begin].append(signal.end)


def _pair_wires(trace: Trace) -> None:
    """Add the edges of sends, receives and native collectives."""
    sends: defaultdict[tuple[int, int, int], list[Event]] = defaultdict(list)
    receives: defaultdict[tuple[int, int, int], list[Event]] = defaultdict(list)
    natives: list[defaultdict[int, list[Event]]] = [defaultdict(list) for _ in trace.operations]
    for event in trace.events:
        step = event.step
        if isinstance(step, Send):
            sends[event.operation, event.rank, step.peer].append(event)
        elif isinstance(step, Receive):
            receives[event.operation, step.peer, event.rank].append(event)
        elif isinstance(step, Native):
            natives[event.operation][event.rank].append(event)
    for key in sorted(sends.keys() | receives.keys()):
        _, sender, receiver = key
        given, taken = sends[key], receives[key]
        if len(given) != len(taken):
            _raise_unpaired(
                trace,
                f"rank {sender} sends to rank {receiver} {len(given)} times, "
                f"which receives {len(taken)} times",
                given,
                taken,
            )
        _check_one_lane(trace, given, f"sends to rank {receiver}")
        _check_one_lane(trace, taken, f"receives from rank {sender}")
        for send, receive in zip(given, taken, strict=True):
            _check_equal_size(trace, send, receive)
            trace.before[receive.end].append(send.begin)
            trace.meets.setdefault(send.end, []).append(receive.begin)
    for by_rank in natives:
        _pair_natives(trace, by_rank)


def _pair_natives(trace: Trace, by_rank: dict[int, list[Event]]) -> None:
    if not by_rank:
        return
    columns = [by_rank.get(rank, []) for rank in range(trace.world_size)]
    if len({len(column) for column in columns}) > 1:
        notes = [(event, "native") for column in columns for event in column]
        raise_illegal(
            SignalMismatchError,
            "a native collective needs all ranks; "
            f"ranks have {', '.join(str(len(column)) for column in columns)}",
            trace,
            notes,
        )
    for rank, column in enumerate(columns):
        _check_one_lane(trace, column, f"has native collectives (rank {rank})")
    for row in zip(*columns, strict=True):
        kinds = {
            (event.step.name, event.stop - event.first)
            for event in row
            if isinstance(event.step, Native)
        }
        if len(kinds) > 1:
            raise_illegal(
                SignalMismatchError,
                f"ranks meet in different native collectives: {sorted(kinds)}",
                trace,
                [(event, "meets the others here") for event in row],
            )
        for event in row:
            trace.meets.setdefault(event.end, []).extend(one.begin for one in row)


def _raise_unpaired(
    trace: Trace, message: str, given: Sequence[Event], taken: Sequence[Event]
) -> None:
    pairs = min(len(given), len(taken))
    notes = [(event, "pairs") for event in (*given[:pairs], *taken[:pairs])]
    notes += [(event, "has no partner") for event in (*given[pairs:], *taken[pairs:])]
    raise_illegal(SignalMismatchError, message, trace, notes)


def _check_one_lane(trace: Trace, events: Sequence[Event], what: str) -> None:
    """Refuse one end of a counter or wire in several lanes: the n-th would be nobody's choice."""
    for event in events:
        if event.place.lane != events[0].place.lane:
            raise_illegal(
                SignalMismatchError,
                f"rank {event.rank} {what} from several lanes, in no certain order",
                trace,
                [(events[0], "one lane"), (event, "another lane")],
            )


def _check_equal_size(trace: Trace, send: Event, receive: Event) -> None:
    sizes = []
    for event in (send, receive):
        view = (*reads_of(event.step), *writes_of(event.step))[0]
        sizes.append((event.stop - event.first) * view.itemsize_bytes)
    if sizes[0] != sizes[1]:
        raise_illegal(
            SignalMismatchError,
            f"rank {send.rank} sends {sizes[0]} bytes to rank {receive.rank}, "
            f"which receives {sizes[1]}",
            trace,
            [(send, f"{sizes[0]} bytes"), (receive, f"{sizes[1]} bytes")],
        )


# --- order -------------------------------------------------------------------------------------


def _topological_order(trace: Trace) -> list[int]:
    """Give all nodes, each after those it needs; or raise with a cycle."""
    needs = [
        before + trace.meets[node] if node in trace.meets else before
        for node, before in enumerate(trace.before)
    ]
    followers: list[list[int]] = [[] for _ in needs]
    missing = [len(nodes) for nodes in needs]
    for node, nodes in enumerate(needs):
        for needed in nodes:
            followers[needed].append(node)
    ready = deque(node for node, number in enumerate(missing) if number == 0)
    order = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for follower in followers[node]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    if len(order) < len(needs):
        _raise_deadlock(trace, needs, missing)
    return order


def _raise_deadlock(trace: Trace, needs: list[list[int]], missing: list[int]) -> None:
    node = next(node for node, number in enumerate(missing) if number)
    path: list[int] = []
    seen: dict[int, int] = {}
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = next(needed for needed in needs[node] if missing[needed])
    cycle = path[seen[node] :]
    # Of each run along one lane only the ends say something: what is waited for, and what blocks.
    shown = [
        node
        for index, node in enumerate(cycle)
        if trace.chain[cycle[index - 1]] != trace.chain[node]
        or trace.chain[cycle[(index + 1) % len(cycle)]] != trace.chain[node]
    ] or cycle
    texts = []
    notes: list[tuple[Event | Moment, str]] = []
    for index, node in enumerate(shown):
        owner = trace.owners[node]
        texts.append(f"({index + 1}) {_describe_owner(trace, owner)}")
        notes.append((owner, f"({index + 1}) needs ({(index + 1) % len(shown) + 1})"))
    raise_illegal(
        SignalMismatchError,
        f"deadlock: {', needs '.join(texts)}, needs (1)",
        trace,
        notes,
    )


def _describe_owner(trace: Trace, owner: Event | Moment) -> str:
    if isinstance(owner, Moment):
        return f"rank {owner.rank}, operation {owner.operation}: {owner.what}"
    lanes = trace.operations[owner.operation].plans[owner.rank].fragment.lanes
    lane = "opening" if owner.place.lane < 0 else f"lane {lanes[owner.place.lane].name!r}"
    return (
        f"rank {owner.rank}, operation {owner.operation}, {lane}, iteration {owner.iteration}: "
        f"{describe_step(owner.step, lanes)}"
    )


def _vector_clocks(trace: Trace, order: Sequence[int]) -> list[list[int]]:
    """Give, for each node and chain, the position of the chain's last node that it follows."""
    clocks: list[list[int]] = [[]] * len(order)
    start = [0] * trace.chain_count
    for node in order:
        before = trace.before[node]
        clock = list(clocks[before[0]]) if before else list(start)
        for needed in before[1:]:
            clock = list(map(max, clock, clocks[needed]))
        clock[trace.chain[node]] = trace.position[node]
        clocks[node] = clock
    return clocks


def _check_wire_order(trace: Trace, order: Sequence[int], clocks: list[list[int]]) -> None:
    """Refuse wire steps of a rank that no lane and no `after` orders (DESIGN 1, rule 5)."""
    place = {node: index for index, node in enumerate(order)}
    wires = [event for event in trace.events if isinstance(event.step, Send | Receive | Native)]
    wires.sort(key=lambda event: (event.rank, place[event.begin]))
    for one, two in pairwise(wires):
        if one.rank != two.rank or one.begin == two.begin:
            continue
        if clocks[two.begin][trace.chain[one.end]] < trace.position[one.end]:
            raise_illegal(
                DependenceError,
                f"rank {one.rank}: the order of two wire steps is not certain: "
                f"{_describe_owner(trace, one)}, and {_describe_owner(trace, two)}",
                trace,
                [(one, "before or after the other"), (two, "before or after the other")],
            )


# --- races -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Access:
    """One touch of bytes ``[start, stop)`` between the nodes `begin` and `end`."""

    owner: Event | Moment
    begin: int
    end: int
    start: int
    stop: int
    writes: bool


class _RaceChecker:
    """Walks all accesses in an order that fits the graph, byte range by byte range.

    For every range it keeps the last write and the reads since. Checking a new access against
    those alone is enough: what they follow, it follows too.
    """

    def __init__(self, trace: Trace, order: Sequence[int], clocks: list[list[int]]) -> None:
        self._trace = trace
        self._clocks = clocks
        self._chain = trace.chain
        self._position = trace.position
        self._place = [0] * len(order)
        for index, node in enumerate(order):
            self._place[node] = index

    def check(self) -> None:
        """Raise on the first race found."""
        accesses: defaultdict[Space, list[_Access]] = defaultdict(list)
        for event in self._trace.events:
            for extents, writes in ((event.reads, False), (event.writes, True)):
                for extent in extents:
                    access = _Access(
                        event, event.begin, event.end, extent.start, extent.stop, writes
                    )
                    accesses[extent.space].append(access)
        for space, touches in accesses.items():
            self._check_space(space, touches)

    def _user_accesses(self, space: Space, start: int, stop: int) -> list[_Access]:
        """Give what the callers do with a user array before, between and after operations."""
        if space.buffer.is_scratch:
            return []
        accesses = []
        for node in self._trace.user_moments:
            moment = self._trace.owners[node]
            if space.is_shared or moment.rank == space.rank:
                accesses.append(_Access(moment, node, node, start, stop, not space.is_shared))
        return accesses

    def _check_space(self, space: Space, accesses: list[_Access]) -> None:
        cuts = sorted({access.start for access in accesses} | {one.stop for one in accesses})
        accesses = accesses + self._user_accesses(space, cuts[0], cuts[-1])
        accesses.sort(key=lambda access: self._place[access.begin])
        is_scratch = space.buffer.is_scratch
        writers: list[_Access | None] = [None] * len(cuts)
        readers: list[list[_Access]] = [[] for _ in cuts]
        for access in accesses:
            for index in range(bisect_left(cuts, access.start), bisect_left(cuts, access.stop)):
                writer = writers[index]
                if writer is not None and writer.owner is not access.owner:
                    self._check_ordered(space, writer, access)
                if access.writes:
                    for reader in readers[index]:
                        if reader.owner is not access.owner:
                            self._check_ordered(space, reader, access)
                    writers[index] = access
                    readers[index] = []
                else:
                    if is_scratch and (
                        writer is None or writer.owner.operation != access.owner.operation
                    ):
                        self._raise_unwritten(space, access)
                    readers[index].append(access)

    def _check_ordered(self, space: Space, earlier: _Access, later: _Access) -> None:
        end = earlier.end
        if self._clocks[later.begin][self._chain[end]] >= self._position[end]:
            return
        start, stop = max(earlier.start, later.start), min(earlier.stop, later.stop)
        texts = [
            f"{_describe_owner(self._trace, access.owner)} "
            f"({'writes' if access.writes else 'reads'})"
            for access in (earlier, later)
        ]
        raise_illegal(
            DependenceError,
            f"race on bytes [{start}, {stop}) of {space}: {texts[0]}, and {texts[1]}, "
            "with nothing that orders them",
            self._trace,
            [(earlier.owner, "races with the other"), (later.owner, "races with the other")],
        )

    def _raise_unwritten(self, space: Space, access: _Access) -> None:
        raise_illegal(
            DependenceError,
            f"{_describe_owner(self._trace, access.owner)} reads bytes "
            f"[{access.start}, {access.stop}) of {space}, some of which no step of this "
            "operation has written",
            self._trace,
            [(access.owner, "reads what nobody wrote")],
        )
