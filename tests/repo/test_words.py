"""The repository speaks of cocoll alone: no path of a machine, no host of a registry."""

from __future__ import annotations

import re

from tests.repo.layout import ROOT, tracked_files

# Put together here so that this file does not find itself.
FORBIDDEN = tuple(
    re.compile("".join(parts))
    for parts in (
        ("(?<![\\w.])/wo", "rk/"),
        ("/", "root/"),
        ("(?<![\\w-])\\.\\./sha", "red/"),
        ("(?<![\\w/-])sha", "red/reference"),
        ("py", "pi\\.org"),
        ("python", "hosted"),
        ("download\\.pyt", "orch"),
        ("anaconda\\.", "(org|com)"),
        ("deb\\.deb", "ian"),
        ("local", "host:\\d"),
    )
)
TEXT_SUFFIXES = {
    "", ".py", ".pyx", ".pxd", ".pyi", ".h", ".c", ".cpp", ".md", ".toml", ".in", ".json",
    ".jsonl", ".txt", ".cfg", ".sh",
}  # fmt: skip


def test_no_forbidden_words() -> None:
    files = [path for path in tracked_files() if path.suffix in TEXT_SUFFIXES]
    assert len(files) > 20
    found = []
    for path in files:
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            found += [
                f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
                for pattern in FORBIDDEN
                if pattern.search(line)
            ]
    assert not found, "\n".join(found)
