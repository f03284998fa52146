"""The hook for DDP, with buckets as DDP hands them out; with DDP itself in test_torchrun.py."""

from __future__ import annotations

from typing import Any

import pytest

import cocoll
from cocoll.errors import CocollError
from cocoll.testing import run_ranks

torch = pytest.importorskip("torch")

import cocoll.torch as fused  # noqa: E402


class Bucket:
    def __init__(self, values: Any) -> None:
        self.values = values

    def buffer(self) -> Any:
        return self.values


def test_buckets_are_averaged_in_place_and_in_order() -> None:
    def run(comm: cocoll.Communicator) -> None:
        hook = fused.ddp_hook(comm)
        buckets = [Bucket(torch.full((500,), float(comm.rank + n))) for n in range(6)]
        futures = [hook(None, bucket) for bucket in buckets]
        for n, (bucket, future) in enumerate(zip(buckets, futures, strict=True)):
            assert future.wait() is not None
            assert future.value().data_ptr() == bucket.values.data_ptr()
            assert torch.equal(bucket.values, torch.full((500,), 1.0 + n))

    run_ranks(3, run)


def test_what_fails_is_raised_by_the_future() -> None:
    def run(comm: cocoll.Communicator) -> None:
        hook = fused.ddp_hook(comm)
        future = hook(None, Bucket(torch.zeros(4 + comm.rank)))
        with pytest.raises(CocollError, match="ranks asked for different"):
            future.wait()

    run_ranks(2, run)
