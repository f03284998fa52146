"""`auto` on large tensors, meshes and specs that nobody chose: no other solver is better."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from math import prod

import pytest

from cocoll.errors import UnsupportedError
from cocoll.resharding import plan_reshard
from cocoll.resharding.solvers import SOLVERS
from cocoll.resharding.solvers.auto import GOOD_ENOUGH
from tests.helpers.reshard_instances import LEAST_BYTES, large_resharding

MOST_MEDIAN_GAP = 0.05


def compare(numbers: Iterable[int], solvers: Sequence[str]) -> list[float]:
    """Hold `auto` against other solvers on reshardings by number; give its gaps."""
    gaps = []
    for number in numbers:
        draw = large_resharding(number)
        assert 4 * prod(draw.shape) >= LEAST_BYTES
        sides = (draw.src, draw.src_spec), (draw.dst, draw.dst_spec)
        auto = plan_reshard(draw.shape, *sides, "float32", draw.topology)
        enough = auto.bound.nanoseconds * GOOD_ENOUGH
        for solver in solvers:
            try:
                other = plan_reshard(draw.shape, *sides, "float32", draw.topology, solver=solver)
            except UnsupportedError:
                assert solver == "exact"
                continue
            found = f"number {number}, {solver}: {other.makespan_nanoseconds} ns"
            assert auto.bound.nanoseconds <= other.makespan_nanoseconds, found
            # Within that of the bound it looks no further.
            limit = max(enough, other.makespan_nanoseconds)
            assert auto.makespan_nanoseconds <= limit, found
        gaps.append(auto.gap)
    return gaps


def test_a_sample() -> None:
    # SciPy's integer programs are among the many.
    gaps = compare(range(8), [name for name in SOLVERS if name not in ("auto", "exact")])
    assert statistics.median(gaps) <= MOST_MEDIAN_GAP
    # Not all of them are without a move.
    assert sum(gap > 0 for gap in gaps) > 3


# Long: integer programs and searches.
@pytest.mark.long
def test_a_thousand() -> None:
    gaps = compare(range(1000), [name for name in SOLVERS if name != "auto"])
    assert statistics.median(gaps) <= MOST_MEDIAN_GAP
