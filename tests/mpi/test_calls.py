"""What every call must do; the cases are in tests/helpers/cases."""

from __future__ import annotations

import pytest

from tests.helpers.cases import Case, all_cases


@pytest.mark.parametrize("entry", all_cases(under_mpi=True), ids=str)
def test_call(worlds, entry: Case) -> None:
    for module in entry.needs:
        pytest.importorskip(module)
    worlds(entry.tuning).run(entry.function, **entry.arguments)
