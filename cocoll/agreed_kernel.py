"""A kernel that all ranks have, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll import _core
from cocoll.errors import CocollError, CompilerNotFoundError, KernelError
from cocoll.failure import Purpose

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.kernels.build import Kernel, KernelSpec

__all__ = ["load_on_all_ranks"]


def load_on_all_ranks(comm: Communicator, spec: KernelSpec, *, inside: bool = True) -> Kernel:
    """Get a kernel, or raise on all ranks.

    Whether the catalogue has it is the same on every rank; whether a compiler is there need not be,
    so what is compiled is agreed on.

    Parameters
    ----------
    comm : Communicator
        All its ranks call this.
    spec : KernelSpec
        The same on all ranks.
    inside : bool, default True
        Whether the caller is inside a call of the communicator already.
    """
    if comm._kernels.is_built_in(spec):
        return comm._kernels.load(spec)
    outcome: Kernel | CocollError
    try:
        outcome = comm._kernels.load(spec)
    except CocollError as error:
        outcome = error
    report = f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, CocollError) else ""
    reports = _core.exchange(comm, Purpose.PREPARE, report.encode(), inside=inside)
    if isinstance(outcome, CocollError):
        raise outcome
    for rank, text in enumerate(reports):
        if text:
            name, _, message = text.decode().partition(": ")
            kind = CompilerNotFoundError if name == "CompilerNotFoundError" else KernelError
            raise kind(f"rank {rank} could not prepare the epilogue: {message}")
    return outcome
