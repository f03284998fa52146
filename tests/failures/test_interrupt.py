"""Ctrl-C on one rank that waits: KeyboardInterrupt there, AbortedError elsewhere."""

from __future__ import annotations

import pytest

from cocoll.testing import run_processes
from tests.helpers import deaths

BLOCKING = ["tiny", "large", "symmetric", "bound", "barrier", "empty", "fused", "messages"]
ON_A_STREAM = ["stream", "stream_barrier"]
SHORT = ["large", "empty", "stream", "messages"]


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(name, marks=() if name in SHORT else pytest.mark.long)
        for name in BLOCKING + ON_A_STREAM
    ],
)
def test_ctrl_c(operation: str) -> None:
    victim = 0
    outcomes = run_processes(3, deaths.interrupt, operation, victim, timeout_seconds=300.0,
                             limit_seconds=250.0)  # fmt: skip
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.error
        assert outcome.exit_code == 0
        found = outcome.value
        if rank == victim:
            assert found["kind"] == "KeyboardInterrupt", found
            assert found["closed"]
            # 50 ms is how long native code stays away; what is more is the machine's.
            assert found["after_seconds"] < 100
            continue
        assert found["kind"] == "AbortedError", found
        assert found["fields"] == {"rank": victim}
        reason = "called abort()" if operation in ON_A_STREAM else "was interrupted"
        assert f"rank {victim} {reason}" in found["message"]
