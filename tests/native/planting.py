"""Copies of the sources with one mistake in them: what the tests must not let pass."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.native.building import ROOT

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

__all__ = ["HasPlant", "Plant", "copy_sources", "parameters"]


@dataclass(frozen=True)
class Plant:
    """One textual change to one file.

    Parameters
    ----------
    name : str
        What is wrong then.
    path : str
        The file, below the root of the repository.
    old, new : str
        The text to replace, which must stand there once, and its replacement.
    """

    name: str
    path: str
    old: str
    new: str

    def changed(self) -> str:
        """Give the file's text with the change in it."""
        text = (ROOT / self.path).read_text()
        assert text.count(self.old) == 1, (
            f"{self.path} has {text.count(self.old)} times what plant {self.name!r} replaces; "
            f"change the plant with the code: {self.old!r}"
        )
        return text.replace(self.old, self.new)

    def plant(self, root: Path) -> Path:
        """Copy the sources to a folder and make the change; gives the folder."""
        copy_sources(root)
        (root / self.path).write_text(self.changed())
        return root


class HasPlant(Protocol):
    """What is run over a plant, and how that may end."""

    @property
    def plant(self) -> Plant:
        """What is wrong then."""


def parameters(hunts: Sequence[HasPlant], short: Sequence[str]) -> list[ParameterSet]:
    """Give hunts as parameters of a test: those named in `short`, and the others for long runs."""
    return [
        pytest.param(
            hunt,
            id=hunt.plant.name.replace(" ", "_"),
            marks=() if hunt.plant.name in short else pytest.mark.long,
        )
        for hunt in hunts
    ]


def copy_sources(root: Path) -> None:
    """Copy what the native programs and the planners are made of."""

    def unwanted(folder: str, names: list[str]) -> list[str]:
        return [
            name
            for name in names
            if not (Path(folder) / name).is_dir() and not name.endswith((".h", ".py", ".cpp"))
        ]

    shutil.copytree(ROOT / "cocoll", root / "cocoll", ignore=unwanted)
