"""Fused optimizers among processes; the rest is tested among threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cocoll

pytestmark = pytest.mark.long  # torch takes seconds to be imported in every rank


def train(comm: cocoll.Communicator) -> list[np.ndarray[Any, Any]]:
    import torch

    from cocoll.torch import FusedAdamW
    from tests.helpers.torch_training import (
        average_reference,
        draw_batch,
        make_models,
        parameters_of,
    )

    torch.set_num_threads(1)
    model = make_models(1)[0]
    optimizer = FusedAdamW(model.parameters(), lr=1e-2, comm=comm, bucket_bytes=1024)
    for step in range(4):
        optimizer.zero_grad()
        model.loss(draw_batch(step, comm.rank), swap=comm.rank % 2 == 1).backward()
        optimizer.step()
    reference, _ = average_reference(
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        [
            lambda model, s=step: [
                model.loss(draw_batch(s, rank)) for rank in range(comm.world_size)
            ]
            for step in range(4)
        ],
    )
    found = parameters_of(model)
    for mine, theirs in zip(found, parameters_of(reference), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
    comm.barrier()
    optimizer.close()
    return found


def test_a_fused_optimizer(worlds: Any) -> None:
    pytest.importorskip("torch")
    worlds("default").run(train)
