"""Where one algorithm gives way to the next."""

from __future__ import annotations

from dataclasses import dataclass

from cocoll.errors import UsageError

__all__ = ["Tuning"]

_LINE_PAYLOAD_BYTES = 64
_GPU_UNIT_BYTES = {"gpu_ll_bytes": 16, "gpu_one_shot_bytes": 128, "gpu_window_bytes": 128}


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
    gpu_ll_bytes : int
        On GPUs, up to this size every rank pushes its data to all, with low latency, and reduces
        everything; a multiple of 16. 0: never.
    gpu_one_shot_bytes : int
        On GPUs, up to this size every rank reduces everything from staging; a multiple of 128.
    gpu_window_bytes : int
        Device memory of each rank for chunks of ordinary arrays; a multiple of 128.
    gpu_segment_bytes : int
        What symmetric device memory grows by, at least.
    gpu_map_peers : int
        1: ranks map each other's GPU memory where they can; 0: they go through NCCL always.
    gpu_native_bytes : int
        From this size on a plain all-reduce on GPUs may be NCCL's own, whose order of summation
        is NCCL's; 0: never, so that all ways of an all-reduce give the same bits.
    gpu_blocks : int
        The largest grid of a kernel. All blocks of all communicators that work at the same time on
        a GPU must fit it together, a multiprocessor each, for they wait for each other.

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
    gpu_ll_bytes: int = 8 << 10
    gpu_one_shot_bytes: int = 256 << 10
    gpu_window_bytes: int = 16 << 20
    gpu_segment_bytes: int = 64 << 20
    gpu_map_peers: int = 1
    gpu_native_bytes: int = 1 << 20
    gpu_blocks: int = 64

    def __post_init__(self) -> None:
        """Refuse what no communicator can be made with."""
        least = {
            "chunk_bytes": 1,
            "slots": 1,
            "programs": 1,
            "gpu_one_shot_bytes": 128,
            "gpu_window_bytes": 1 << 16,
            "gpu_segment_bytes": 1 << 12,
            "gpu_blocks": 1,
        }
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"Tuning.{name} must be an int; got {value!r}")
            if value < least.get(name, 0):
                raise UsageError(
                    f"Tuning.{name} must be at least {least.get(name, 0)}; got {value}"
                )
        for name, unit in _GPU_UNIT_BYTES.items():
            if getattr(self, name) % unit:
                raise UsageError(
                    f"Tuning.{name} must be a multiple of {unit}; got {getattr(self, name)}"
                )
        if self.gpu_map_peers > 1:
            raise UsageError(f"Tuning.gpu_map_peers must be 0 or 1; got {self.gpu_map_peers}")
        if self.inline_bytes > _LINE_PAYLOAD_BYTES:
            raise UsageError(
                f"Tuning.inline_bytes may be {_LINE_PAYLOAD_BYTES}, what an arrival line carries; "
                f"got {self.inline_bytes}"
            )
