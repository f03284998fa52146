"""Worlds of thread ranks, kept from test to test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.helpers.selection import WORLD_SIZES, runs_each_time
from tests.helpers.world import TUNINGS, ThreadWorld


@pytest.fixture(scope="session")
def thread_worlds() -> Iterator[Callable[[int, str], ThreadWorld]]:
    """Give the world of a size and a tuning, a new one where the last has broken."""
    alive: dict[tuple[int, str], ThreadWorld] = {}

    def find(size: int, tuning: str) -> ThreadWorld:
        key = (size, tuning)
        if key in alive and alive[key].broken:
            alive.pop(key).close()
        if key not in alive:
            alive[key] = ThreadWorld(size, TUNINGS[tuning])
        return alive[key]

    yield find
    for world in alive.values():
        world.close()


@pytest.fixture(params=WORLD_SIZES, ids=lambda size: f"ranks{size}")
def worlds(
    request: pytest.FixtureRequest, thread_worlds: Callable[[int, str], ThreadWorld]
) -> Callable[[str], ThreadWorld]:
    """Give the world of a tuning; every test runs on every number of ranks."""
    return lambda tuning: thread_worlds(request.param, tuning)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most numbers of ranks of each case to the long run."""
    for item in items:
        size = getattr(item, "callspec", None) and item.callspec.params.get("worlds")
        if size is not None and not runs_each_time(
            item.name.replace(f"ranks{size}", ""), size, threads=True
        ):
            item.add_marker(pytest.mark.long)
