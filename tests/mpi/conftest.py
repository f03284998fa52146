"""The world of the launcher's ranks; without a launcher a world of one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.selection import runs_each_time
from tests.helpers.world import TUNINGS, MpiWorld


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give each rank a temporary directory of its own.

    By default pytest processes share one and clear away what old runs left there when they end:
    ranks end together, each removes what another is removing, and the loser fails.
    """
    if config.option.basetemp is None:
        config.option.basetemp = tempfile.mkdtemp(prefix="cocoll-mpi-tests-")
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp))


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], MpiWorld]]:
    """Give the world of a tuning, a new one where the last has broken."""
    from mpi4py import MPI

    # One cache for all ranks, as on a user's host: each kernel is compiled once.
    group = MPI.COMM_WORLD.Dup()
    cache_dir = Path(group.bcast(str(tmp_path_factory.mktemp("cache"))))
    alive: dict[str, MpiWorld] = {}

    def find(tuning: str) -> MpiWorld:
        if tuning in alive and alive[tuning].broken:
            alive.pop(tuning).close()
        if tuning not in alive:
            alive[tuning] = MpiWorld(group, TUNINGS[tuning], cache_dir)
        return alive[tuning]

    yield find
    for world in alive.values():
        world.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most numbers of ranks of each case to the long run."""
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    for item in items:
        if item.path.parent == Path(__file__).parent and not runs_each_time(item.name, size):
            item.add_marker(pytest.mark.long)
