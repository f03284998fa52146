"""What arrays hold of device memory, for as long as they live."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cocoll.cuda.binding import Memory

__all__ = ["Block", "Shard"]


class Block:
    """Keeps an allocation; its end only marks it.

    Parameters
    ----------
    freed : list of (int, int)
        To which the key is added then.
    key : (int, int)
        Which segment, and which of its allocations.
    segment : Memory
        Kept as long.
    """

    def __init__(self, freed: list[tuple[int, int]], key: tuple[int, int], segment: Memory) -> None:
        self._freed = freed
        self._key = key
        self._segment = segment

    def __del__(self) -> None:
        self._freed.append(self._key)


class Shard:
    """Keeps a shard's memory, and its place in the list of shards.

    Parameters
    ----------
    shards : set of int
        The addresses of all shards that there are.
    memory : Memory
        The shard's.
    """

    def __init__(self, shards: set[int], memory: Memory) -> None:
        self._shards = shards
        self._memory = memory
        shards.add(memory.address)

    def __del__(self) -> None:
        # Before the memory goes: another shard may be given the same address.
        self._shards.discard(self._memory.address)
