"""How each implementation's job is started: launcher, environment, settings.

The settings are the best that were found for each library on one host; README.md says what each
does and which others lost.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ALLREDUCE_PEERS",
    "FUSED_PEERS",
    "MPI_PEERS",
    "PEERS_DIR",
    "ROOT",
    "JobSpec",
    "base_environment",
    "cocoll_job",
    "peer_jobs",
    "torch_python",
]

ROOT = Path(__file__).resolve().parents[2]
PEERS_DIR = ROOT / ".venv-peers"

MPI_PEERS = ("openmpi", "openmpi_tuned", "mpich", "intel_mpi", "intel_mpi_tuned")
ALLREDUCE_PEERS = (*MPI_PEERS, "oneccl", "gloo")
FUSED_PEERS = (*ALLREDUCE_PEERS, "ddp", "zero")

_MIB = 1 << 20

# Variables that a surrounding job or shell may have set and that would change what is measured.
_DROPPED_PREFIXES = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "I_MPI_", "CCL_", "MPIR_", "HYDRA_", "FI_")
_DROPPED = (
    "OPENBLAS_CORETYPE",
    "LD_PRELOAD",
    "MPI4PY_LIBMPI",
    "PYTHONPATH",
    "PYTHONHOME",
    "RANK",
    "WORLD_SIZE",
)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job: an implementation under one setting.

    Attributes
    ----------
    implementation, setting : str
        The name in the JSON, and which of its settings; the fastest setting counts.
    runner : str
        ``MODULE:CLASS`` of its :class:`benchmarks.common.runner.Runner`.
    command : tuple of str
        Launcher and Python, up to the worker program.
    environment : dict
        Added to :func:`base_environment`.
    min_bytes, max_bytes : int or None
        Input sizes at which this setting takes part.
    """

    implementation: str
    setting: str
    runner: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    min_bytes: int = 0
    max_bytes: int | None = None

    @property
    def name(self) -> str:
        """The job's name, unique within a run."""
        return f"{self.implementation}:{self.setting}" if self.setting else self.implementation

    def takes_part(self, input_bytes: int) -> bool:
        """Say whether this setting is tried at `input_bytes`."""
        return self.min_bytes <= input_bytes <= (self.max_bytes or input_bytes)


def base_environment() -> dict[str, str]:
    """Give the environment that every job starts from."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and not name.startswith(_DROPPED_PREFIXES)
    }
    environment.update(
        OMP_NUM_THREADS="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    )
    return environment


def cocoll_job(ranks: int) -> JobSpec:
    """Give cocoll's job: the interpreter that runs this, and the ``mpirun`` beside it."""
    beside = Path(sys.executable).parent / "mpirun"
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun") or "mpirun"
    return JobSpec(
        "cocoll",
        "",
        "benchmarks.common.cocoll_runner:CocollRunner",
        (mpirun, *_open_mpi_placement(ranks), sys.executable),
    )


def peer_jobs(implementation: str, ranks: int, *, fused: bool) -> list[JobSpec]:
    """Give the jobs of one peer, one for each setting worth trying.

    Parameters
    ----------
    implementation : str
        A name out of ``FUSED_PEERS``.
    ranks : int
        World size; beyond the machine's cores other settings are best.
    fused : bool
        Whether the suite also runs torch's Adam (settings for small vectors then have no use).

    Raises
    ------
    ValueError
        `implementation` is no peer.
    """
    if implementation.startswith("openmpi"):
        return _open_mpi_jobs(implementation, ranks, fused=fused)
    if implementation == "mpich":
        return [_mpich_job(ranks)]
    if implementation.startswith("intel_mpi"):
        return _intel_jobs(implementation, ranks, fused=fused)
    if implementation == "oneccl":
        return [_oneccl_job(ranks)]
    runners = {"gloo": "GlooRunner", "ddp": "DdpRunner", "zero": "ZeroRunner"}
    if implementation in runners:
        return [_torch_job(implementation, runners[implementation], ranks)]
    raise ValueError(f"wanted a peer out of {', '.join(FUSED_PEERS)}; got {implementation!r}")


def _is_oversubscribed(ranks: int) -> bool:
    return ranks > len(os.sched_getaffinity(0))


def torch_python() -> str:
    """Give a Python that has torch: the peers', or where they are not installed this one."""
    return _python() if Path(_python()).exists() else sys.executable


def _python() -> str:
    return str(PEERS_DIR / "bin" / "python")


