"""What the documentation says about settings, errors and calls is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cocoll
from cocoll import errors
from cocoll.config import Settings
from tests.repo.layout import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])


def table_rows(path: Path) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in path.read_text().splitlines()
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line)
    ]


def test_settings_table_equals_the_settings() -> None:
    rows = [row for row in table_rows(DOCS / "settings.md") if row[0].startswith("`COCOLL_")]
    described = Settings.from_environment({"HOME": "/home/you"}).describe()
    wanted = [
        [f"`{row.variable}`", f"`{row.argument}`", row.allowed, row.meaning] for row in described
    ]
    assert [[row[0], row[1], row[3], row[4]] for row in rows] == wanted
    for row, setting in zip(rows, described, strict=True):
        assert row[2] in (setting.value, "`$XDG_CACHE_HOME/cocoll`"), setting.variable


def test_no_variable_is_documented_that_does_not_exist() -> None:
    known = {row.variable for row in Settings.from_environment({"HOME": "/home/you"}).describe()}
    known |= {
        "COCOLL_CLUSTER"
    }  # exported by the benchmarks' emulated cluster, read by nothing else
    for path in PAGES:
        used = set(re.findall(r"\bCOCOLL_[A-Z_]+\b", path.read_text()))
        assert used <= known, f"{path.relative_to(ROOT)} names {used - known}"


def test_every_error_is_explained() -> None:
    text = (DOCS / "failures.md").read_text()
    missing = [name for name in errors.__all__ if f"`{name}`" not in text]
    assert not missing, f"docs/failures.md does not name {missing}"


def test_every_public_name_is_on_the_api_page() -> None:
    text = (DOCS / "api.md").read_text()
    names = set(cocoll.__all__)
    missing = sorted(
        name for name in names if f"`{name}" not in text and f"cocoll.{name}" not in text
    )
    assert not missing, f"docs/api.md does not name {missing}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_named_files_exist(path: Path) -> None:
    pattern = r"`((?:cocoll|tests|benchmarks|examples|docs)/[\w./-]+)`"
    for name in re.findall(pattern, path.read_text()):
        assert (ROOT / name).exists(), f"{path.name} names {name}, which is not there"
