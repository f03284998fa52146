"""``cocoll plan``: which algorithm would serve a collective on a topology, and how fast.

``cocoll plan reshard`` is in `cocoll.commands.resharding_plans`.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from cocoll.commands.arguments import parse_bytes
from cocoll.commands.plotting import load_pyplot, plot_timeline
from cocoll.commands.questions import FUSED, Question, explain_question, reduce_spec
from cocoll.commands.resharding_plans import add_reshard
from cocoll.config import Settings
from cocoll.dtypes import DType
from cocoll.errors import UsageError
from cocoll.simulation.timeline import write_trace
from cocoll.topology.loading import load_topology
from cocoll.topology.presets import PRESETS

if TYPE_CHECKING:
    from cocoll.topology.cost import CollectiveKind

__all__ = ["add_plan"]

_KINDS: dict[str, CollectiveKind] = {
    "allreduce": "allreduce",
    "broadcast": "broadcast",
    "allgather": "allgather",
    "reduce_scatter": "reduce_scatter",
}


def add_plan(commands: Any) -> None:
    """Add the words of ``cocoll plan`` to the parser's commands."""
    plan = commands.add_parser(
        "plan",
        help="show how a collective or a resharding would go, its lower bound and predicted time",
        description="Pure: nothing is run or measured, and the topology may be that of machines "
        "one does not have.",
    )
    operations = plan.add_subparsers(required=True, metavar="OPERATION")
    for kind in _KINDS:
        collective = operations.add_parser(
            kind, help=f"which algorithm serves {kind}, and how fast"
        )
        collective.set_defaults(collective=kind)
        _add_collective(collective)
    add_reshard(operations)


def _add_collective(plan: argparse.ArgumentParser) -> None:
    plan.add_argument(
        "--bytes", required=True, metavar="SIZE", help="of the whole vector: 8, 32KiB, 64MiB"
    )
    presets = ", ".join(f"{name}:N" for name in PRESETS)
    plan.add_argument(
        "--topology",
        metavar="FILE|PRESET",
        help=f"a topology file, or one of {presets}; default: COCOLL_TOPOLOGY",
    )
    dtypes = [dtype.label for dtype in DType]
    plan.add_argument("--dtype", choices=dtypes, default="float32", help="default: %(default)s")
    plan.add_argument("--root", type=int, default=0, help="of a broadcast (default: %(default)s)")
    plan.add_argument(
        "--fused",
        choices=FUSED,
        help="allreduce_fused with this optimizer: parameters on all ranks, its state sharded",
    )
    plan.add_argument(
        "--memory",
        choices=("symmetric", "ordinary"),
        default="symmetric",
        help="arrays made by the communicator, or any others (default: %(default)s)",
    )
    plan.add_argument(
        "--replicated", action="store_true", help="one copy of the results for all ranks of a host"
    )
    plan.add_argument(
        "--staging",
        metavar="SIZE",
        help="what a rank has for data under way; default: as communicators have it",
    )
    plan.add_argument("--plot", metavar="FILE", help="draw the timeline; needs matplotlib")
    plan.add_argument(
        "--trace", metavar="FILE", help="write the timeline as Chrome trace JSON, for Perfetto"
    )
    plan.add_argument("--json", action="store_true", help="print JSON instead of text")
    plan.set_defaults(run=_run_plan)


def _run_plan(options: argparse.Namespace) -> int:
    if options.plot:
        load_pyplot()  # a missing package is told before a long simulation
    if options.fused and options.collective != "allreduce":
        raise UsageError(f"--fused: wanted allreduce, got {options.collective}")
    spec = reduce_spec(options.dtype, options.fused)
    nbytes = parse_bytes(options.bytes)
    count, rest = divmod(nbytes, spec.source_itemsize_bytes)
    if rest or not count:
        raise UsageError(f"--bytes: wanted whole elements of {options.dtype}, got {options.bytes}")
    source = options.topology or Settings.from_environment(os.environ).topology
    if source is None:
        raise UsageError(
            "wanted --topology FILE|PRESET, or COCOLL_TOPOLOGY; `cocoll topo` has more"
        )
    topology = load_topology(source)
    if not 0 <= options.root < topology.world_size:
        raise UsageError(f"--root: wanted one in [0, {topology.world_size}), got {options.root}")
    explanation = explain_question(
        Question(
            _KINDS[options.collective],
            spec,
            count,
            topology,
            options.root,
            symmetric=options.memory == "symmetric",
            replicated=options.replicated,
            staging_bytes=parse_bytes(options.staging) if options.staging else None,
        )
    )
    print(explanation.to_json() if options.json else explanation, flush=True)
    simulation = explanation.simulation
    if options.trace:
        try:
            write_trace(options.trace, predicted=simulation.spans, lanes=simulation.lanes)
        except OSError as error:
            raise UsageError(
                f"--trace: {options.trace} cannot be written: {error.strerror}"
            ) from None
    if options.plot:
        title = (
            f"{explanation.kind} of {explanation.bytes} bytes on {topology.name}: "
            f"{explanation.algorithm}, predicted"
        )
        plot_timeline(options.plot, simulation.spans, lanes=simulation.lanes, title=title)
    return 0
