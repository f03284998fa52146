"""A communicator: a group of ranks, the memory they share, and its life from init to close."""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import operator
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cocoll import _core
from cocoll.array import describe_array
from cocoll.bootstrap import Bootstrap, DerivedBootstrap, choose_bootstrap, find_launcher
from cocoll.config import Settings
from cocoll.connection import connect
from cocoll.device.array import is_on_device
from cocoll.dtypes import DType
from cocoll.errors import ClosedError, UnsupportedError, UsageError
from cocoll.facts import PlanFacts
from cocoll.failure import OP_LABELS, AbortReason, Purpose
from cocoll.kernels.build import KernelLoader, KernelSpec
from cocoll.placement import read_ordinal
from cocoll.plan import Aliasing, Plan, Relation, verify
from cocoll.shrinking import shrink_over_mpi, shrink_over_pages
from cocoll.state import ShardLayout
from cocoll.symmetric import SymmetricMemory
from cocoll.topology.gather import assemble, local_facts
from cocoll.tuning import Tuning

if TYPE_CHECKING:
    from typing_extensions import Self

    from cocoll.cuda.binding import BoundDeviceOperation
    from cocoll.cuda.toolkit import Toolkit
    from cocoll.device.side import DeviceSide
    from cocoll.topology.graph import Topology
    from cocoll.tracing import CommunicatorTrace
    from cocoll.wire import Carrier

__all__ = ["Communicator", "init"]


# How long a rank that closes waits for the others to let go of its device memory.
_FAREWELL_SECONDS = 5.0


