"""``cocoll dump``: what the ranks of a running job are doing."""

from __future__ import annotations

import argparse
from typing import Any

from cocoll import flight

__all__ = ["add_dump"]


def add_dump(commands: Any) -> None:
    """Add the words of ``cocoll dump`` to the parser's commands."""
    dump = commands.add_parser("dump", help="show what the ranks of a running job are doing")
    dump.add_argument("pid", type=int, help="the process of any of its ranks on this host")
    dump.add_argument(
        "--operations",
        type=int,
        default=8,
        help="how many of each rank's last operations to list (default: %(default)s)",
    )
    dump.set_defaults(run=_run_dump)


def _run_dump(options: argparse.Namespace) -> int:
    print(flight.dump(options.pid, operations=options.operations))
    return 0
