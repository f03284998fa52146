"""The program of every rank: checks the ways against each other, times them in turns.

Started by the suite through ``benchmarks/peers/spawn.py``. Rank 0 prints one JSON object for every
micro-batch; see `measure`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

# As in benchmarks/common/worker.py: the repository gives the benchmarks, not the package.
_ROOT = str(Path(__file__).resolve().parents[2])
sys.path[0] = _ROOT
from benchmarks.training.model import PARAMETERS, Transformer, draw_tokens  # noqa: E402

sys.path.remove(_ROOT)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import cocoll  # noqa: E402
from benchmarks.training.ways import Way, make_ways  # noqa: E402

_WARM_STEPS = 3
_TRIAL_ROUNDS, _HOPELESS = 2, 1.1
_MOST_DIFFERENCE = 1e-2


def main() -> None:
    """Measure all micro-batches that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batches", type=int, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--case-seconds", type=float, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    comm = cocoll.Communicator(cocoll.bootstrap.TorchBootstrap())
    torch.manual_seed(7)
    model = Transformer()
    count = sum(param.numel() for param in model.parameters())
    assert count == PARAMETERS, count
    start = torch.cat([param.detach().reshape(-1) for param in model.parameters()])
    ways = make_ways(model, comm)
    tokens = draw_tokens(options.micro_batches[0], comm.rank)
    for _ in range(_WARM_STEPS):
        for way in ways:
            way.step(tokens)
    equal = _compare(ways, start, comm)
    for micro_batch in options.micro_batches:
        found = measure(ways, micro_batch, options.rounds, options.case_seconds, comm)
        if comm.rank == 0:
            found["results_equal"] = equal
            print(json.dumps(found), flush=True)
    comm.barrier()
    dist.destroy_process_group()


def _compare(ways: list[Way], start: Any, comm: cocoll.Communicator) -> dict[str, bool]:
    """Say of each way whether all ranks have the same bits, and it went where DDP's default did."""
    vectors = {way.setting: way.parameters() for way in ways[1:]}
    wanted = vectors["bucket_cap_mb=25"]
    equal = {}
    for name, vector in vectors.items():
        first = vector.clone()
        cocoll.broadcast(first, comm=comm)
        difference = float((vector - wanted).norm() / (wanted - start).norm())
        wrong = torch.tensor([float(not torch.equal(first, vector)), difference])
        cocoll.allreduce(wrong, "max", comm=comm)
        equal[name] = wrong[0].item() == 0.0 and wrong[1].item() < _MOST_DIFFERENCE
    return equal


def measure(
    ways: list[Way], micro_batch: int, rounds: int, case_seconds: float, comm: cocoll.Communicator
) -> dict[str, Any]:
    """Time all ways in turns; the slowest rank's time of each step counts.

    Rounds end early when `case_seconds` are over, and after some of them settings that are slower
    than the best of the same implementation are left out.
    """
    tokens = draw_tokens(micro_batch, comm.rank)
    seconds: dict[int, list[float]] = {index: [] for index in range(len(ways))}
    left = list(seconds)
    begun = time.perf_counter()
    for turn in range(-1, rounds):
        for place in range(len(left)):
            index = left[(place + turn) % len(left)]
            comm.barrier()
            start = time.perf_counter()
            ways[index].step(tokens)
            took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            cocoll.allreduce(took, "max", comm=comm)
            if turn >= 0:  # the first round warms up
                seconds[index].append(took.item())
        over = torch.tensor([time.perf_counter() - begun])
        cocoll.allreduce(over, "max", comm=comm)
        if turn + 1 == _TRIAL_ROUNDS:
            left = _keep(ways, seconds, left)
        if turn + 1 >= min(_TRIAL_ROUNDS + 1, rounds) and over.item() > case_seconds:
            break
    return {
        "micro_batch": micro_batch,
        "ways": [
            {
                "implementation": ways[index].implementation,
                "setting": ways[index].setting,
                "seconds": seconds[index],
                "state_bytes": ways[index].state_bytes,
                "dropped": index not in left,
            }
            for index in seconds
        ],
    }


def _keep(ways: list[Way], seconds: dict[int, list[float]], left: list[int]) -> list[int]:
    # All ranks have the same numbers.
    medians = {index: statistics.median(seconds[index]) for index in left}
    best: dict[str, float] = {}
    for index in left:
        name = ways[index].implementation
        best[name] = min(best.get(name, medians[index]), medians[index])
    return [i for i in left if medians[i] <= best[ways[i].implementation] * _HOPELESS]


if __name__ == "__main__":
    main()
