"""What every call must do, over emulated hosts; the cases are those of one host."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import cocoll
from cocoll.testing import run_ranks
from tests.helpers.cases import Case, all_cases
from tests.helpers.ring_plans import plan_ring
from tests.helpers.world import TUNINGS, ThreadWorld

LAYOUTS = {
    "1+1": (0, 1),
    "1+1+1": (0, 1, 2),
    "2+2": (0, 0, 1, 1),
    "2+1": (0, 0, 1),
    "mixed": (0, 1, 0, 1, 2),
    "uneven": (0, 1, 1, 2, 2, 2, 0, 2),
}
#: One in so many cases runs each time, on one layout.
SHARE = 500


def cases() -> list[object]:
    """Give all cases, each on two layouts, few of them for each run."""
    found = []
    for entry in all_cases(several_hosts=True):
        number, chosen = divmod(zlib.crc32(f"hosts {entry}".encode()), len(LAYOUTS))
        for place, layout in enumerate(LAYOUTS):
            if place not in (chosen, (chosen + 2) % len(LAYOUTS)):
                continue
            short = place == chosen and number % SHARE == 0
            found.append(
                pytest.param(
                    layout,
                    entry,
                    id=f"{layout}-{entry}",
                    marks=() if short else pytest.mark.long,
                )
            )
    return found


@pytest.fixture(scope="module")
def host_worlds() -> Iterator[Callable[[str, str], ThreadWorld]]:
    """Give the world of a layout and a tuning, a new one where the last has broken."""
    alive: dict[tuple[str, str], ThreadWorld] = {}

    def find(layout: str, tuning: str) -> ThreadWorld:
        key = (layout, tuning)
        if key in alive and alive[key].broken:
            alive.pop(key).close()
        if key not in alive:
            hosts = LAYOUTS[layout]
            alive[key] = ThreadWorld(
                len(hosts), TUNINGS[tuning], hosts=hosts, seed=zlib.crc32(layout.encode())
            )
        return alive[key]

    yield find
    for world in alive.values():
        world.close()


@pytest.mark.parametrize(("layout", "entry"), cases())
def test_call(host_worlds: Callable[[str, str], ThreadWorld], layout: str, entry: Case) -> None:
    for module in entry.needs:
        pytest.importorskip(module)
    host_worlds(layout, entry.tuning).run(entry.function, **entry.arguments)


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_a_group_goes_on_over_loops_of_ranges(world_size: int) -> None:
    def body(comm: cocoll.Communicator) -> None:
        x = np.arange(12, dtype=np.float32) + 100 * comm.rank
        out = np.zeros_like(x)
        bound = comm.bind_plan(lambda rank, size: plan_ring(rank, size, group=1), x, out=out)
        for _ in range(3):
            bound().wait()
            left = (comm.rank - 1) % world_size
            np.testing.assert_array_equal(out, np.arange(12) + 100 * left)
            out[:] = 0

    run_ranks(world_size, body, hosts=tuple(range(world_size)))
