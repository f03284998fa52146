"""Who waits for whom, and who holds the others up: what the control pages of a host tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cocoll.plan.ir import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["describe_pages", "find_roots", "name_ranks", "observe_process"]

# The numbers of ``host/endpoint.h``.
_ARRIVAL = -1
_AWAITED = {
    _ARRIVAL: "to arrive",
    -2: "and its host to arrive",
    -3: "to say that all hosts have arrived",
    -4: "to send or receive a message",
    -5: "to receive from it",
    -6: "to send to it",
}
# `Kind.SEND`, `RECEIVE` and `GROUP`: messages of two ranks, which have no number in the
# communicator's sequence.
_MESSAGES = frozenset({16, 17, 18})
_UNFINISHED = ("running", "failed")
_STOPPED, _DEAD = "is stopped", "has died"


def observe_process(pid: int) -> str:
    """Say what a process of this host does not do: ``"is stopped"``, ``"has died"``, or nothing."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return _DEAD
    if state in "ZX":
        return _DEAD
    return _STOPPED if state in "Tt" else ""


def find_roots(pages: Iterable[Mapping[str, Any]], starts: Iterable[int]) -> tuple[int, ...]:
    """Follow who waits for whom to those who wait for nobody: they hold the others up.

    Parameters
    ----------
    pages : iterable of mapping
        The control pages of one communicator on this host; see `describe_pages`.
    starts : iterable of int
        The ranks to begin with.

    Returns
    -------
    tuple of int
        In order. A rank whose page is not there, on another host, stands for itself; of ranks that
        wait for each other in a circle there are all.
    """
    waits = {rank: awaited for rank, awaited in _list_waits(pages).items() if awaited}
    reached: set[int] = set()
    front = set(starts)
    while front:
        reached |= front
        front = {peer for rank in sorted(front) for peer in waits.get(rank, ())} - reached
    roots = tuple(rank for rank in sorted(reached) if rank not in waits)
    return roots or tuple(sorted(reached))


def _list_waits(pages: Iterable[Mapping[str, Any]]) -> dict[int, tuple[int, ...]]:
    """Give for every rank those that it waits for, all who have not arrived included."""
    pages = list(pages)
    begun = {page["rank"]: _last_begun(page) for page in pages}
    waits: dict[int, tuple[int, ...]] = {}
    for page in pages:
        last = _last(page)
        waits[page["rank"]] = ()
        if last is None or last["state"] not in _UNFINISHED or page["waiting"] is None:
            continue
        if page.get("process"):
            # It did not even look whether what it waited for has come.
            continue
        peer, flag, sequence = page["waiting"]
        if sequence != last["sequence"] and not _is_message(last):
            # Left there by an operation before.
            continue
        absent = {rank for rank, its in begun.items() if its < sequence}
        # A rank that has come meanwhile is waited for no more.
        awaited = absent if flag == _ARRIVAL else {peer}
        if flag == _ARRIVAL and peer not in begun:
            awaited.add(peer)
        waits[page["rank"]] = tuple(sorted(awaited - {page["rank"]}))
    return waits


def _last_begun(page: Mapping[str, Any]) -> int:
    numbered = [entry for entry in page["operations"] if not _is_message(entry)]
    return int(numbered[-1]["sequence"]) if numbered else -1


def _is_message(entry: Mapping[str, Any]) -> bool:
    return entry["flight"][0] in _MESSAGES


def _last(page: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Give what a rank is in, or was in last."""
    operations = page["operations"]
    # Of a group's messages some may still run when the last one has ended.
    running = [entry for entry in operations if entry["state"] == "running"]
    chosen: Mapping[str, Any] | None = (running or operations or [None])[-1]
    return chosen


def describe_pages(
    pages: Iterable[Mapping[str, Any]],
    describe: Callable[[tuple[int, ...]], str],
    place: Callable[[tuple[int, ...], int], str],
) -> str:
    """Say who waits for whom and who holds the others up, from the ranks' control pages.

    Parameters
    ----------
    pages : iterable of mapping
        What `_core.inspect_control` gives, of one communicator; ``"process"`` may say besides what
        `observe_process` gave.
    describe : callable
        Words an operation's flight.
    place : callable
        Says which of its kind it is, from its flight and its number.

    Returns
    -------
    str
        A line for every rank, then one for whoever holds them up.
    """
    pages = list(pages)
    lines = [f"  rank {page['rank']} (pid {page['pid']}) {_describe(page, describe, place)}"
             for page in pages]  # fmt: skip
    waits = _list_waits(pages)
    roots = find_roots(pages, [rank for rank, awaited in waits.items() if awaited])
    if not roots:
        return "\n".join(lines)
    if all(waits.get(rank) for rank in roots):
        lines.append(f"  {name_ranks(roots)} wait for each other")
        return "\n".join(lines)
    known = {page["rank"]: page for page in pages}
    for root in roots:
        held = [rank for rank in known if root in find_roots(pages, [rank]) and rank != root]
        where = "" if root in known else " and is on another host, whose ranks tell more"
        done = known.get(root, {}).get("process", "")
        lines.append(
            f"  rank {root} holds up {name_ranks(held)}{where}" + (f": it {done}" if done else "")
        )
    return "\n".join(lines)


def _describe(
    page: Mapping[str, Any],
    describe: Callable[[tuple[int, ...]], str],
    place: Callable[[tuple[int, ...], int], str],
) -> str:
    def word(entry: Mapping[str, Any]) -> str:
        return f"{describe(entry['flight'])}, {place(entry['flight'], entry['sequence'])}"

    operations = page["operations"]
    last = _last(page)
    process = page.get("process", "")
    if page["left"] and (last is None or last["state"] != "failed"):
        doing = "has left"
    elif page.get("round"):
        doing = f"has come to comm.shrink, round {page['round']}"
    elif last is None:
        doing = "has called nothing yet"
    elif last["state"] in _UNFINISHED:
        verb = "is in" if last["state"] == "running" else "gave up"
        doing = f"{verb} {word(last)}"
        if page["waiting"] is not None:
            peer, flag, _ = page["waiting"]
            point = _AWAITED.get(flag) or f"to signal ({_flag_label(flag)})"
            doing += f", waiting for rank {peer} {point}"
        finished = [entry for entry in operations if entry["state"] == "done"]
        if finished:
            doing += f"; the last that it finished was {word(finished[-1])}"
    else:
        doing = f"is outside cocoll; its last was {word(last)}"
    return f"{process}; it {doing}" if process else doing


def _flag_label(flag: int) -> str:
    return Flag(flag).name.lower() if flag in set(Flag) else f"flag {flag}"


def name_ranks(ranks: Iterable[int]) -> str:
    """Give "rank 1", or "ranks 1, 2 and 3"."""
    names = [str(rank) for rank in ranks]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"
