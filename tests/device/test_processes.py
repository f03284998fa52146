"""Ranks as processes on the emulated device, which map each other's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.testing import run_processes, run_ranks
from tests.helpers import gpu_ranks
from tests.helpers.on_device import TUNING

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit


def test_the_same_bits_as_threads(toolkit: Toolkit) -> None:
    wanted = run_ranks(3, gpu_ranks.train, toolkit=toolkit, tuning=TUNING)
    outcomes = run_processes(3, gpu_ranks.train, toolkit=toolkit, tuning=TUNING)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    for outcome in outcomes:
        assert outcome.value == wanted[0]
        assert outcome.exit_code == 0


def test_a_rank_that_is_killed(toolkit: Toolkit) -> None:
    outcomes = run_processes(
        3, gpu_ranks.die_in_an_operation, toolkit=toolkit, tuning=TUNING, timeout_seconds=3.0
    )
    assert outcomes[1].exit_code == -9
    assert {outcomes[0].value, outcomes[2].value} <= {"CommTimeoutError", "AbortedError"}
    assert outcomes[0].error is None
    assert outcomes[2].error is None