class Communicator(_core.CommunicatorBase):
    """A group of ranks that call the same operations in the same order.

    Making one is collective. It is used by one thread at a time; `duplicate` gives another one for
    another thread. ``with`` closes it; an exception that leaves the block gives the communicator up
    on all ranks, so that none waits for this one.

    Parameters
    ----------
    group : mpi4py.MPI.Comm or cocoll.bootstrap.Bootstrap, optional
        How the ranks meet. Default: MPI under an MPI launcher, else a world of one.
    tuning : Tuning, optional
        Algorithm limits; rank 0's hold.
    toolkit : Toolkit, optional
        The libraries below the executor for GPUs. Default: the system's driver, and NVRTC.
    **settings : object
        Fields of `cocoll.config.Settings`; they win over the environment.

    Raises
    ------
    UsageError
        `group` is nothing that ranks can meet through, or a setting is not allowed.
    UnsupportedError
        The ranks do not share one host's memory, or a launcher runs and mpi4py is missing.
    OSError
        There is not enough memory.
    """

    _side: DeviceSide | None = None
    _toolkit: Toolkit | None = None
    _kernels: KernelLoader
    _crowded: bool
    #: The host of every rank, by number; None where all ranks are on one.
    hosts: tuple[int, ...] | None = None
    _carrier: Carrier | None = None
    _topology: Topology | None = None
    # Closed by this rank itself, or shrunk: nothing goes on from here.
    _ended_by_choice = False

    def __init__(
        self,
        group: Any = None,
        *,
        tuning: Tuning | None = None,
        toolkit: Toolkit | None = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings.from_environment(os.environ, **settings)
        self._tuning = tuning or Tuning()
        self._toolkit = toolkit
        bootstrap = choose_bootstrap(group, os.environ)
        self._launcher_pid = find_launcher(bootstrap, os.environ)
        self._connect(bootstrap, crowded=False)

    @classmethod
    def _derive(
        cls, parent: Communicator, bootstrap: Bootstrap, members: list[int]
    ) -> Communicator:
        made = cls.__new__(cls)
        made.settings = parent.settings
        made._tuning = parent._tuning
        made._launcher_pid = parent._launcher_pid
        made._toolkit = parent._toolkit
        topology = parent._topology
        made._connect(
            bootstrap,
            crowded=parent._crowded,
            topology=None if topology is None else topology.subset(members),
        )
        return made

    # --- Making. ---

    def _connect(
        self, bootstrap: Bootstrap, *, crowded: bool, topology: Topology | None = None
    ) -> None:
        connect(self, bootstrap, crowded=crowded, topology=topology)
        self._reshardings: OrderedDict[object, Any] = OrderedDict()
        self._memory = SymmetricMemory(self._heap_start())
        self._opened()
        if self.settings.trace is not None:
            self._start_recording()
        # At exit a rank says that it leaves, and with an exception under way that it gives up, so
        # that its peers raise at once and not after their timeout.
        self._at_exit = _leave_at_exit(weakref.ref(self))
        atexit.register(self._at_exit)
        weakref.finalize(self, atexit.unregister, self._at_exit).atexit = False

    # --- Facts. ---

    @property
    def tuning(self) -> Tuning:
        """The algorithm limits that hold on all ranks."""
        return self._tuning

    @property
    def topology(self) -> Topology:
        """Hosts, ports and ranks: COCOLL_TOPOLOGY's, else what the ranks have found.

        On one host it is asked for when it is first wanted. Local.
        """
        if self._topology is None:
            facts = local_facts()
            self._topology = assemble([facts] * self.world_size, [0] * self.world_size)
        return self._topology

    @property
    def oversubscribed(self) -> bool:
        """Whether the ranks of this host outnumber the processors they may use."""
        return self._crowded

    def __repr__(self) -> str:
        """Say whose end it is."""
        state = "closed " if self.closed else ""
        return f"<{state}cocoll.Communicator rank {self.rank} of {self.world_size}>"

    def shard_range(self, count: int, rank: int | None = None) -> tuple[int, int]:
        """Give the first and one-past-last element of a rank's shard.

        Shards are contiguous, in rank order, of ceil(count / world_size) elements rounded up to
        16; the last ones may be short or empty. Local.

        Parameters
        ----------
        count : int
            The length of the vector.
        rank : int, optional
            Whose shard. Default: this rank's.

        Returns
        -------
        tuple of int
            Start and stop.
        """
        return self.shard_layout(count).find_range(self.rank if rank is None else rank)

    def shard_layout(self, count: int) -> ShardLayout:
        """Describe how a vector is cut into shards, for what outlives this communicator. Local.

        Parameters
        ----------
        count : int
            The length of the vector.

        Returns
        -------
        ShardLayout
            To be saved beside the shards, and given to `cocoll.reshard_state`.
        """
        count = operator.index(count)
        if count < 0:
            raise UsageError(f"a vector has at least 0 elements; got {count}")
        return ShardLayout(count, self.world_size)

    # --- Memory. ---

    def empty(
        self,
        shape: int | Iterable[int],
        dtype: str = "float32",
        *,
        replicated: bool = False,
        device: str | None = None,
    ) -> Any:
        """Make an array in symmetric memory, which peers can map. Collective.

        Parameters
        ----------
        shape : int or sequence of int
            Equal on all ranks.
        dtype : str, default "float32"
            Equal on all ranks. ``"bfloat16"`` gives an ml_dtypes array where ml_dtypes is
            installed, else uint16; ``"float8_e4m3fn"`` and ``"float8_e5m2"`` likewise, else uint8.
        replicated : bool, default False
            One physical copy for all ranks of the host, handed out read-only: it changes through
            cocoll calls, and ``broadcast(x, out=array)`` fills it.
        device : str, optional
            ``"cuda"``: device memory, of the GPU that the communicator has opened, else of number
            rank modulo their count; ``"cuda:N"`` names it. Default: host memory.

        Returns
        -------
        numpy.ndarray or DeviceArray
            Uninitialised. Dropping the last view of it marks the memory; it is used again once all
            ranks have dropped theirs.

        Raises
        ------
        CollectiveMismatchError
            The ranks asked for different arrays.
        OSError
            There is not enough memory on some rank; raised on all.
        """
        wanted = _read_shape(shape)
        kind = DType.parse(str(dtype))
        if device is not None:
            if replicated:
                raise UnsupportedError(
                    "every GPU has a copy of its own: leave replicated=True out with device="
                )
            return self._open_side(None, read_ordinal(device)).empty(self, wanted, kind)
        return self._memory.empty(self, wanted, kind, replicated)

    def shard_zeros(self, count: int, dtype: str = "float32", *, device: str | None = None) -> Any:
        """Make a zeroed array for this rank's shard of a vector. Local; private memory.

        On a GPU the first use of the communicator's device memory is collective.

        Parameters
        ----------
        count : int
            The length of the whole vector.
        dtype : str, default "float32"
            The element type.
        device : str, optional
            As in `empty`.

        Returns
        -------
        numpy.ndarray or DeviceArray
            As long as `shard_range` says; may be empty.
        """
        start, stop = self.shard_range(count)
        if device is not None:
            kind = DType.parse(str(dtype))
            return self._open_side(None, read_ordinal(device)).shard_zeros(stop - start, kind)
        return self._memory.shard_zeros(
            self, operator.index(count), stop - start, DType.parse(str(dtype))
        )

    def _open_side(self, array: Any, ordinal: int | None = None) -> DeviceSide:
        """Give this rank's side on its GPU, opened with all ranks when it is first asked for."""
        if self._side is None:
            # Loads libraries that a host without a GPU does not have.
            from cocoll.cuda.toolkit import Toolkit
            from cocoll.device.opening import open_device

            toolkit = Toolkit() if self._toolkit is None else self._toolkit
            self._side = open_device(self, toolkit, ordinal, array)
        elif ordinal is not None and ordinal != self._side.device.ordinal:
            raise UsageError(
                f"the communicator has GPU {self._side.device.ordinal} on rank {self.rank}; got "
                f"device 'cuda:{ordinal}'. Use a communicator for each"
            )
        return self._side

    # --- Operations that are methods. ---

    def bind(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Bind a call's arrays, so that each run of it is one C call. Local.

        On a GPU it is collective where a kernel must be compiled first.

        Parameters
        ----------
        function : callable
            A collective such as `cocoll.allreduce_fused`; any but `cocoll.barrier`.
        *args, **kwargs : object
            Its arguments. Scalars of an epilogue may be left out and given when it runs. An output
            that is not given is made once and written by every run.

        Returns
        -------
        BoundOperation or BoundDeviceOperation
            Call it with the scalars that change.

        Raises
        ------
        UsageError
            `function` cannot be bound, or an argument is one that the call itself would refuse.
        """
        return _core.bind(self, function, args, kwargs)

    def bind_plan(
        self,
        planner: Callable[[int, int], Plan],
        x: Any,
        *,
        out: Any = None,
        op: str = "sum",
        dtype: str | None = None,
        stream: Any = None,
    ) -> _core.BoundOperation | BoundDeviceOperation:
        """Bind a plan of the caller's own, after it has been verified. Local.

        Parameters
        ----------
        planner : callable
            Gives the plan of a rank from (rank, world_size); a pure function, called for every
            rank on every rank, so that the plans can be checked against each other.
        x : array_like
            The plan's SOURCE.
        out : array_like, same number of elements and dtype, optional
            The plan's RESULT. Default: `x`.
        op : {"sum", "prod", "min", "max", "avg"}, default "sum"
            What its reduce steps do.
        dtype, stream : optional
            As in `cocoll.allreduce`; streams for arrays on a GPU only.

        Returns
        -------
        BoundOperation or BoundDeviceOperation
            Call it to run the plan.

        Raises
        ------
        ScheduleError
            The plans race, deadlock, or touch arrays that are not theirs.
        UsageError
            A plan asks for more scratch than the communicator has.
        """
        if is_on_device(x):
            from cocoll.device.custom import bind_plan_on_device

            return bind_plan_on_device(self, planner, x, out, op, dtype, stream)
        if stream is not None:
            raise UsageError("stream= is for plans over arrays on a GPU; got one for the host's")
        plans = [planner(rank, self.world_size) for rank in range(self.world_size)]
        description = describe_array(x, "x", -1 if dtype is None else DType.parse(dtype))
        count = math.prod(description.shape)
        relation = Relation.IDENTICAL if out is None else Relation.DISJOINT
        verify(plans, counts=[count], aliasing=Aliasing(relation))
        mine = plans[self.rank]
        packed = mine.pack()
        mapped = mine.mapped_sources or mine.mapped_results
        kernel = self._kernels.load(KernelSpec(op, description.dtype, None))
        everyone = hashlib.sha256(b"".join(plan.pack() for plan in plans))
        program = _core.Program(
            self,
            packed if mapped else None,
            None if mapped else packed,
            reduce_address=kernel.reduce_address,
            prepare_address=kernel.prepare_address,
            derived_count=kernel.derived_count,
            facts=PlanFacts(mine.name, tuple(plans), self.rank),
        )
        digest = int.from_bytes(everyone.digest()[:8], "little") | 1
        return _core.bind_program(
            self,
            program,
            x,
            out,
            op=OP_LABELS.index(op),
            dtype=dtype,
            digest=digest,
            maps_source=mine.mapped_sources,
            maps_result=mine.mapped_results,
        )

    def trace(self, path: str | os.PathLike[str]) -> CommunicatorTrace:
        """Record what every step of the operations inside a ``with`` block does, and when.

        Collective: all ranks open and close the block, where operations on streams are finished
        first. At the end rank 0 writes Chrome trace JSON, which Perfetto opens:
        a process for every rank, a row for every lane, and below what was predicted.

        Parameters
        ----------
        path : path-like
            The file; rank 0's counts.

        Returns
        -------
        CommunicatorTrace
            For ``with``.

        Raises
        ------
        UsageError
            The folder of `path` does not exist.
        """
        # Loads the simulator, which nothing else here needs.
        from cocoll.tracing import CommunicatorTrace

        return CommunicatorTrace(self, path)

    def barrier(self) -> None:
        """Wait until every rank has called it. Collective."""
        _core.barrier(comm=self)

    # --- Derived communicators. ---

    def duplicate(self) -> Communicator:
        """Make a communicator of the same ranks with an order of its own. Collective."""
        return self._make_child(Purpose.DUPLICATE, list(range(self.world_size)), self.rank)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Make one communicator per color. Collective.

        Parameters
        ----------
        color : int or None
            Ranks of equal color form a communicator; None takes no part.
        key : int, default 0
            Orders the ranks of a color; ties keep this communicator's order.

        Returns
        -------
        Communicator or None
            This rank's, None where `color` is None.
        """
        if color is not None and (isinstance(color, bool) or not isinstance(color, int)):
            raise UsageError(f"color must be an int or None; got {color!r} on rank {self.rank}")
        if isinstance(key, bool) or not isinstance(key, int):
            raise UsageError(f"key must be an int; got {key!r} on rank {self.rank}")
        choices = [
            json.loads(data)
            for data in _core.exchange(self, Purpose.SPLIT, json.dumps([color, key]).encode())
        ]
        members = sorted(
            (rank for rank, (theirs, _) in enumerate(choices) if theirs == color),
            key=lambda rank: (choices[rank][1], rank),
        )
        if color is None:
            members = [self.rank]
        child = self._make_child(Purpose.SPLIT, members, members.index(self.rank))
        if color is None:
            child.close()
            return None
        return child

    def shrink(self, timeout_seconds: float | None = None) -> Communicator:
        """Make a communicator of the ranks that are left, once a failure has closed this one.

        Collective of these ranks. A rank whose process has ended, or which has closed its end, is
        left out at once; one that is alive and does not come, after `timeout_seconds`. All agree on
        who is left, also if more ranks are lost meanwhile. This communicator stays closed; of the
        arrays that it made, each rank's own stay valid for that rank.

        Parameters
        ----------
        timeout_seconds : float, optional
            How long to wait for ranks that are alive. Default: the communicator's own.

        Returns
        -------
        Communicator
            With new ranks, in the old order, and the same settings and tuning.

        Raises
        ------
        UsageError
            Nothing has failed.
        ClosedError
            This rank has closed its end, or has shrunk the communicator already, or came so late
            that the others have gone on without it.
        UnsupportedError
            The ranks are on several hosts, and their MPI cannot go on without those that were lost.
        OSError
            There is not enough memory on some rank; raised on all.
        """
        limit: Any = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
            raise UsageError(f"timeout_seconds must be above 0; got {timeout_seconds!r}")
        if self._is_inherited():
            self.barrier()  # Refused in words of its own.
        if not self.closed:
            if self._abort_word() is None:
                raise UsageError(
                    f"the communicator of rank {self.rank} works: comm.shrink is for what is left "
                    f"after a TransportError. Use comm.split for a part of the ranks"
                )
            # Another rank has given it up, or an operation on a stream has failed.
            self._drain(limit)
            self._leave()
        if self._ended_by_choice:
            raise ClosedError(
                f"rank {self.rank} has closed the communicator or shrunk it already; comm.shrink "
                f"goes on, once, from one that a failure has closed"
            )

        def derive(bootstrap: Bootstrap, members: list[int]) -> Communicator:
            return Communicator._derive(self, bootstrap, members)

        if self.hosts is None:
            made = shrink_over_pages(self, float(limit), derive)
        else:
            made = shrink_over_mpi(self, derive)
        self._ended_by_choice = True
        return made

    def _make_child(self, purpose: Purpose, members: list[int], rank: int) -> Communicator:
        def exchange(data: bytes) -> list[bytes]:
            return _core.exchange(self, purpose, data)

        hosts = self.hosts

        def shares_host(peer: int) -> bool:
            return hosts is None or hosts[peer] == hosts[self.rank]

        bootstrap = DerivedBootstrap(exchange, members, rank, shares_host, self._carrier)
        return Communicator._derive(self, bootstrap, members)

    # --- Its end. ---

    def abort(self) -> None:
        """Give the communicator up on all ranks: waiting peers raise `AbortedError`. Local."""
        self._give_up(AbortReason.REQUESTED)

    def _give_up(self, reason: AbortReason) -> None:
        if not self.closed:
            self._abort(int(reason))
        if self._side is not None and not self._is_inherited():
            self._side.give_up()
        self.close()

    def close(self) -> None:
        """Leave. Local and idempotent; operations on streams are finished first.

        Arrays from `empty` stay valid for this rank. A peer that still waits for this rank raises
        `PeerLostError`.
        """
        if not self.closed:
            self._drain(self.timeout_seconds)
            self._write_trace()
        if self._side is not None and not self._is_inherited():
            self._side.end(self, self._leave, _FAREWELL_SECONDS)
        self._leave()
        self._ended_by_choice = True
        self._part()
        atexit.unregister(self._at_exit)

    def _write_trace(self) -> None:
        """Write what COCOLL_TRACE asks for, once."""
        if self.settings.trace is None or self._is_inherited():
            return
        from cocoll.tracing import write_own_trace

        write_own_trace(self, self.settings.trace)

    def __enter__(self) -> Self:
        """Give the communicator itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; give it up on all ranks if an exception leaves the block."""
        if error is None:
            self.close()
        else:
            self._give_up(AbortReason.EXCEPTION)


def _read_shape(shape: Any) -> tuple[int, ...]:
    # A truth value would pass for an int.
    number: Any = None if isinstance(shape, bool) else shape
    lengths: Iterable[Any] = shape if isinstance(shape, Iterable) else (number,)
    try:
        wanted = tuple(operator.index(length) for length in lengths)
    except TypeError:
        raise UsageError(f"a shape is an int or a sequence of ints; got shape {shape!r}") from None
    if any(length < 0 for length in wanted):
        raise UsageError(f"lengths must be at least 0; got shape {shape!r}")
    return wanted


def _leave_at_exit(reference: weakref.ref[Communicator]) -> Callable[[], None]:
    owner = os.getpid()

    def leave() -> None:
        comm = reference()
        if comm is None or os.getpid() != owner:
            return
        if comm.closed:
            if comm._side is not None:
                comm._side.give_up()
            return
        # Set by the interpreter when an exception has ended the script.
        if getattr(sys, "last_value", None) is not None:
            comm._abort(int(AbortReason.EXCEPTION))
            if comm._side is not None:
                comm._side.give_up()
        elif not comm._is_entered():
            # What streams have begun, peers count on. A daemon thread inside a call is another
            # matter: no more of it will run.
            comm._drain(comm.timeout_seconds)
            comm._write_trace()
            if comm._side is not None:
                comm._side.end(comm, comm._leave, 0.0)
        comm._leave()

    return leave


def init(
    group: Any = None,
    *,
    tuning: Tuning | None = None,
    toolkit: Toolkit | None = None,
    **settings: Any,
) -> Communicator:
    """Make the default communicator, which calls use when none is given. Collective.

    Parameters
    ----------
    group : mpi4py.MPI.Comm or cocoll.bootstrap.Bootstrap, optional
        How the ranks meet. Default: MPI.COMM_WORLD under an MPI launcher, torch.distributed's
        default group under torchrun, else a world of one.
    tuning : Tuning, optional
        Algorithm limits; rank 0's hold.
    toolkit : Toolkit, optional
        As in `Communicator`.
    **settings : object
        Fields of `cocoll.config.Settings`; they win over the environment.

    Returns
    -------
    Communicator
        The default of this thread (and of what runs in its context).

    Raises
    ------
    UsageError
        `group` is nothing that ranks can meet through, or a setting is not allowed.
    UnsupportedError
        The ranks do not share one host's memory, or a launcher runs and mpi4py is missing.
    OSError
        There is not enough memory.
    """
    comm = Communicator(group, tuning=tuning, toolkit=toolkit, **settings)
    _core.default_communicator.set(comm)
    return comm
