"""What GPUs do not run yet says so, before anything has moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import UnsupportedError
from cocoll.testing import run_ranks

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit


def test_lists_and_totals(toolkit: Toolkit) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x, param = comm.empty(8, device="cuda"), comm.empty(8, device="cuda")
        with pytest.raises(UnsupportedError, match="lists of arrays are for host memory"):
            cocoll.allreduce([x, param], comm=comm)
        state = {name: comm.shard_zeros(8, device="cuda") for name in ("m", "v")}
        with pytest.raises(UnsupportedError, match="run in host memory only"):
            cocoll.allreduce_fused(
                x, epilogues.lamb(lr=0.1), comm=comm, param=param, step=1, **state
            )

    run_ranks(2, body, toolkit=toolkit)
