"""What the ranks of a communicator did when, beside what was predicted, as a file to look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cocoll import _core
from cocoll.errors import UsageError
from cocoll.failure import Purpose
from cocoll.plan.packing import places_of_records
from cocoll.simulation.simulator import simulate
from cocoll.simulation.timeline import Span, write_trace

if TYPE_CHECKING:
    import os
    from types import TracebackType

    from typing_extensions import Self

    from cocoll.communicator import Communicator
    from cocoll.plan.ir import Plan

__all__ = ["CommunicatorTrace", "Traceable", "write_own_trace"]

_WHOLE_OPERATION, _ARRIVAL = -1, -2
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Simulating every step of a large world takes longer than the operation was worth looking at.
_MOST_PREDICTED = 16


class Traceable(Protocol):
    """What a trace asks of the facts of a program."""

    algorithm: str

    def plan(self, mapped: bool) -> Plan:
        """Give this rank's plan."""


class _StepTime(NamedTuple):
    """A row of what the executor records."""

    sequence: int
    program: int
    step: int
    iteration: int
    begin_nanoseconds: int
    end_nanoseconds: int
    nbytes: int
    mapped: bool


class CommunicatorTrace:
    """Records a communicator's operations; made by `Communicator.trace`.

    Parameters
    ----------
    comm : Communicator
        Whose.
    path : path-like
        The file that rank 0 writes.
    """

    def __init__(self, comm: Communicator, path: str | os.PathLike[str]) -> None:
        self._comm = comm
        self._path = Path(path)

    def __enter__(self) -> Self:
        """Begin, once what streams hold has ended. Local."""
        if not self._path.parent.is_dir():
            raise UsageError(
                f"a trace needs a folder that exists; got {str(self._path)!r} on rank "
                f"{self._comm.rank}"
            )
        self._comm._drain(self._comm.timeout_seconds)
        self._comm._start_recording()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End; rank 0 writes the file. Collective, unless an exception leaves the block."""
        comm = self._comm
        comm._drain(comm.timeout_seconds)
        rows, programs, dropped = comm._stop_recording()
        if error is not None or comm.closed:
            return
        times = [_StepTime(*row) for row in rows]
        mine = json.dumps(
            {
                "spans": _spans(comm.rank, times, programs),
                "lanes": _lane_names(programs),
                "dropped": dropped,
                "clock": _clock(times),
            }
        )
        everyone = [json.loads(data) for data in _core.exchange(comm, Purpose.TRACE, mine.encode())]
        if comm.rank != 0:
            return
        measured = _on_one_clock(everyone)
        start = min((span.begin_nanoseconds for span in measured), default=0)
        shifted = [_shift(span, -start) for span in measured]
        predicted = list(_predict(comm, times, programs, start))
        lanes = {rank: theirs["lanes"] for rank, theirs in enumerate(everyone)}
        write_trace(self._path, measured=shifted, predicted=predicted, lanes=lanes)


def write_own_trace(comm: Communicator, folder: Path) -> None:
    """Write what this rank has recorded to a file of its own. Local.

    Parameters
    ----------
    comm : Communicator
        Which recorded from its start: COCOLL_TRACE was set.
    folder : Path
        It is made if it is not there.
    """
    rows, programs, _ = comm._stop_recording()
    times = [_StepTime(*row) for row in rows]
    spans = [Span(*row) for row in _spans(comm.rank, times, programs)]
    start = min((span.begin_nanoseconds for span in spans), default=0)
    folder.mkdir(parents=True, exist_ok=True)
    # One process may have had several communicators.
    number = sum(1 for _ in folder.glob(f"rank-{comm.rank}-*.json"))
    write_trace(
        folder / f"rank-{comm.rank}-{number}.json",
        measured=[_shift(span, -start) for span in spans],
        lanes={comm.rank: _lane_names(programs)},
    )


def _spans(
    rank: int, times: Iterable[_StepTime], programs: Mapping[int, Traceable | None]
) -> list[Span]:
    """Give the rows with the places and the words of their plans."""
    spans = []
    places: dict[tuple[int, bool], Mapping[int, Any]] = {}
    for row in times:
        facts = programs.get(row.program)
        name = "operation" if facts is None else facts.algorithm
        if row.step == _WHOLE_OPERATION:
            lane, loop, step = -1, 0, 0
            text = f"{name}, operation {row.sequence}"
        elif row.step == _ARRIVAL:
            lane, loop, step = -1, 0, 1
            text = f"arrival of all ranks, operation {row.sequence}"
        elif facts is None:
            continue
        else:
            key = (row.program, row.mapped)
            if key not in places:
                places[key] = places_of_records(facts.plan(row.mapped))
            place, text = places[key][row.step]
            lane, loop, step = place.lane, place.loop, place.step
        spans.append(
            Span(
                rank,
                lane,
                loop,
                step,
                row.iteration,
                row.begin_nanoseconds,
                row.end_nanoseconds,
                row.nbytes,
                text,
            )
        )
    return spans


def _lane_names(programs: Mapping[int, Traceable | None]) -> list[str]:
    """Give the lanes' names by number: of the program that has most, and of several all."""
    names: list[list[str]] = []
    for number in sorted(programs):
        facts = programs[number]
        if facts is None:
            continue
        for lane, one in enumerate(facts.plan(False).fragment.lanes):
            if lane == len(names):
                names.append([])
            if one.name not in names[lane]:
                names[lane].append(one.name)
    return [" / ".join(lane) for lane in names]


def _clock(times: Sequence[_StepTime]) -> tuple[str, int]:
    """Give which machine's clock this is, and when the first common arrival ended by it."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    first = next((row.end_nanoseconds for row in times if row.step == _ARRIVAL), 0)
    return boot, first


def _on_one_clock(everyone: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Give all ranks' spans by the clock of rank 0's machine.

    Machines' clocks begin anywhere; but their ranks leave an arrival at nearly one moment.
    """
    boot, moment = everyone[0]["clock"]
    spans = []
    for theirs in everyone:
        other_boot, other_moment = theirs["clock"]
        shift = 0 if other_boot == boot else moment - other_moment
        spans += [_shift(Span(*row), shift) for row in theirs["spans"]]
    return spans


def _shift(span: Span, nanoseconds: int) -> Span:
    return span._replace(
        begin_nanoseconds=span.begin_nanoseconds + nanoseconds,
        end_nanoseconds=span.end_nanoseconds + nanoseconds,
    )


def _predict(
    comm: Communicator,
    times: Sequence[_StepTime],
    programs: Mapping[int, Any],
    start: int,
) -> Iterable[Span]:
    """Simulate the operations, each from when it began."""
    if comm.world_size > _MOST_PREDICTED:
        return
    simulated: dict[tuple[int, bool, int], list[Span]] = {}
    for row in times:
        facts = programs.get(row.program)
        make: Callable[[int, bool], Plan] | None = getattr(facts, "make", None)
        if row.step != _WHOLE_OPERATION or make is None:
            continue
        key = (row.program, row.mapped, row.iteration)
        if key not in simulated:
            plans = [make(rank, row.mapped) for rank in range(comm.world_size)]
            simulated[key] = list(simulate(plans, comm.topology, row.iteration).spans)
        for span in simulated[key]:
            yield _shift(span, row.begin_nanoseconds - start)
