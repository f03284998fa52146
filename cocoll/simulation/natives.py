"""Whole collectives of the library below in a simulation: where all ranks meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.errors import InternalError, SimulationError
from cocoll.plan.ir import Native
from cocoll.topology.cost import CollectiveKind, lower_bound_nanoseconds, port_bytes_bound

if TYPE_CHECKING:
    from cocoll.simulation.running import Pending
    from cocoll.topology.graph import Topology

__all__ = ["NativeMeetings"]

_KINDS: tuple[CollectiveKind, ...] = ("allreduce", "allgather", "broadcast", "reduce_scatter")


class NativeMeetings:
    """The native steps of an operation; the n-th of each rank meets those of all others.

    How the library below does them is not known. They take as long as they must at least, and slow
    nothing else down.

    Parameters
    ----------
    topology : Topology
        Where the ranks are.

    Attributes
    ----------
    port_bytes : dict of int to int
        The least that those which have begun need on each port.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._begun: dict[int, int] = {}
        self._waiting: dict[int, list[Pending]] = {}
        self._facts: dict[int, tuple[str, int, int]] = {}
        self.port_bytes: dict[int, int] = {}

    def come(
        self, rank: int, pending: Pending, ranks: int
    ) -> tuple[int, tuple[Pending, ...]] | None:
        """Let a rank come to its next native step.

        Parameters
        ----------
        rank : int
            Whose step.
        pending : Pending
            The step.
        ranks : int
            How many ranks have to come.

        Returns
        -------
        tuple or None
            How long it takes, in nanoseconds, and the steps of all ranks; None until all have come.

        Raises
        ------
        SimulationError
            Ranks come to different collectives, or to one that is not known.
        """
        (step,) = pending.task.steps
        if not isinstance(step, Native):
            raise InternalError(f"wanted a native step, got {type(step).__name__}")
        number = self._begun.get(rank, 0)
        self._begun[rank] = number + 1
        waiting = self._waiting.setdefault(number, [])
        waiting.append(pending)
        length_bytes = sum(pending.task.step_bytes(pending.iteration))
        facts = self._facts.setdefault(number, (step.name, step.root, length_bytes))
        if facts != (step.name, step.root, length_bytes):
            raise SimulationError(
                f"ranks meet in different native collectives: rank {rank} in {step.name} of "
                f"{length_bytes} bytes, another in {facts[0]} of {facts[2]}"
            )
        if len(waiting) < ranks:
            return None
        kind = next((one for one in _KINDS if one == step.name), None)
        if kind is None:
            raise SimulationError(f"wanted one of {', '.join(_KINDS)}, got native {step.name!r}")
        del self._waiting[number]
        bound = port_bytes_bound(kind, self._topology, length_bytes, step.root)
        for port, carried in enumerate(bound):
            if carried:
                self.port_bytes[port] = self.port_bytes.get(port, 0) + carried
        duration_nanoseconds = lower_bound_nanoseconds(
            kind, self._topology, length_bytes, step.root
        )
        return duration_nanoseconds, tuple(waiting)
