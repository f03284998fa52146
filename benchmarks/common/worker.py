"""The program that a job's launcher starts once a rank: ``worker.py --runner MODULE:CLASS ...``.

It reports to the driver and then sleeps in ``read()`` until it is given a turn.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

# The repository gives the benchmarks' modules, and nothing else: what is measured must be what is
# installed, so the root leaves the search path once the package is known.
_ROOT = str(Path(__file__).resolve().parents[2])
sys.path[0] = _ROOT
import benchmarks.common.rank  # noqa: E402

sys.path.remove(_ROOT)

from benchmarks.common.turns import connect, serve  # noqa: E402

if TYPE_CHECKING:
    from benchmarks.common.runner import Runner


def main() -> None:
    """Open the library, report, serve turns, close."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runner", required=True, metavar="MODULE:CLASS")
    parser.add_argument("--job", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--control", required=True)
    parser.add_argument("--pool", required=True)
    arguments = parser.parse_args()
    module_name, class_name = arguments.runner.split(":")
    runner: Runner = getattr(importlib.import_module(module_name), class_name)()
    runner.open()
    rank = benchmarks.common.rank.Rank(runner, arguments.control, arguments.pool)
    channel = connect(
        arguments.socket,
        {
            "job": arguments.job,
            "rank": runner.rank,
            "world_size": runner.world_size,
            "pid": os.getpid(),
            "cores": sorted(os.sched_getaffinity(0)),
            "versions": runner.versions(),
        },
    )
    serve(channel, rank.handlers())
    runner.close()


if __name__ == "__main__":
    main()
