"""The command ``cocoll``: what this machine offers, and how fast it is.

``cocoll info`` shows versions, what the machine allows and the settings in force.
``mpirun -n N cocoll bench allreduce`` checks and measures the installed package, with nothing to
compare it with; bandwidths are defined as in nccl-tests.
``cocoll dump PID`` shows what the ranks of a running job are doing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import cocoll
from cocoll import epilogues, flight, kernels
from cocoll.config import Settings
from cocoll.errors import CocollError, UsageError
from cocoll.kernels.isa import cpu_levels, isa_levels, select_levels
from cocoll.topology.facts import Probe, probe_cross_memory_attach, probe_huge_pages

__all__ = ["main", "parse_bytes"]

Array = npt.NDArray[Any]

DEFAULT_SIZES = "8,1KiB,32KiB,256KiB,1MiB,16MiB,64MiB"
UNITS_BYTES = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
BENCH_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")
WARMUP_CALLS = 5

EXIT_FAILED = 1
EXIT_USAGE = 2


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


def parse_bytes(text: str) -> int:
    """Give the number of bytes that a size like ``"64"``, ``"32KiB"`` or ``"1.5MiB"`` means.

    Parameters
    ----------
    text : str
        A number with no unit, B, KiB, MiB or GiB.

    Returns
    -------
    int
        The size, in bytes.

    Raises
    ------
    UsageError
        It is not a size, or not a whole number of bytes.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = UNITS_BYTES.get(match[2].upper()) if match else None
    size = float(match[1]) * unit if match and unit else -1.0
    if size < 0 or size != int(size):
        raise UsageError(f"wanted a size like 8, 32KiB or 16MiB; got {text!r}")
    return int(size)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cocoll", description="Collective communication with the computation inside it."
    )
    parser.add_argument("--version", action="version", version=f"cocoll {cocoll.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="show versions, the machine and the settings")
    info.set_defaults(run=_run_info)

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

    dump = commands.add_parser("dump", help="show what the ranks of a running job are doing")
    dump.add_argument("pid", type=int, help="the process of any of its ranks on this host")
    dump.add_argument(
        "--operations",
        type=int,
        default=8,
        help="how many of each rank's last operations to list (default: %(default)s)",
    )
    dump.set_defaults(run=_run_dump)
    return parser


# ---- cocoll info ----


def _run_info(options: argparse.Namespace) -> int:
    del options
    settings = Settings.from_environment(os.environ)
    rows = [
        ("cocoll", cocoll.__version__),
        ("Python", f"{platform.python_version()} ({sys.executable})"),
        ("NumPy", np.__version__),
        ("MPI", _mpi_library()),
        ("ISA level", _isa_level(settings)),
        ("cross-memory attach", f"{_shown(probe_cross_memory_attach())}; not used by this release"),
        ("huge pages", _shown(probe_huge_pages())),
        ("kernel cache", _cache_usage(settings.cache_dir)),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    print("\nsettings")
    described = settings.describe()
    widths = [max(len(row.variable) for row in described), max(len(row.value) for row in described)]
    for row in described:
        note = "; reserved, without effect in this release" if row.reserved else ""
        print(f"  {row.variable:<{widths[0]}}  {row.value:<{widths[1]}}  ({row.origin}){note}")
    return 0


def _mpi_library() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        return "none: mpi4py is not installed (pip install 'cocoll[mpi]')"
    mpi4py = importlib.import_module("mpi4py")
    # Only a question: this process joins no job.
    mpi4py.rc.initialize = False
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        return f"none: mpi4py {mpi4py.__version__} finds no MPI library ({error})"
    version = mpi.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
    return f"{version} (mpi4py {mpi4py.__version__})"


def _isa_level(settings: Settings) -> str:
    able = cpu_levels()
    built = [level for level in isa_levels() if _catalogue_path(level).exists()]
    # A level that was asked for and cannot be had raises, as it would in a communicator.
    chosen = [level for level in select_levels(settings.isa, able) if level in built]
    return (
        f"{chosen[0] if chosen else 'none'} (this processor runs {', '.join(able)}; "
        f"built: {', '.join(built) or 'none'})"
    )


def _catalogue_path(level: str) -> Path:
    return Path(kernels.__file__).with_name(f"_catalogue_{level}.so")


def _shown(probe: Probe) -> str:
    return f"{'works' if probe.works else 'not available'} ({probe.detail})"


def _cache_usage(directory: Path) -> str:
    files = [path for path in directory.rglob("*") if path.is_file()] if directory.exists() else []
    size_bytes = 0
    for path in files:
        # Another process may be replacing an entry right now.
        with contextlib.suppress(FileNotFoundError):
            size_bytes += path.stat().st_size
    return f"{directory} ({len(files)} files, {size_bytes / 2**20:.1f} MiB)"


def _run_dump(options: argparse.Namespace) -> int:
    print(flight.dump(options.pid, operations=options.operations))
    return 0


# ---- cocoll bench ----


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


if __name__ == "__main__":
    sys.exit(main())
