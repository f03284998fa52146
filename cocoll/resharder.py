"""Planned reshardings: a schedule as a program of this rank, and the arrays that it moves.

Shards are checked against their layouts and cut into the boxes that the schedule moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from cocoll.agreed_plan import plan_together
from cocoll.bundle import Bundle
from cocoll.dtypes import DType
from cocoll.errors import BufferOverlapError, ReshardError, UnsupportedError, UsageError
from cocoll.host_mover import HostMover
from cocoll.movers import Freight
from cocoll.placement import HOST, read_ordinal
from cocoll.resharding.planner import MulticastPlan, TensorMove, tasks_of

if TYPE_CHECKING:
    from cocoll._core import BoundOperation, Work
    from cocoll.array import ArrayDescription
    from cocoll.communicator import Communicator
    from cocoll.cuda.binding import BoundDeviceOperation, DeviceWork
    from cocoll.epilogues import Epilogue
    from cocoll.epilogues.traced import Traced
    from cocoll.movers import Entry, Mover
    from cocoll.plan.ir import Plan
    from cocoll.resharding.layout import Box, Layout
    from cocoll.resharding.parts import Part

__all__ = ["Resharding"]


class Resharding:
    """Tensors on their way from one layout to another, planned once and run often.

    Made by `plan_reshard`. Making one is collective.

    Parameters
    ----------
    comm : Communicator
        Whose ranks the meshes name.
    moves : TensorMove, sequence of TensorMove, or mapping of str to TensorMove
        The tensors; shards and results then come alone, in lists, or by name.
    solver : str
        A name of `cocoll.resharding.solvers.SOLVERS`.
    epilogue : Epilogue, optional
        What each element goes through where it arrives; takes no arrays and drops nothing.
    device : str, default "cpu"
        Where the arrays are: ``"cpu"``, or a GPU as in `Communicator.empty`.
    near : array_like, optional
        An array whose GPU it is where `device` does not say.

    Attributes
    ----------
    planned : MulticastPlan
        Unit tasks, lower bound, schedule and predicted makespan.
    moves : tuple of TensorMove
        The tensors.
    device : str
        As given.
    """

    def __init__(
        self,
        comm: Communicator,
        moves: TensorMove | Sequence[TensorMove] | Mapping[str, TensorMove],
        solver: str,
        epilogue: Epilogue | None = None,
        *,
        device: str = HOST,
        near: Any = None,
    ) -> None:
        self._comm = comm
        self.device = device
        self._bundle = Bundle(moves)
        self.moves = self._bundle.moves
        self._layouts = [move.layouts() for move in self.moves]
        self._dtypes = [DType.parse(move.dtype) for move in self.moves]
        for move, layouts in zip(self.moves, self._layouts, strict=True):
            _check_ranks(move, layouts, comm.world_size)
        self._traced = None if epilogue is None else _trace(epilogue, self._dtypes)
        self._result_dtypes = self._dtypes
        if self._traced is not None:
            self._result_dtypes = [self._traced.results[0].dtype] * len(self.moves)
        self.planned = self._plan_with(solver)
        if self._traced is not None and not self.planned.holders_send:
            self.planned = self._plan_again(solver)
        if any(task.adds for task in self.planned.tasks):
            _check_one_dtype(self._dtypes)
        self._mover = self._make_mover(near)

    def _plan_with(self, solver: str) -> MulticastPlan:
        terms = solver if self._traced is None else f"{solver}, {self._traced.digest}"
        return plan_together(self._comm, tasks_of(self.moves), solver, terms)

    def _plan_again(self, solver: str) -> MulticastPlan:
        """Plan what never sends on what has arrived: an epilogue has changed that by then."""
        if solver != "auto":
            raise UnsupportedError(
                f"{solver} sends on what has arrived, which an epilogue has changed by then; take "
                f"solver='auto' or 'striped'"
            )
        return self._plan_with("striped")

    @property
    def bound_seconds(self) -> float:
        """What no schedule beats, by the topology's rates."""
        return self.planned.bound.nanoseconds / 1e9

    @property
    def makespan_seconds(self) -> float:
        """What this schedule takes, by the topology's rates."""
        return self.planned.makespan_nanoseconds / 1e9

    @property
    def plan(self) -> Plan:
        """What this rank does."""
        return self._mover.plan

    def bind(
        self, x: Any = None, *, out: Any = None, stream: Any = None
    ) -> BoundOperation | BoundDeviceOperation:
        """Acquire the arrays once, to run again and again. Local.

        Parameters
        ----------
        x : array_like, or sequence or mapping of them, optional
            This rank's shard, None where it has none; of several tensors as they were planned, a
            sequence or by name.
        out : array_like, or sequence or mapping of them, optional
            Where this rank's new shard goes, contiguous or, on the host, strided; disjoint from
            `x`. Default: new arrays, which every run fills again.
        stream : optional
            Of the host, a `Stream`: makes the runs asynchronous. Of the GPU, any stream.

        Returns
        -------
        BoundOperation
            Calling it gives a `Work` whose result is the new shard, None where there is none.

        Raises
        ------
        ReshardError
            An array is missing, is not wanted here, or has another shape or dtype than the layout
            says.
        """
        return self._bind(self._bundle.unpack(x, "x"), self._bundle.unpack(out, "out"), stream)

    def bind_blocks(
        self, x: Sequence[Any], out: Sequence[Any], whole: Any, stream: Any
    ) -> BoundOperation | BoundDeviceOperation:
        """Acquire arrays as `bind` does, where the results are parts of one array.

        Parameters
        ----------
        x, out : sequence
            As of `bind`.
        whole : array_like
            What a run gives as its result.
        stream : optional
            As of `bind`.

        Returns
        -------
        BoundOperation
            Not yet run.
        """
        return self._bind(list(x), list(out), stream, whole)

    def _bind(
        self, sources: list[Any], results: list[Any], stream: Any, whole: Any = None
    ) -> BoundOperation | BoundDeviceOperation:
        given: list[ArrayDescription | None] = []
        made: list[ArrayDescription | None] = []
        for number, (source, target) in enumerate(self._layouts):
            dtype, result_dtype = self._dtypes[number], self._result_dtypes[number]
            where = self._bundle.word(number)
            given.append(self._describe(sources[number], f"x{where}", source, dtype))
            if results[number] is None and self._comm.rank in target.mesh:
                results[number] = self._mover.make_output(
                    sources[number], target.shape_of(self._comm.rank), result_dtype
                )
            made.append(self._describe(results[number], f"out{where}", target, result_dtype))
            self._check_result(made[number], f"out{where}")
        _check_apart(given, made, self._comm.rank)
        kept: list[Any] = [sources, results]
        entries = [self._entry(part, given, made, kept) for part in self._mover.parts]
        like = next((one for one in (*sources, *results) if one is not None), None)
        output = self._bundle.pack(results) if whole is None else whole
        return self._mover.bind(entries, kept, output, stream, like)

    def _make_mover(self, near: Any) -> Mover:
        freight = Freight(self.planned, self._layouts, self._dtypes, self._result_dtypes,
                          self._traced)  # fmt: skip
        if self.device == HOST:
            return HostMover(self._comm, freight)
        # Loads libraries that a host without a GPU does not have.
        from cocoll.device.mover import DeviceMover

        return DeviceMover(self._comm, freight, read_ordinal(self.device), near)

    def __call__(
        self, x: Any = None, *, out: Any = None, stream: Any = None, **scalars: float
    ) -> Work | DeviceWork:
        """Move the tensors. Collective.

        Parameters
        ----------
        x, out, stream : optional
            As in `bind`; the arrays belong to cocoll until the work completes.
        **scalars : float
            The epilogue's numbers.

        Returns
        -------
        Work
            Its result is the new shard, None where this rank has none; of several tensors a list of
            them, or a dict by name.

        Raises
        ------
        ReshardError
            As in `bind`.
        CollectiveMismatchError
            The ranks have planned different things; nothing has moved.
        PlanNotReadyError
            The stream is being captured: bind before that.
        """
        given = (*self._bundle.unpack(x, "x"), *self._bundle.unpack(out, "out"))
        self._mover.check_call(stream, next((one for one in given if one is not None), None))
        return self.bind(x, out=out, stream=stream)(**scalars)

    def _describe(
        self, value: Any, name: str, layout: Layout, dtype: DType
    ) -> ArrayDescription | None:
        """Look at an array, which must be what the layout says."""
        rank = self._comm.rank
        if rank not in layout.mesh:
            if value is not None:
                raise ReshardError(
                    f"{name}: rank {rank} is not in the {layout.mesh} and has no shard; got an "
                    "array. Pass None"
                )
            return None
        shape = layout.shape_of(rank)
        if value is None:
            raise ReshardError(
                f"{name}: wanted this rank's shard, of shape {shape} and {dtype.label}; got None "
                f"on rank {rank}"
            )
        found = self._mover.describe(value, name, dtype)
        if found.shape != shape or found.dtype is not dtype:
            raise ReshardError(
                f"{name}: wanted shape {shape} of {dtype.label} (spec {layout.spec}); got "
                f"{found.shape} of {found.dtype.label} on rank {rank}"
            )
        return found

    def _check_result(self, found: ArrayDescription | None, name: str) -> None:
        if found is not None and found.readonly:
            raise UsageError(f"{name} must be writable; got a read-only array")

    def _entry(
        self,
        part: Part,
        given: Sequence[ArrayDescription | None],
        made: Sequence[ArrayDescription | None],
        kept: list[Any],
    ) -> Entry:
        """Say where the array of a part lies."""
        shape = tuple(stop - start for start, stop in part.box)
        dtypes = self._result_dtypes if part.role == "result" else self._dtypes
        itemsize = dtypes[part.tensor].itemsize_bytes
        if part.role == "sum":
            count = math.prod(shape)
            address, memory = self._mover.make_memory(count * itemsize)
            kept.append(memory)
            return address, (count,), (itemsize,), itemsize
        source, target = self._layouts[part.tensor]
        layout = source if part.role == "source" else target
        found = given[part.tensor] if part.role == "source" else made[part.tensor]
        assert found is not None
        own = layout.box_of(self._comm.rank)
        return _address(found, own, part.box), shape, found.stride_bytes, itemsize


