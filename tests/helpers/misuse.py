"""Forbidden calls: refused with the right class and words; nothing moves, later calls work."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll.errors import CocollError
from cocoll.testing import run_ranks
from tests.helpers.world import TUNINGS, ThreadWorld

Call = Callable[[], object]
Misuse = Callable[[cocoll.Communicator], tuple[Call, Iterable[np.ndarray]]]

# Ranks that live on from test to test: each refused call must leave them able to make the next.
_worlds: dict[int, ThreadWorld] = {}


def run_everywhere(world_size: int, body: Callable[[cocoll.Communicator], object]) -> None:
    """Call `body` on every rank of a world that has seen other forbidden calls before."""
    if world_size in _worlds and _worlds[world_size].broken:
        _worlds.pop(world_size).close()
    if world_size not in _worlds:
        _worlds[world_size] = ThreadWorld(world_size, TUNINGS["default"])
    _worlds[world_size].run(lambda comm: body(comm) and None)


def close_worlds() -> None:
    """End the ranks."""
    for world in _worlds.values():
        world.close()
    _worlds.clear()


def check_usable(comm: cocoll.Communicator) -> None:
    """Reduce 5 elements, which must come out right, and no array of an earlier call with them."""
    x = np.arange(5, dtype=np.float32) * (comm.rank + 1)
    cocoll.allreduce(x, comm=comm)
    ranks = comm.world_size
    np.testing.assert_array_equal(x, np.arange(5, dtype=np.float32) * (ranks * (ranks + 1) // 2))


def refuse(
    call: Call,
    kind: type[CocollError],
    *parts: str,
    arrays: Iterable[np.ndarray] = (),
) -> CocollError:
    """Make a call that must raise exactly `kind`, say `parts`, and leave `arrays` as they are."""
    arrays = list(arrays)
    before = [array.tobytes() for array in arrays]
    with pytest.raises(CocollError) as caught:
        call()
    error = caught.value
    assert type(error) is kind, f"wanted {kind.__name__}; got {type(error).__name__}: {error}"
    for part in parts:
        assert part in str(error), f"{part!r} is not in {error!s}"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), repr(again.fields)) == (kind, str(error), repr(error.fields))
    for name, value in error.fields.items():
        assert getattr(error, name) is value
    for array, content in zip(arrays, before, strict=True):
        assert array.tobytes() == content, "a refused call has changed an array"
    return error


def refuse_on_ranks(
    misuse: Misuse,
    kind: type[CocollError],
    *parts: str,
    world_size: int = 2,
    **settings: Any,
) -> list[CocollError]:
    """Let every rank make a forbidden call, then a right one. With `settings`: in a new world.

    Parameters
    ----------
    misuse : callable
        Gives a rank's call, and the arrays that it must leave alone.
    kind : type
        What every rank raises.
    *parts : str
        What its message says; ``{rank}`` stands for the rank.
    """

    errors: dict[int, CocollError] = {}

    def body(comm: cocoll.Communicator) -> None:
        call, arrays = misuse(comm)
        words = [part.replace("{rank}", str(comm.rank)) for part in parts]
        errors[comm.rank] = refuse(call, kind, *words, arrays=arrays)
        check_usable(comm)

    if settings:
        run_ranks(world_size, body, timeout_seconds=60.0, **settings)
    else:
        run_everywhere(world_size, body)
    return [errors[rank] for rank in range(world_size)]
