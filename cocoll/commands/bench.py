"""``cocoll bench``: checks and measures the installed package, with nothing to compare it with.

Bandwidths are defined as in nccl-tests.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import cocoll
from cocoll import epilogues
from cocoll.commands.arguments import EXIT_FAILED, parse_bytes
from cocoll.errors import UsageError

__all__ = ["add_bench"]

Array = npt.NDArray[Any]

DEFAULT_SIZES = "8,1KiB,32KiB,256KiB,1MiB,16MiB,64MiB"
BENCH_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")
WARMUP_CALLS = 5


def add_bench(commands: Any) -> None:
    """Add the words of ``cocoll bench`` to the parser's commands."""
    bench = commands.add_parser("bench", help="check and measure one collective")
    bench.add_argument("collective", choices=("allreduce",))
    bench.add_argument(
        "--sizes",
        default=DEFAULT_SIZES,
        help="bytes of one rank's input, separated by commas (default: %(default)s)",
    )
    bench.add_argument(
        "--iterations", type=int, default=50, help="timed calls a size (default: %(default)s)"
    )
    bench.add_argument(
        "--dtype",
        choices=BENCH_DTYPES,
        default="float32",
        help="of the elements (default: %(default)s, the only one of --fused)",
    )
    bench.add_argument("--in-place", action="store_true", help="the result replaces the input")
    bench.add_argument(
        "--fused", action="store_true", help="allreduce_fused with Adam and replicated parameters"
    )
    bench.add_argument(
        "--memory",
        choices=("symmetric", "ordinary"),
        default="symmetric",
        help="arrays made by the communicator, or plain NumPy ones (default: %(default)s)",
    )
    bench.set_defaults(run=_run_bench)


