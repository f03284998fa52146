"""Cases: what every call must do, written once for thread ranks and for ranks of MPI.

A case is a function of a communicator that all ranks call with the same arguments. ``@case`` gives
the arguments: every combination becomes one test. What it returns must be equal on all ranks.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = ["Case", "all_cases", "case"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Case:
    """One test.

    Attributes
    ----------
    function : callable
        Takes the communicator and `arguments`.
    arguments : dict
        By name.
    tuning : str
        A key of `tests.helpers.world.TUNINGS`.
    under_mpi : bool
        Whether it is worth running under mpirun too, where processes share the memory.
    needs : tuple of str
        Modules without which it is skipped.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any] = field(hash=False)
    tuning: str = "small"
    under_mpi: bool = True
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Give the name of the test."""
        parts = [str(value) for value in (*self.arguments.values(), self.tuning)]
        return f"{self.function.__name__}-{'-'.join(parts)}"


def case(
    *,
    tuning: str | Sequence[str] = "small",
    under_mpi: bool | Callable[..., bool] = True,
    needs: Callable[..., tuple[str, ...]] | tuple[str, ...] = (),
    only: Callable[..., bool] = lambda **_: True,
    **arguments: Sequence[Any],
) -> Callable[[F], F]:
    """Make a function a case for every combination of arguments that `only` allows."""
    tunings = (tuning,) if isinstance(tuning, str) else tuple(tuning)

    def decorate(function: F) -> F:
        made = []
        for values in itertools.product(*arguments.values()):
            chosen = dict(zip(arguments, values, strict=True))
            if not only(**chosen):
                continue
            made += [
                Case(
                    function,
                    chosen,
                    name,
                    under_mpi(**chosen) if callable(under_mpi) else under_mpi,
                    needs(**chosen) if callable(needs) else needs,
                )
                for name in tunings
            ]
        function.cases = made  # type: ignore[attr-defined]
        return function

    return decorate


#: Cases whose plans touch the memory of all ranks, which is that of one host.
OF_ONE_HOST = ("plans_over_symmetric_arrays", "plans_with_scratch", "plans_that_are_refused")


#: The modules of cases, in the order in which they run.
MODULES = (
    "reductions", "movement", "memory", "streams", "bound", "derived", "fused", "public",
    "resharding", "blocks", "points",
)  # fmt: skip


def all_cases(*, under_mpi: bool = False, several_hosts: bool = False) -> list[Case]:
    """Give all cases, module by module, in the order of their definition."""
    found: list[Case] = []
    for name in MODULES:
        # They import from here.
        module = importlib.import_module(f"{__name__}.{name}")
        cases = [
            entry
            for value in vars(module).values()
            if getattr(value, "__module__", None) == module.__name__
            for entry in getattr(value, "cases", [])
        ]
        assert cases, f"{module.__name__} has no cases"
        found += cases
    return [
        entry
        for entry in found
        if (entry.under_mpi or not under_mpi)
        and not (several_hosts and entry.function.__name__ in OF_ONE_HOST)
    ]