def _open_mpi_placement(ranks: int) -> tuple[str, ...]:
    if _is_oversubscribed(ranks):
        return ("-n", str(ranks), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE")
    return ("-n", str(ranks), "--bind-to", "core")


def _open_mpi_jobs(implementation: str, ranks: int, *, fused: bool) -> list[JobSpec]:
    prefix = PEERS_DIR / "mpi" / "openmpi"
    environment = {
        "MPI4PY_LIBMPI": str(prefix / "lib" / "libmpi.so.40"),
        "BENCH_IMPLEMENTATION": implementation,
    }

    def job(
        setting: str, options: tuple[str, ...], min_bytes: int = 0, max_bytes: int | None = None
    ) -> JobSpec:
        mpirun = (str(prefix / "bin" / "mpirun"), *_open_mpi_placement(ranks), *options)
        return JobSpec(
            implementation,
            setting,
            "benchmarks.peers.mpi_runner:MpiRunner",
            (*mpirun, _python()),
            environment,
            min_bytes,
            max_bytes,
        )

    if implementation == "openmpi":
        return [job("", ())]
    ucx = _mca(pml="ucx", opal_common_ucx_tls="any", opal_common_ucx_devices="any")
    ring = _mca(
        coll="^han",
        coll_tuned_use_dynamic_rules="1",
        coll_tuned_allreduce_algorithm="5",
        coll_tuned_allreduce_algorithm_segmentsize="131072",
    )
    shared = _mca(coll_sm_priority="100", coll_sm_fragment_size="65536")
    if fused:
        return [job("ring", ring)]
    jobs = [job("ucx", ucx, max_bytes=_MIB), job("ring", ring, min_bytes=_MIB)]
    if not _is_oversubscribed(ranks):
        jobs.append(job("sm", shared, min_bytes=16 * _MIB))
    return jobs


def _mca(**parameters: str) -> tuple[str, ...]:
    return tuple(word for name, value in parameters.items() for word in ("--mca", name, value))


def _mpich_job(ranks: int) -> JobSpec:
    prefix = PEERS_DIR / "mpi" / "mpich"
    environment = {
        "MPI4PY_LIBMPI": str(prefix / "lib" / "libmpi.so.12"),
        "BENCH_IMPLEMENTATION": "mpich",
    }
    binding: tuple[str, ...] = ("-bind-to", "core")
    if _is_oversubscribed(ranks):
        # The default collectives spin without yielding: milliseconds a call beyond the cores.
        binding = ()
        environment["MPIR_CVAR_DEVICE_COLLECTIVES"] = "none"
        environment["MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"] = "reduce_scatter_allgather"
    return JobSpec(
        "mpich",
        "",
        "benchmarks.peers.mpi_runner:MpiRunner",
        (str(prefix / "bin" / "mpiexec"), "-n", str(ranks), *binding, _python()),
        environment,
    )


def _intel_environment(ranks: int, *, more_libraries: tuple[Path, ...] = ()) -> dict[str, str]:
    prefix = PEERS_DIR / "mpi" / "intel"
    libraries = (*more_libraries, prefix / "lib", prefix / "lib" / "libfabric")
    environment = {
        "I_MPI_ROOT": str(prefix),
        "I_MPI_FABRICS": "shm",
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "MPI4PY_LIBMPI": str(prefix / "lib" / "libmpi.so.12"),
    }
    if _is_oversubscribed(ranks):
        environment["I_MPI_PIN"] = "0"
    return environment


def _intel_launcher(ranks: int) -> tuple[str, ...]:
    mpiexec = PEERS_DIR / "mpi" / "intel" / "bin" / "mpiexec.hydra"
    return (str(mpiexec), "-n", str(ranks), _python())


def _intel_jobs(implementation: str, ranks: int, *, fused: bool) -> list[JobSpec]:
    def job(setting: str, settings: Mapping[str, str], min_bytes: int = 0) -> JobSpec:
        environment = _intel_environment(ranks)
        environment["BENCH_IMPLEMENTATION"] = implementation
        environment.update({f"I_MPI_{name}": value for name, value in settings.items()})
        return JobSpec(
            implementation,
            setting,
            "benchmarks.peers.mpi_runner:MpiRunner",
            _intel_launcher(ranks),
            environment,
            min_bytes,
        )

    if implementation == "intel_mpi":
        return [job("", {})]
    ring, shared = {"ADJUST_ALLREDUCE": "8"}, {"ADJUST_ALLREDUCE": "13"}
    halves = {"ADJUST_REDUCE_SCATTER_BLOCK": "2", "ADJUST_ALLGATHER": "6"}
    wait = {"WAIT_MODE": "1"}
    if _is_oversubscribed(ranks):
        if fused:
            return [job("wait", {**wait, **shared, **halves})]
        return [job("wait", wait), job("8", ring, 4 * _MIB), job("13", shared, 4 * _MIB)]
    if fused:
        return [job("13", {**shared, **halves})]
    return [job("13", shared), job("8", ring, 32 << 10)]


def _oneccl_job(ranks: int) -> JobSpec:
    library = PEERS_DIR / "mpi" / "oneccl" / "lib"
    environment = _intel_environment(ranks, more_libraries=(library,))
    environment["CCL_LOG_LEVEL"] = "error"
    environment["BENCH_ONECCL_BRIDGE"] = str(library / "liboneccl_bridge.so")
    return JobSpec(
        "oneccl",
        "",
        "benchmarks.peers.oneccl_runner:OneCclRunner",
        _intel_launcher(ranks),
        environment,
    )


def _torch_job(implementation: str, runner: str, ranks: int) -> JobSpec:
    spawn = str(Path(__file__).with_name("spawn.py"))
    binding = () if _is_oversubscribed(ranks) else ("--bind",)
    return JobSpec(
        implementation,
        "",
        f"benchmarks.peers.torch_runner:{runner}",
        (_python(), spawn, "-n", str(ranks), *binding, "--", _python()),
        {"THP_MEM_ALLOC_ENABLE": "1"},
    )
