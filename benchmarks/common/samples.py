"""Samples, machine states and medians."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "FAR",
    "MIXED",
    "NEAR",
    "NEAR_BELOW_NANOSECONDS",
    "STATES",
    "Sample",
    "Summary",
    "label_state",
    "summarize",
]

NEAR, FAR, MIXED = "near", "far", "mixed"
STATES = (NEAR, FAR, MIXED)

# One line takes 40 to 50 ns one way between cores under one last-level cache and 200 ns or more
# between caches, on every x86-64 server this was tried on; the limit lies at their geometric mean.
NEAR_BELOW_NANOSECONDS = 110.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call, the slowest rank's.

    Attributes
    ----------
    seconds : float
        The call.
    rewrite_seconds : float or None
        What rewriting the input took before it; None where nothing was rewritten.
    state : str
        ``"near"``, ``"far"`` or ``"mixed"``.
    host_bytes : int or None
        With several hosts, what the NICs of the busiest one counted, in the busier direction.
    """

    seconds: float
    rewrite_seconds: float | None
    state: str
    host_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """What the samples of one state come to; seconds throughout."""

    median_seconds: float
    q1_seconds: float
    q3_seconds: float
    rounds: int
    rewrite_seconds: float | None
    host_bytes: int | None = None


def label_state(
    one_way_nanoseconds: float | None,
    world_size: int,
    near_below_nanoseconds: float = NEAR_BELOW_NANOSECONDS,
) -> str:
    """Say how close the two cores were, from what one cache line took between them.

    Parameters
    ----------
    one_way_nanoseconds : float or None
        The ping-pong before the sample; None if there was none.
    world_size : int
        With other than two ranks the answer is ``"mixed"``: one pair says nothing about the rest.
    near_below_nanoseconds : float
        The limit between near and far.
    """
    if world_size != 2 or one_way_nanoseconds is None:
        return MIXED
    return NEAR if one_way_nanoseconds < near_below_nanoseconds else FAR


def summarize(samples: Iterable[Sample], state: str | None = None) -> Summary | None:
    """Give median and quartiles of the samples in `state`, or of all if it is None.

    Returns
    -------
    Summary or None
        None if no sample is in that state.
    """
    chosen = [sample for sample in samples if state is None or sample.state == state]
    if not chosen:
        return None
    seconds = [sample.seconds for sample in chosen]
    rewrites = [s.rewrite_seconds for s in chosen if s.rewrite_seconds is not None]
    counts_bytes = [s.host_bytes for s in chosen if s.host_bytes is not None]
    q1_seconds, q3_seconds = _quartiles(seconds)
    return Summary(
        median_seconds=statistics.median(seconds),
        q1_seconds=q1_seconds,
        q3_seconds=q3_seconds,
        rounds=len(chosen),
        rewrite_seconds=statistics.median(rewrites) if rewrites else None,
        host_bytes=statistics.median_low(counts_bytes) if counts_bytes else None,
    )


def _quartiles(seconds: Sequence[float]) -> tuple[float, float]:
    if len(seconds) == 1:
        return seconds[0], seconds[0]
    q1_seconds, _, q3_seconds = statistics.quantiles(seconds, n=4, method="inclusive")
    return q1_seconds, q3_seconds
