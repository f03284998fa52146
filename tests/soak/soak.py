"""Random operations on ranks that come at random times, for as long as one likes: ``make soak``.

All ranks draw the same operations and sizes from one seed, which is printed, and delays of their
own. Results are compared with NumPy. Once everything has been used, memory must stay flat.
"""

from __future__ import annotations

import argparse
import gc
import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import cocoll
from cocoll.testing import run_processes
from tests.helpers.exercises import EXERCISES

#: What allocators keep for themselves, and no leak of a few bytes in a call adds up to in a minute.
SLACK_BYTES = 24 << 20
_LONGEST_DELAY_SECONDS = 0.02
_ROUND = 25


@dataclass(frozen=True)
class Use:
    """What a rank holds."""

    resident_bytes: int
    shared_bytes: int
    files: int
    threads: int


def measure() -> Use:
    """Look at this process: memory, shared memory, open files, threads."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    shared = 0
    descriptors = list(Path("/proc/self/fd").iterdir())
    for one in descriptors:
        try:
            if "cocoll" in str(one.readlink()):
                shared += one.stat().st_size
        except OSError:
            # The listing's own.
            continue
    return Use(
        int(status["VmRSS"].split()[0]) << 10, shared, len(descriptors),
        int(status["Threads"]),
    )  # fmt: skip


def soak(comm: cocoll.Communicator, seconds: float, seed: int) -> tuple[int, Use, Use]:
    """Exercise for a time; give how many operations there were, and what was held before and after.

    Collective.
    """
    draws = np.random.default_rng(seed)
    own = np.random.default_rng((seed, comm.rank))
    names = list(EXERCISES)
    # Whatever is planned, compiled or kept, once: several sizes of each.
    for name in names * 12:
        EXERCISES[name](comm, draws)
    started = time.monotonic()
    before = None
    count, enough = 0, False
    while not enough:
        for _ in range(_ROUND):
            # Most come at once; some late.
            if own.random() < 0.2:
                time.sleep(own.random() * _LONGEST_DELAY_SECONDS)
            EXERCISES[str(draws.choice(names))](comm, draws)
            count += 1
        elapsed = time.monotonic() - started
        if before is None and elapsed > 0.3 * seconds:
            before = measure()
        # All end after the same round: the first rank's clock decides.
        told = np.array([elapsed > seconds], np.uint8)
        cocoll.broadcast(told, comm=comm)
        enough = bool(told[0])
    after = measure()
    return count, before or after, after


def judge(before: Use, after: Use) -> list[str]:
    """Say what has grown."""
    grown = []
    if after.resident_bytes > before.resident_bytes + SLACK_BYTES:
        grown.append(f"resident memory from {before.resident_bytes} to {after.resident_bytes}")
    return grown + [
        f"{name} from {getattr(before, name)} to {getattr(after, name)}"
        for name in ("shared_bytes", "files", "threads")
        if getattr(after, name) > getattr(before, name)
    ]


def main(arguments: list[str]) -> int:
    """Run it; 0 where nothing went wrong."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run, to repeat it")
    options = parser.parse_args(arguments)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"{options.ranks} ranks, {options.seconds:g} s, seed {seed}", flush=True)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    outcomes = run_processes(
        options.ranks, soak, options.seconds, seed, limit_seconds=2 * options.seconds + 300.0,
        timeout_seconds=120.0,
    )  # fmt: skip
    failed = False
    for rank, outcome in enumerate(outcomes):
        if outcome.error is not None or outcome.value is None:
            failed = True
            print(f"rank {rank}: exit code {outcome.exit_code}, {outcome.error!r}")
            continue
        count, before, after = outcome.value
        grown = judge(before, after)
        failed = failed or bool(grown)
        verdict = "; ".join(f"grew: {what}" for what in grown) or "flat"
        print(f"rank {rank}: {count} operations, {after.resident_bytes >> 20} MiB resident, "
              f"{after.shared_bytes >> 20} MiB shared, {verdict}")  # fmt: skip
    print("soak: failed" if failed else "soak: ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
