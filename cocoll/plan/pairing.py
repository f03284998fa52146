"""Pairs signals with waits, sends with receives, and native collectives with each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cocoll.errors import SignalMismatchError
from cocoll.plan.ir import Flag, Native, Receive, Send, Signal, Wait
from cocoll.plan.structure import reads_of, writes_of
from cocoll.plan.trace import Event, Trace, raise_illegal

__all__ = ["pair_signals", "pair_wires"]


def pair_signals(trace: Trace) -> None:
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


def pair_wires(trace: Trace, wires: Sequence[Event]) -> None:
    """Add the edges of sends, receives and native collectives.

    Parameters
    ----------
    trace : Trace
        To which edges are added.
    wires : sequence of Event
        Its wire steps, those of a rank in the order of the rank (docs/plans.md, rule 5).
    """
    sends: defaultdict[tuple[int, int, int, int], list[Event]] = defaultdict(list)
    receives: defaultdict[tuple[int, int, int, int], list[Event]] = defaultdict(list)
    natives: list[defaultdict[int, list[Event]]] = [defaultdict(list) for _ in trace.operations]
    for event in wires:
        step = event.step
        if isinstance(step, Send):
            sends[event.operation, event.rank, step.peer, step.tag].append(event)
        elif isinstance(step, Receive):
            receives[event.operation, step.peer, event.rank, step.tag].append(event)
        elif isinstance(step, Native):
            natives[event.operation][event.rank].append(event)
    for key in sorted(sends.keys() | receives.keys()):
        _, sender, receiver, _ = key
        given, taken = sends[key], receives[key]
        if len(given) != len(taken):
            _raise_unpaired(
                trace,
                f"rank {sender} sends to rank {receiver} {len(given)} times, "
                f"which receives {len(taken)} times",
                given,
                taken,
            )
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
    for row in zip(*columns, strict=True):
        kinds = {
            (event.step.name, event.step.root, event.stop - event.first)
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
    """Refuse one end of a counter in several lanes: the n-th would be nobody's choice."""
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
