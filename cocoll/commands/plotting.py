"""Timelines as pictures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cocoll.errors import UsageError
from cocoll.simulation.timeline import Span, kind_of

__all__ = ["load_pyplot", "plot_timeline"]

_COLOURS = {
    "send": "tab:blue",
    "receive": "tab:cyan",
    "reduce": "tab:red",
    "copy": "tab:orange",
    "native": "tab:purple",
    "call": "tab:brown",
    "wait": "lightgrey",
    "signal": "tab:green",
}
# More rows than this are no picture any more.
_MOST_ROWS = 64
_INCHES_A_ROW = 0.16


def load_pyplot() -> Any:
    """Import matplotlib's pyplot, drawing to files only.

    Returns
    -------
    module
        ``matplotlib.pyplot``.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise UsageError(f"--plot needs matplotlib ({error}): pip install 'cocoll[plot]'") from None
    return pyplot


def plot_timeline(
    path: str | os.PathLike[str],
    spans: Iterable[Span],
    *,
    lanes: Mapping[int, Sequence[str]] | None = None,
    title: str = "",
) -> None:
    """Draw when every step ran: a row for each lane of each rank, coloured by kind of step.

    Parameters
    ----------
    path : str or path-like
        The picture; its suffix says of what format.
    spans : iterable of Span
        In any order.
    lanes : mapping of int to sequence of str, optional
        For each rank, the names of its lanes.
    title : str, default ""
        Above it.

    Raises
    ------
    UsageError
        matplotlib is not installed, there is nothing to draw, or the file cannot be written.

    Notes
    -----
    Whole ranks are left out, the last ones first, where there would be more than 64 rows; the
    title says so.
    """
    pyplot = load_pyplot()
    spans = list(spans)
    lanes = lanes or {}
    rows = sorted({(span.rank, span.lane) for span in spans})
    if not rows:
        raise UsageError("there are no steps to draw a timeline of")
    ranks = sorted({rank for rank, _ in rows})
    shown = ranks[:1]
    for rank in ranks[1:]:
        if sum(row[0] in (*shown, rank) for row in rows) > _MOST_ROWS:
            title = f"{title}\n{len(shown)} of {len(ranks)} ranks"
            break
        shown.append(rank)
    rows = [row for row in rows if row[0] in set(shown)]
    places = {row: place for place, row in enumerate(rows)}
    figure, axis = pyplot.subplots(
        figsize=(14, 1.5 + _INCHES_A_ROW * len(rows)), layout="constrained"
    )
    bars: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for span in spans:
        place = places.get((span.rank, span.lane))
        if place is not None and span.end_nanoseconds > span.begin_nanoseconds:
            length = (span.end_nanoseconds - span.begin_nanoseconds) / 1000
            of_kind = bars.setdefault(kind_of(span), {})
            of_kind.setdefault(place, []).append((span.begin_nanoseconds / 1000, length))
    for kind in sorted(
        bars, key=lambda kind: list(_COLOURS).index(kind) if kind in _COLOURS else 99
    ):
        label: str | None = kind
        for place, pieces in bars[kind].items():
            axis.broken_barh(
                pieces,
                (place - 0.4, 0.8),
                facecolors=_COLOURS.get(kind, "black"),
                edgecolors="white",
                linewidth=0.2,
                label=label,
            )
            label = None  # one entry of the legend for each kind
    axis.set_yticks(range(len(rows)), [_row_name(row, lanes) for row in rows], fontsize=6)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlabel("microseconds")
    axis.set_xlim(left=0)
    axis.set_title(title)
    if bars:
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot: {os.fspath(path)} cannot be drawn: {error}") from None
    finally:
        pyplot.close(figure)


def _row_name(row: tuple[int, int], lanes: Mapping[int, Sequence[str]]) -> str:
    rank, lane = row
    names = lanes.get(rank, ())
    name = "opening" if lane < 0 else names[lane] if lane < len(names) else f"lane {lane}"
    return f"rank {rank} {name}"
