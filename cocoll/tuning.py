"""Where one algorithm gives way to the next."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tuning"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """Where one algorithm gives way to the next; rank 0's values hold for all ranks.

    Attributes
    ----------
    inline_bytes : int
        Up to this size the data travels in the arrival line. At most 64.
    one_shot_bytes : int
        Up to this size every rank reduces everything from staging, with one synchronisation.
    chunk_bytes : int
        What one iteration of a staged operation moves, over all owners.
    slots : int
        Chunks in flight.
    staging_bytes : int
        Scratch of each rank for chunked operations.
    programs : int
        How many programs a communicator keeps.
    """

    inline_bytes: int = 64
    one_shot_bytes: int = 16 << 10
    chunk_bytes: int = 128 << 10
    slots: int = 2
    staging_bytes: int = 4 << 20
    programs: int = 256
