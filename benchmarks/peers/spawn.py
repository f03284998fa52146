"""Start the ranks of a torch.distributed job: ``spawn.py -n 2 [--bind] -- PROGRAM ARGUMENTS``.

What ``torchrun`` does without its agent, which polls its workers and so takes time from those who
are being measured. Ends when all ranks have; if one fails or a signal comes, ends the others.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run, and give the first non-zero exit status, or 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, required=True, metavar="RANKS")
    parser.add_argument("--bind", action="store_true", help="rank r to core r")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    ranks: list[subprocess.Popen[bytes]] = []

    def end_ranks(number: int, frame: FrameType | None) -> None:
        del frame
        for process in ranks:
            process.terminate()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end_ranks)
    signal.signal(signal.SIGINT, end_ranks)
    for rank in range(options.n):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(options.n),
            "LOCAL_WORLD_SIZE": str(options.n),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = options.command
        if options.bind:
            command = ["taskset", "-c", str(cores[rank % len(cores)]), *command]
        ranks.append(subprocess.Popen(command, env=environment))
    status = 0
    waiting = {process.pid: process for process in ranks}
    while waiting:
        pid, wait_status = os.wait()
        process = waiting.pop(pid, None)
        if process is None:
            continue
        process.returncode = os.waitstatus_to_exitcode(wait_status)
        if process.returncode and not status:
            status = process.returncode
            for other in waiting.values():
                other.terminate()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
