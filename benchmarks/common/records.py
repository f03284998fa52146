"""Records: what one case came to for one implementation in one state of the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.common.samples import FAR, MIXED, NEAR
from benchmarks.common.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.common.cases import Group, View
    from benchmarks.common.tracks import Best, GroupResult

__all__ = [
    "FIELDS",
    "MAX_FRACTION_OF_LIMIT",
    "MIN_ROUNDS",
    "Context",
    "Record",
    "make_records",
    "missing_peers",
    "too_fast",
]

#: A limit that is beaten by more than this was not the limit: the run fails.
MAX_FRACTION_OF_LIMIT = 1.05

#: A state with fewer rounds is shown, but no bar holds there.
MIN_ROUNDS = 5

_MIN_LIMIT_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class Context:
    """What all records of a run share."""

    python: str
    commit: str | None
    machine: str


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the JSON; seconds are of one call, the slowest rank's."""

    suite: str
    case: str
    operation: str
    dtype: str
    ranks: int
    hosts: int
    elements: int
    bytes: int
    memory: str
    implementation: str
    median_seconds: float | None
    q1_seconds: float | None
    q3_seconds: float | None
    rounds: int
    limit_seconds: float | None
    fraction_of_limit: float | None
    fastest_peer: str | None
    ratio_to_fastest_peer: float | None
    state: str
    rewrite_seconds: float | None
    results_equal: bool
    command: str
    commit: str | None
    machine: str

    def to_json(self) -> dict[str, Any]:
        """Give the fields in their order."""
        return asdict(self)


FIELDS = tuple(Record.__dataclass_fields__)


def make_records(result: GroupResult, view: View, context: Context) -> list[Record]:
    """Give the records of one case: cocoll's first, then the peers', then the yardsticks'.

    The ratio is None unless every peer of the case ran with equal results.
    """
    records: list[Record] = []
    two = result.group.ranks == 2 and result.group.hosts == 1
    states = (NEAR, FAR) if two else (MIXED,)
    complete = not missing_peers(result, view)
    for state in states:
        records += _records_of_state(result, view, context, state, complete=complete)
    for implementation in ("cocoll", *view.peers):
        row = _row_of(view, implementation)
        if not any(record.implementation == implementation for record in records):
            equal = result.results_equal(implementation, row)
            records.append(_record(result.group, view, context, implementation, MIXED, equal))
    return records


def missing_peers(result: GroupResult, view: View) -> list[str]:
    """Name the peers of the case that did not run, or gave wrong results."""
    return [peer for peer in view.peers if not result.results_equal(peer, "peer")]


def _row_of(view: View, implementation: str) -> str:
    if implementation == "cocoll":
        return view.cocoll_row
    return "yardstick" if implementation in view.yardsticks else "peer"


def _records_of_state(
    result: GroupResult, view: View, context: Context, state: str, *, complete: bool
) -> list[Record]:
    limit = result.best("limit", view.limit_row, state) if view.limit_row else None
    limit_seconds = None
    if limit is not None and result.group.input_bytes >= _MIN_LIMIT_BYTES:
        # What memory does when nobody disturbs it: the quickest quarter of the best form.
        limit_seconds = limit.summary.q1_seconds
    peers = [result.best(peer, "peer", state) for peer in view.peers]
    fastest = min(
        (peer for peer in peers if peer is not None),
        key=lambda best: best.summary.median_seconds,
        default=None,
    )
    found: list[Record] = []
    for implementation in ("cocoll", *view.peers, *view.yardsticks):
        row = _row_of(view, implementation)
        best = result.best(implementation, row, state)
        if best is not None:
            equal = result.results_equal(implementation, row)
            found.append(
                _record(
                    result.group,
                    view,
                    context,
                    implementation,
                    state,
                    equal,
                    best=best,
                    limit_seconds=limit_seconds,
                    fastest=fastest if complete else None,
                )
            )
    return found


def _record(
    group: Group,
    view: View,
    context: Context,
    implementation: str,
    state: str,
    equal: bool,
    *,
    best: Best | None = None,
    limit_seconds: float | None = None,
    fastest: Best | None = None,
) -> Record:
    summary = best.summary if best else None
    median_seconds = summary.median_seconds if summary else None
    return Record(
        suite=group.suite,
        case=view.case,
        operation=group.operation,
        dtype=group.dtype,
        ranks=group.ranks,
        hosts=group.hosts,
        elements=group.elements,
        bytes=group.input_bytes,
        memory=view.memory,
        implementation=implementation,
        median_seconds=median_seconds,
        q1_seconds=summary.q1_seconds if summary else None,
        q3_seconds=summary.q3_seconds if summary else None,
        rounds=summary.rounds if summary else 0,
        limit_seconds=limit_seconds,
        fraction_of_limit=_divide(limit_seconds, median_seconds),
        fastest_peer=fastest.implementation if fastest else None,
        ratio_to_fastest_peer=_divide(
            fastest.summary.median_seconds if fastest else None, median_seconds
        ),
        state=state,
        rewrite_seconds=summary.rewrite_seconds if summary else None,
        results_equal=equal,
        command=(
            f"{context.python} benchmarks/run.py {group.suite} --ranks {group.ranks} "
            f"--sizes {format_bytes(group.input_bytes)} --dtypes {group.dtype}"
        ),
        commit=context.commit,
        machine=context.machine,
    )


def _divide(numerator: float | None, denominator: float | None) -> float | None:
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def too_fast(records: Sequence[Record]) -> list[Record]:
    """Give cocoll's records that beat the limit by more than can be believed."""
    return [
        record
        for record in records
        if record.implementation == "cocoll"
        and record.rounds >= MIN_ROUNDS
        and (record.fraction_of_limit or 0.0) > MAX_FRACTION_OF_LIMIT
    ]
