"""Ranks that die or leave while others count on them."""

from __future__ import annotations

import signal

import pytest

from cocoll.testing import Outcome, run_processes
from tests.helpers import deaths

EXIT_CODES = {
    "os._exit": 3,
    "SIGKILL": -signal.SIGKILL,
    "SIGTERM": -signal.SIGTERM,
    "SIGABRT": -signal.SIGABRT,
    "return": 0,
    "sys.exit": 0,
    "exception": 0,
}
# A rank whose block is left by an exception says so; the others are found to be gone.
TOLD = ("sys.exit", "exception")
OPERATIONS = [
    "tiny", "small", "large", "symmetric", "bound", "allgather", "reduce_scatter", "broadcast",
    "barrier", "empty", "duplicate", "stream", "stream_barrier", "fused", "messages",
]  # fmt: skip
# Of every way to die, and of every operation, each at least once without `long`.
SHORT = [
    ("SIGKILL", "large"), ("SIGTERM", "tiny"), ("os._exit", "empty"), ("return", "barrier"),
    ("sys.exit", "small"), ("exception", "stream"), ("SIGKILL", "duplicate"), ("SIGABRT", "fused"),
    ("SIGKILL", "bound"), ("exception", "allgather"), ("return", "broadcast"),
    ("SIGKILL", "stream_barrier"), ("os._exit", "symmetric"), ("SIGKILL", "reduce_scatter"),
    ("SIGKILL", "messages"), ("exception", "messages"),
]  # fmt: skip
CASES = [
    pytest.param(how, operation, marks=() if (how, operation) in SHORT else pytest.mark.long)
    for how in EXIT_CODES
    for operation in OPERATIONS
]


def check(outcomes: list[Outcome], victim: int, how: str) -> None:
    """See that every survivor was told who is gone, in time, and that it is over."""
    assert outcomes[victim].exit_code == EXIT_CODES[how]
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            continue
        assert outcome.error is None, outcome.error
        assert outcome.exit_code == 0
        found = outcome.value
        wanted = "AbortedError" if how in TOLD else "PeerLostError"
        assert found["kind"] == wanted, found
        assert found["fields"] == {"rank": victim}
        assert f"rank {rank} gave up" in found["message"]
        assert f"rank {victim} " in found["message"]
        # Below the timeout of 300 s: a death is seen, not waited for.
        assert found["seconds"] < 200
        assert found["closed"]


@pytest.mark.parametrize(("how", "operation"), CASES)
def test_between_two_calls(how: str, operation: str) -> None:
    victim = 1
    outcomes = run_processes(
        3,
        deaths.lose_a_rank,
        operation,
        how,
        victim,
        3,
        timeout_seconds=300.0,
        limit_seconds=250.0,
    )
    check(outcomes, victim, how)
    assert outcomes[0].value["next"] == outcomes[2].value["next"] == "ClosedError"
    if how == "exception":
        assert isinstance(outcomes[victim].error, ArithmeticError)


@pytest.mark.parametrize("victim", [0, pytest.param(3, marks=pytest.mark.long)])
def test_any_rank(victim: int) -> None:
    outcomes = run_processes(4, deaths.lose_a_rank, "large", "SIGKILL", victim, 1,
                             timeout_seconds=300.0, limit_seconds=250.0)  # fmt: skip
    check(outcomes, victim, "SIGKILL")


def test_before_the_first_call() -> None:
    outcomes = run_processes(2, deaths.lose_a_rank, "tiny", "os._exit", 1, 0, timeout_seconds=300.0,
                             limit_seconds=250.0)  # fmt: skip
    check(outcomes, 1, "os._exit")


MIDDLES = [
    ("large", "SIGKILL"), ("symmetric", "SIGKILL"), ("tiny", "SIGKILL"), ("empty", "SIGTERM"),
    ("stream", "SIGKILL"), ("duplicate", "SIGKILL"), ("fused", "os._exit"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "how"), MIDDLES[:4] + [
    pytest.param(*case, marks=pytest.mark.long) for case in MIDDLES[4:]
])  # fmt: skip
def test_in_the_middle(operation: str, how: str) -> None:
    victim = 1
    outcomes = run_processes(3, deaths.lose_a_rank_in_the_middle, operation, how, victim, 0.3,
                             timeout_seconds=300.0, limit_seconds=250.0)  # fmt: skip
    assert outcomes[victim].exit_code == EXIT_CODES[how]
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        found = outcome.value
        # duplicate: the children of both, the one that is being made and the one it is made from.
        assert found["kind"] == "PeerLostError", found
        assert found["fields"] == {"rank": victim}
        assert found["closed"] or operation == "duplicate"


@pytest.mark.long
@pytest.mark.parametrize("repetition", range(20))
def test_in_the_middle_again_and_again(repetition: int) -> None:
    outcomes = run_processes(3, deaths.lose_a_rank_in_the_middle, "large", "SIGKILL", 1,
                             0.05 + 0.01 * repetition, timeout_seconds=300.0,
                             limit_seconds=250.0)  # fmt: skip
    assert [outcome.value["kind"] for outcome in (outcomes[0], outcomes[2])] == [
        "PeerLostError"
    ] * 2