def _run_bench(options: argparse.Namespace) -> int:
    if options.iterations < 1:
        raise UsageError(f"--iterations: wanted at least 1, got {options.iterations}")
    if options.fused and options.dtype != "float32":
        raise UsageError(f"--fused: wanted --dtype float32, got {options.dtype}")
    itemsize_bytes = np.dtype(options.dtype).itemsize
    sizes_bytes = [parse_bytes(text) for text in options.sizes.split(",")]
    with cocoll.init() as comm:
        if comm.rank == 0:
            operation = "allreduce_fused(adam)" if options.fused else "allreduce(sum)"
            form = "in place" if options.in_place or options.fused else "out of place"
            print(f"# cocoll {cocoll.__version__}, {operation}, {options.dtype}, {form}")
            print(f"# {comm.world_size} ranks, {options.memory} memory; median of")
            print(f"# {options.iterations} calls, slowest rank; bandwidths as in nccl-tests")
            print(f"{'bytes':>12} {'elements':>12} {'time (us)':>12}", end="")
            print(f" {'algbw (GB/s)':>13} {'busbw (GB/s)':>13}  check", flush=True)
        correct = True
        for size_bytes in sizes_bytes:
            count = max(1, size_bytes // itemsize_bytes)
            bench = _FusedBench if options.fused else _AllreduceBench
            case = bench(comm, count, options)
            equal = _agreed(comm, case.check())
            seconds = _measure(comm, case, options.iterations)
            correct = correct and equal
            if comm.rank == 0:
                moved = count * itemsize_bytes
                algorithm_bandwidth = moved / seconds / 1e9
                bus_bandwidth = algorithm_bandwidth * 2 * (comm.world_size - 1) / comm.world_size
                print(
                    f"{moved:>12} {count:>12} {seconds * 1e6:>12.2f} {algorithm_bandwidth:>13.2f}"
                    f" {bus_bandwidth:>13.2f}  {'ok' if equal else 'WRONG'}",
                    flush=True,
                )
    return 0 if correct else EXIT_FAILED


def _measure(
    comm: cocoll.Communicator, case: _AllreduceBench | _FusedBench, iterations: int
) -> float:
    """Give the median time of a call on the slowest rank, in seconds."""
    case.reset()
    for _ in range(WARMUP_CALLS):
        case.call()
    samples = []
    for _ in range(iterations):
        comm.barrier()
        started = time.perf_counter()
        case.call()
        samples.append(time.perf_counter() - started)
    slowest = np.array(samples)
    cocoll.allreduce(slowest, "max", comm=comm)
    return float(statistics.median(slowest.tolist()))


def _agreed(comm: cocoll.Communicator, correct: bool) -> bool:
    verdict = np.array([int(correct)], np.int32)
    cocoll.allreduce(verdict, "min", comm=comm)
    return bool(verdict[0])


def _pattern(count: int, rank: int, dtype: str) -> Array:
    """Give small whole numbers: their sums are exact in every dtype and any order."""
    return ((np.arange(count) + 3 * rank) % 5).astype(dtype)


class _AllreduceBench:
    """Sums one array over the ranks."""

    def __init__(self, comm: cocoll.Communicator, count: int, options: argparse.Namespace) -> None:
        self.comm = comm
        self.dtype: str = options.dtype
        symmetric = options.memory == "symmetric"
        self.source = comm.empty(count, self.dtype) if symmetric else np.empty(count, self.dtype)
        self.result = self.source
        if not options.in_place:
            self.result = np.empty(count, self.dtype)
            if symmetric:
                self.result = comm.empty(count, self.dtype)

    def call(self) -> None:
        """Run the operation once."""
        if self.result is self.source:
            cocoll.allreduce(self.source, comm=self.comm)
        else:
            cocoll.allreduce(self.source, out=self.result, comm=self.comm)

    def reset(self) -> None:
        """Fill with what does not grow when it is summed again and again."""
        self.source[...] = 0

    def check(self) -> bool:
        """Run once and compare with the sum of all ranks' patterns."""
        count = len(self.source)
        self.source[...] = _pattern(count, self.comm.rank, self.dtype)
        self.call()
        expected = np.zeros(count, self.dtype)
        for rank in range(self.comm.world_size):
            expected += _pattern(count, rank, self.dtype)
        return bool(np.array_equal(self.result, expected))


class _FusedBench:
    """Averages gradients and steps Adam, in one call."""

    LEARNING_RATE = 0.1
    BETAS = (0.9, 0.999)
    EPSILON = 1e-8

    def __init__(self, comm: cocoll.Communicator, count: int, options: argparse.Namespace) -> None:
        self.comm = comm
        if options.memory == "symmetric":
            self.gradient = comm.empty(count, "float32")
            self.parameters = comm.empty(count, "float32", replicated=True)
        else:
            self.gradient = np.empty(count, np.float32)
            self.parameters = np.empty(count, np.float32)
        self.m, self.v = comm.shard_zeros(count), comm.shard_zeros(count)
        self.epilogue = epilogues.adam(betas=self.BETAS, eps=self.EPSILON)
        cocoll.broadcast(np.ones(count, np.float32), out=self.parameters, comm=comm)

    def call(self) -> None:
        """Run the operation once, as the first step of a training."""
        cocoll.allreduce_fused(
            self.gradient,
            self.epilogue,
            op="avg",
            param=self.parameters,
            m=self.m,
            v=self.v,
            lr=self.LEARNING_RATE,
            step=1,
            comm=self.comm,
        )

    def reset(self) -> None:
        """Keep the gradients of the check: Adam bounds every step."""

    def check(self) -> bool:
        """Run once and compare with Adam in float64."""
        count = len(self.gradient)
        self.gradient[...] = _pattern(count, self.comm.rank, "float32")
        self.call()
        mean = np.zeros(count)
        for rank in range(self.comm.world_size):
            mean += _pattern(count, rank, "float64")
        mean /= self.comm.world_size
        expected = 1 - self.LEARNING_RATE * mean / (np.abs(mean) + self.EPSILON)
        return bool(np.allclose(self.parameters, expected, rtol=0, atol=1e-6))
