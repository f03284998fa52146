"""What the rounds have given: samples of every form of every job, and the best of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.common.samples import Sample, Summary, summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.common.cases import Entry, Group

__all__ = ["Best", "GroupResult", "Track", "hopeless"]

_HOPELESS_FACTOR = 1.3


@dataclass(slots=True)
class Track:
    """One form of one job, through all rounds."""

    job: str
    entry: Entry
    samples: list[Sample] = field(default_factory=list)
    wrong: str | None = None
    calls: int = 1
    repeat: int = 1
    warm: int = 1
    predicted_seconds: float | None = None

    @property
    def fastest_seconds(self) -> float:
        """The best sample so far."""
        return min((sample.seconds for sample in self.samples), default=float("inf"))


@dataclass(frozen=True, slots=True)
class Best:
    """The faster form of an implementation, in one row and state."""

    implementation: str
    form: str
    job: str
    summary: Summary


@dataclass(slots=True)
class GroupResult:
    """Everything measured for one group.

    Attributes
    ----------
    tracks : list of Track
        All forms of all jobs.
    failures : dict of str to str
        By implementation, why a job of it broke off.
    """

    group: Group
    tracks: list[Track] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def results_equal(self, implementation: str, row: str | None = None) -> bool:
        """Say whether it ran, and every form of it (in `row`, if given) gave right results."""
        tracks = self._tracks(implementation, row)
        return (
            implementation not in self.failures
            and bool(tracks)
            and all(track.wrong is None for track in tracks)
        )

    def predicted_seconds(self, implementation: str) -> float | None:
        """Give the least that the implementation itself has promised, if it has."""
        promised = [track.predicted_seconds for track in self._tracks(implementation, None)]
        return min((p for p in promised if p is not None), default=None)

    def best(self, implementation: str, row: str, state: str) -> Best | None:
        """Give the form with the lowest median in `state`, or None if there is no sample."""
        found: list[Best] = []
        most_rounds = 0
        for track in self._tracks(implementation, row):
            summary = summarize(track.samples, state)
            if summary is not None:
                found.append(Best(implementation, track.entry.form, track.job, summary))
                most_rounds = max(most_rounds, summary.rounds)
        # A form that was left out early, or was lucky once, does not stand for the implementation.
        found = [best for best in found if 2 * best.summary.rounds >= most_rounds]
        return min(found, key=lambda best: best.summary.median_seconds, default=None)

    def _tracks(self, implementation: str, row: str | None) -> list[Track]:
        return [
            track
            for track in self.tracks
            if track.entry.implementation == implementation and row in (None, track.entry.row)
        ]


def hopeless(tracks: Sequence[Track]) -> list[Track]:
    """Name the forms whose best sample is far from what another form of the same row reaches.

    Parameters
    ----------
    tracks : sequence of Track
        After the rounds of trial.

    Returns
    -------
    list of Track
        Those whose fastest sample is above 1.3 times the best median of their implementation's row.
    """
    best: dict[tuple[str, str], float] = {}
    for track in tracks:
        summary = summarize(track.samples)
        if summary is not None:
            key = (track.entry.implementation, track.entry.row)
            best[key] = min(best.get(key, float("inf")), summary.median_seconds)
    return [
        track
        for track in tracks
        if track.samples
        and track.fastest_seconds
        > _HOPELESS_FACTOR * best[track.entry.implementation, track.entry.row]
    ]
