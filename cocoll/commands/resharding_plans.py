"""``cocoll plan reshard``: unit tasks, lower bound and every solver's makespan, on a topology."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from typing import TYPE_CHECKING, Any

from cocoll.config import Settings
from cocoll.dtypes import DType
from cocoll.errors import UnsupportedError, UsageError
from cocoll.resharding import Mesh, MulticastPlan, TensorMove, plan_reshards
from cocoll.resharding.solvers import SOLVERS
from cocoll.topology.loading import load_topology
from cocoll.topology.presets import PRESETS

if TYPE_CHECKING:
    from cocoll.topology.graph import Topology

__all__ = ["add_reshard"]

# More rows of a table are no table any more.
_MOST_TASKS = 16
_MOST_TRANSFERS = 24


def add_reshard(operations: Any) -> None:
    """Add the words of ``cocoll plan reshard`` to the operations that can be planned."""
    reshard = operations.add_parser(
        "reshard",
        help="how a tensor goes from one mesh and layout to another",
        description="A mesh is written as its shape, of consecutive ranks: 2x4. A spec says for "
        "each dim R (whole) or S and the mesh axes that cut it: S0, S01; +P1 at its end: axis 1 "
        "holds partial sums.",
    )
    reshard.add_argument("--shape", required=True, metavar="N,N,...", help="of the whole tensor")
    reshard.add_argument("--src", required=True, metavar="MESH:SPEC", help="such as 2x4:R,S01,R")
    reshard.add_argument("--dst", required=True, metavar="MESH:SPEC", help="such as 2x4:S01,R,R")
    dtypes = [dtype.label for dtype in DType]
    reshard.add_argument("--dtype", choices=dtypes, default="float32", help="default: %(default)s")
    presets = ", ".join(f"{name}:N" for name in PRESETS)
    reshard.add_argument(
        "--topology",
        metavar="FILE|PRESET",
        help=f"a topology file, or one of {presets}; default: COCOLL_TOPOLOGY",
    )
    reshard.add_argument(
        "--src-first-rank", type=int, default=0, metavar="N", help="default: %(default)s"
    )
    reshard.add_argument(
        "--dst-first-rank", type=int, metavar="N", help="default: the one after the source mesh"
    )
    reshard.add_argument(
        "--solver",
        choices=tuple(SOLVERS),
        default="auto",
        help="whose schedule is shown (default: %(default)s)",
    )
    reshard.add_argument("--json", action="store_true", help="print JSON instead of text")
    reshard.add_argument(
        "--plot", metavar="FILE", help="draw the schedule: who sends what to whom, and when"
    )
    reshard.set_defaults(run=_run_reshard)


def _run_reshard(options: argparse.Namespace) -> int:
    source = options.topology or Settings.from_environment(os.environ).topology
    if source is None:
        raise UsageError(
            "wanted --topology FILE|PRESET, or COCOLL_TOPOLOGY; `cocoll topo` has more"
        )
    topology = load_topology(source)
    src_shape, src_spec = _parse_side("--src", options.src)
    dst_shape, dst_spec = _parse_side("--dst", options.dst)
    dst_first = options.dst_first_rank
    if dst_first is None:
        dst_first = options.src_first_rank + math.prod(src_shape)
    move = TensorMove(
        _parse_numbers("--shape", options.shape, ","),
        (Mesh.arange(src_shape, options.src_first_rank), src_spec),
        (Mesh.arange(dst_shape, dst_first), dst_spec),
        options.dtype,
    )
    plans: dict[str, MulticastPlan | str] = {}
    for solver in SOLVERS:
        try:
            plans[solver] = plan_reshards([move], topology, solver=solver)
        except UnsupportedError as error:
            plans[solver] = str(error)
    chosen = plans[options.solver]
    if isinstance(chosen, str):
        raise UnsupportedError(chosen)
    print(_to_json(plans, chosen) if options.json else _to_text(plans, chosen, topology))
    if options.plot:
        # Loads matplotlib, which printing does not need.
        from cocoll.commands.schedule_plotting import plot_schedule

        title = (
            f"{options.shape}, {options.src} to {options.dst} on {topology.name}: "
            f"{chosen.schedule.solver}, {_milliseconds(chosen.makespan_nanoseconds)}"
        )
        plot_schedule(options.plot, chosen, title)
    return 0


def _parse_side(option: str, text: str) -> tuple[tuple[int, ...], str]:
    mesh, colon, spec = text.partition(":")
    if not colon:
        raise UsageError(f"{option}: wanted MESH:SPEC, such as 2x4:R,S01,R; got {text!r}")
    return _parse_numbers(option, mesh, "x"), spec


def _parse_numbers(option: str, text: str, separator: str) -> tuple[int, ...]:
    if not re.fullmatch(rf"[0-9]+({separator}[0-9]+)*", text):
        raise UsageError(f"{option}: wanted numbers with {separator!r} between them; got {text!r}")
    return tuple(map(int, text.split(separator)))


def _milliseconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3f} ms"


def _ranks(ranks: tuple[int, ...]) -> str:
    """Write ranks with runs as ranges: 0-3,8."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _to_text(
    plans: dict[str, MulticastPlan | str], chosen: MulticastPlan, topology: Topology
) -> str:
    tasks = chosen.tasks
    total = sum(task.nbytes for task in tasks)
    lines = [f"{len(tasks)} unit tasks of {total} bytes on {topology.name}"]
    for number, task in enumerate(tasks[:_MOST_TASKS]):
        box = ",".join(f"{start}:{stop}" for start, stop in task.box)
        kept = f", kept by {_ranks(task.keepers)}" if task.keepers else ""
        verb = "added by" if task.adds else "to"
        lines.append(
            f"  task {number}: [{box}] {task.nbytes} bytes, from {_ranks(task.holders)} {verb} "
            f"{_ranks(task.needers) or 'nobody'}{kept}"
        )
    if len(tasks) > _MOST_TASKS:
        lines.append(f"  and {len(tasks) - _MOST_TASKS} more")
    bound = chosen.bound
    lines += [f"lower bound {_milliseconds(bound.nanoseconds)} ({bound.reason})", ""]
    lines.append(
        f"{'solver':<20}{'makespan':>16}{'over bound':>12}{'transfers':>11}{'messages':>10}"
    )
    for solver, plan in plans.items():
        if isinstance(plan, str):
            lines.append(f"{solver:<20}  {plan}")
            continue
        name = solver
        if solver == "auto" and plan.schedule.groups:
            name = f"auto: {plan.schedule.solver}"
        lines.append(
            f"{name:<20}{_milliseconds(plan.makespan_nanoseconds):>16}{plan.gap:>11.1%} "
            f"{plan.schedule.transfers:>10}{plan.schedule.messages:>10}"
        )
    lines += ["", *_schedule_lines(chosen)]
    return "\n".join(lines)


