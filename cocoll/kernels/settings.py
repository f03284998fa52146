"""What the loading of kernels depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["BuildSettings"]


@dataclass(frozen=True)
class BuildSettings:
    """What the loading of kernels depends on.

    Parameters
    ----------
    cache_dir : Path
        The folder of the disk cache.
    no_compile : bool, default False
        Never run a compiler.
    isa : str or None, default None
        The level to use; None for the best that the CPU has.
    environment : Mapping of str to str
        Where the compiler looks up CXX and PATH.
    catalogue_dir : Path
        Where the libraries of the catalogue lie.
    """

    cache_dir: Path
    no_compile: bool = False
    isa: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    catalogue_dir: Path = Path(__file__).resolve().parent

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> BuildSettings:
        """Give the settings of COCOLL_CACHE_DIR, COCOLL_NO_COMPILE and COCOLL_ISA.

        Parameters
        ----------
        environment : Mapping of str to str, optional
            In place of the process's own.

        Returns
        -------
        BuildSettings
            The cache lies in COCOLL_CACHE_DIR, else $XDG_CACHE_HOME/cocoll, else ~/.cache/cocoll.
        """
        environment = os.environ if environment is None else environment
        named = environment.get("COCOLL_CACHE_DIR")
        if named:
            cache_dir = Path(named)
        else:
            base = environment.get("XDG_CACHE_HOME")
            cache_dir = (Path(base) if base else Path.home() / ".cache") / "cocoll"
        return cls(
            cache_dir=cache_dir,
            no_compile=environment.get("COCOLL_NO_COMPILE", "").lower()
            in ("1", "true", "yes", "on"),
            isa=environment.get("COCOLL_ISA") or None,
            environment=dict(environment),
        )
