"""What an implementation has to offer to be measured on several hosts."""

from __future__ import annotations

import abc
import contextlib
from typing import TYPE_CHECKING

from benchmarks.common.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HostsRunner"]


class HostsRunner(Runner):
    """One implementation on one rank, beside others in the same process."""

    @abc.abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks."""

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Set up what this implementation wants, for as long as it has its turn."""
        yield

    def predicted_seconds(self, form: str) -> float | None:
        """Give what the implementation itself expects of `form`; None where it does not say."""
        del form
        return None
