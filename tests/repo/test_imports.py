"""Imports run one way, and the modules that a build needs want the standard library only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.layout import PACKAGE, ROOT, imports_of, module_files, module_name

# From the ground up. A module imports from its own layer or from one below.
LAYERS = (
    ("errors",),
    ("dtypes", "config", "tuning"),
    ("plan", "topology", "simulation", "epilogues", "kernels", "state"),
    ("algorithms", "resharding", "programs", "_core", "cuda", "host"),
    (
        "array",
        "stream",
        "bootstrap",
        "wire",
        "symmetric",
        "failure",
        "points",
        "waits",
        "flight",
        "device",
        "placement",
    ),
    (
        "communicator",
        "connection",
        "explaining",
        "facts",
        "shrinking",
        "tracing",
        "updates",
        "variants",
    ),
    (
        "collectives",
        "agreed_kernel",
        "agreed_plan",
        "bundle",
        "host_mover",
        "movers",
        "preparation",
        "program_parts",
        "reshard_calls",
        "resharder",
        "stage_preparation",
        "uneven",
        "torch",
        "jax",
    ),
    ("",),
    ("tune", "testing", "commands", "cli"),
)
LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names}

PLANNERS = {"algorithms", "resharding", "programs"}
EXECUTORS = {"_core", "cuda", "host"}

# setup.py imports these where nothing is installed but setuptools and Cython.
BUILD_TIME = ("errors", "dtypes", "plan", "epilogues", "kernels")

MODULES = pytest.mark.parametrize("path", module_files(), ids=module_name)


def room(module: str) -> str:
    """Give the part of cocoll that a module belongs to: ``cocoll.plan.ir`` is in ``plan``."""
    return module.split(".")[1] if "." in module else ""


@MODULES
def test_imports_run_one_way(path: Path) -> None:
    own = room(module_name(path))
    assert own in LAYER_OF, f"{own} stands in no layer: add it to LAYERS where it belongs"
    for used in imports_of(path):
        if used.typing_only or used.target.split(".")[0] != "cocoll":
            continue
        target = room(used.target)
        where = f"{path.relative_to(ROOT)}:{used.line} imports {used.target}"
        assert target in LAYER_OF, f"{where}, which stands in no layer"
        assert LAYER_OF[target] <= LAYER_OF[own], f"{where}, which lies above it"
        assert not (own in EXECUTORS and target in PLANNERS), f"{where}: executors never plan"
        assert not (own in PLANNERS and target in EXECUTORS), f"{where}: planners never execute"


def test_no_circle_between_parts() -> None:
    edges: dict[str, set[str]] = {}
    for path in module_files():
        own = room(module_name(path))
        for used in imports_of(path):
            if not used.typing_only and used.target.split(".")[0] == "cocoll":
                edges.setdefault(own, set()).add(room(used.target))
    for start in edges:
        reached: set[str] = set()
        front = edges[start] - {start}
        while front:
            reached |= front
            front = {after for part in front for after in edges.get(part, ())} - reached
        assert start not in reached, f"{start} imports itself in a circle, through {reached}"


@pytest.mark.parametrize(
    "path",
    [path for path in module_files() if room(module_name(path)) in BUILD_TIME],
    ids=module_name,
)
def test_build_time_modules_need_the_standard_library_only(path: Path) -> None:
    for used in imports_of(path):
        top = used.target.split(".")[0]
        assert used.typing_only or top == "cocoll" or top in sys.stdlib_module_names, (
            f"{path.relative_to(ROOT)}:{used.line} imports {used.target}"
        )


IMPORT_PROBE = """
import numpy, sys
sys.dont_write_bytecode = True
FORBIDDEN = ("socket.", "subprocess.", "os.mkdir", "os.system", "os.fork", "os.exec", "shutil.")
def watch(event, arguments):
    if event.startswith(FORBIDDEN):
        raise SystemExit(f"import cocoll did {event} {arguments}")
    if event == "open" and (isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
        raise SystemExit(f"import cocoll wrote to {arguments[0]}")
sys.addaudithook(watch)
before = set(sys.modules)
import cocoll
taken = {name.split(".")[0] for name in set(sys.modules) - before}
print(*sorted(taken))
"""

ABSENT = {"mpi4py", "cupy", "torch", "jax", "scipy", "sklearn", "matplotlib", "ml_dtypes", "cuda"}


def test_import_takes_no_framework_and_touches_nothing() -> None:
    probe = subprocess.run(
        [sys.executable, "-c", IMPORT_PROBE], check=False, capture_output=True, text=True
    )
    assert probe.returncode == 0, probe.stderr
    taken = set(probe.stdout.split())
    assert "cocoll" in taken
    assert not taken & ABSENT, f"import cocoll imports {taken & ABSENT}"


def test_every_cython_module_has_its_stub() -> None:
    sources = sorted(PACKAGE.rglob("*.pyx"))
    assert sources
    for source in sources:
        assert source.with_suffix(".pyi").exists(), f"no stub beside {source.relative_to(ROOT)}"
