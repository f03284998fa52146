"""Which memory traffic an operation cannot avoid, as lists of streams; no array library needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "FORMS",
    "READ",
    "READ_WRITE",
    "WRITE",
    "Form",
    "LimitSpec",
    "StreamSpec",
    "adam",
    "allreduce",
    "lamb",
]

READ, READ_WRITE, WRITE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Form:
    """How a limit loop goes through its streams.

    By tiles that fit the L1 cache, or all streams side by side line by line; asking for lines ahead
    or leaving that to the hardware; with stores through the caches or past them for streams that
    are only written; storing to a line when it is read, or to the lines of a tile after all have
    been read, as executors do.
    """

    tile_elements: int
    ahead_bytes: int
    streaming: bool = False
    joined: bool = False
    late: bool = False


# As far ahead as cocoll's kernels ask.
_AHEAD_BYTES = 384

#: The forms of which the best counts.
FORMS = {
    "cached": Form(512, 0),
    "cached_ahead": Form(512, _AHEAD_BYTES),
    "side_by_side": Form(32, 0, joined=True),
    "side_by_side_ahead": Form(32, _AHEAD_BYTES, joined=True),
    "streaming": Form(512, 0, streaming=True),
    "streaming_ahead": Form(512, _AHEAD_BYTES, streaming=True),
    "late": Form(512, _AHEAD_BYTES, joined=True, late=True),
    "late_streaming": Form(512, _AHEAD_BYTES, streaming=True, joined=True, late=True),
    "late_streaming_long": Form(2048, _AHEAD_BYTES, streaming=True, joined=True, late=True),
}


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Each rank goes once over its shard of array number `array`."""

    array: int
    mode: int


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """A limit: arrays shared by all ranks (array r is rank r's input) and the streams over them."""

    row: str
    itemsizes_bytes: tuple[int, ...]
    streams: tuple[StreamSpec, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the fields for a message to a rank."""
        return {
            "row": self.row,
            "itemsizes_bytes": list(self.itemsizes_bytes),
            "streams": [[stream.array, stream.mode] for stream in self.streams],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> LimitSpec:
        """Rebuild a limit from :meth:`to_json`."""
        return cls(
            row=fields["row"],
            itemsizes_bytes=tuple(fields["itemsizes_bytes"]),
            streams=tuple(StreamSpec(array, mode) for array, mode in fields["streams"]),
        )

    def bytes_moved(self, elements: int) -> int:
        """Bytes that all ranks together read and write."""
        return sum(
            elements * self.itemsizes_bytes[stream.array] * (2 if stream.mode == READ_WRITE else 1)
            for stream in self.streams
        )


def allreduce(row: str, world_size: int, itemsize_bytes: int, *, in_place: bool) -> LimitSpec:
    """Give the limit of an all-reduce: every input read and every output written, once."""
    if in_place:
        arrays = world_size
        streams = tuple(StreamSpec(rank, READ_WRITE) for rank in range(world_size))
    else:
        arrays = 2 * world_size
        streams = tuple(
            StreamSpec(array, READ if array < world_size else WRITE) for array in range(arrays)
        )
    return LimitSpec(row, (itemsize_bytes,) * arrays, streams)


def adam(
    row: str,
    world_size: int,
    *,
    gradient_bytes: int,
    param_bytes: int,
    param_copies: int,
    master: bool,
) -> LimitSpec:
    """Give the limit of a fused Adam step.

    Parameters
    ----------
    row : str
        Where its samples are filed.
    world_size : int
        Gradients read.
    gradient_bytes, param_bytes : int
        Bytes of one element.
    param_copies : int
        1 where all ranks share the parameters, else `world_size`.
    master : bool
        Whether float32 masters are read and written, and parameters only written.
    """
    itemsizes_bytes = [gradient_bytes] * world_size
    streams = [StreamSpec(rank, READ) for rank in range(world_size)]

    def add(itemsize_bytes: int, mode: int) -> None:
        streams.append(StreamSpec(len(itemsizes_bytes), mode))
        itemsizes_bytes.append(itemsize_bytes)

    for _ in range(3 if master else 2):  # m, v and, if there is one, the master
        add(4, READ_WRITE)
    for copy in range(param_copies):
        add(param_bytes, READ_WRITE if copy == 0 and not master else WRITE)
    return LimitSpec(row, tuple(itemsizes_bytes), tuple(streams))


def lamb(row: str, world_size: int, *, param_copies: int) -> LimitSpec:
    """Give the limit of a fused LAMB step in float32: two passes, for norms come in between.

    Parameters
    ----------
    row : str
        Where its samples are filed.
    world_size : int
        Gradients read.
    param_copies : int
        1 where all ranks share the parameters, else `world_size`.
    """
    # What the second pass reads again has left the caches: it counts as arrays of its own.
    state = [READ_WRITE, READ_WRITE, READ, READ, READ]
    modes = [READ] * world_size + state + [READ_WRITE] + [WRITE] * (param_copies - 1)
    streams = tuple(StreamSpec(array, mode) for array, mode in enumerate(modes))
    return LimitSpec(row, (4,) * len(modes), streams)
