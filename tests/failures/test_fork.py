"""Children made by fork: they cannot use what they inherit, and do no harm to their parents."""

from __future__ import annotations

from cocoll.testing import run_processes
from tests.helpers import deaths


def test_what_a_child_inherits_is_refused() -> None:
    outcomes = run_processes(2, deaths.use_in_a_child, timeout_seconds=100.0, limit_seconds=250.0)
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert outcomes[0].value == [
        "tiny: ForkedProcessError",
        "bound: ForkedProcessError",
        "stream: ForkedProcessError",
        "barrier: ForkedProcessError",
        "empty: ForkedProcessError",
        "duplicate: ForkedProcessError",
        "wait: ForkedProcessError",
        "synchronize: ForkedProcessError",
        "inherited stream: ForkedProcessError",
        "own: True",
        "closed: True",
    ]


def test_destructors_in_a_child_do_no_harm() -> None:
    outcomes = run_processes(2, deaths.leave_in_a_child, timeout_seconds=100.0, limit_seconds=250.0)
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert outcomes[0].value == [0, 0, 0]


def test_workers_of_a_data_loader() -> None:
    outcomes = run_processes(
        2, deaths.load_with_workers, timeout_seconds=100.0, limit_seconds=250.0
    )
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert [outcome.value for outcome in outcomes] == [[285] * 3] * 2
