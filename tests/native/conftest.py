"""What the native tests of several files have in common."""

from __future__ import annotations

import pytest

from tests.native.building import BUILDS, Build


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest) -> Build:
    """Give a way to compile and run programs; skip where its runner is not on this machine."""
    chosen = BUILDS[request.param]
    if chosen.lacks:
        pytest.skip(chosen.lacks)
    return chosen
