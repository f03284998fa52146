"""The emulated device, and what it must not have noticed when a test ends."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cocoll.testing.emulation import emulate_device
from cocoll.testing.graphs import Graphs
from tests.helpers.on_device import Watch

if TYPE_CHECKING:
    from cocoll.cuda.toolkit import Toolkit


# A rank that fails on the host raises at once, and leaves what peers may have mapped to the
# process.
LEAVES_MEMORY = {
    "test_a_failure_on_the_host_ends_kernels",
    "test_both_gpus_send_first",
    "test_a_replay_whose_peer_has_gone_does_not_keep_close",
}


@pytest.fixture(scope="session")
def toolkit(private_cache: None) -> Toolkit:
    return emulate_device(Path(os.environ["COCOLL_CACHE_DIR"]))


@pytest.fixture
def graphs(toolkit: Toolkit) -> Graphs:
    return Graphs(toolkit)


@pytest.fixture(autouse=True)
def nothing_is_left(toolkit: Toolkit, request: pytest.FixtureRequest) -> Iterator[None]:
    watch = Watch(toolkit)
    before, allocations = watch.faults(), watch.allocations()
    yield
    gc.collect()
    assert watch.faults() == before
    if request.node.name not in LEAVES_MEMORY:
        assert watch.allocations() == allocations
