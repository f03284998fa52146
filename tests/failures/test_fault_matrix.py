"""Every fault, at every moment, in every collective: the others are told, and go on without.

The fixture of this folder looks for what is left behind.
"""

from __future__ import annotations

import signal

import pytest

from cocoll.testing import Outcome, run_processes
from tests.helpers import faults
from tests.helpers.exercises import EXERCISES

FAULTS = (*faults.LETHAL, "mismatch", "fork")
MOMENTS = ("before", "during", "after")
RANKS = 3
TIMEOUT_SECONDS = 3.0
#: Each moment, and what takes few seconds: other tests have these faults one by one.
SHORT = [
    ("allreduce", "SIGKILL", "during"), ("reduce_scatter", "exception", "before"),
    ("reshard", "exit", "after"), ("allgather", "mismatch", "during"),
]  # fmt: skip
CASES = [
    pytest.param(*case, marks=() if case in SHORT else pytest.mark.long)
    for case in (
        (operation, fault, moment)
        for operation in EXERCISES
        for fault in FAULTS
        for moment in MOMENTS
    )
]


@pytest.mark.parametrize(("operation", "fault", "moment"), CASES)
def test_fault(operation: str, fault: str, moment: str) -> None:
    stops = fault == "SIGSTOP"
    outcomes = run_processes(
        RANKS,
        faults.suffer,
        operation,
        fault,
        moment,
        timeout_seconds=TIMEOUT_SECONDS if stops else 300.0,
        limit_seconds=200.0,
    )
    survivors = [rank for rank in range(RANKS) if rank != faults.VICTIM]
    for rank in survivors:
        assert outcomes[rank].error is None, outcomes[rank].error
        assert outcomes[rank].exit_code == 0
    if fault == "mismatch":
        check_disagreement(outcomes)
    elif fault == "fork":
        assert [outcome.error for outcome in outcomes] == [None] * RANKS
        assert outcomes[faults.VICTIM].value["kind"] == "ForkedProcessError"
        assert all(outcome.value["right"] for outcome in outcomes)
    else:
        check_victim(outcomes[faults.VICTIM], fault)
        for place, rank in enumerate(survivors):
            check_survivor(outcomes[rank].value, fault, rank, place)


def check_survivor(found: dict, fault: str, rank: int, place: int) -> None:
    """See that it was told who is lost, and by what, and went on with the others."""
    wanted = {"SIGKILL": "PeerLostError", "SIGSTOP": "CommTimeoutError"}
    assert found["kind"] == wanted.get(fault, "AbortedError"), found
    named = {"ranks": (faults.VICTIM,)} if fault == "SIGSTOP" else {"rank": faults.VICTIM}
    assert found["fields"] == named, found
    assert f"rank {rank} gave up" in found["message"]
    assert f"rank {faults.VICTIM} " in found["message"]
    assert found["closed"]
    assert found["rest"] == (place, RANKS - 1)
    if fault == "SIGSTOP":
        assert found["seconds"] >= 0.9 * TIMEOUT_SECONDS
    else:
        assert found["seconds"] < 200


def check_victim(outcome: Outcome, fault: str) -> None:
    """See how it ended."""
    if fault == "SIGKILL":
        assert outcome.exit_code == -signal.SIGKILL
        return
    assert outcome.exit_code == 0
    if fault == "SIGSTOP":
        # Woken up it is told so, and that the others have gone on.
        assert outcome.error is None, outcome.error
        found = outcome.value
        assert found["kind"] == "CommTimeoutError", found
        assert found["fields"] == {"ranks": (faults.VICTIM,)}
        assert found["shrunk"] == "ClosedError"
        return
    wanted = {"Ctrl-C": KeyboardInterrupt, "exit": SystemExit, "exception": ArithmeticError}
    assert type(outcome.error) is wanted[fault], outcome


def check_disagreement(outcomes: list[Outcome]) -> None:
    """See that all were told what each asked for, that nothing has moved, and that they went on."""
    assert [outcome.error for outcome in outcomes] == [None] * RANKS
    for outcome in outcomes:
        found = outcome.value
        assert found["kind"] == "CollectiveMismatchError", found
        assert found["requests"] == list(range(RANKS))
        assert "op=prod" in found["message"]
        assert found["unchanged"]
