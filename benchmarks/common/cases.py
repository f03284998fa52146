"""What is measured: groups of cases that share rounds, and the rows that hold their results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ITEMSIZE_BYTES", "Entry", "Group", "View"]

ITEMSIZE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Group:
    """One operation at one size on one number of ranks: everything timed side by side.

    Attributes
    ----------
    suite, operation, dtype : str
        Names, as in the JSON.
    ranks, elements : int
        World size; elements of one rank's input.
    calls_per_sample : int
        Above 1 a sample of cocoll is a loop of so many calls back to back (small sizes), without
        rewriting; for the peers, and with 0 for all, the driver chooses so that slow ones do not
        stall.
    hosts : int
        How many hosts the ranks are on.
    """

    suite: str
    operation: str
    dtype: str
    ranks: int
    elements: int
    calls_per_sample: int = 1
    hosts: int = 1

    @property
    def input_bytes(self) -> int:
        """Bytes of one rank's input."""
        return self.elements * ITEMSIZE_BYTES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        """Give the fields for a message to a rank."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Group:
        """Rebuild a group from :meth:`to_json`."""
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Entry:
    """One way in which a job can carry out a group's operation.

    Attributes
    ----------
    form : str
        The way: in place, out of place, by reduce-scatter ... Passed back to the job to time it.
    implementation : str
        Whose time it is, as in the JSON.
    row : str
        What competes: of all forms of one implementation in one row the faster counts.
    """

    form: str
    implementation: str
    row: str


@dataclass(frozen=True, slots=True)
class View:
    """One case: how a group's rows are read together.

    Attributes
    ----------
    case : str
        The case's name in the JSON.
    memory : str
        ``"symmetric"`` or ``"ordinary"``: how cocoll's arrays were made.
    cocoll_row : str
        The row that holds cocoll's samples for this case.
    limit_row : str or None
        The row of the bare loop that it is compared with.
    peers : tuple of str
        The implementations that must have run, with equal results, for a ratio to be given.
    yardsticks : tuple of str
        Implementations that are reported, but are no peers.
    """

    case: str
    memory: str
    cocoll_row: str
    limit_row: str | None
    peers: tuple[str, ...]
    yardsticks: tuple[str, ...] = ()
