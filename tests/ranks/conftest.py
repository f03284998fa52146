"""Worlds of thread ranks, kept from test to test."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import pytest

from tests.helpers.world import TUNINGS, ThreadWorld

WORLD_SIZES = (1, 2, 3, 4, 5, 8)


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
    """Leave most numbers of ranks of each case to the long run.

    Every case runs on 2 ranks and on one more number, which its name chooses, so that all numbers
    see a fair share of all cases each time and every case sees all numbers in `make test-long`.
    """
    others = [size for size in WORLD_SIZES if size != 2]
    for item in items:
        size = getattr(item, "callspec", None) and item.callspec.params.get("worlds")
        if size is None or size == 2:
            continue
        case_name = item.name.replace(f"ranks{size}", "")
        if size != others[zlib.crc32(case_name.encode()) % len(others)]:
            item.add_marker(pytest.mark.long)
