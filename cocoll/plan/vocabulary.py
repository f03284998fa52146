"""The views and steps that a plan is written in, with every argument named."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from cocoll.errors import RankError, UsageError
from cocoll.plan.ir import Buffer, Call, Copy, Flag, Receive, Reduce, Send, Signal, Step, View, Wait

__all__ = ["AfterLanes", "StepWriter", "ViewMaker"]

#: What a step waits for: for each lane by name, how many iterations the lane may lag behind the
#: step's own (0: it has completed the same iteration; -1: the next one, or its end where it has no
#: such iteration), or None for the lane's end.
AfterLanes: TypeAlias = Mapping[str, int | None]


class ViewMaker:
    """Names memory from one rank's point of view.

    Parameters
    ----------
    rank, world_size : int
        Whose view.
    title : str
        How error messages call the plan.

    Raises
    ------
    RankError
        The rank lies outside the world.
    """

    def __init__(self, rank: int, world_size: int, title: str) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise RankError(f"wanted a rank in [0, {world_size}), got {rank}")
        self.rank = rank
        self.world_size = world_size
        self._title = title

    def _where(self) -> str:
        return f"plan {self._title!r} of rank {self.rank}"

    def source(self, *, itemsize_bytes: int, rank: int | None = None, origin: int = 0) -> View:
        """Name the input of a rank (default: this one).

        Parameters
        ----------
        itemsize_bytes : int
            Bytes of one element.
        rank : int, optional
            Whose; peers' need ``mapped_sources``.
        origin : int, default 0
            The block that the array begins with.

        Returns
        -------
        View
            For steps of this plan.
        """
        return View(Buffer.SOURCE, self._owner(rank), itemsize_bytes, origin=origin)

    def result(
        self, *, itemsize_bytes: int, rank: int | None = None, index: int = 0, origin: int = 0
    ) -> View:
        """Name an output of a rank (default: this one).

        Parameters
        ----------
        itemsize_bytes : int
            Bytes of one element.
        rank : int, optional
            Whose; peers' need ``mapped_results``.
        index : int, default 0
            Which result, where there are several.
        origin : int, default 0
            The block that the array begins with.

        Returns
        -------
        View
            For steps of this plan.
        """
        return View(Buffer.RESULT, self._owner(rank), itemsize_bytes, index=index, origin=origin)

    def operand(self, *, itemsize_bytes: int, index: int, origin: int = 0) -> View:
        """Name an epilogue's array on this rank.

        Parameters
        ----------
        itemsize_bytes : int
            Bytes of one element.
        index : int
            Which operand.
        origin : int, default 0
            The block that the array begins with: this rank, where it is sharded.

        Returns
        -------
        View
            For steps of this plan.
        """
        return View(Buffer.OPERAND, self.rank, itemsize_bytes, index=index, origin=origin)

    def part(self, *, itemsize_bytes: int, index: int) -> View:
        """Name one of any number of arrays on this rank, whose elements loops over ranges count.

        Parameters
        ----------
        itemsize_bytes : int
            Bytes of one element.
        index : int
            Which array.

        Returns
        -------
        View
            For steps of this plan.
        """
        return View(Buffer.PART, self.rank, itemsize_bytes, index=index)

    def scratch(
        self,
        buffer: Buffer,
        *,
        itemsize_bytes: int,
        rank: int | None = None,
        offset_bytes: int = 0,
        slots: int = 0,
        slot_bytes: int = 0,
    ) -> View:
        """Name mapped memory of the executor: LINE, SMALL or STAGING of a rank.

        Parameters
        ----------
        buffer : Buffer
            LINE (64 bytes), SMALL or STAGING.
        itemsize_bytes : int
            Bytes of one element.
        rank : int, optional
            Whose; default this rank's.
        offset_bytes : int, default 0
            Distance from the start of the region.
        slots, slot_bytes : int, default 0
            With slots, iteration i uses slot ``i % slots`` from its start; without, elements lie
            at their logical place.

        Returns
        -------
        View
            For steps of this plan.

        Raises
        ------
        UsageError
            `buffer` is the caller's memory.
        """
        if not buffer.is_scratch:
            raise UsageError(f"{self._where()}: {buffer.name} is the caller's, not scratch")
        return View(
            buffer,
            self._owner(rank),
            itemsize_bytes,
            offset_bytes=offset_bytes,
            slots=slots,
            slot_bytes=slot_bytes,
        )

    def _owner(self, rank: int | None) -> int:
        if rank is None:
            return self.rank
        if not 0 <= rank < self.world_size:
            raise RankError(f"{self._where()}: wanted a rank in [0, {self.world_size}), got {rank}")
        return rank


class StepWriter(ViewMaker, abc.ABC):
    """Writes steps; what becomes of them is its subclass's to say."""

    @abc.abstractmethod
    def _add(self, step: Step, after: AfterLanes | None) -> None:
        """Take a step."""

    def copy(
        self,
        *,
        source: View,
        destination: View,
        block: int = -1,
        after: AfterLanes | None = None,
    ) -> None:
        """Move a chunk from one view to another of the same element size.

        Parameters
        ----------
        source, destination : View
            From and to.
        block : int, default WHOLE_VECTOR
            The block whose chunks are moved.
        after : mapping of str to int or None, optional
            Lanes to wait for.
        """
        self._add(Copy(block, source, destination), after)

    def reduce(
        self,
        *,
        sources: Sequence[View],
        destinations: Sequence[Sequence[View]],
        block: int = -1,
        operands: Sequence[View] = (),
        updated: Iterable[int] = (),
        partial: bool = False,
        after: AfterLanes | None = None,
    ) -> None:
        """Reduce a chunk over `sources` in their order, run the epilogue, store every result.

        Parameters
        ----------
        sources : sequence of View
            In rank order where the bits matter.
        destinations : sequence of sequences of View
            For each result, where it is stored; as many for every result.
        block : int, default WHOLE_VECTOR
            The block whose chunks are reduced.
        operands : sequence of View, optional
            The epilogue's arrays.
        updated : iterable of int, optional
            Indices of the operands that the epilogue writes in place.
        partial : bool, default False
            Whether another reduce goes on with the result: no epilogue, no division of an average.
        after : mapping of str to int or None, optional
            Lanes to wait for.
        """
        stores = tuple(tuple(views) for views in destinations)
        self._add(
            Reduce(block, tuple(sources), stores, tuple(operands), tuple(updated), partial), after
        )

    def signal(self, *, peer: int, flag: int = Flag.USER, after: AfterLanes | None = None) -> None:
        """Tell a peer that everything before is done.

        Parameters
        ----------
        peer : int
            Another rank.
        flag : int, default Flag.USER
            The counter; one lane of each rank signals it and one waits for it.
        after : mapping of str to int or None, optional
            Lanes to wait for.
        """
        self._add(Signal(peer, flag), after)

    def wait(self, *, peer: int, flag: int = Flag.USER, after: AfterLanes | None = None) -> None:
        """Wait for the next signal of a peer.

        Parameters
        ----------
        peer : int
            Another rank.
        flag : int, default Flag.USER
            The counter.
        after : mapping of str to int or None, optional
            Lanes to wait for.
        """
        self._add(Wait(peer, flag), after)

    def send(
        self,
        *,
        peer: int,
        source: View,
        block: int = -1,
        group: int = 0,
        tag: int = 0,
        after: AfterLanes | None = None,
    ) -> None:
        """Send a chunk to a rank whose memory is not mapped.

        Parameters
        ----------
        peer : int
            Another rank.
        source : View
            What is sent.
        block : int, default WHOLE_VECTOR
            The block whose chunks are sent.
        group : int, default 0
            Adjacent sends and receives of one number (not 0) move as one.
        tag : int, default 0
            The peer's receives with this tag meet the sends with it, in their order. NCCL knows no
            tags.
        after : mapping of str to int or None, optional
            Lanes to wait for.
        """
        self._add(Send(block, peer, source, group, tag), after)

    def recv(
        self,
        *,
        peer: int,
        destination: View,
        block: int = -1,
        group: int = 0,
        tag: int = 0,
        after: AfterLanes | None = None,
    ) -> None:
        """Receive a chunk from a rank whose memory is not mapped.

        Parameters
        ----------
        peer : int
            Another rank.
        destination : View
            Where it goes.
        block : int, default WHOLE_VECTOR
            The block whose chunks are received.
        group : int, default 0
            Adjacent sends and receives of one number (not 0) move as one.
        tag : int, default 0
            As in `send`.
        after : mapping of str to int or None, optional
            Lanes to wait for.
        """
        self._add(Receive(block, peer, destination, group, tag), after)

    def call(
        self,
        *,
        function: int,
        block: int = -1,
        reads: Sequence[View] = (),
        writes: Sequence[View] = (),
        after: AfterLanes | None = None,
    ) -> None:
        """Run a user function on a chunk. No executor runs it yet.

        Parameters
        ----------
        function : int
            Its index in the list that the plan is run with.
        block : int, default WHOLE_VECTOR
            The block whose chunks it is given.
        reads, writes : sequence of View, optional
            Everything that it touches.
        after : mapping of str to int or None, optional
            Lanes to wait for.
        """
        self._add(Call(function, block, tuple(reads), tuple(writes)), after)
