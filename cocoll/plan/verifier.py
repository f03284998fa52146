"""Proves, without running anything, that plans end, and that no two steps race.

The steps of all ranks are unrolled for a count (see :mod:`cocoll.plan.unrolling`). Signals are
paired with waits and sends with receives; a cycle in the graph that remains is a deadlock. Without
one, every node gets a vector clock, and two steps that touch the same bytes, at least one
writing, must be ordered by it.

Two operations in sequence suffice for any number: nothing follows an arrival before every rank has
ended the operation before it, so only neighbours can meet.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

from cocoll.errors import DependenceError, SignalMismatchError, UsageError
from cocoll.plan.ir import (
    Buffer,
    Native,
    Plan,
    Receive,
    Send,
    Span,
)
from cocoll.plan.memory import LINE_BYTES, Aliasing
from cocoll.plan.pairing import pair_signals, pair_wires
from cocoll.plan.races import RaceChecker
from cocoll.plan.structure import check_world, matches_by_tag, reads_of, writes_of
from cocoll.plan.trace import Event, Moment, Operation, Trace, describe_owner, raise_illegal
from cocoll.plan.unrolling import unroll

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
    pair_signals(trace)
    order = _topological_order(trace)
    clocks = _vector_clocks(trace, order)
    wires = [event for event in trace.events if isinstance(event.step, Send | Receive | Native)]
    if wires:
        _sort_wires(trace, wires, order, clocks)
        pair_wires(trace, wires)
        order = _topological_order(trace)
        clocks = _vector_clocks(trace, order)
    RaceChecker(trace, order, clocks).check()


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
        texts.append(f"({index + 1}) {describe_owner(trace, owner)}")
        notes.append((owner, f"({index + 1}) needs ({(index + 1) % len(shown) + 1})"))
    raise_illegal(
        SignalMismatchError,
        f"deadlock: {', needs '.join(texts)}, needs (1)",
        trace,
        notes,
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


def _sort_wires(
    trace: Trace, wires: list[Event], order: Sequence[int], clocks: list[list[int]]
) -> None:
    """Put the wire steps of a rank into their order, and refuse those that have none.

    Lanes, `after` and signals order them (docs/plans.md, rule 5); messages do not, for which
    message meets which is what the order decides. Where plans use tags, or have several messages
    in flight, only messages that could be taken for each other need an order, that in which they
    begin.
    """
    place = {node: index for index, node in enumerate(order)}
    matched = any(map(matches_by_tag, trace.operations[0].plans)) or any(
        map(matches_by_tag, trace.operations[1].plans)
    )
    rows: defaultdict[tuple[object, ...], list[Event]] = defaultdict(list)
    wires.sort(key=lambda event: (event.rank, place[event.begin]))
    for event in wires:
        step = event.step
        row: tuple[object, ...] = (event.rank,)
        if matched and isinstance(step, Send | Receive):
            row = (event.rank, type(step), step.peer, step.tag)
        rows[row].append(event)
    for one, two in (pair for row in rows.values() for pair in pairwise(row)):
        if one.begin == two.begin:
            continue
        earlier = one.begin if matched else one.end
        if clocks[two.begin][trace.chain[earlier]] < trace.position[earlier]:
            raise_illegal(
                DependenceError,
                f"rank {one.rank}: the order of two wire steps is not certain: "
                f"{describe_owner(trace, one)}, and {describe_owner(trace, two)}",
                trace,
                [(one, "before or after the other"), (two, "before or after the other")],
            )