def _schedule_lines(plan: MulticastPlan) -> list[str]:
    lines = [f"schedule of {plan.schedule.solver}"]
    shown = 0
    begins = {(span.group, span.transfer): span for span in reversed(plan.spans)}
    for index, group in enumerate(plan.schedule.groups):
        for number, transfer in enumerate(group.transfers):
            if shown == _MOST_TRANSFERS:
                return [*lines, f"  and {plan.schedule.transfers - shown} more transfers"]
            shown += 1
            hops = " ".join(f"{source}>{destination}" for source, destination in transfer.hops)
            begin = _milliseconds(begins[index, number].begin_nanoseconds)
            lines.append(
                f"  group {index} at {begin}: task {transfer.task} bytes "
                f"{transfer.start}:{transfer.stop} in {group.rounds} chunks, {hops}"
            )
    return lines


def _to_json(plans: dict[str, MulticastPlan | str], chosen: MulticastPlan) -> str:
    return json.dumps(
        {
            "tasks": [task._asdict() for task in chosen.tasks],
            "bound_nanoseconds": chosen.bound.nanoseconds,
            "bound_reason": chosen.bound.reason,
            "solvers": {
                solver: {"unsupported": plan}
                if isinstance(plan, str)
                else {
                    "made_by": plan.schedule.solver,
                    "makespan_nanoseconds": plan.makespan_nanoseconds,
                    "gap": plan.gap,
                }
                for solver, plan in plans.items()
            },
            "schedule": {
                "solver": chosen.schedule.solver,
                "groups": [
                    {
                        "rounds": group.rounds,
                        "transfers": [transfer._asdict() for transfer in group.transfers],
                    }
                    for group in chosen.schedule.groups
                ],
            },
        }
    )
