"""Where one algorithm gives way to the next."""

from __future__ import annotations

from dataclasses import dataclass

from cocoll.errors import UsageError

__all__ = ["Tuning"]

_LINE_PAYLOAD_BYTES = 64


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

    Raises
    ------
    UsageError
        A value is out of its range.
    """

    inline_bytes: int = 64
    one_shot_bytes: int = 16 << 10
    chunk_bytes: int = 128 << 10
    slots: int = 2
    staging_bytes: int = 4 << 20
    programs: int = 256

    def __post_init__(self) -> None:
        """Refuse what no communicator can be made with."""
        least = {"chunk_bytes": 1, "slots": 1, "programs": 1}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"Tuning.{name} must be an int; got {value!r}")
            if value < least.get(name, 0):
                raise UsageError(
                    f"Tuning.{name} must be at least {least.get(name, 0)}; got {value}"
                )
        if self.inline_bytes > _LINE_PAYLOAD_BYTES:
            raise UsageError(
                f"Tuning.inline_bytes may be {_LINE_PAYLOAD_BYTES}, what an arrival line carries; "
                f"got {self.inline_bytes}"
            )
