"""A call on a GPU, described and checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cocoll.algorithms import OperandSpec, ReduceSpec
from cocoll.failure import Kind, Option
from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS
from cocoll.plan.ranges import block_range

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.device.array import DeviceDescription
    from cocoll.device.boxes import DeviceBox
    from cocoll.device.layout import Operand
    from cocoll.device.side import DeviceSide, Place
    from cocoll.kernels.spec import KernelSpec

__all__ = ["Request"]


@dataclass
class Request:
    """A call on a GPU, described and checked: what all ways of carrying it out have in common.

    Attributes
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    kind : Kind
        Which collective.
    spec : KernelSpec
        What its kernel computes, where it reduces.
    source, results : DeviceDescription
        The caller's arrays; each result the whole vector or, scattered, this rank's block.
    count, block : int
        Elements of the logical vector, and of a rank's block of it.
    options : Option
        Agreed.
    operands : list of Operand
        The epilogue's arrays.
    root : int
        Of a broadcast.
    parts : list of DeviceBox
        What the plan's parts stand for.
    """

    comm: Communicator
    side: DeviceSide
    kind: Kind
    spec: KernelSpec
    source: DeviceDescription
    results: list[DeviceDescription]
    count: int
    block: int
    options: Option
    operands: list[Operand] = field(default_factory=list)
    root: int = -1
    parts: list[DeviceBox] = field(default_factory=list)

    @property
    def scattered(self) -> bool:
        """Whether every rank keeps its own block of the results alone."""
        return self.kind in (Kind.REDUCE_SCATTER, Kind.REDUCE_SCATTER_FUSED)

    def own(self) -> tuple[int, int]:
        """Give this rank's block."""
        return block_range(self.comm.rank, self.count, self.block)

    @property
    def reduced(self) -> ReduceSpec:
        """What planners know of a reduction."""
        traced = self.spec.traced
        operands = () if traced is None else traced.operands
        return ReduceSpec(
            self.source.dtype.itemsize_bytes,
            tuple(result.dtype.itemsize_bytes for result in self.results),
            tuple(
                OperandSpec(placed.itemsize_bytes, placed.sharded, operand.node is not None)
                for placed, operand in zip(self.operands, operands, strict=True)
            ),
            zero_source=Option.ZERO_GRAD in self.options,
        )

    @property
    def alignment_elements(self) -> int:
        """What a block's length is rounded up to."""
        plain = self.kind in (Kind.REDUCE_SCATTER, Kind.ALLGATHER)
        return 1 if plain and Option.SHARD not in self.options else SHARD_ALIGNMENT_ELEMENTS

    def places(self) -> list[Place]:
        """Say where the arrays that peers touch lie in memory that they map; none if one does not.

        A result of which every rank keeps its own block is this rank's alone.
        """
        if self.kind is Kind.ALLGATHER and self.side.hierarchy is not None:
            # Over several hosts what comes from elsewhere is stored into the neighbours' results.
            place = self.side.place_of(self.results[0].address, self.results[0].nbytes)
            return [] if place is None else [place]
        arrays = [self.source]
        if self.kind in (Kind.ALLREDUCE, Kind.ALLREDUCE_FUSED):
            arrays += self.results
        if self.kind is Kind.ALLGATHER and (
            # Blocks that lie in the result are at different places on different ranks.
            Option.SHARD in self.options or self.source.overlaps(self.results[0])
        ):
            return []
        found = [self.side.place_of(array.address, array.nbytes) for array in arrays]
        return [place for place in found if place is not None] if None not in found else []
