"""The bare loops that a measured time is compared with: the same memory traffic, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.common import native
from benchmarks.common.memory import SharedMemory
from benchmarks.common.streams import FORMS, LimitSpec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LimitLoop"]

# Equal offsets of all arrays would fall into the same sets of the L1 cache.
_STAGGER_BYTES = 2048 + 128


@dataclass(frozen=True, slots=True)
class _Placed:
    start_bytes: int
    itemsize_bytes: int


class LimitLoop:
    """One limit on one rank: its shard of every array of a :class:`LimitSpec`.

    Parameters
    ----------
    spec : LimitSpec
        Arrays and streams.
    elements : int
        Length of every array.
    rank, world_size : int
        Of the job that runs the loop, on the cores it is pinned to.
    path : str
        The job's pool of shared memory.
    barrier : callable
        Waits for all ranks. Two that collapse the same pages at the same time fail, so rank 0 does
        it first, and the others map what is there.
    """

    def __init__(
        self,
        spec: LimitSpec,
        elements: int,
        rank: int,
        world_size: int,
        path: str,
        barrier: Callable[[], None],
    ) -> None:
        self.spec = spec
        placed: list[_Placed] = []
        end_bytes = 0
        for index, itemsize_bytes in enumerate(spec.itemsizes_bytes):
            start_bytes = end_bytes + index * _STAGGER_BYTES
            placed.append(_Placed(start_bytes, itemsize_bytes))
            end_bytes = -(-(start_bytes + elements * itemsize_bytes) // 4096) * 4096
        if rank != 0:
            barrier()
        self._memory = SharedMemory(path, end_bytes)
        if rank == 0:
            barrier()
        self._library = native.load()
        shard_elements = elements // world_size
        first = rank * shard_elements
        self._loops = {}
        for name, form in FORMS.items():
            streams = (native.Stream * len(spec.streams))()
            for position, stream in enumerate(spec.streams):
                where = placed[stream.array]
                streams[position] = native.Stream(
                    self._memory.address + where.start_bytes + first * where.itemsize_bytes,
                    form.tile_elements * where.itemsize_bytes,
                    stream.mode,
                )
            self._loops[name] = (streams, shard_elements // form.tile_elements)
        own = placed[rank]
        self._own_address = self._memory.address + own.start_bytes
        self._own_bytes = elements * own.itemsize_bytes

    def rewrite(self, word: int) -> float:
        """Rewrite this rank's input, as its producer would; gives the seconds."""
        return float(self._library.bench_rewrite(self._own_address, self._own_bytes, word))

    def measure(self, name: str) -> float:
        """Run the loop once in one of `FORMS`; gives the seconds."""
        if name not in FORMS:
            raise ValueError(f"wanted one of {', '.join(FORMS)}, got {name!r}")
        streams, tile_count = self._loops[name]
        form = FORMS[name]
        return float(
            self._library.bench_limit(
                streams,
                len(streams),
                tile_count,
                int(form.streaming),
                int(form.joined),
                int(form.late),
                form.ahead_bytes,
            )
        )

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
