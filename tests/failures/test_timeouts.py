"""Ranks that are alive and do not come: stopped, or busy elsewhere."""

from __future__ import annotations

import pytest

from cocoll.testing import run_processes
from tests.helpers import deaths

DESCRIPTIONS = {
    "tiny": "allreduce(count=5",
    "large": "allreduce(count=300001",
    "symmetric": "allreduce(count=300001",
    "bound": "allreduce(count=300001",
    "allgather": "allgather(",
    "broadcast": "broadcast(",
    "barrier": "barrier()",
    "empty": "comm.empty",
    "duplicate": "comm.duplicate",
    "stream": "allreduce(count=300001",
    "stream_barrier": "barrier()",
    "fused": "allreduce_fused(",
}
SHORT = [("SIGSTOP", "large"), ("SIGSTOP", "stream"), ("busy", "empty")]
TIMEOUT_SECONDS = 3.0


@pytest.mark.parametrize(
    ("how", "operation"),
    [
        pytest.param(how, operation, marks=() if (how, operation) in SHORT else pytest.mark.long)
        for how in ("SIGSTOP", "busy")
        for operation in DESCRIPTIONS
    ],
)
def test_the_others_give_up(how: str, operation: str) -> None:
    victim = 1
    outcomes = run_processes(3, deaths.keep_away, operation, how, victim,
                             timeout_seconds=TIMEOUT_SECONDS, limit_seconds=250.0)  # fmt: skip
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.error
        assert outcome.exit_code == 0
        found = outcome.value
        assert found["kind"] == "CommTimeoutError", found
        assert found["fields"] == {"ranks": (victim,)}
        assert f"rank {victim} did not come within 3 s" in found["message"]
        assert found["closed"]
        if rank == victim:
            # Woken up, it is told at its next call, and leaves its arrays alone.
            assert f"operation {found['sequence']}" in found["message"]
            assert found["unchanged"]
        else:
            assert DESCRIPTIONS[operation] in found["message"]
            assert f"operation {found['sequence']}:" in found["message"]
            assert found["seconds"] >= 0.9 * TIMEOUT_SECONDS
            assert found["undisturbed"]
            # Who waits for whom.
            assert f"rank {rank} (pid" in found["message"]
            assert f"waiting for rank {victim} to arrive" in found["message"]


@pytest.mark.parametrize("operation", [pytest.param("large", marks=pytest.mark.long), "barrier"])
def test_a_rank_that_is_only_slow(operation: str) -> None:
    outcomes = run_processes(3, deaths.come_late, operation, 2.0, timeout_seconds=20.0,
                             limit_seconds=250.0)  # fmt: skip
    for rank in (0, 2):
        assert outcomes[rank].error is None
        # Waiting is sleeping: 2 seconds of it cost little of a processor.
        assert outcomes[rank].value < 0.3


def test_an_infinite_timeout() -> None:
    outcomes = run_processes(2, deaths.come_late, "tiny", 0.3, timeout_seconds=float("inf"),
                             limit_seconds=250.0)  # fmt: skip
    assert [outcome.error for outcome in outcomes] == [None, None]


def test_a_rank_that_was_stopped_itself_has_not_waited() -> None:
    # Ctrl-Z, or a batch system that suspends jobs: the time until it goes on is not counted.
    outcomes = run_processes(2, deaths.stop_a_waiting_rank, 3.5, timeout_seconds=3.0,
                             limit_seconds=250.0)  # fmt: skip
    assert [outcome.error for outcome in outcomes] == [None, None]
