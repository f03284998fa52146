"""What ranks tell each other before anything runs on their GPUs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cocoll import _core
from cocoll.errors import UnsupportedError
from cocoll.failure import Purpose

if TYPE_CHECKING:
    from cocoll.communicator import Communicator

__all__ = ["agree", "compare"]


def agree(comm: Communicator, data: bytes, problem: str) -> list[bytes]:
    """Give every rank's bytes to all; all raise if one has a problem.

    Parameters
    ----------
    comm : Communicator
        Of the ranks.
    data : bytes
        This rank's.
    problem : str
        What went wrong here, or nothing.

    Returns
    -------
    list of bytes
        In rank order.

    Raises
    ------
    UnsupportedError
        Some rank has a problem.
    """
    payloads, found = compare(comm, data, problem)
    if found:
        raise UnsupportedError(found)
    return payloads


def compare(comm: Communicator, data: bytes, problem: str) -> tuple[list[bytes], str]:
    """Give every rank's bytes to all, and the first problem that a rank has.

    Parameters
    ----------
    comm : Communicator
        Of the ranks.
    data : bytes
        This rank's.
    problem : str
        What went wrong here, or nothing.

    Returns
    -------
    tuple of list of bytes and str
        In rank order; the problem with its rank, or nothing.
    """
    message = json.dumps(problem).encode() + b"\n" + data
    everyone = _core.exchange(comm, Purpose.OPEN_DEVICE, message, inside=comm._is_entered())
    parts = [entry.split(b"\n", 1) for entry in everyone]
    told = [(rank, json.loads(text)) for rank, (text, _) in enumerate(parts)]
    found = next((f"rank {rank}: {text}" for rank, text in told if text), "")
    return [payload for _, payload in parts], found
