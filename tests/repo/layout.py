"""What the tests of the repository share: where things are and what a module imports."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "cocoll"


@dataclass(frozen=True)
class Import:
    """One import statement: the module that is imported, and where."""

    target: str
    line: int
    typing_only: bool


def module_files() -> list[Path]:
    """Give every Python and Cython module of the package."""
    found = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxi")]
    return sorted(path for path in found if "_generated" not in path.parts)


def module_name(path: Path) -> str:
    """Give the dotted name of a module's file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def known_modules() -> set[str]:
    """Give the dotted names of all modules and packages of cocoll."""
    packages = {module_name(p / "__init__") for p in PACKAGE.rglob("*") if p.is_dir()}
    return {module_name(path) for path in module_files()} | packages


@functools.cache
def imports_of(path: Path) -> list[Import]:
    """Give what a module imports, at its top or inside functions."""
    if path.suffix in (".pyx", ".pxi"):
        return _cython_imports(path)
    tree = ast.parse(path.read_text(), filename=str(path))
    typing_lines = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }
    found = []
    for node in ast.walk(tree):
        typing_only = getattr(node, "lineno", 0) in typing_lines
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node.module or "", node.level)
            targets = [_resolve(base, alias.name) for alias in node.names]
            found += [Import(target, node.lineno, typing_only) for target in targets]
    return found


def tracked_files() -> list[Path]:
    """Give the files that git has or would take; all files where this is no git checkout."""
    if not (ROOT / ".git").exists():
        return sorted(path for path in ROOT.rglob("*") if path.is_file())
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def _absolute(path: Path, module: str, level: int) -> str:
    if level == 0:
        return module
    parts = module_name(path).split(".")
    if path.name != "__init__.py":
        parts = parts[:-1]
    parts = parts[: len(parts) - (level - 1)]
    return ".".join([*parts, module] if module else parts)


def _resolve(base: str, name: str) -> str:
    """Tell ``from cocoll import epilogues`` (a module) from ``from cocoll import init``."""
    candidate = f"{base}.{name}"
    return candidate if candidate in known_modules() else base


def _cython_imports(path: Path) -> list[Import]:
    found = []
    for line, text in enumerate(path.read_text().splitlines(), start=1):
        match = re.match(r"\s*from\s+([\w.]+)\s+c?import\s+\(?([\w, ]*)", text)
        if match:
            names = [name.split(" as ")[0].strip() for name in match[2].split(",")]
            found += [Import(_resolve(match[1], name), line, False) for name in names]
            continue
        match = re.match(r"\s*c?import\s+([\w.]+)", text)
        if match:
            found.append(Import(match[1], line, False))
    return found
