"""The command ``cocoll``: what this machine offers, and how fast it is.

``cocoll info`` shows versions, what the machine allows and the settings in force.
``cocoll topo`` shows hosts, ports and ranks, and measures what joins them.
``cocoll plan`` says which algorithm serves a collective there, and how fast.
``mpirun -n N cocoll bench allreduce`` checks and measures the installed package.
``cocoll dump PID`` shows what the ranks of a running job are doing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import cocoll
from cocoll.commands.arguments import EXIT_FAILED, EXIT_USAGE, parse_bytes
from cocoll.commands.bench import add_bench
from cocoll.commands.dumps import add_dump
from cocoll.commands.info import add_info
from cocoll.commands.plan import add_plan
from cocoll.commands.topo import add_topo
from cocoll.errors import CocollError, UsageError

__all__ = ["EXIT_FAILED", "EXIT_USAGE", "main", "parse_bytes"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after ``cocoll``; None takes those of the process.

    Returns
    -------
    int
        The exit status: 0, 1 where a check or an operation failed, 2 for a mistake of the caller.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except UsageError as error:
        print(f"cocoll: {error}", file=sys.stderr)
        return EXIT_USAGE
    except CocollError as error:
        print(f"cocoll: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cocoll", description="Collective communication with the computation inside it."
    )
    parser.add_argument("--version", action="version", version=f"cocoll {cocoll.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_info, add_topo, add_plan, add_bench, add_dump):
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
