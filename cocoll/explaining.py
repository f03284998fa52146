"""Why a bound call runs as it does: its plan beside the lower bound and the alternatives."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from cocoll.algorithms.choosing import candidates
from cocoll.errors import UnsupportedError
from cocoll.facts import Facts
from cocoll.failure import Option
from cocoll.simulation.explainer import Explanation, explain
from cocoll.variants import Choice, collective_of, demand_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cocoll.communicator import Communicator
    from cocoll.plan.ir import Plan

__all__ = ["explain_call"]


def explain_call(comm: Communicator, facts: object, count: int, mapped: bool) -> Explanation:
    """Explain the algorithm of a call. Pure; simulates.

    Parameters
    ----------
    comm : Communicator
        Whose.
    facts : Facts
        Of the call's program.
    count : int
        Elements of the whole vector.
    mapped : bool
        Whether its arrays are symmetric on this rank.

    Returns
    -------
    Explanation
        With the other ways that there were on several hosts.

    Raises
    ------
    UnsupportedError
        The call is no collective of cocoll's own.
    """
    if isinstance(facts, Facts) and facts.stages is not None:
        raise UnsupportedError(
            "calls of one pass are explained; this epilogue has sums or norms, and takes several"
        )
    if not isinstance(facts, Facts) or not isinstance(facts.choice, Choice):
        raise UnsupportedError("only collectives of cocoll's own are explained; got another plan")
    choice = facts.choice
    topology = comm.topology
    ways: dict[str, Callable[[int], Plan]] = {
        facts.algorithm: lambda rank: facts.make(rank, mapped)
    }
    reasons = {facts.algorithm: "chosen by operation and size"}
    if choice.topology is not None:
        demand = demand_of(
            choice.tuning,
            choice.kind,
            choice.spec,
            choice.size_class,
            choice.root,
            choice.options,
            rank_order=choice.rank_order,
        )
        for one in candidates(topology, demand):
            reasons[one.name] = one.why
            ways.setdefault(one.name, functools.partial(one.make, staged=not mapped))
    return explain(
        collective_of(choice.kind),
        list(ways.items()),
        topology,
        count,
        nbytes=count * choice.spec.source_itemsize_bytes,
        root=max(0, choice.root),
        replicated=Option.REPLICATED in choice.options,
        chosen=facts.algorithm,
        reasons=reasons,
    )
