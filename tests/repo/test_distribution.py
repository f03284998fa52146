"""The source distribution holds all that a build and a user's compiler need."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.repo.layout import PACKAGE, ROOT

SOURCE_SUFFIXES = {".py", ".h", ".pyx", ".pxi", ".pxd", ".pyi", ".json"}


def build(kind: str, source: Path, target: Path) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir"]
    subprocess.run([*command, str(target), str(source)], check=True, capture_output=True)
    (made,) = target.iterdir()
    return made


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


def package_sources() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if (path.suffix in SOURCE_SUFFIXES or path.name == "py.typed")
        and "_generated" not in path.parts
        and "__pycache__" not in path.parts
    }


def test_source_distribution_is_complete(source_distribution: Path) -> None:
    with tarfile.open(source_distribution) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = (package_sources() | {"setup.py", "pyproject.toml", "LICENSE", "Makefile"}) - names
    assert not missing
    assert not {name for name in names if name.endswith((".so", ".pyc", "_core.cpp"))}


@pytest.mark.long
def test_wheel_from_source_distribution_works(source_distribution: Path, tmp_path: Path) -> None:
    with tarfile.open(source_distribution) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    wheel = build("wheel", source, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        missing = package_sources() - set(archive.namelist())
    assert not missing
    # The packages of this environment (NumPy) are seen, cocoll itself is the one of the wheel.
    venv.create(tmp_path / "venv", with_pip=True, system_site_packages=False)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    shown = subprocess.run(
        [python.with_name("cocoll"), "info"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "ISA" in shown.stdout