def _trace(epilogue: Epilogue, dtypes: Sequence[DType]) -> Traced:
    """Trace an epilogue for tensors on their way, whose elements stand alone."""
    if len(set(dtypes)) > 1:
        raise ReshardError(
            "an epilogue goes over tensors of one dtype; got "
            f"{sorted({dtype.label for dtype in dtypes})}: reshard them apart"
        )
    if epilogue.array_names:
        raise ReshardError(
            f"wanted an epilogue of the element alone; {epilogue.name} takes the arrays "
            f"{', '.join(epilogue.array_names)}"
        )
    traced = epilogue.trace(dtypes[0], {})
    if any(node.operation.startswith("dropout") for node in traced.nodes):
        raise ReshardError(
            f"wanted an epilogue of the element alone; {traced.name} drops elements by their place"
        )
    return traced


def _check_one_dtype(dtypes: Sequence[DType]) -> None:
    if len(set(dtypes)) > 1:
        raise ReshardError(
            "partial sums of several dtypes do not go together: got "
            f"{sorted({dtype.label for dtype in dtypes})}; reshard them apart"
        )


def _address(found: ArrayDescription, own: Box, box: Box) -> int:
    """Give where a box begins in an array that holds another one around it."""
    return found.address + sum(
        (start - begin) * stride
        for (start, _), (begin, _), stride in zip(box, own, found.stride_bytes, strict=True)
    )


