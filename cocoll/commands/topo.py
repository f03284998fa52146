"""``cocoll topo``: hosts, ports and ranks of a job, of a file or of a preset, as a tree."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cocoll
from cocoll.bootstrap import Bootstrap, MpiBootstrap, choose_bootstrap
from cocoll.commands.arguments import EXIT_FAILED, EXIT_USAGE
from cocoll.commands.terminal import ProgressBar
from cocoll.config import Settings
from cocoll.errors import CommTimeoutError, TopologyError, UsageError
from cocoll.topology import PRESETS, Topology, assemble, load_topology, local_facts
from cocoll.topology.measuring import measure_topology
from cocoll.topology.tree import format_topology

__all__ = ["add_topo"]


def add_topo(commands: Any) -> None:
    """Add the words of ``cocoll topo`` to the parser's commands."""
    topo = commands.add_parser(
        "topo",
        help="show hosts, ports and ranks, and measure what joins them",
        description="Without an argument: of the job that runs this (COCOLL_TOPOLOGY, else what "
        "its ranks find), or of this machine.",
    )
    presets = ", ".join(f"{name}:N ({preset.summary})" for name, preset in PRESETS.items())
    topo.add_argument(
        "topology", nargs="?", metavar="FILE|PRESET", help=f"a topology file, or one of {presets}"
    )
    topo.add_argument(
        "--probe",
        action="store_true",
        help="measure bandwidth and latency of the NICs, and the memory; under mpirun",
    )
    topo.add_argument("--save", metavar="FILE", help="write it as JSON that COCOLL_TOPOLOGY takes")
    topo.add_argument("--json", action="store_true", help="print JSON instead of a tree")
    topo.set_defaults(run=_run_topo)


def _run_topo(options: argparse.Namespace) -> int:
    settings = Settings.from_environment(os.environ)
    bootstrap = choose_bootstrap(None, os.environ)
    spec = options.topology or settings.topology
    if spec is None:
        topology = _gather(bootstrap)
    else:
        topology = _from_rank_zero(bootstrap, lambda: load_topology(spec))
    if options.probe:
        topology = _probe(topology, bootstrap, settings.timeout_seconds)
    if bootstrap.rank != 0:
        return 0
    if options.save:
        try:
            Path(options.save).write_text(topology.to_json(), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--save: {options.save} cannot be written: {error.strerror}"
            ) from None
    print(topology.to_json().rstrip("\n") if options.json else format_topology(topology))
    return 0


def _from_rank_zero(bootstrap: Bootstrap, make: Callable[[], Topology]) -> Topology:
    """Let rank 0 make the topology, which may have the only copy of the file."""
    answer = {"text": "", "error": ""}
    failure: TopologyError | None = None
    if bootstrap.rank == 0:
        try:
            made = make()
            answer["text"] = made.to_json() if bootstrap.world_size > 1 else ""
        except TopologyError as error:
            failure = error
            answer["error"] = str(error)
    told = json.loads(bootstrap.allgather(json.dumps(answer).encode())[0])
    if failure is not None:
        raise failure
    if told["error"]:
        # Rank 0 has said why.
        sys.exit(EXIT_USAGE)
    return made if bootstrap.rank == 0 else Topology.from_json(told["text"])


def _gather(bootstrap: Bootstrap) -> Topology:
    """Give what the ranks of this job find; a communicator knows who shares a host."""
    with cocoll.Communicator(bootstrap) as comm:
        known = getattr(comm, "topology", None)
        if isinstance(known, Topology):
            return known
    facts = [json.loads(d) for d in bootstrap.allgather(json.dumps(local_facts()).encode())]
    return assemble(facts, [0] * bootstrap.world_size)


def _probe(topology: Topology, bootstrap: Bootstrap, timeout_seconds: float) -> Topology:
    if not isinstance(bootstrap, MpiBootstrap):
        raise UsageError(
            "--probe measures between the ranks of a job: start it with mpirun, one rank or more "
            "for each NIC"
        )
    if topology.world_size != bootstrap.world_size:
        raise TopologyError(
            f"--probe: the topology has {topology.world_size} ranks, and this job "
            f"{bootstrap.world_size}"
        )
    from mpi4py import MPI

    bar = ProgressBar("measuring")
    comm = MPI.COMM_WORLD.Dup()
    try:
        return measure_topology(topology, comm, timeout_seconds=timeout_seconds, progress=bar.show)
    except CommTimeoutError as error:
        # MPI cannot end orderly while messages are under way to a rank that does not answer.
        print(f"cocoll: {error}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(EXIT_FAILED)
        raise
