"""What every call must do; the cases are in tests/helpers/cases."""

from __future__ import annotations

import pytest

from tests.helpers.cases import (
    Case,
    bound,
    cases_of,
    derived,
    fused,
    memory,
    movement,
    public,
    reductions,
    streams,
)

MODULES = (reductions, movement, memory, streams, bound, derived, fused, public)
CASES = [entry for module in MODULES for entry in cases_of(module)]


@pytest.mark.parametrize("entry", CASES, ids=str)
def test_call(worlds, entry: Case) -> None:
    for module in entry.needs:
        pytest.importorskip(module)
    worlds(entry.tuning).run(entry.function, **entry.arguments)
