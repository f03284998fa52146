"""Worlds of thread ranks, kept from test to test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.misuse import close_worlds


@pytest.fixture(scope="session", autouse=True)
def worlds() -> Iterator[None]:
    """End the ranks when the last test has run."""
    yield
    close_worlds()
