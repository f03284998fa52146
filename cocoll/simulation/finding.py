"""Finds roles that fit plans, and holds roles that were declared against the plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from cocoll.errors import SimulationError, UsageError
from cocoll.plan.ir import Plan
from cocoll.simulation.outline import USES, outline_plan
from cocoll.simulation.refinement import refine_roles
from cocoll.simulation.roles import Roles, SeparateRoles
from cocoll.simulation.symmetry import HostSymmetry, Move

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology

__all__ = ["Plans", "check_witnesses", "find_roles", "plan_getter"]

#: Plans by rank: all of them, or what makes them one by one.
Plans: TypeAlias = Sequence[Plan] | Mapping[int, Plan] | Callable[[int], Plan]

# Up to so many ranks all are simulated, for then everything can be seen.
_SEPARATE_RANKS = 32
# Up to so many, classes are worked out from the plans of all ranks where no symmetry fits.
_REFINED_RANKS = 512


def plan_getter(plans: Plans, topology: Topology) -> Callable[[int], Plan]:
    """Give a function from rank to plan that makes sure that each plan is its rank's.

    Parameters
    ----------
    plans : sequence, mapping or callable
        The plan of each rank.
    topology : Topology
        Where they run.

    Returns
    -------
    callable
        Raises UsageError for a plan of another rank or of a world of another size.

    Raises
    ------
    UsageError
        A sequence has another length than the topology has ranks.
    """
    world_size = topology.world_size
    if not callable(plans) and isinstance(plans, Sequence) and len(plans) != world_size:
        raise UsageError(
            f"the topology {topology.name!r} has {world_size} ranks; got {len(plans)} plans"
        )

    def plan_of(rank: int) -> Plan:
        if not callable(plans) and isinstance(plans, Mapping) and rank not in plans:
            raise UsageError(f"the plan of rank {rank} is needed, and not given")
        plan = plans(rank) if callable(plans) else plans[rank]
        if plan.rank != rank or plan.world_size != world_size:
            raise UsageError(
                f"wanted the plan of rank {rank} of {world_size}, got that of rank {plan.rank} of "
                f"{plan.world_size}"
            )
        return plan

    return plan_of


def check_witnesses(plan_of: Callable[[int], Plan], roles: Roles, count: int) -> None:
    """Hold the plans of some ranks against those of the ranks that are to stand for them.

    Parameters
    ----------
    plan_of : callable
        Gives the plan of a rank.
    roles : Roles
        Who stands for whom; its witnesses are looked at.
    count : int
        Elements of the vector.

    Raises
    ------
    SimulationError
        A plan is not its representative's with the ranks renamed.
    """
    shapes: dict[int, object] = {}
    for witness in roles.witnesses():
        rank = roles.representative(witness)
        if rank not in shapes:
            shapes[rank] = outline_plan(plan_of(rank), count, names=_same).shape
        names = partial(roles.counterpart, witness)
        renamed = outline_plan(plan_of(witness), count, names=names).shape
        if renamed != shapes[rank]:
            raise SimulationError(
                f"ranks {rank} and {witness} are to have equal roles, but their plans are not "
                "equal with all ranks renamed accordingly: these roles are not those of these plans"
            )


def _same(rank: int) -> int:
    return rank


def find_roles(plans: Plans, topology: Topology, count: int) -> Roles:
    """Find roles for a simulation.

    Parameters
    ----------
    plans : sequence, mapping or callable
        The plan of each rank; of many ranks those of few are asked for, where a symmetry fits.
    topology : Topology
        Where they run.
    count : int
        Elements of the vector.

    Returns
    -------
    Roles
        Separate ones up to 32 ranks. Above, the symmetry of hosts, and of ranks within them, that
        leaves the fewest classes of those that fit. Where none does, classes by refinement up to
        512 ranks, and separate roles above.
    """
    if topology.world_size <= _SEPARATE_RANKS:
        return SeparateRoles(topology)
    plan_of = cache(plan_getter(plans, topology))
    # Rotation within hosts first: it leaves one rank of each host.
    for ranks, hosts in product(
        (Move.ROTATE, Move.EXCHANGE, Move.KEEP), (Move.ROTATE, Move.EXCHANGE)
    ):
        roles = _fitting(plan_of, topology, count, hosts, ranks)
        if roles is not None:
            return roles
    if topology.world_size <= _REFINED_RANKS:
        all_plans = [plan_of(rank) for rank in range(topology.world_size)]
        return refine_roles(all_plans, topology, count)
    return SeparateRoles(topology)


def _fitting(
    plan_of: Callable[[int], Plan], topology: Topology, count: int, hosts: Move, ranks: Move
) -> Roles | None:
    try:
        roles = HostSymmetry(topology, hosts=hosts, ranks=ranks)
        check_witnesses(plan_of, roles, count)
        for rank in roles.representatives:
            outline = outline_plan(plan_of(rank), count)
            for use, number in sorted(outline.uses):
                if use in USES:
                    roles.weigh(use, rank, outline.peers[number])  # refuses what is no symmetry
    except SimulationError:
        return None
    return roles