def _check_ranks(move: TensorMove, layouts: Sequence[Layout], world_size: int) -> None:
    for name, layout in zip(("src", "dst"), layouts, strict=True):
        if max(layout.mesh.ranks) >= world_size:
            raise ReshardError(
                f"{name}: wanted a mesh of ranks below {world_size}; got the {layout.mesh} for a "
                f"tensor of shape {move.shape}"
            )


def _check_apart(
    given: Sequence[ArrayDescription | None], made: Sequence[ArrayDescription | None], rank: int
) -> None:
    """Refuse results that share memory with each other or with what is read."""
    written = [_extent(found) for found in made if found is not None]
    read = [_extent(found) for found in given if found is not None]
    written.sort()
    for (_, stop), (start, _) in pairwise(written):
        if start < stop:
            raise BufferOverlapError(f"out: results overlap on rank {rank}; give each its own")
    for low, high in written:
        if any(start < high and low < stop for start, stop in read):
            raise BufferOverlapError(
                f"out overlaps x on rank {rank}: shards are read while others are written. Leave "
                "out= away, or give other memory"
            )


def _extent(found: ArrayDescription) -> tuple[int, int]:
    if math.prod(found.shape) == 0:
        return found.address, found.address
    reach = [(n - 1) * stride for n, stride in zip(found.shape, found.stride_bytes, strict=True)]
    low = found.address + sum(step for step in reach if step < 0)
    return low, found.address + sum(step for step in reach if step > 0) + found.dtype.itemsize_bytes
