"""What solvers are given: unit tasks and the ports that their bytes must cross."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cocoll.errors import ReshardError
from cocoll.resharding.layout import box_elements

if TYPE_CHECKING:
    from cocoll.resharding.routes import RailSender
    from cocoll.resharding.schedule import Transfer
    from cocoll.resharding.unit_task import UnitTask
    from cocoll.resharding.ways import Traffic
    from cocoll.topology.graph import Topology

__all__ = ["Crossing", "Problem"]

_ALIGNMENT_BYTES = 64

# Holders, needers that others serve, and the most NICs of a receiving host.
_LanesKey: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...], int]"


class Crossing(NamedTuple):
    """What the bytes of one hop cross.

    Attributes
    ----------
    ports : tuple of (int, int)
        Directed ports, and how often each byte crosses it.
    latency_nanoseconds : int
        Of all of them.
    """

    ports: tuple[tuple[int, int], ...]
    latency_nanoseconds: int


class Problem:
    """Unit tasks on a topology.

    Parameters
    ----------
    tasks : sequence of UnitTask
        All of them, also those that move nothing.
    topology : Topology
        Where the ranks are.

    Attributes
    ----------
    moving : tuple of int
        Numbers of the tasks that have bytes and needers.
    participants : tuple of int
        All ranks of tasks; no other rank moves anything.
    last_traffic : tuple of (tuple of Transfer, Traffic) or None
        What `traffic_of` was last asked for.
    lanes : dict
        What `relay_trees` found for equal holders: who sends by which NIC to which.

    Raises
    ------
    ReshardError
        A task names a rank that the topology does not have.
    """

    def __init__(self, tasks: Sequence[UnitTask], topology: Topology) -> None:
        self.tasks = tuple(tasks)
        self.topology = topology
        self.rates = topology.bandwidths_bytes_per_second
        self.hosts = topology.hosts_by_rank
        self.moving = tuple(
            [number for number, task in enumerate(self.tasks) if task.nbytes and task.needers]
        )
        self._holders, self._needers, teams = _number_teams(self.tasks)
        self._sets = [frozenset(team) for team in teams]
        self.participants = tuple(sorted(frozenset().union(*self._sets)))
        if self.participants and self.participants[-1] >= topology.world_size:
            raise ReshardError(
                f"wanted ranks of {topology.name}, which has {topology.world_size}; "
                f"got rank {self.participants[-1]}"
            )
        self._crossings: dict[tuple[int, int], Crossing] = {}
        self.lanes: dict[_LanesKey, list[tuple[RailSender, int]]] = {}
        self.last_traffic: tuple[tuple[Transfer, ...], Traffic] | None = None

    @cached_property
    def stages(self) -> tuple[list[int], ...]:
        """Numbers of the moving tasks that add summands, and of the others; none of them empty."""
        adding = [number for number in self.moving if self.tasks[number].adds]
        others = [number for number in self.moving if not self.tasks[number].adds]
        return tuple([stage for stage in (adding, others) if stage])

    @cached_property
    def kinds(self) -> list[int]:
        """For each task a number that tasks with the same holders and needers share."""
        known: dict[tuple[int, int], int] = {}
        pairs = zip(self._holders, self._needers, strict=True)
        return [known.setdefault(pair, len(known)) for pair in pairs]

    def crossing(self, source: int, destination: int) -> Crossing:
        """Give what bytes cross from one rank to another.

        A copy inside a memory reads and writes there: it crosses that port twice.
        """
        key = source, destination
        found = self._crossings.get(key)
        if found is None:
            path = self.topology.path(source, destination)
            times = 1
            if len(path.ports) == 1 and self.hosts[source] == self.hosts[destination]:
                times = 2
            found = Crossing(tuple([(port, times) for port in path.ports]), path[1])
            self._crossings[key] = found
        return found

    def holds(self, task: int, rank: int) -> bool:
        """Say whether a rank is one of a task's holders."""
        return rank in self._sets[self._holders[task]]

    def holders_of(self, task: int) -> frozenset[int]:
        """Give a task's holders as a set, one for all tasks with equal ones."""
        return self._sets[self._holders[task]]

    def needers_of(self, task: int) -> frozenset[int]:
        """Give a task's needers as a set, one for all tasks with equal ones."""
        return self._sets[self._needers[task]]

    @cached_property
    def members(self) -> dict[int, tuple[int, ...]]:
        """The participants of each host, by host."""
        members: dict[int, list[int]] = {}
        for rank in self.participants:
            members.setdefault(self.hosts[rank], []).append(rank)
        return {host: tuple(ranks) for host, ranks in members.items()}

    @cached_property
    def shared_devices(self) -> frozenset[tuple[int, int]]:
        """Hosts and GPUs that several participants share: they meet in its memory."""
        seen: set[tuple[int, int]] = set()
        shared: set[tuple[int, int]] = set()
        for rank in self.participants:
            placement = self.topology.placements[rank]
            if placement.device is not None:
                seat = placement.host, placement.device
                (shared if seat in seen else seen).add(seat)
        return frozenset(shared)

    def nic_out(self, rank: int) -> int | None:
        """Give the port by which a rank's messages leave its host; None where it has no NIC."""
        return self._nic(rank, out=True)

    def nic_in(self, rank: int) -> int | None:
        """Give the port by which messages to a rank enter its host; None where it has no NIC."""
        return self._nic(rank, out=False)

    def _nic(self, rank: int, *, out: bool) -> int | None:
        topology = self.topology
        placement = topology.placements[rank]
        ports = topology.ports.of_host[placement.host]
        nics = ports.nic_out if out else ports.nic_in
        return topology.ports.first[placement.host] + nics[placement.nic] if nics else None

    @cached_property
    def rails(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        """For each host its participants by NIC; one group where it has none."""
        rails: dict[int, tuple[tuple[int, ...], ...]] = {}
        for host, ranks in self.members.items():
            by_nic: dict[int, list[int]] = {}
            for rank in ranks:
                by_nic.setdefault(self.topology.placements[rank].nic, []).append(rank)
            rails[host] = tuple([tuple(by_nic[nic]) for nic in sorted(by_nic)])
        return rails

    def grain_bytes(self, task: int) -> int:
        """Give what stripes end at multiples of: whole elements, aligned where possible."""
        one = self.tasks[task]
        itemsize = max(1, one.nbytes // max(1, box_elements(one.box)))
        aligned = _ALIGNMENT_BYTES % itemsize == 0 and one.nbytes >= 16 * _ALIGNMENT_BYTES
        return _ALIGNMENT_BYTES if aligned else itemsize


def _number_teams(
    tasks: Sequence[UnitTask],
) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
    """Give for each task the numbers of its holders and of its needers, and who each number is."""
    numbers: dict[tuple[int, ...], int] = {}
    # Tiles that are alike share a tuple: one look at it is enough, however long it is.
    seen: dict[int, int] = {}
    found: tuple[list[int], list[int]] = ([], [])
    for task in tasks:
        for ranks, column in zip((task.holders, task.needers), found, strict=True):
            number = seen.get(id(ranks))
            if number is None:
                number = seen[id(ranks)] = numbers.setdefault(ranks, len(numbers))
            column.append(number)
    return (*found, list(numbers))
