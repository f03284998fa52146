"""A picture of a run: time against size, one panel for each rank count, state and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.common.samples import STATES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.common.records import Record

__all__ = ["PlotError", "draw", "load_pyplot", "series"]


class PlotError(Exception):
    """The picture cannot be drawn here; the message says what to install."""


def load_pyplot() -> Any:
    """Import matplotlib's pyplot, drawing to files only.

    Raises
    ------
    PlotError
        matplotlib is not installed.
    """
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise PlotError(f"--plot needs matplotlib ({error}): pip install 'cocoll[plot]'") from error
    return pyplot


def series(
    records: Sequence[Record],
) -> dict[tuple[int, str, str, str], dict[str, list[tuple[int, float]]]]:
    """Sort records into panels and curves.

    Returns
    -------
    dict
        (ranks, state, memory, kind of case) to implementation to points (bytes, median seconds), by
        size.
    """
    panels: dict[tuple[int, str, str, str], dict[str, list[tuple[int, float]]]] = {}
    for record in records:
        if record.median_seconds is None:
            continue
        kind = record.case.split("/", 1)[1] if "/" in record.case else record.case
        curves = panels.setdefault((record.ranks, record.state, record.memory, kind), {})
        curves.setdefault(record.implementation, []).append((record.bytes, record.median_seconds))
    for curves in panels.values():
        for points in curves.values():
            points.sort()
    return panels


def draw(records: Sequence[Record], path: Path) -> None:
    """Draw all panels into one file, logarithmic both ways.

    Raises
    ------
    PlotError
        matplotlib is not installed, or there is nothing to draw.
    """
    pyplot = load_pyplot()
    panels = series(records)
    if not panels:
        raise PlotError("nothing was measured that could be drawn")
    rows = sorted({key[:2] for key in panels}, key=lambda row: (row[0], STATES.index(row[1])))
    kinds = sorted({key[2:] for key in panels})
    figure, axes = pyplot.subplots(
        len(rows),
        len(kinds),
        squeeze=False,
        figsize=(5 * len(kinds), 4 * len(rows)),
        layout="constrained",
    )
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    for row, (rank_count, state) in enumerate(rows):
        for column, (memory, kind) in enumerate(kinds):
            axis = axes[row][column]
            curves = panels.get((rank_count, state, memory, kind), {})
            for name, points in curves.items():
                axis.plot(
                    [size_bytes for size_bytes, _ in points],
                    [seconds for _, seconds in points],
                    marker="o",
                    markersize=3,
                    linewidth=2.5 if name == "cocoll" else 1,
                    color="black" if name == "cocoll" else f"C{names.index(name) % 10}",
                    label=name,
                )
            axis.set(
                xscale="log",
                yscale="log",
                xlabel="bytes of one rank's input",
                ylabel="seconds, median",
                title=f"{rank_count} ranks, {state}: {kind}, {memory} memory",
            )
            axis.grid(visible=True, alpha=0.3)
            if curves:
                axis.legend(fontsize="x-small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
